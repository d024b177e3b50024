"""Makes the models of the GPU run: shapes for `--load-format dummy`, and SmolLM2 in 16 and in 4 bits with real weights.

    python tests/gpu/make_models.py shapes FOLDER --tokenizer MODEL_FOLDER
    python tests/gpu/make_models.py w4a16 MODEL_FOLDER NEW_FOLDER --group 64

A shape is a config with a tokenizer and no weights. `w4a16` rounds every linear layer to the nearest of 16 levels per
group (symmetric, as `compressed-tensors` packs it); it needs torch and safetensors, the rest needs nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
COPIED = (*TOKENIZER_FILES, "special_tokens_map.json")

LLAMA_8B: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 49152, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "hidden_act": "silu", "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Llama 3.1 8B with SmolLM2's vocabulary."""

QWEN3_MOE: Mapping[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 12, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 64, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
    "norm_topk_prob": True, "mlp_only_layers": [], "vocab_size": 49152, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

DEEPSEEK_V2: Mapping[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1,
    "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False, "routed_scaling_factor": 1.0,
    "vocab_size": 49152, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "hidden_act": "silu", "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Eight layers of DeepSeek-V2-Lite."""

GEMMA3: Mapping[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 2560,
    "intermediate_size": 10240, "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 1024, "sliding_window_pattern": 6,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3, "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0, "vocab_size": 49152, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "dtype": "bfloat16", "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""Eighteen layers of Gemma 3 4B: five windows to one layer that sees everything, tied embeddings."""

QWEN25_05B: Mapping[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True,
    "hidden_act": "silu", "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "use_sliding_window": False,
}  # fmt: skip

QWEN3_4B: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
    "use_sliding_window": False,
}  # fmt: skip

MISTRAL_WINDOW: Mapping[str, Any] = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 12, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 49152, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "sliding_window": 4096, "tie_word_embeddings": False, "hidden_act": "silu", "dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Twelve layers of Mistral 7B: every layer sees 4,096 tokens."""

GEMMA2: Mapping[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
    "num_hidden_layers": 14, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
    "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0, "layer_types": ["sliding_attention", "full_attention"] * 7, "rope_theta": 10000.0,
    "vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""Fourteen layers of Gemma 2 9B: windows and full attention in turn."""

MIXTRAL: Mapping[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 49152, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False,
    "hidden_act": "silu", "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Four layers of Mixtral 8x7B."""

PHI3: Mapping[str, Any] = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 49152,
    "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "rope_scaling": None, "sliding_window": None, "tie_word_embeddings": False,
    "hidden_act": "silu", "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""Phi-3 mini: every head has its own keys and values, 96 wide; fused projections."""

LLAMA_70B_PART: Mapping[str, Any] = {
    **LLAMA_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 8, "num_attention_heads": 64,
    "vocab_size": 128256,
}  # fmt: skip
"""Eight layers of Llama 3.1 70B."""


def _weights(bits: int, kind: str, strategy: str, group: int | None) -> dict[str, Any]:
    return {
        "actorder": None, "block_structure": None, "dynamic": False, "group_size": group, "num_bits": bits,
        "observer": "minmax", "observer_kwargs": {}, "strategy": strategy, "symmetric": True, "type": kind,
    }  # fmt: skip


def compressed(form: str, weights: Mapping[str, Any], activations: Mapping[str, Any] | None) -> dict[str, Any]:
    """A `quantization_config` of compressed-tensors for every linear layer but the head."""
    group = {"input_activations": activations, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": {**group, "format": form}}, "format": form, "ignore": ["lm_head"],
        "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed",
    }  # fmt: skip


def w4a16(group: int) -> dict[str, Any]:
    """The `quantization_config` of W4A16 in groups of `group` weights."""
    return compressed("pack-quantized", _weights(4, "int", "group", group), None)


FP8_DYNAMIC = compressed(
    "float-quantized",
    _weights(8, "float", "channel", None),
    {**_weights(8, "float", "token", None), "dynamic": True, "observer": None},
)
NVFP4 = {
    "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"],
    "ignore": ["lm_head"], "kv_cache_quant_algo": None, "producer": {"name": "modelopt", "version": "0.33.0"},
}  # fmt: skip

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "l8b": LLAMA_8B,
    "l8b-w4a16": {**LLAMA_8B, "quantization_config": w4a16(128)},
    "l8b-fp8": {**LLAMA_8B, "quantization_config": FP8_DYNAMIC},
    "l8b-nvfp4": {**LLAMA_8B, "quantization_config": NVFP4},
    "moe": QWEN3_MOE,
    "mla": DEEPSEEK_V2,
    "gemma3": GEMMA3,
    "qwen25-05b": QWEN25_05B,
    "qwen3-4b": QWEN3_4B,
    "mistral-window": MISTRAL_WINDOW,
    "moe-w4a16": {**QWEN3_MOE, "quantization_config": {**w4a16(128), "ignore": ["lm_head", "re:.*mlp.gate$"]}},
    "gemma2": GEMMA2,
    "mixtral": MIXTRAL,
    "phi3": PHI3,
    "l70b-w4a16": {**LLAMA_70B_PART, "quantization_config": w4a16(128)},
}


def make_shapes(folder: Path, tokenizer: Path) -> None:
    """Write every shape as a model folder without weights."""
    for name, config in SHAPES.items():
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        for file in TOKENIZER_FILES:
            if (tokenizer / file).is_file():
                shutil.copyfile(tokenizer / file, target / file)
        if "quantization_config" in config and config["quantization_config"].get("quant_method") == "modelopt":
            told = {"producer": NVFP4["producer"], "quantization": {k: v for k, v in NVFP4.items() if k != "producer"}}
            (target / "hf_quant_config.json").write_text(json.dumps(told, indent=1) + "\n")
        print(target, flush=True)


def make_w4a16(source: Path, target: Path, group: int) -> None:
    """Round the linear layers of a 16-bit checkpoint to nearest and pack them, eight to an int32, lowest bits first."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from safetensors.torch import load_file, save_file  # type: ignore[import-not-found, unused-ignore]

    target.mkdir(parents=True, exist_ok=True)
    made = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            made[name] = tensor
            continue
        rows, columns = tensor.shape
        grouped = tensor.float().reshape(rows, columns // group, group)
        # the range is 15 steps wide, so that the largest weight lies half a step outside on the positive side
        scale = (grouped.abs().amax(-1, keepdim=True) / 7.5).to(torch.bfloat16)
        levels = (grouped / scale.float()).round().clamp(-8, 7).to(torch.int32).reshape(rows, columns // 8, 8) + 8
        shifts = torch.arange(0, 32, 4, dtype=torch.int64)
        words = (levels.to(torch.int64) << shifts).sum(-1)
        module = name.removesuffix(".weight")
        made[f"{module}.weight_packed"] = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
        made[f"{module}.weight_scale"] = scale.squeeze(-1).contiguous()
        made[f"{module}.weight_shape"] = torch.tensor([rows, columns], dtype=torch.int64)
    save_file(made, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": w4a16(group)}, indent=1) + "\n")
    for file in COPIED:
        if (source / file).is_file():
            shutil.copyfile(source / file, target / file)
    print(target, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    shapes = actions.add_parser("shapes")
    shapes.add_argument("folder", type=Path)
    shapes.add_argument("--tokenizer", type=Path, required=True)
    four = actions.add_parser("w4a16")
    four.add_argument("source", type=Path)
    four.add_argument("target", type=Path)
    four.add_argument("--group", type=int, default=64)
    args = parser.parse_args()
    if args.action == "shapes":
        make_shapes(args.folder, args.tokenizer)
    else:
        make_w4a16(args.source, args.target, args.group)


if __name__ == "__main__":
    main()
