"""Writing the script that makes a checkpoint: the tool's own calls, which run without the console. Pure."""

from __future__ import annotations

import json
from pprint import pformat
from typing import Any

from vq_console.quantize.model import Judged
from vq_console.quantize.schemes import TOOL_NAMES, label, needs_data

CALIBRATION = "calibration.jsonl"
RECIPE = "recipe.py"

_HEAD = '''#!/usr/bin/env python
"""{title}

Runs by itself in any environment that has {package} (made for {tool}):
    python {recipe} [OUT]
{data_words}"""

{copy}import json
{re}import sys
from pathlib import Path

{torch}{imports}
from transformers import {classes}

MODEL = {model}
OUT = sys.argv[1] if len(sys.argv) > 1 else {out}
IGNORE = {ignore}
{constants}

def step(number, words):
    print(f"STEP {{number}}/{steps}: {{words}}", flush=True)

'''

_DATA = '''
def calibration(tokenizer):
    """Texts of calibration.jsonl as token ids: each line has `text`, `prompt` or `messages`."""
    from datasets import Dataset

    rows = []
    for line in Path(__file__).with_name("calibration.jsonl").read_text(encoding="utf-8").split("\\n"):
        if not line.strip():
            continue
        record = json.loads(line)
        if "messages" in record or "prompt" in record:
            messages = record.get("messages") or [{"role": "user", "content": record["prompt"]}]
            if tokenizer.chat_template:
                text = tokenizer.apply_chat_template(messages, tokenize=False)
            else:
                text = "\\n".join(message["content"] for message in messages)
        else:
            text = record["text"]
        row = tokenizer(text, truncation=True, max_length=LENGTH, add_special_tokens=False)
        if len(row["input_ids"]) > 1:
            rows.append({"input_ids": row["input_ids"], "attention_mask": row["attention_mask"]})
    return Dataset.from_list(rows[:SAMPLES])

'''

_IN_32_BITS = '''
# Without a GPU calibration computes in 32 bits: most CPUs are several times slower in 16.
DTYPE = "auto" if torch.accelerator.is_available() else torch.float32


def to_source_type(model):
    """What 32-bit arithmetic left in 32 bits, back in the type of the source."""
    config = AutoConfig.from_pretrained(MODEL)
    dtype = config.dtype or config.get_text_config().dtype or torch.bfloat16
    for name, tensor in model.named_parameters():
        if tensor.dtype == torch.float32 and not name.endswith("_global_scale"):
            tensor.data = tensor.data.to(dtype)
    model.config.dtype = dtype

'''

_NO_PINNING = """
from llmcompressor.pipelines.cache import IntermediatesCache

if not torch.accelerator.is_available():
    # AWQ pins memory for copies to a GPU; without one that is an error, and there is nothing to copy.
    IntermediatesCache.pin_memory = lambda self, *arguments, **keywords: None

"""


_MODELOPT_IMPORTS = (
    "import modelopt.torch.quantization as mtq",
    "from modelopt.torch.export import export_hf_checkpoint",
)

_MODELOPT_MAIN = '''
def left_alone(name):
    """Whether a layer stays as it is: `re:` and a regular expression, or the name."""
    return any(re.match(one[3:], name) if one.startswith("re:") else one == name for one in IGNORE)


def main():
    step(1, "loading the model")
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=DTYPE)
    step(2, "reading calibration data")
    dataset = calibration(tokenizer)
    print(f"{len(dataset)} samples", flush=True)

    def forward(model):
        for number, row in enumerate(dataset, 1):
            model(torch.tensor([row["input_ids"]], device=model.device), use_cache=False)
            print(f"Calibrating: {100 * number // len(dataset)}%%", flush=True)

    config = copy.deepcopy(mtq.%s)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and left_alone(name):
            config["quant_cfg"].append({"quantizer_name": f"{name}.*quantizer", "enable": False})
    step(3, "quantizing")
    with torch.no_grad():
        model = mtq.quantize(model, config, forward)
        to_source_type(model)
        step(4, "writing the checkpoint")
        export_hf_checkpoint(model, export_dir=OUT)
    tokenizer.save_pretrained(OUT)


if __name__ == "__main__":
    main()
'''


def recipe_text(judged: Judged, *, tool: str, source_words: str) -> str:
    """The complete script. `tool` names the pinned tool, `source_words` the model's revision for the reader."""
    request, scheme = judged.request, judged.scheme
    data = needs_data(scheme, request.method, request.kv_cache)
    steps = 4 if data else 3
    kind = label(scheme, request.method, request.group_size, request.kv_cache)
    constants = []
    if data:
        constants += [f"SAMPLES = {request.samples}", f"LENGTH = {request.sequence_length}"]
    head = _HEAD.format(
        title=f"{kind} of {_plain(source_words)}.",
        tool=_plain(tool),
        package=TOOL_NAMES[scheme.maker],
        recipe=RECIPE,
        data_words=f"Its calibration data lie beside it in {CALIBRATION}.\n" if data else "",
        imports="\n".join(_imports(request.method) if scheme.maker == "compressor" else _MODELOPT_IMPORTS),
        classes="AutoConfig, AutoModelForCausalLM, AutoTokenizer" if data else "AutoModelForCausalLM, AutoTokenizer",
        torch="import torch\n" if data else "",
        copy="import copy\n" if scheme.maker == "modelopt" else "",
        re="import re\n" if scheme.maker == "modelopt" else "",
        model=json.dumps(request.model),
        out=json.dumps(str(request.out)),
        ignore=pformat(list(judged.ignore), width=110),
        constants="\n".join(constants) + "\n" if constants else "",
        steps=steps,
    )
    body = [_DATA, _IN_32_BITS] if data else []
    if request.method == "awq":
        body.append(_NO_PINNING)
    body.append(_main(judged, data, steps) if scheme.maker == "compressor" else _MODELOPT_MAIN % scheme.preset)
    return head + "".join(body)


def _plain(words: str) -> str:
    """Words that cannot end the script's own description."""
    return "".join(letter for letter in words if letter.isprintable() and letter not in '"\\')


def _imports(method: str) -> list[str]:
    lines = [
        "from compressed_tensors.quantization import preset_name_to_scheme",
        "from llmcompressor import oneshot",
    ]
    if "gptq" in method:
        lines.append("from llmcompressor.modifiers.gptq import GPTQModifier")
    if "gptq" not in method:
        lines.append("from llmcompressor.modifiers.quantization import QuantizationModifier")
    if method == "awq":
        lines.append("from llmcompressor.modifiers.transform.awq import AWQModifier")
    if method.startswith("smoothquant"):
        lines.append("from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier")
    return lines


def _main(judged: Judged, data: bool, steps: int) -> str:
    request, scheme = judged.request, judged.scheme
    dtype = "DTYPE" if data else '"auto"'
    lines = [
        "",
        "def main():",
        '    step(1, "loading the model")',
        "    tokenizer = AutoTokenizer.from_pretrained(MODEL)",
        f"    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype={dtype})",
        f'    scheme = preset_name_to_scheme("{scheme.preset or scheme.name}", ["Linear"])',
    ]
    if scheme.group_free:
        lines.append(f"    scheme.weights.group_size = {request.group_size}")
    arguments = 'config_groups={"group_0": scheme}, ignore=IGNORE'
    if request.kv_cache:
        lines.append(f"    kv_cache = {json_literal(kv_cache_scheme(request.kv_cache))}")
        arguments += ", kv_cache_scheme=kv_cache"
    modifiers = []
    if request.method.startswith("smoothquant"):
        modifiers.append("SmoothQuantModifier(smoothing_strength=0.8)")
    if request.method == "awq":
        modifiers.append("AWQModifier()")
    modifiers.append(f"{'GPTQModifier' if 'gptq' in request.method else 'QuantizationModifier'}({arguments})")
    lines.append(f"    recipe = [{', '.join(modifiers)}]")
    number = 2
    call = "oneshot(model=model, recipe=recipe"
    if data:
        lines += [f'    step({number}, "reading calibration data")', "    dataset = calibration(tokenizer)"]
        lines.append('    print(f"{len(dataset)} samples", flush=True)')
        call += ", dataset=dataset, max_seq_length=LENGTH, num_calibration_samples=len(dataset)"
        number += 1
    lines += [
        f'    step({number}, "quantizing")',
        f"    {call})",
        *(["    to_source_type(model)"] if data else []),
        f'    step({steps}, "writing the checkpoint")',
        "    model.save_pretrained(OUT, save_compressed=True)",
        "    tokenizer.save_pretrained(OUT)",
        "",
        "",
        'if __name__ == "__main__":',
        "    main()",
        "",
    ]
    return "\n".join(lines)


def kv_cache_scheme(kind: str) -> dict[str, Any]:
    """Static FP8 scales of keys and values: one per layer (`fp8`) or one per head (`fp8_per_head`)."""
    strategy = "tensor" if kind == "fp8" else "attn_head"
    return {"num_bits": 8, "type": "float", "strategy": strategy, "dynamic": False, "symmetric": True}


def json_literal(value: dict[str, Any]) -> str:
    """A dictionary as Python writes it."""
    return repr(value)
