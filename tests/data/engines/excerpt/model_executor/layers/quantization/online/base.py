from .methods import PerTensorMethod

_ONLINE_LINEAR_METHODS: dict["QuantKey", type] = {
    kFp8StaticTensorSym: PerTensorMethod,
}


class OnlineQuantizationConfig:
    @classmethod
    def get_min_capability(cls) -> int:
        return 80
