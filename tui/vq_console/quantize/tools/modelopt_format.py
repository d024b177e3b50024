"""ModelOpt's checkpoints as a model that computes like them in 32 bits: transformers itself does not read them.

Imported by measure.py. FP8: one scale for a weight and one for its inputs. NVFP4: FP4 in groups of 16 with an FP8 scale
each, and one 32-bit scale over those; inputs get the scales of their groups as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BETWEEN = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_GROUP = 16


def load(folder: Path) -> tuple[Any, dict[str, int]]:
    """The model with its weights dequantized and its inputs quantized on the way, and how many layers do what.

    Raises SystemExit for tensors that the model has no place for.
    """
    import torch  # type: ignore[import-not-found, unused-ignore]
    from safetensors.torch import load_file  # type: ignore[import-not-found, unused-ignore]
    from transformers import AutoConfig, AutoModelForCausalLM  # type: ignore[import-not-found, unused-ignore]

    config: Any = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    counts = {"weights": 0, "activations": 0, "kv_cache": 0}
    for name, module in model.named_modules():
        scale = tensors.pop(f"{name}.weight_scale", None)
        if scale is None:
            continue
        outer = tensors.pop(f"{name}.weight_scale_2", None)
        inputs = tensors.pop(f"{name}.input_scale", None)
        weight = tensors[f"{name}.weight"]
        tensors[f"{name}.weight"] = fp8(weight, scale) if outer is None else fp4(weight, scale, outer)
        counts["weights"] += 1
        if inputs is not None:
            module.register_forward_pre_hook(_hook(as_fp8 if outer is None else as_fp4, inputs.float()))
            counts["activations"] += 1
    missing, unknown = model.load_state_dict({name: value.float() for name, value in tensors.items()}, strict=False)
    model.tie_weights()
    if unknown or [name for name in missing if not name.endswith("lm_head.weight")] or not counts["weights"]:
        raise SystemExit(f"the result does not fit its model: {', '.join([*unknown, *missing][:3])}")
    return model, counts


def fp8(weight: Any, scale: Any) -> Any:
    """An FP8 weight in 32 bits."""
    return weight.float() * scale.float()


def fp4(packed: Any, scales: Any, outer: Any) -> Any:
    """A packed FP4 weight in 32 bits: two numbers in a byte, the lower half first."""
    import torch

    table = torch.tensor([*_FP4, *(-value for value in _FP4)])
    both = torch.stack((packed & 0xF, packed >> 4), -1).long()
    values = table[both].reshape(packed.shape[0], -1, _GROUP)
    return (values * (scales.float() * outer.float())[..., None]).reshape(packed.shape[0], -1)


def as_fp8(values: Any, scale: Any) -> Any:
    """Numbers as FP8 with that scale would hold them."""
    import torch

    return (values / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def as_fp4(values: Any, outer: Any) -> Any:
    """Numbers as NVFP4 would hold them: an FP8 scale for each group, within the outer one."""
    import torch

    groups = values.reshape(*values.shape[:-1], -1, _GROUP)
    inner = (groups.abs().amax(-1, keepdim=True) / 6 / outer).clamp(max=448).to(torch.float8_e4m3fn).float() * outer
    scaled = torch.where(inner > 0, groups / inner.clamp(min=1e-30), torch.zeros_like(groups))
    near = torch.tensor(_FP4)[torch.bucketize(scaled.abs(), torch.tensor(_BETWEEN))]
    return (near * scaled.sign() * inner).reshape(values.shape)


def _hook(quantize: Callable[[Any, Any], Any], scale: Any) -> Callable[[Any, Any], Any]:
    return lambda _, inputs: (quantize(inputs[0], scale), *inputs[1:])
