from vllm.config.cache import CacheConfig
from vllm.config.kernel import KernelConfig
from vllm.config.model import (
    CompilationConfig,
    ModelConfig,
)
