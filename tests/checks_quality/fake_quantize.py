"""Run by an interpreter with torch and transformers: one small model, fake-quantized, scored against itself.

    python fake_quantize.py MODEL FOLDER SEQUENCES TOKENS SEED,… SCHEME…

The model with its 16-bit weights samples text at temperature 1; every scheme scores it. Written to FOLDER/SEED.npz for
each scheme: the k likeliest tokens, the sampled token's log-probability, and the exact divergence over the whole
vocabulary at every position. Arithmetic is in 32 bits: a CPU without 16-bit instructions takes three times as long.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

K = 20
START = 3
PROMPTS = (
    "Once upon a time", "The most important thing about bread is", "In the year 1850, the city", "def mean(values):",
    "Dear neighbour, I am writing", "Water boils when", "The three rules of the game are", "My grandmother used to say",
)  # fmt: skip


def rtn(weight: torch.Tensor, bits: int, group: int | None) -> torch.Tensor:
    """Round to nearest, symmetric, per output channel or per group of inputs."""
    shape = weight.shape
    flat = weight.float().reshape(-1, group or shape[-1])
    top = 2 ** (bits - 1) - 1
    scale = flat.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / top
    return ((flat / scale).round().clamp(-top - 1, top) * scale).reshape(shape).to(weight.dtype)


def fp8(value: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Through e4m3 with a scale for each slice along `dim`, or one for all."""
    peak = value.float().abs().amax(dim=dim, keepdim=True) if dim is not None else value.float().abs().max()
    scale = peak.clamp(min=1e-8) / 448.0
    return ((value.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(value.dtype)


def quantize(model: torch.nn.Module, scheme: str) -> list[torch.utils.hooks.RemovableHandle]:
    """Change all linear layers but the head in place; returns hooks on activations."""
    hooks = []
    for name, layer in model.named_modules():
        if not isinstance(layer, torch.nn.Linear) or name.endswith("lm_head"):
            continue
        with torch.no_grad():
            if scheme == "int8":
                layer.weight.copy_(rtn(layer.weight, 8, None))
            elif scheme in {"int5", "int4"}:
                layer.weight.copy_(rtn(layer.weight, int(scheme[-1]), 64))
            elif scheme == "fp8":
                layer.weight.copy_(fp8(layer.weight, 1))
                hooks.append(layer.register_forward_pre_hook(lambda _, given: (fp8(given[0], -1), *given[1:])))
    return hooks


def main() -> None:
    path, folder, sequences, tokens, seeds = sys.argv[1:6]
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # the end token is sampled like any other and text goes on
    original = {name: value.clone() for name, value in model.state_dict().items()}
    rows = [tokenizer(PROMPTS[i % len(PROMPTS)]).input_ids[:START] for i in range(int(sequences))]
    ids = torch.tensor(rows)
    for seed in seeds.split(","):
        torch.manual_seed(int(seed))
        model.load_state_dict(original)
        with torch.no_grad():
            texts = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=int(tokens), pad_token_id=0,
            )  # fmt: skip
        np.savez(f"{folder}/{seed}.npz", **scored(model, original, texts, sys.argv[6:]))


def scored(
    model: torch.nn.Module, original: dict[str, torch.Tensor], texts: torch.Tensor, schemes: list[str]
) -> dict[str, np.ndarray]:
    """What the model itself and each scheme say about the texts."""
    arrays: dict[str, np.ndarray] = {}
    reference: list[torch.Tensor] = []
    for scheme in ("bf16", *schemes):
        model.load_state_dict(original)
        hooks = quantize(model, scheme)
        parts: dict[str, list[np.ndarray]] = {"x": [], "x_lp": [], "top_ids": [], "top_lp": [], "exact": []}
        for number, row in enumerate(texts):
            with torch.no_grad():
                lp = torch.log_softmax(model(row[None]).logits[0].float(), dim=-1)[START - 1 : -1]
            if scheme == "bf16":
                reference.append(lp)
            exact = (reference[number].exp() * (reference[number] - lp)).sum(dim=1)
            top = lp.topk(K, dim=1)
            x = row[START:]
            parts["x"].append(x.numpy().astype(np.int32))
            parts["x_lp"].append(lp.gather(1, x[:, None])[:, 0].numpy())
            parts["top_ids"].append(top.indices.numpy().astype(np.int32))
            parts["top_lp"].append(top.values.numpy())
            parts["exact"].append(exact.numpy())
        for name, values in parts.items():
            arrays[f"{scheme}_{name}"] = np.stack(values)
        for hook in hooks:
            hook.remove()
    return arrays


if __name__ == "__main__":
    main()
