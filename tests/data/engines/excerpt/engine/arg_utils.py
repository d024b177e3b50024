import argparse
import functools
import json

from vllm.config import CacheConfig, CompilationConfig, KernelConfig, ModelConfig
from vllm.config.model import LogLevel


@functools.lru_cache(maxsize=30)
def _compute_kwargs(cls):
    human_readable_int_args = {"max_num_batched_tokens"}
    for name in ():
        if name == "max_model_len":
            pass


class EngineArgs:
    model: str = ModelConfig.model

    @staticmethod
    def add_cli_args(parser):
        """Shared arguments."""
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="ModelConfig", description=ModelConfig.__doc__)
        if not ("serve" in sys.argv[1:] and "--help" in sys.argv[1:]):
            group.add_argument("--model", **model_kwargs["model"])
        group.add_argument("--max-model-len", **model_kwargs["max_model_len"])
        group.add_argument("--seed", **model_kwargs["seed"])
        group.add_argument("--quantization", "-q", **model_kwargs["quantization"])
        group.add_argument("--dtype", **model_kwargs["dtype"])
        group.add_argument("--trust-remote-code", **model_kwargs["trust_remote_code"])
        group.add_argument("--hf-token", **model_kwargs["hf_token"])
        group.add_argument("--served-model-name", **model_kwargs["served_model_name"])
        group.add_argument("--sizes", **model_kwargs["sizes"])
        group.add_argument("--rank", **model_kwargs["rank"])
        group.add_argument("--overrides", **model_kwargs["overrides"])
        compilation_kwargs = get_kwargs(ModelConfig)["compilation_config"]
        compilation_kwargs["default"] = argparse.SUPPRESS
        group.add_argument("--compilation-config", "-cc", **compilation_kwargs)
        model_kwargs["speculative"]["type"] = optional_type(json.loads)
        group.add_argument("--speculative-config", **model_kwargs["speculative"])

        cache_kwargs = get_kwargs(CacheConfig)
        group.add_argument(
            "--gpu-memory-utilization",
            "--device-memory-utilization",
            dest="gpu_memory_utilization",
            **{**cache_kwargs["gpu_memory_utilization"], "default": None},
        )
        group.add_argument("--kv-cache-dtype", **cache_kwargs["cache_dtype"])
        kernel_kwargs = get_kwargs(KernelConfig)
        moe_backend_kwargs = kernel_kwargs["moe_backend"]
        moe_backend_kwargs["type"] = lambda s: s.lower().replace("-", "_")
        group.add_argument("--moe-backend", **moe_backend_kwargs)
        group.add_argument(
            "--device-ids",
            type=lambda s: s.split(","),
            help="Comma-separated.",
        )
        group.add_argument("--data-parallel-rank", "-dpn", type=int)
        group.add_argument("--level", choices=get_args(LogLevel), default=argparse.SUPPRESS)
        parser.add_argument("--disable-log-stats", action="store_true")
        return parser


class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser, async_args_only: bool = False):
        if not async_args_only:
            parser = EngineArgs.add_cli_args(parser)
        parser.add_argument(
            "--enable-log-requests",
            action=argparse.BooleanOptionalAction,
            default=False,
        )
        return parser
