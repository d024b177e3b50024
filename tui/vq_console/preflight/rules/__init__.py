"""The rules: each a small declared object that looks at one situation and says what it knows.

`base` has the object and its registry, `knowledge` the lists read from vLLM's source, the other modules one theme
each. A rule never fires on what is unknown, in no version outside its span, and touches nothing.
"""
