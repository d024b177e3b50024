"""Tiny models with random weights and real shapes' peculiarities, for the real tools: make_tiny.py KIND OUT TOKENIZER.

Runs in the compressor's environment. `moe`: routers and experts. `hybrid`: linear-attention layers, full attention,
routers, experts and a shared expert with its gate.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 49152, "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip
HYBRID: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "shared_expert_intermediate_size": 128,
}  # fmt: skip


def main(kind: str, out: Path, tokenizer: Path) -> None:
    """Write the checkpoint in BF16."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    import transformers  # type: ignore[import-not-found, unused-ignore]

    torch.manual_seed(0)
    names = {"moe": ("Qwen3MoeConfig", {}), "hybrid": ("Qwen3NextConfig", HYBRID)}
    name, more = names[kind]
    config = getattr(transformers, name)(**COMMON, **more)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(out)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / file, out / file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
