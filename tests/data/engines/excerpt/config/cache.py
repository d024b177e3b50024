from typing import Literal, get_args

from pydantic import Field

from vllm.config.utils import config

CacheDType = Literal[
    "auto",
    "fp8",
    # a comment between
    "nvfp4",
]

KV_CACHE_DTYPES: list[str] = list(get_args(CacheDType))


def register_kv_cache_dtype(name: str):
    KV_CACHE_DTYPES.append(name)


@config
class CacheConfig:
    """Configuration of the KV cache."""

    @property
    def device_memory_utilization(
        self,
    ) -> float:
        return self.gpu_memory_utilization

    gpu_memory_utilization: float = Field(default=0.92, gt=0, le=1)
    cache_dtype: CacheDType | str = "auto"

    def _check(self) -> None:
        not_a_field: int = 3
