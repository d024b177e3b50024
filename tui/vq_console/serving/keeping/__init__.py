"""The parts of the keeper: small, standard library only, without dataclasses, enum or typing at run time.

Every module here is loaded by a process that lives as long as its server, beside each server, so what it imports is
counted in memory. Nothing here may import from the rest of the console except its siblings.
"""
