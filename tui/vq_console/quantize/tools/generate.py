"""Lets a model write texts: prompts of many kinds answered by the model itself, for calibration and measurement.

Runs in the compressor's environment: generate.py MODEL COUNT MAX_TOKENS SEED OUT.jsonl HELD_OUT

Answers are drawn from the model's own distribution, nothing cut off (temperature 1, no top-k, no top-p), so that a KL
divergence on them is the one on its own text. The first HELD_OUT texts share no prompt with the others. What an
interrupted run wrote is kept and continued.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

_BATCH = 16
_TOPICS = (
    "a lighthouse", "photosynthesis", "the Roman Empire", "a lost dog", "compound interest", "the moon",
    "baking bread", "a train journey", "black holes", "learning to swim", "the heart", "a small bookshop",
    "electric cars", "bees", "chess", "the sea in winter",
)  # fmt: skip
_FORMS = (
    "Write a short story about {}.", "Explain {} to a child.", "List five facts about {}.", "Write a letter about {}.",
    "What are common misunderstandings about {}?", "Give a step by step guide that has to do with {}.",
    "Write a dialogue about {}.", "Summarise what is known about {}.",
)  # fmt: skip
_CODE = (
    "reverses a list", "counts the words of a file", "checks whether a number is prime", "sorts people by age",
    "merges two dictionaries", "reads a CSV file", "computes a moving average", "validates an e-mail address",
)  # fmt: skip
_MATHS = (
    "What is 17 times 24?", "Solve 3x + 5 = 20.", "A train goes 120 km in 90 minutes. How fast is it?",
    "What is 15 percent of 240?", "How many minutes are in a week?", "Simplify 6/8 + 1/4.",
)  # fmt: skip


def prompts(count: int, seed: int, held_out: int) -> list[str]:
    """`count` prompts in a seeded order; repeats only above what there is, and never one of the first `held_out`."""
    pool = [form.format(topic) for form, topic in itertools.product(_FORMS, _TOPICS)]
    pool += [f"Write a Python function that {what}." for what in _CODE]
    pool += [f"Write a JavaScript function that {what}." for what in _CODE]
    pool += list(_MATHS)
    random.Random(seed).shuffle(pool)
    first, others = pool[:held_out], pool[held_out:]
    return [*first, *itertools.islice(itertools.cycle(others), max(0, count - len(first)))][:count]


def written(part: Path) -> list[dict[str, Any]]:
    """Whole batches of an earlier run, an interrupted one too."""
    records = []
    try:
        for line in part.read_text(encoding="utf-8").split("\n"):
            if line:
                records.append(json.loads(line))
    except (OSError, ValueError):
        pass  # not there, or cut in a line: what came before it counts
    return records[: len(records) // _BATCH * _BATCH]


def main(model_name: str, count: int, max_tokens: int, seed: int, out: Path, held_out: int) -> None:
    """Write `count` records with `text` (prompt and answer as the model sees them), `ids` and `prompt_tokens`."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from transformers import (  # type: ignore[import-not-found, unused-ignore]
        AutoModelForCausalLM,
        AutoTokenizer,
    )

    tokenizer: Any = AutoTokenizer.from_pretrained(model_name, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    # In 32 bits, as measure.py computes: many CPUs have no fast 16-bit arithmetic.
    model: Any = AutoModelForCausalLM.from_pretrained(model_name, dtype=torch.float32)
    part = out.with_name(f".{out.name}.part")
    records = max(written(part), written(out), key=len)[:count]
    _keep(part, records)
    texts = []
    for prompt in prompts(count, seed, held_out):
        if tokenizer.chat_template:
            message = [{"role": "user", "content": prompt}]
            texts.append(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
        else:
            texts.append(prompt + "\n")
    for begin in range(len(records), count, _BATCH):
        # A seed for each batch: the same texts, however many are asked for and wherever it was interrupted.
        torch.manual_seed(seed + begin)
        group = texts[begin : begin + _BATCH]
        batch = tokenizer(group, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            answers = model.generate(
                **batch, max_new_tokens=max_tokens, do_sample=True, temperature=1.0, top_p=1.0, top_k=0,
                pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        for row, mask in zip(answers, batch["attention_mask"], strict=True):
            inputs = int(mask.sum())
            ids = row[mask.shape[0] - inputs :].tolist()
            while len(ids) > inputs + 1 and ids[-1] == tokenizer.pad_token_id and ids[-2] == tokenizer.pad_token_id:
                ids.pop()
            records.append({"text": tokenizer.decode(ids), "ids": ids, "prompt_tokens": inputs})
        _keep(part, records)
        print(f"Generating: {100 * len(records) // count:3d}% {len(records)}/{count}", flush=True)
    part.replace(out)


def _keep(part: Path, records: list[dict[str, Any]]) -> None:
    whole = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    new = part.with_name(f"{part.name}.new")
    new.write_text(whole, encoding="utf-8")
    new.replace(part)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]), int(sys.argv[6]))
