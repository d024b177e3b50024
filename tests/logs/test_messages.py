"""Messages of vLLM and its libraries that no recorded log holds, each inside a log of its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from vq_console.logs.explain import explain_lines


@dataclass(frozen=True)
class Made:
    """A log with one message in it, and the line of the message (0: several lines are right)."""

    lines: tuple[str, ...]
    root: int


_LOAD = (
    ("/x/vllm/v1/worker/gpu_worker.py", "load_model"),
    ("/x/vllm/model_executor/model_loader/default_loader.py", "load_weights"),
)


def _arguments(text: str) -> str:
    return f"(APIServer pid=1) INFO 11-03 09:00:00 [api_utils.py:286] non-default args: {text}"


def engine(
    message: str,
    *frames: tuple[str, str],
    ready: bool = False,
    process: str = "EngineCore",
    asked: str = "{'model': 'a/b'}",
) -> Made:
    """An engine process that failed to start, or died while serving."""
    prefix = f"({process} pid=20) ERROR 11-03 09:00:10 [core.py:1510] "
    lines = [_arguments(asked)]
    if ready:
        lines.append("(APIServer pid=1) INFO:     Application startup complete.")
    lines += [
        prefix + ("EngineCore encountered a fatal error." if ready else "EngineCore failed to start."),
        prefix + "Traceback (most recent call last):",
        prefix + '  File "/x/vllm/v1/engine/core.py", line 1482, in run_engine_core',
        prefix + "    engine_core = EngineCoreProc(*args)",
    ]
    for file, function in frames:
        lines += [f'{prefix}  File "{file}", line 5, in {function}', prefix + "    return func(*args)"]
    root = len(lines) + 1
    parts = message.split("\n")
    lines += [prefix + part for part in parts]
    if ready:
        tail = "(APIServer pid=1) ERROR 11-03 09:00:10 [async_llm.py:714] "
        lines += [
            tail + "AsyncLLM output_handler failed.",
            tail
            + "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for"
            " the root cause.",
        ]
    else:
        lines += [
            "Traceback (most recent call last):",
            '  File "/usr/local/bin/vllm", line 10, in <module>',
            "    sys.exit(main())",
            (
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
                "{'EngineCore': 1}"
            ),
        ]
    return Made(tuple(lines), root if len(parts) == 1 else 0)


def api(message: str, *frames: tuple[str, str], asked: str = "{'model': 'a/b'}") -> Made:
    """The API server, which dies with a bare traceback."""
    lines = [
        _arguments(asked),
        "Traceback (most recent call last):",
        '  File "/usr/local/bin/vllm", line 10, in <module>',
        "    sys.exit(main())",
    ]
    for file, function in frames:
        lines += [f'  File "{file}", line 5, in {function}', "    return func(*args)"]
    root = len(lines) + 1
    parts = message.split("\n")
    return Made((*lines, *parts), root if len(parts) == 1 else 0)


def config(message: str, owner: str = "ModelConfig") -> Made:
    """A configuration that pydantic reports."""
    made = api(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {owner}\n"
        f"  Value error, {message} "
        f"[type=value_error, input_value=ArgsKwargs((), {{'model': ...}}), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
    )
    return Made(made.lines, 6)


def argparse(message: str) -> Made:
    """A command line that is refused."""
    return Made(("usage: vllm serve [model_tag] [options]", message), 2)


def bare(*lines: str) -> Made:
    """Lines as they are."""
    return Made(lines, 0)


MESSAGES: Sequence[tuple[str, Made]] = (
    (
        "cli-unrecognized-argument",
        argparse("vllm: error: unrecognized arguments: --enable-reasoning --guided-decoding-backend xgrammar"),
    ),
    ("cli-unrecognized-argument", argparse("api_server.py: error: unrecognized arguments: --use-v2-block-manager")),
    (
        "cli-unrecognized-argument",
        argparse("vllm serve: error: ambiguous option: --max-num could match --max-num-seqs, --max-num-batched-tokens"),
    ),
    (
        "cli-invalid-choice",
        argparse(
            "vllm serve: error: argument --dtype: invalid choice: 'int8' (choose from 'auto', 'half', 'float16', "
            "'bfloat16', 'float', 'float32')"
        ),
    ),
    (
        "cli-invalid-choice",
        argparse(
            "vllm serve: error: argument --moe-backend: invalid choice: 'trtllm' (choose from 'auto', 'triton', "
            "'deep_gemm', 'cutlass', 'flashinfer_trtllm')"
        ),
    ),
    (
        "cli-invalid-choice",
        argparse(
            "vllm serve: error: argument --load-format: invalid choice: 'safetensor' (choose from 'auto', 'pt', "
            "'safetensors')"
        ),
    ),
    (
        "quant-method-unknown",
        argparse(
            "api_server.py: error: argument --quantization/-q: invalid choice: 'w4a16' (choose from 'aqlm', "
            "'awq', 'deepspeedfp', 'fp8')"
        ),
    ),
    (
        "cli-invalid-value",
        argparse("vllm serve: error: argument --max-model-len: invalid human_readable_int value: '8kk'"),
    ),
    ("cli-invalid-value", argparse("vllm serve: error: argument --tensor-parallel-size/-tp: invalid int value: 'two'")),
    ("cli-invalid-value", argparse("vllm serve: error: argument --gpu-memory-utilization: expected one argument")),
    (
        "cli-invalid-json",
        argparse(
            "vllm serve: error: argument --compilation-config/-cc: Value {cudagraph_mode: NONE} cannot be "
            "converted to <function loads at 0x7f>."
        ),
    ),
    (
        "cli-invalid-json",
        argparse("vllm serve: error: argument --hf-overrides: invalid loads value: '{rope_scaling: yarn}'"),
    ),
    (
        "cli-invalid-json",
        argparse(
            "vllm serve: error: argument --limit-mm-per-prompt: Value image=4 cannot be converted to <function "
            "loads at 0x7f06f72e51c0>."
        ),
    ),
    (
        "cli-invalid-value",
        config(
            (
                "max_num_batched_tokens (2048) is smaller than max_model_len (8192). This effectively limits the "
                "maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please "
                "increase max_num_batched_tokens or decrease max_model_len."
            ),
            "SchedulerConfig",
        ),
    ),
    (
        "cli-invalid-value",
        config("max_num_batched_tokens (128) must be greater than or equal to max_num_seqs (256).", "SchedulerConfig"),
    ),
    (
        "cli-invalid-value",
        config(
            (
                "World size (4) is larger than the number of available GPUs (2) in this node. If this is intentional "
                "and you are using: - ray, set '--distributed-executor-backend ray'."
            ),
            "ParallelConfig",
        ),
    ),
    ("cli-invalid-value", api("ValueError: num_speculative_tokens was provided but without speculative model.")),
    (
        "cli-invalid-choice",
        config("Invalid kv_cache_dtype: 'int8'. Valid values are: ['auto', 'bfloat16', 'fp8']", "CacheConfig"),
    ),
    (
        "cli-invalid-choice",
        api(
            "ValueError: Unknown attention backend: 'FLASH_INFER'. Valid options are: FLASH_ATTN, FLASHINFER, "
            "TRITON_ATTN"
        ),
    ),
    ("quant-method-unknown", config("Unknown quantization method: int8. Must be one of ['awq', 'fp8'].")),
    (
        "quant-method-unknown",
        config("Unknown quantization method: nvfp4. Must be one of ['awq', 'fp8', 'modelopt_fp4']."),
    ),
    ("quant-plugin-missing", config("Unknown quantization method: gguf. Must be one of ['awq', 'fp8'].")),
    (
        "quant-plugin-missing",
        engine(
            (
                "ImportError: Please install bitsandbytes>=0.46.1 via `pip install bitsandbytes>=0.46.1` to use "
                "bitsandbytes quantizer."
            ),
            *_LOAD,
        ),
    ),
    ("quant-plugin-missing", api("ValueError: Load format `gguf` is not supported")),
    (
        "quant-plugin-missing",
        argparse(
            "vllm serve: error: argument --load-format: invalid choice: 'bitsandbytes' (choose from 'auto', 'pt')"
        ),
    ),
    (
        "quant-plugin-missing",
        engine(
            (
                "ImportError: The package `amd-quark` is required to use MX-FP4 models. Please install it with `pip "
                "install amd-quark`."
            ),
            *_LOAD,
        ),
    ),
    (
        "plugin-version-conflict",
        api(
            "RuntimeError: Only a single TORCH_LIBRARY can be used to register the namespace _C; please put all "
            "of your definitions in a single TORCH_LIBRARY block."
        ),
    ),
    (
        "quant-checkpoint-conflict",
        config(
            "Quantization method specified in the model config (awq) does not match the quantization method "
            "specified in the `quantization` argument (gptq)."
        ),
    ),
    ("quant-checkpoint-conflict", config("Cannot find the config file for awq", "VllmConfig")),
    (
        "quant-checkpoint-conflict",
        api(
            "TypeError: CompressedTensorsConfig.__init__() missing 3 required positional arguments: "
            "'target_scheme_map', 'ignore', and 'quant_format'"
        ),
    ),
    (
        "quant-method-deprecated",
        config(
            "('The quantization method %s is deprecated and will be removed in future versions of vLLM. To "
            "bypass, set `--allow-deprecated-quantization`.', 'fp_quant')"
        ),
    ),
    (
        "quant-unsupported-sm",
        config(
            (
                "The quantization method fp_quant is not supported for the current GPU. Minimum capability: 100. "
                "Current capability: 90."
            ),
            "VllmConfig",
        ),
    ),
    (
        "quant-unsupported-sm",
        engine(
            (
                "RuntimeError: Quantization scheme is not supported for the current GPU. Min capability: 89. Current "
                "capability: 80."
            ),
            *_LOAD,
        ),
    ),
    ("quant-unsupported-sm", config("awq quantization is currently not supported in tpu.")),
    (
        "quant-unsupported-sm",
        engine(
            "RuntimeError: Int8 not supported on SM120. Use FP8 quantization instead, or run on older arch (SM < 100).",
            ("/x/vllm/_custom_ops.py", "cutlass_scaled_mm"),
        ),
    ),
    (
        "quant-unsupported-sm",
        engine(
            (
                "ValueError: torchao FP8 activation quantization config 'Float8DynamicActivation' requires GPU "
                "compute capability >= 8.9 (e.g., NVIDIA Ada Lovelace / Hopper or AMD MI300+)."
            ),
            *_LOAD,
        ),
    ),
    (
        "quant-config-invalid",
        argparse("vllm serve: error: argument --quantization-config: 1 validation error for QuantizationConfigArgs"),
    ),
    (
        "quant-config-invalid",
        config("online shorthand 'nvfp4_per_token' does not define a linear spec", "QuantizationConfigArgs"),
    ),
    (
        "quant-config-invalid",
        api(
            "ValueError: quantization_config.targets is mutually exclusive with quantization_config.linear/moe, "
            "got targets={}, linear=fp8."
        ),
    ),
    (
        "quant-config-invalid",
        api(
            "ValueError: quantization_config is only supported when quantization is one of "
            "['online', 'fp8_per_tensor'], got quantization=awq"
        ),
    ),
    (
        "quant-tp-shape-mismatch",
        engine(
            "ValueError: Weight input_size_per_partition = 9472 is not divisible by weight quantization block_k = 128.",
            *_LOAD,
            process="Worker_TP1",
        ),
    ),
    (
        "quant-tp-shape-mismatch",
        engine(
            (
                "ValueError: The input size is not aligned with the quantized weight shape. This can be caused by "
                "too large tensor parallel size."
            ),
            *_LOAD,
            process="Worker_TP0",
        ),
    ),
    (
        "quant-tp-shape-mismatch",
        engine(
            "ValueError: The input_size of down's weight = 192 is not divisible by weight quantization block_k = 128.",
            *_LOAD,
        ),
    ),
    (
        "quant-tp-shape-mismatch",
        engine(
            (
                "ValueError: Weight output_size_per_partition = 4400 is not divisible by  min_thread_n = 64. "
                "Consider reducing tensor_parallel_size or running with --quantization gptq."
            ),
            *_LOAD,
        ),
    ),
    (
        "quant-tp-shape-mismatch",
        engine(
            (
                "ValueError: CompressedTensors WNA16 MoE with static group scales requires the MoE intermediate size "
                "per tensor-parallel rank (96) to be divisible by group_size (128)."
            ),
            *_LOAD,
        ),
    ),
    (
        "quant-tp-shape-mismatch",
        engine("ValueError: MXFP8 requires input_size_per_partition (2720) to be divisible by 32.", *_LOAD),
    ),
    (
        "quant-tp-shape-mismatch",
        engine(
            (
                "ValueError: Group size (128) must evenly divide both hidden size (2048) and intermediate size per "
                "partition (96)."
            ),
            *_LOAD,
        ),
    ),
    (
        "quant-ignore-mismatch",
        engine(
            (
                "ValueError: Detected some but not all shards of model.layers.0.self_attn.qkv_proj are quantized. "
                "All shards of fused layers to have the same precision."
            ),
            *_LOAD,
        ),
    ),
    (
        "kernel-not-available",
        engine(
            (
                "ValueError: Failed to find a kernel that can implement the NVFP4 linear layer. Reasons: \n "
                "FlashInferCutlassNvFp4LinearKernel: FlashInfer required"
            ),
            *_LOAD,
        ),
    ),
    (
        "kernel-not-available",
        engine("NotImplementedError: No FP8 MoE backend supports the deployment configuration.", *_LOAD),
    ),
    (
        "kernel-not-available",
        engine("NotImplementedError: No NvFp4 MoE backend supports the deployment configuration.", *_LOAD),
    ),
    (
        "kernel-not-available",
        engine(
            (
                "NotImplementedError: No compressed-tensors compatible scheme was found for "
                "layer_name=model.layers.0.mlp.down_proj, weight_quant=num_bits=3, input_quant=None"
            ),
            *_LOAD,
        ),
    ),
    (
        "kernel-not-available",
        engine(
            (
                "NotImplementedError: No compiled cutlass_scaled_mm for a compute capability less than CUDA device "
                "capability: 75"
            ),
            ("/x/vllm/_custom_ops.py", "cutlass_scaled_mm"),
        ),
    ),
    (
        "kernel-not-available",
        engine("AttributeError: '_OpNamespace' '_C' object has no attribute 'gptq_marlin_repack'", *_LOAD),
    ),
    (
        "kernel-not-available",
        engine("NotImplementedError: Could not run '_C::rms_norm' with arguments from the 'CUDA' backend."),
    ),
    (
        "backend-override-unsupported",
        engine(
            "ValueError: Failed to find a kernel that can implement the ScaledMM linear layer. Reasons: ",
            *_LOAD,
            asked="{'model': 'a/b', 'linear_backend': 'flashinfer_cutlass'}",
        ),
    ),
    (
        "backend-override-unsupported",
        engine(
            "ValueError: moe_backend='cutlass' is not supported for MXFP4 MoE. Expected one of ['marlin', 'triton'].",
            *_LOAD,
        ),
    ),
    (
        "backend-override-unsupported",
        engine(
            "ValueError: --linear-backend=machete was requested but no 'machete' kernel exists for NVFP4 layers.",
            *_LOAD,
        ),
    ),
    (
        "backend-override-unsupported",
        engine(
            (
                "ValueError: Selected backend AttentionBackendEnum.FLASHMLA is not valid for this configuration. "
                "Reason: ['compute capability not supported']"
            ),
            *_LOAD,
        ),
    ),
    (
        "backend-override-unsupported",
        engine(
            (
                "ValueError: FP8 MoE backend FLASHINFER_TRTLLM does not support the deployment configuration since "
                "kernel does not support current device cuda."
            ),
            *_LOAD,
        ),
    ),
    (
        "fp8-kv-unsupported-arch",
        engine(
            (
                "ValueError: FP8 KV cache is not supported by the Triton attention backend on NVIDIA GeForce RTX "
                "3090 (compute capability 8.6); native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype "
                "bfloat16."
            ),
            *_LOAD,
        ),
    ),
    (
        "fp8-kv-unsupported-arch",
        engine("ValueError: --kv-cache-dtype fp8 is not supported by the CPU attention backend on this host.", *_LOAD),
    ),
    (
        "fp8-kv-unsupported-arch",
        engine(
            "NotImplementedError: FP8 KV cache requires FA3 on SM90, FA4 with head size 512 on SM90, or FA4 on SM100",
            *_LOAD,
        ),
    ),
    (
        "fp8-kv-unsupported-arch",
        config(
            (
                "nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention) backends. Please use a "
                "different --kv-cache-dtype"
            ),
            "VllmConfig",
        ),
    ),
    (
        "deepgemm-incompatible",
        engine(
            (
                "RuntimeError: DeepGEMM backend is not available. Please install the `deep_gemm` package to enable "
                "FP8 kernels."
            ),
            ("/x/vllm/utils/deep_gemm.py", "_missing"),
        ),
    ),
    (
        "deepgemm-incompatible",
        engine(
            (
                "RuntimeError: Failed: Assertion error /workspace/deep_gemm/csrc/jit/compiler.hpp:120 'major > 12 or "
                "minor >= 3'"
            ),
            ("/x/deep_gemm/__init__.py", "fp8_gemm_nt"),
        ),
    ),
    (
        "deepgemm-incompatible",
        engine(
            "RuntimeError: Assertion error (csrc/apis/../jit_kernels/impls/../../jit/kernel_runtime.hpp:45): "
            "exit_code == 0",
            ("/x/vllm/model_executor/layers/quantization/fp8.py", "apply"),
        ),
    ),
    (
        "deepgemm-incompatible",
        engine(
            "RuntimeError: Assertion error (csrc/apis/layout.hpp:59): Unknown SF transformation",
            ("/x/vllm/utils/deep_gemm.py", "transform_sf_into_required_layout"),
        ),
    ),
    (
        "kernel-crash-arch",
        engine(
            "RuntimeError: cutlass_gemm_caller.cuh:60, Error Internal", ("/x/vllm/_custom_ops.py", "cutlass_scaled_mm")
        ),
    ),
    (
        "flashinfer-jit-failed",
        engine("RuntimeError: SM 12.x requires CUDA >= 12.9", ("/x/flashinfer/compilation_context.py", "__init__")),
    ),
    (
        "kernel-not-available",
        engine(
            "RuntimeError: Currently, block scaled fp8 gemm is not implemented for Blackwell",
            ("/x/vllm/_custom_ops.py", "cutlass_scaled_mm"),
        ),
    ),
    (
        "kernel-not-available",
        engine(
            "ValueError: Marlin does not support weight_bits = uint3b4. Only types = [] are supported (for group_size ="
            " 128, device_capability = 120, zp = False)."
        ),
    ),
    (
        "quant-tp-shape-mismatch",
        engine("RuntimeError: size_k must divisible by BLOCK_SIZE_K", ("/x/vllm/_custom_ops.py", "moe_wna16_gemm")),
    ),
    ("kernel-not-available", engine("NotImplementedError: FlashMLA is only supported on Hopper GPUs")),
    (
        "backend-override-unsupported",
        engine(
            "NotImplementedError: FlashMLA is only supported on Hopper GPUs",
            asked="{'model': 'a/b', 'attention_backend': 'FLASHMLA'}",
        ),
    ),
    (
        "quant-unsupported-sm",
        engine("ValueError: Current platform does not support NVFP4 quantization. Please use Blackwell and above."),
    ),
    (
        "cli-invalid-value",
        engine(
            "ValueError: BitsAndBytes quantization and QLoRA adapter only support 'bitsandbytes' load format, but got "
            "auto"
        ),
    ),
    ("model-path-not-found", engine("ValueError: No supported config format found in /models/x.")),
    ("no-kernel-image", engine("RuntimeError: Triton Error [CUDA]: device kernel image is invalid")),
    (
        "host-oom-killed",
        Made(
            ("ERROR 07-19 07:31:57 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 4 died, exit code: -9",),
            1,
        ),
    ),
    (
        "worker-died",
        Made(
            (
                "ERROR 07-19 07:31:57 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 4 died, exit code: "
                "-11",
            ),
            1,
        ),
    ),
    ("driver-too-old", engine("RuntimeError: CUDA driver error: no CUDA-capable device is detected")),
    ("package-env-broken", engine("AssertionError: Torch not compiled with CUDA enabled")),
    ("transformers-too-new", engine("AttributeError: 'Qwen2Config' object has no attribute 'rope_theta'")),
    (
        "transformers-too-new",
        engine("ImportError: cannot import name 'LogitsWarper' from 'transformers' (/x/transformers/__init__.py)"),
    ),
    (
        "transformers-too-new",
        engine(
            "ImportError: cannot import name 'ALLOWED_LAYER_TYPES' from 'transformers.configuration_utils' "
            "(/x/transformers/configuration_utils.py)"
        ),
    ),
    (
        "kernel-crash-arch",
        engine(
            "RuntimeError: [FP4 gemm Runner] Failed to run cutlass FP4 gemm on sm120. Error: Error Internal",
            ("/x/flashinfer/gemm.py", "mm_fp4"),
        ),
    ),
    (
        "kernel-crash-arch",
        engine(
            "RuntimeError: Failed to initialize cutlass TMA WS grouped gemm. Error: Error Internal",
            ("/x/flashinfer/fused_moe/core.py", "cutlass_fused_moe"),
        ),
    ),
    (
        "kernel-crash-arch",
        engine("torch.AcceleratorError: CUDA error: an illegal instruction was encountered", ready=True),
    ),
    (
        "ptxas-arch-unsupported",
        engine(
            "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n`ptxas` "
            "stderr:\nptxas fatal   : Value 'sm_120a' is not defined for option 'gpu-name'"
        ),
    ),
    (
        "kv-cache-too-small",
        engine(
            "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be "
            "stored in KV cache (19856). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` "
            "when initializing the engine."
        ),
    ),
    (
        "kv-cache-too-small",
        engine(
            "ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache "
            "is needed, which is larger than the available KV cache memory (2.10 GiB). Based on the available "
            "memory, the estimated maximum model length is 15296."
        ),
    ),
    (
        "kv-cache-no-memory",
        engine(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine."
        ),
    ),
    (
        "gpu-memory-busy",
        engine(
            "ValueError: Free memory on device (3.05/23.64 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 21.28 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
            "processes."
        ),
    ),
    (
        "memory-profiling-interference",
        engine(
            "AssertionError: Error in memory profiling. Initial free memory 21.3 GiB, current free memory 22.9 "
            "GiB. This happens when other processes sharing the same container release GPU memory while vLLM is "
            "profiling during initialization."
        ),
    ),
    (
        "cuda-oom-load",
        engine(
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 540.00 MiB. GPU 0 has a total "
                "capacity of 15.60 GiB of which 300.00 MiB is free."
            ),
            *_LOAD,
        ),
    ),
    (
        "cuda-oom-load",
        engine(
            (
                "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total "
                "capacity of 21.98 GiB of which 102.44 MiB is free."
            ),
            ("/x/vllm/model_executor/models/llama.py", "__init__"),
            ("/x/vllm/model_executor/layers/linear.py", "create_weights"),
        ),
    ),
    (
        "cuda-oom-runtime",
        engine(
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
                "of 79.10 GiB of which 1.20 GiB is free."
            ),
            ("/x/vllm/v1/worker/gpu_model_runner.py", "execute_model"),
            ready=True,
        ),
    ),
    (
        "cuda-oom-graph-capture",
        engine(
            "RuntimeError: CUDA error: out of memory",
            ("/x/vllm/v1/worker/gpu_model_runner.py", "capture_model"),
            ("/x/vllm/compilation/cuda_graph.py", "__call__"),
        ),
    ),
    (
        "cuda-oom-sampler-warmup",
        engine(
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please "
            "try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
        ),
    ),
    (
        "host-oom-killed",
        bare(
            (
                "(EngineCore pid=826) ERROR 10-27 01:03:13 [multiproc_executor.py:315] Worker proc VllmWorker-1 died "
                "unexpectedly (exit code: -9), shutting down executor."
            ),
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        ),
    ),
    (
        "host-oom-killed",
        engine(
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 1207959552 bytes. Error code 12 (Cannot allocate memory)"
            ),
            *_LOAD,
        ),
    ),
    (
        "worker-died",
        bare(
            "(EngineCore pid=826) ERROR 10-27 01:03:13 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
            "unexpectedly (exit code: -6), shutting down executor."
        ),
    ),
    (
        "worker-died",
        bare(
            "ERROR 03-20 10:00:00 [multiproc_executor.py:140] Worker proc VllmWorker-3 died unexpectedly, "
            "shutting down executor."
        ),
    ),
    (
        "engine-ready-timeout",
        api(
            "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow "
            "weight loading for large models. Waited 1800s (configured by VLLM_ENGINE_READY_TIMEOUT_S)."
        ),
    ),
    (
        "nccl-shm-error",
        engine(
            "RuntimeError: Insufficient space in /dev/shm for message queue: 160 MiB required, 64 MiB free. "
            "Increase /dev/shm (e.g. --shm-size or --ipc=host)."
        ),
    ),
    (
        "nccl-error",
        engine(
            (
                "torch.distributed.DistBackendError: NCCL error in: "
                "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error (run with "
                "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function "
                "failed."
            ),
            ("/x/torch/distributed/distributed_c10d.py", "all_reduce"),
            process="Worker_TP0",
        ),
    ),
    (
        "nccl-error",
        engine(
            "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
            ("/x/vllm/distributed/device_communicators/pynccl.py", "__init__"),
        ),
    ),
    (
        "port-in-use",
        bare(
            "(APIServer pid=1) ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): "
            "address already in use"
        ),
    ),
    ("port-in-use", api("OSError: [Errno 98] Address already in use")),
    (
        "max-len-exceeds-model",
        config(
            "User-specified max_model_len (65536) is greater than the derived max_model_len "
            "(max_position_embeddings=32768 or model_max_length=None in model's config.json). To allow "
            "overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        ),
    ),
    (
        "tp-not-divisible",
        config("Total number of attention heads (28) must be divisible by tensor parallel size (8).", "VllmConfig"),
    ),
    (
        "tp-not-divisible",
        engine("AssertionError: 151655 is not divisible by 2", ("/x/vllm/distributed/utils.py", "ensure_divisibility")),
    ),
    (
        "dtype-unsupported-sm",
        engine(
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your NVIDIA "
            "GeForce RTX 2080 Ti GPU has compute capability 7.5. You can use float16 instead by explicitly "
            "setting the `dtype` flag in CLI, for example: --dtype=half."
        ),
    ),
    (
        "arch-unsupported",
        config(
            "Model architectures ['MyForCausalLM'] are not supported for now. Supported architectures: dict_keys(['A'])"
        ),
    ),
    ("arch-unsupported", config("The Transformers implementation of 'FooModel' is not compatible with vLLM.")),
    (
        "arch-removed",
        config(
            "Model architecture MotifForCausalLM was supported in vLLM until v0.10.2, and is not supported "
            "anymore. Please use an older version of vLLM if you want to use this model architecture."
        ),
    ),
    (
        "transformers-too-old",
        config(
            "The checkpoint you are trying to load has model type `qwen3_next` but Transformers does not "
            "recognize this architecture. This could be because of an issue with the checkpoint, or because your "
            "version of Transformers is out of date."
        ),
    ),
    (
        "transformers-too-old",
        api("ImportError: cannot import name 'Qwen3VLMoeConfig' from 'transformers' (/x/transformers/__init__.py)"),
    ),
    (
        "transformers-too-new",
        api(
            "AttributeError: LlamaTokenizerFast has no attribute all_special_tokens_extended. Did you mean: "
            "'num_special_tokens_to_add'?"
        ),
    ),
    (
        "transformers-too-new",
        api(
            "ImportError: cannot import name 'AutoModelForVision2Seq' from 'transformers' (/x/transformers/__init__.py)"
        ),
    ),
    (
        "tokenizer-load-failed",
        api(
            "OSError: Can't load tokenizer for '/models/x'. If you were trying to load it from "
            "'https://huggingface.co/models', make sure you don't have a local directory with the same name."
        ),
    ),
    (
        "tokenizer-load-failed",
        api(
            "Exception: data did not match any variant of untagged enum ModelWrapper at line 757281 column 3",
            ("/x/transformers/tokenization_utils_fast.py", "__init__"),
        ),
    ),
    (
        "tokenizer-load-failed",
        api("ValueError: Tokenizer class TokenizersBackend does not exist or is not currently imported."),
    ),
    (
        "trust-remote-code-required",
        api(
            "ValueError: The repository for /models/x contains custom code which must be executed to correctly "
            "load the model. You can inspect the repository content at https://hf.co/x.\nPlease pass the "
            "argument `trust_remote_code=True` to allow custom code to be run."
        ),
    ),
    (
        "trust-remote-code-required",
        config(
            "Loading THUDM/x requires you to execute the configuration file in that repo on your local machine. "
            "Make sure you have read the code there to avoid malicious use, then set the option "
            "`trust_remote_code=True` to remove this error."
        ),
    ),
    ("tool-parser-config", api("KeyError: 'invalid reasoning parser: qwen (chose from { deepseek_r1,qwen3 })'")),
    ("tool-parser-config", api("TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser")),
    (
        "checkpoint-weights-mismatch",
        engine(
            (
                "ValueError: Following weights were not initialized from checkpoint: "
                "{'model.layers.0.mlp.gate_up_proj.weight_scale'}"
            ),
            *_LOAD,
        ),
    ),
    ("checkpoint-weights-mismatch", engine("KeyError: 'layers.10.self_attn.qkv_proj.input_scale'", *_LOAD)),
    (
        "checkpoint-weights-mismatch",
        engine(
            (
                "AssertionError: Attempted to load weight (torch.Size([1024, 4096])) into parameter "
                "(torch.Size([1024, 2048]))"
            ),
            *_LOAD,
        ),
    ),
    (
        "checkpoint-weights-mismatch",
        engine("AssertionError", *_LOAD, ("/x/vllm/model_executor/layers/linear.py", "weight_loader")),
    ),
    (
        "checkpoint-weights-mismatch",
        engine("ValueError: There is no module or parameter named 'lm_head.weight_scale' in LlamaForCausalLM", *_LOAD),
    ),
    (
        "checkpoint-corrupt",
        engine("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", *_LOAD),
    ),
    (
        "checkpoint-corrupt",
        engine("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", *_LOAD),
    ),
    ("checkpoint-corrupt", engine("_pickle.UnpicklingError: invalid load key, 'v'.", *_LOAD)),
    (
        "checkpoint-corrupt",
        api("OSError: It looks like the config file at '/models/x/config.json' is not a valid JSON file."),
    ),
    ("weights-missing", engine("RuntimeError: Cannot find any model weights with `/models/x`", *_LOAD)),
    (
        "weights-missing",
        engine(
            "FileNotFoundError: Weight files referenced in index but missing: ['model-00002-of-00004.safetensors']",
            *_LOAD,
        ),
    ),
    (
        "weights-missing",
        engine('FileNotFoundError: No such file or directory: "/models/x/model-00003-of-00004.safetensors"', *_LOAD),
    ),
    (
        "model-path-not-found",
        api(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            "'namespace/repo_name': '/data/x/y'. Use `repo_type` argument if needed."
        ),
    ),
    (
        "model-path-not-found",
        config("Invalid repository ID or local directory specified: './x'.\nPlease verify the following requirements:"),
    ),
    (
        "hf-gated-repo",
        api(
            "OSError: You are trying to access a gated repo.\nMake sure to have access to it at "
            "https://huggingface.co/google/gemma-2-9b-it.\n403 Client Error. (Request ID: Root=1)"
        ),
    ),
    (
        "hf-gated-repo",
        api(
            "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-6)\nYour request to "
            "access model is awaiting a review from the repo authors."
        ),
    ),
    (
        "hf-repo-not-found",
        api(
            "OSError: Qwen/Qwen9 is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'"
        ),
    ),
    (
        "hf-offline-cache-miss",
        api(
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them "
            "in the cached files.\nCheck your internet connection or see how to run the library in offline mode"
        ),
    ),
    (
        "hf-offline-cache-miss",
        api(
            "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', "
            "port=443): Max retries exceeded with url: /api/models (Caused by NameResolutionError('Failed to "
            "resolve huggingface.co'))\"))"
        ),
    ),
    (
        "disk-full",
        engine(
            "RuntimeError: Data processing error: CAS service error : IO Error: No space left on device (os error 28)",
            *_LOAD,
        ),
    ),
    ("disk-full", engine("OSError: [Errno 28] No space left on device: '/root/.cache/vllm/torch_compile_cache/x'")),
    ("storage-io-error", engine("OSError: [Errno 116] Stale file handle: '/nfs/models/x.safetensors'", *_LOAD)),
    (
        "driver-too-old",
        engine(
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your "
            "GPU driver"
        ),
    ),
    (
        "driver-too-old",
        engine("torch.AcceleratorError: CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
    ),
    (
        "driver-too-old",
        bare(
            "(EngineCore pid=5) ERROR 11-03 09:00:10 [core.py:1] EngineCore failed to start.",
            (
                "(EngineCore pid=5) ERROR 11-03 09:00:10 [core.py:1] RuntimeError: Unexpected error from "
                "cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination"
            ),
        ),
    ),
    (
        "no-kernel-image",
        engine("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"),
    ),
    (
        "compiler-missing",
        engine(
            "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC "
            "environment variable or set triton.knobs.build.impl."
        ),
    ),
    (
        "compiler-missing",
        engine(
            "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpx/main.c', '-O3']' returned "
            "non-zero exit status 1."
        ),
    ),
    (
        "compiler-missing",
        bare(
            "/tmp/tmpx/cuda_utils.c:6:10: fatal error: Python.h: No such file or directory",
            "compilation terminated.",
            "(EngineCore pid=5) ERROR 11-03 09:00:10 [core.py:1] EngineCore failed to start.",
        ),
    ),
    (
        "flashinfer-jit-failed",
        engine(
            "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
            ("/x/flashinfer/jit/cpp_ext.py", "run_ninja"),
        ),
    ),
    (
        "flashinfer-jit-failed",
        bare(
            "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found",
            "ninja: build stopped: subcommand failed.",
            "(EngineCore pid=5) ERROR 11-03 09:00:10 [core.py:1] EngineCore failed to start.",
            "(EngineCore pid=5) ERROR 11-03 09:00:10 [core.py:1] RuntimeError: Ninja build failed. Ninja output:",
        ),
    ),
    (
        "flashinfer-jit-failed",
        engine(
            "RuntimeError: FlashInfer requires GPUs with sm75 or higher",
            ("/x/flashinfer/jit/core.py", "check_cuda_arch"),
        ),
    ),
    (
        "flashinfer-version-mismatch",
        engine(
            "RuntimeError: flashinfer-cubin version (0.6.8) does not match flashinfer version (0.7.2). Please "
            "install the same version of both packages. Set FLASHINFER_DISABLE_VERSION_CHECK=1 to bypass."
        ),
    ),
    (
        "torch-compile-failed",
        engine(
            "torch._dynamo.exc.BackendCompilerFailed: backend='<vllm.compilation.backends.VllmBackend object at "
            "0x7f>' raised:\nAssertionError: "
        ),
    ),
    (
        "torch-compile-failed",
        engine(
            "torch._inductor.exc.InductorError: LoweringException: TypeError: cannot determine truth value of "
            "Relational"
        ),
    ),
    (
        "triton-out-of-resources",
        engine(
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware "
            "limit: 101376. Reducing block sizes or `num_stages` may help."
        ),
    ),
    (
        "cuda-fork-reinit",
        engine(
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
            "must use the 'spawn' start method"
        ),
    ),
    (
        "cuda-fork-reinit",
        api(
            "RuntimeError: \n        An attempt has been made to start a new process before the\n        current "
            "process has finished its bootstrapping phase."
        ),
    ),
    (
        "gpu-xid-lost",
        bare(
            "(APIServer pid=1) INFO:     Application startup complete.",
            "[98765.4] NVRM: Xid (PCI:0000:65:00): 48, pid=1234, DBE (double bit error)",
            "(EngineCore pid=5) ERROR 11-03 09:00:10 [core.py:1] EngineCore encountered a fatal error.",
        ),
    ),
    ("gpu-xid-lost", engine("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", ready=True)),
    (
        "illegal-memory-access",
        engine("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", ready=True),
    ),
    ("illegal-memory-access", engine("RuntimeError: CUDA error: misaligned address", ready=True)),
    ("cpu-illegal-instruction", bare("bash: line 1:  4711 Illegal instruction     (core dumped) vllm serve a/b")),
    (
        "package-env-broken",
        api("ImportError: /x/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementation"),
    ),
    (
        "package-env-broken",
        api("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
    ),
    ("package-env-broken", api("ModuleNotFoundError: No module named 'vllm._C'")),
    (
        "package-env-broken",
        bare(
            "vllm 0.32.0 requires torch==2.13.0, but you have torch 2.9.1 which is incompatible.",
            "ImportError: cannot import name 'foo' from 'torch'",
        ),
    ),
    (
        "startup-interrupted",
        bare(
            "(APIServer pid=950) INFO 11-02 09:00:00 [api_utils.py:286] non-default args: {'model': 'a/b'}",
            "^CTraceback (most recent call last):",
            '  File "/usr/local/bin/vllm", line 10, in <module>',
            "KeyboardInterrupt: terminated",
        ),
    ),
    (
        "root-cause-not-in-log",
        bare(
            "(APIServer pid=1) ERROR 11-03 09:00:10 [async_llm.py:714] "
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) "
            "for the root cause."
        ),
    ),
    ("unknown", engine("ZeroDivisionError: division by zero", ("/x/vllm/v1/worker/gpu_worker.py", "init_device"))),
    (
        "unknown",
        engine(
            "AttributeError: 'FooConfig' object has no attribute 'bar'",
            ("/x/vllm/model_executor/models/foo.py", "__init__"),
        ),
    ),
    (
        "chat-template-missing",
        bare(
            "(APIServer pid=1) INFO:     Application startup complete.",
            "(APIServer pid=1) ERROR 11-03 09:00:10 [serving.py:1] Error in preprocessing prompt inputs",
            "(APIServer pid=1) ERROR 11-03 09:00:10 [serving.py:1] Traceback (most recent call last):",
            '(APIServer pid=1) ERROR 11-03 09:00:10 [serving.py:1]   File "/x.py", line 5, in f',
            (
                "(APIServer pid=1) ERROR 11-03 09:00:10 [serving.py:1] "
                "vllm.renderers.hf.ChatTemplateResolutionError: As of transformers v4.44, default chat template is "
                "no longer allowed, so you must provide a chat template if the tokenizer does not define one."
            ),
        ),
    ),
)


@pytest.mark.parametrize(("slug", "made"), MESSAGES, ids=[f"{i}-{slug}" for i, (slug, _made) in enumerate(MESSAGES)])
def test_message(slug: str, made: Made) -> None:
    diagnosis = explain_lines(made.lines).diagnosis
    assert diagnosis.slug == slug, diagnosis
    if made.root:
        assert diagnosis.root_line == made.root, diagnosis
    assert diagnosis.fixes


def test_most_diagnoses_of_failures_are_covered() -> None:
    assert len({slug for slug, _made in MESSAGES}) > 55
