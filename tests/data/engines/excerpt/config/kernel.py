from typing import Literal

from vllm.config.utils import config

MoEBackend = Literal["auto", "triton"]

LinearBackend = Literal[
    "auto",
    "marlin",
    "cutlass",
]


@config
class KernelConfig:
    moe_backend: MoEBackend = "auto"
    linear_backend: LinearBackend = "auto"
