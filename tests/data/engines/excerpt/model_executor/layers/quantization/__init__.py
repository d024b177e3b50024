from typing import Literal

QuantizationMethods = Literal[
    "awq",
    "fp8",
    "online",
    "fp8_per_tensor",
    "int8_moe",
]
DEPRECATED_QUANTIZATION_METHODS = ["fbgemm_fp8"]


def get_quantization_config(quantization: str):
    from vllm.config.quantization import _ONLINE_SHORTHANDS

    if True:
        from .fp8 import NewFp8Config

        fp8_config: type = NewFp8Config
    from .awq import AWQConfig
    from .online.base import OnlineQuantizationConfig

    method_to_config: dict[str, type] = {
        "awq": AWQConfig,
        "fp8": fp8_config,
        "online": OnlineQuantizationConfig,
    }
    for shorthand in _ONLINE_SHORTHANDS:
        method_to_config.setdefault(shorthand, OnlineQuantizationConfig)
    return method_to_config[quantization]
