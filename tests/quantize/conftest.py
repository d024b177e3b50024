"""A tiny Llama-shaped checkpoint, and a tool that makes of it what LLM Compressor would, or breaks on request."""

from __future__ import annotations

import json
import stat
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1, "I32": 4, "I64": 8, "U8": 1}
HIDDEN, INNER, VOCABULARY, LAYERS = 192, 512, 320, 2


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], *, fill: bytes = b"\x3c") -> None:
    """A file whose every byte of data is `fill` (0x3c3c is a small positive BF16 number)."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        count = SIZES[dtype]
        for length in shape:
            count *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + count]}
        end += count
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + fill * end)


def llama_tensors(*, hidden: int = HIDDEN, inner: int = INNER) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a small Llama with tied embeddings."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (VOCABULARY, hidden)),
        "model.norm.weight": ("BF16", (hidden,)),
    }
    for layer in range(LAYERS):
        base = f"model.layers.{layer}."
        tensors[base + "input_layernorm.weight"] = ("BF16", (hidden,))
        for name, outputs, inputs in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", hidden // 3, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            tensors[f"{base}{name}.weight"] = ("BF16", (outputs, inputs))
    return tensors


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64,
    "vocab_size": VOCABULARY, "max_position_embeddings": 256, "tie_word_embeddings": True, "dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The folder of a tiny 16-bit model."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    write_safetensors(folder / "model.safetensors", llama_tensors())
    return folder


TOOL = '''#!{python}
"""Stands for the tool's interpreter: plays recipe.py, generate.py and measure.py."""
import json, os, re, sys, time
from pathlib import Path

sys.path[:0] = {path!r}
from quantize.conftest import play

play(sys.argv[1:], Path({plan!r}), Path({calls!r}))
'''


@dataclass(slots=True)
class FakeTool:
    """`python` is the interpreter to name with --tool; `plan` says what breaks."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "python")

    def plan(self, **what: Any) -> None:
        (self.folder / "plan.json").write_text(json.dumps(what))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().split("\n") if line]


@pytest.fixture
def tool(tmp_path: Path, vq_home: Path) -> FakeTool:
    """A tool that takes no time."""
    folder = tmp_path / "tool"
    folder.mkdir()
    tests = str(Path(__file__).parents[1])
    script = TOOL.format(
        python=sys.executable, path=[tests], plan=str(folder / "plan.json"), calls=str(folder / "calls.jsonl")
    )
    (folder / "python").write_text(script)
    (folder / "python").chmod((folder / "python").stat().st_mode | stat.S_IXUSR)
    (folder / "calls.jsonl").touch()
    fake = FakeTool(folder)
    fake.plan()
    return fake


def play(arguments: list[str], plan_file: Path, calls: Path) -> None:
    """What the fake tool does; runs in its own process."""
    import os
    import re
    import time

    with open(calls, "a") as file:
        file.write(json.dumps(arguments) + "\n")
    plan = json.loads(plan_file.read_text())
    if arguments[:1] == ["-c"]:
        print("0.14.0.1")
        return
    script = Path(arguments[1])
    if plan.get("sleep_in") == script.name:
        time.sleep(60)
    if plan.get("fail_in") == script.name:
        print("RuntimeError: it broke", flush=True)
        raise SystemExit(1)
    if script.name == "generate.py":
        count, out = int(arguments[3]), Path(arguments[6])
        records = [{"text": f"text {n}", "ids": [1, 2, 3, n], "prompt_tokens": 2} for n in range(count)]
        out.write_text("".join(json.dumps(record) + "\n" for record in records))
        return
    if script.name == "measure.py":
        row = {"tokens": 10, "kl": 0.5, "top1": 9, "logp_a": -20.0, "logp_b": -20.5}
        print('SIMULATED {"weights": 10, "activations": 10, "kv_cache": 0}')
        print("MEASURED " + json.dumps([row, row | {"kl": 0.7}]))
        return
    text, out = script.read_text(), Path(arguments[2])
    total = re.search(r"STEP \{number\}/(\d)", text)
    assert total is not None
    print(f"STEP 1/{total[1]}: loading the model", flush=True)
    print("(3/31): Calibrating:  50%|#####     | 4/8\r", end="", flush=True)
    if plan.get("sleep"):
        out.mkdir()
        (out / "half.safetensors").write_bytes(b"half")
        time.sleep(plan["sleep"])
    if plan.get("say"):
        print(plan["say"], flush=True)
    if plan.get("kill"):
        os.kill(os.getpid(), plan["kill"])
    if plan.get("exit"):
        raise SystemExit(plan["exit"])
    out.mkdir(exist_ok=True)
    scheme = re.search(r'preset_name_to_scheme\("(\w+)"', text)
    group = re.search(r"group_size = (\d+)", text)
    if scheme is None:
        assert "mtq.FP8_DEFAULT_CFG" in text
        write_modelopt(out)
        return
    write_result(out, scheme[1], int(group[1]) if group else None, kv="kv_cache" in text, broken=plan.get("broken"))


def write_modelopt(out: Path, *, algorithm: str = "FP8") -> None:
    """A checkpoint as ModelOpt writes it in FP8."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (dtype, shape) in llama_tensors().items():
        if len(shape) < 2 or "embed" in name:
            tensors[name] = (dtype, shape)
            continue
        tensors[name] = ("F8_E4M3", shape)
        for scale in ("weight_scale", "input_scale"):
            tensors[f"{name.removesuffix('.weight')}.{scale}"] = ("F32", ())
    write_safetensors(out / "model.safetensors", tensors)
    quantization = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}
    (out / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
    (out / "tokenizer.json").write_text("{}")


def write_result(out: Path, scheme: str, group: int | None, *, kv: bool, broken: str | None = None) -> None:
    """A checkpoint as LLM Compressor writes it; `broken` names what is wrong with it."""
    packed = scheme == "W4A16"
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (dtype, shape) in llama_tensors().items():
        module = name.removesuffix(".weight")
        if len(shape) < 2 or "embed" in name:
            tensors[name] = (dtype, shape)
            continue
        if packed:
            tensors[f"{module}.weight_packed"] = ("I32", (shape[0], shape[1] // 8))
            tensors[f"{module}.weight_scale"] = ("BF16", (shape[0], shape[1] // (group or 64)))
        else:
            tensors[name] = ("I8" if scheme == "W8A8" else "F8_E4M3", shape)
            tensors[f"{module}.weight_scale"] = ("BF16", (shape[0], 1))
    if kv:
        for layer in range(LAYERS):
            tensors[f"model.layers.{layer}.self_attn.k_scale"] = ("BF16", (1,))
            tensors[f"model.layers.{layer}.self_attn.v_scale"] = ("BF16", (1,))
    if broken == "kv-of-one-layer":
        del tensors["model.layers.1.self_attn.v_scale"]
    if broken == "lacks-scale":
        del tensors["model.layers.1.mlp.gate_proj.weight_scale"]
    if broken == "lacks-norm":
        del tensors["model.norm.weight"]
    if broken == "grown":
        tensors["extra.weight"] = ("F32", (1000, 500))
    write_safetensors(out / "model.safetensors", tensors, fill=b"\xff" if broken == "nan" else b"\x3c")
    if broken == "cut":
        data = (out / "model.safetensors").read_bytes()
        (out / "model.safetensors").write_bytes(data[: len(data) // 2])
    layout = {"W4A16": "pack-quantized", "W8A8": "int-quantized"}.get(scheme, "float-quantized")
    weights = {"num_bits": 4 if packed else 8, "group_size": group, "type": "int" if scheme[0] == "W" else "float"}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": layout,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    if broken != "config":
        (out / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
    if broken == "plain":
        (out / "config.json").write_text(json.dumps(CONFIG))
    if broken != "tokenizer":
        (out / "tokenizer.json").write_text("{}")
