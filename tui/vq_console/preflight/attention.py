"""The attention backend: which one vLLM's automatic choice takes, and which can serve a KV cache dtype.

Pure. Source: vLLM 0.20.2 to 0.33.0 platforms/cuda.py `_get_backend_priorities` and the `supports_*` methods of
v1/attention/backends.
"""

from __future__ import annotations

from vq_console.preflight.situation import Situation
from vq_console.preflight.versions import span

READ = span(">=0.20")
PLAIN = frozenset({"auto", "float16", "bfloat16"})
FP8 = frozenset({"fp8", "fp8_e4m3"})
PER_HEAD = frozenset({"int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"})
NVFP4 = frozenset({"nvfp4", "nvfp4_4over6"})
MLA_DATACENTER = frozenset({"FLASHINFER_MLA", "CUTLASS_MLA"})
MLA_NAMES = frozenset({"FLASHMLA", "FLASHINFER_MLA", "CUTLASS_MLA", "TRITON_MLA", "FLASH_ATTN_MLA"})


def order(situation: Situation) -> tuple[str, ...]:
    """The automatic order for non-MLA models."""
    rest = ("TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
    if situation.family == 10:
        return ("FLASHINFER", "FLASH_ATTN", *rest)
    return ("FLASH_ATTN", "FLASHINFER", *rest)


def refusal(situation: Situation, backend: str, dtype: str | None = None) -> str | None:
    """Why `backend` cannot serve this KV dtype on this GPU; None where it can, or where that is not known."""
    wanted = dtype or situation.kv_dtype
    sm = situation.sm
    if sm is None:
        return None
    if backend == "FLASH_ATTN":
        return _flash(situation, wanted, sm)
    if backend == "FLASHINFER":
        return _flashinfer(situation, wanted, sm)
    if backend == "TRITON_ATTN":
        return _triton(wanted, sm)
    if backend == "FLEX_ATTENTION":
        return None if wanted in PLAIN else "it keeps a 16-bit KV cache only"
    if backend == "TURBOQUANT":
        return None if wanted.startswith("turboquant") else "it serves turboquant KV dtypes only"
    if backend in MLA_NAMES:
        return _mla(situation, backend, wanted, sm)
    return None


def _flash(situation: Situation, wanted: str, sm: int) -> str | None:
    if sm < 80:
        return "FlashAttention needs SM 8.0"
    if wanted in PLAIN:
        return None
    if wanted not in FP8:
        return f"it does not know the KV dtype {wanted}"
    if situation.family in {9, 10}:
        return None
    return "FP8 KV cache requires FlashAttention 3 on SM 9.0 or FlashAttention 4 on SM 10.x"


def _flashinfer(situation: Situation, wanted: str, sm: int) -> str | None:
    lowest = 80 if span(">=0.32").holds(situation.version) else 75
    if sm < lowest:
        return f"FlashInfer needs SM {lowest // 10}.{lowest % 10}"
    if situation.installed is not None and "vllm" in situation.installed and not situation.package("flashinfer-python"):
        return "flashinfer-python is not installed"
    if wanted in PLAIN | FP8 | {"fp8_e5m2"}:
        return None
    if wanted in NVFP4:
        if situation.family == 10:
            return None
        if wanted == "nvfp4" and span(">=0.32").holds(situation.version) and sm >= 80:
            return None
        return "an NVFP4 KV cache needs the SM 10.x trtllm path"
    return f"it does not know the KV dtype {wanted}"


def _triton(wanted: str, sm: int) -> str | None:
    if wanted in FP8 | {"fp8_per_token_head"} and sm < 89:
        return "native FP8 (fp8e4nv) requires SM 8.9"
    if wanted in PLAIN | FP8 | PER_HEAD | {"fp8_e5m2"}:
        return None
    return f"it does not know the KV dtype {wanted}"


def _mla(situation: Situation, backend: str, wanted: str, sm: int) -> str | None:
    if situation.mla is False:
        return "it serves models with multi-head latent attention only"
    if backend in MLA_DATACENTER and situation.family != 10:
        return "it needs SM 10.x"
    if backend == "FLASHMLA" and situation.family not in {9, 10}:
        return "it needs SM 9.0 or 10.x"
    if backend == "FLASH_ATTN_MLA":
        if situation.family != 9:
            return "it needs SM 9.x"
        if wanted not in PLAIN:
            return "it keeps a 16-bit KV cache only"
    if wanted in NVFP4:
        return "an NVFP4 KV cache is not supported with MLA"
    return None


def can_hold(situation: Situation, dtype: str) -> bool:
    """Whether some backend is known to hold a KV cache of this dtype on this device."""
    if situation.device == "cpu":
        flags = situation.cpu_flags or frozenset()
        return dtype == "auto" or (dtype == "fp8" and any(flag.startswith(("avx512", "amx")) for flag in flags))
    if situation.mla:
        return dtype in {"auto", "fp8"}
    return situation.sm is not None and any(refusal(situation, name, dtype) is None for name in order(situation))


def attention_backend(situation: Situation) -> tuple[str | None, str]:
    """(expected backend, where that comes from); None where it is not known."""
    given = str(situation.args.get("attention_backend") or "auto").upper()
    if given != "AUTO":
        return given, "--attention-backend"
    if situation.device == "cpu":
        return "CPU_ATTN", "vLLM source: platforms/cpu.py"
    if not situation.cuda or situation.sm is None or not READ.holds(situation.version):
        return None, ""
    if situation.mla:
        return None, "MLA backends are not predicted"
    usable = next((name for name in order(situation) if refusal(situation, name) is None), None)
    return usable, "vLLM source: platforms/cuda.py order and backend gates"
