from .awq import AWQConfig as Parent


class NewFp8Config(Parent):
    pass
