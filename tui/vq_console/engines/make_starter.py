"""Turns the starter model's GGUF file into a folder of BF16 safetensors. Runs in the compressor's environment.

Never imported by the console: `starter.py` starts it as a process, with the GGUF file and the folder to fill.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"


def main(gguf: Path, folder: Path) -> None:
    """Write config, tokenizer, chat template and weights; prints what it does, one line per step."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from transformers import (  # type: ignore[import-not-found, unused-ignore]
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
    )

    print("reading the GGUF file", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    print("writing BF16 weights", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    os.chmod(folder / "model.safetensors", 0o644)
    _plain_tokenizer(folder)
    _plain_config(folder)
    print("asking it", flush=True)
    _prove(folder)


def _plain_tokenizer(folder: Path) -> None:
    """The conversion knows the vocabulary but guesses the rest; these are the published model's own settings."""
    from tokenizers import (  # type: ignore[import-not-found, unused-ignore]
        Tokenizer,
        decoders,
        pre_tokenizers,
    )

    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(path)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def _plain_config(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.pop("_model_name_or_path", None)
    config.pop("quantization_config", None)
    # GGUF keeps a 32-bit float of 1e-5; `rope_theta` at the top is where versions before 5 of transformers look.
    config.update(_name_or_path=HUB_ID, rms_norm_eps=1e-5, rope_theta=config["rope_parameters"]["rope_theta"])
    path.write_text(json.dumps(config, indent=1) + "\n")


def _prove(folder: Path) -> None:
    """One answer from the written files; a model that fell apart in conversion does not know this one."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        answer = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    text = tokenizer.decode(answer[0][prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    print(f"it answers: {text}", flush=True)
    if "Paris" not in text:
        raise SystemExit("the converted model does not know the capital of France")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
