from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

from vllm.config.utils import config
from vllm.model_executor.layers.quantization import QuantizationMethods

ModelDType = Literal["auto", "bfloat16"]
Ranks = Literal[1, 8]
Overrides = dict[str, Any] | Callable[[Any], Any]
LogLevel = Literal["INFO", "DEBUG"]


@config
class CompilationConfig:
    mode: int = 3


class BaseModelConfig:
    seed: int = 0


@config
class ModelConfig(BaseModelConfig):
    """Configuration of the model."""

    model: str = "some/model"
    """Name or
    path."""
    max_model_len: int = None
    quantization: QuantizationMethods | str | None = None
    dtype: ModelDType = "auto"
    trust_remote_code: bool = False
    hf_token: bool | str | None = None
    served_model_name: str | list[str] | None = None
    sizes: Optional[list[int]] = None
    rank: Ranks = 8
    overrides: Overrides = None
    compilation_config: Annotated[CompilationConfig, "x"] = None
    speculative: Any = None
