"""How far a quantized checkpoint's next-token distribution is from its source's, on texts that the source wrote.

Runs in the compressor's environment: measure.py SOURCE RESULT TEXTS.jsonl. Weights are dequantized and activations
quantized and dequantized as the checkpoint says, in 32-bit arithmetic, so it needs no kernel for the format. Prints
one line `MEASURED {json}`: per text the tokens, the summed KL divergence (nats), agreements of the likeliest token,
and both models' summed log-probability of the text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(source: str, result: str, texts: Path) -> None:
    """Measure all texts."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from transformers import AutoModelForCausalLM  # type: ignore[import-not-found, unused-ignore]

    torch.set_grad_enabled(False)
    records = [json.loads(line) for line in texts.read_text(encoding="utf-8").split("\n") if line.strip()]
    baseline: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    other: Any = AutoModelForCausalLM.from_pretrained(result, dtype="auto")
    # The first pass unpacks the weights, in the checkpoint's own type; the arithmetic after that is in 32 bits.
    other(torch.tensor([records[0]["ids"][:2]]), use_cache=False)
    torch.nn.Module.float(other)  # transformers forbids the method for packed weights, which these no longer are
    rows = []
    for number, record in enumerate(records, 1):
        ids = torch.tensor([record["ids"]])
        begin = max(0, int(record["prompt_tokens"]) - 1)
        targets = ids[0, begin + 1 :]
        if not len(targets):
            continue
        p = torch.log_softmax(baseline(ids, use_cache=False).logits[0, begin:-1].float(), -1)
        q = torch.log_softmax(other(ids, use_cache=False).logits[0, begin:-1].float(), -1)
        kl = (p.exp() * (p - q)).sum(-1)
        if not bool(torch.isfinite(q).all()):
            raise SystemExit("the quantized model gives no numbers (NaN or infinity)")
        rows.append(
            {
                "tokens": len(targets),
                "kl": float(kl.sum()),
                "top1": int((p.argmax(-1) == q.argmax(-1)).sum()),
                "logp_a": float(p.gather(1, targets[:, None]).sum()),
                "logp_b": float(q.gather(1, targets[:, None]).sum()),
            }
        )
        print(f"Measuring: {100 * number // len(records):3d}% {number}/{len(records)}", flush=True)
    print("MEASURED " + json.dumps(rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
