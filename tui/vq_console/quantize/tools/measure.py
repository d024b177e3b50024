"""How far a quantized checkpoint's next-token distribution is from its source's, on texts that the source wrote.

Runs in the compressor's environment: measure.py SOURCE RESULT TEXTS.jsonl KEPT. What the source says about the texts
is kept in the file KEPT for the next result (its last hidden states, where its head turns those into the same logits).
Weights are dequantized; activations, keys
and values are quantized and dequantized in the forward pass as the checkpoint says (per token, group or tensor, with
its own scales where they are static). All arithmetic is in 32 bits, so no kernel for the format is needed and a
16-bit source differs from itself by nothing. Prints one line `MEASURED {json}`: per text the tokens, the summed KL
divergence of the whole vocabulary (nats), agreements of the likeliest token, and both models' summed log-probability.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(source: str, result: str, texts: Path, kept: Path) -> None:
    """Measure all texts."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from transformers import AutoModelForCausalLM  # type: ignore[import-not-found, unused-ignore]

    torch.set_grad_enabled(False)
    records = [json.loads(line) for line in texts.read_text(encoding="utf-8").split("\n") if line.strip()]
    baseline = Baseline(AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32), kept)
    declared = json.loads((Path(result) / "config.json").read_text(encoding="utf-8")).get("quantization_config") or {}
    if declared.get("quant_method") == "modelopt":
        import modelopt_format  # type: ignore[import-not-found, unused-ignore]

        other, simulated = modelopt_format.load(Path(result))
    else:
        other = AutoModelForCausalLM.from_pretrained(result, dtype="auto")
        simulated = unpack(other)
        refuse_merged(Path(result), simulated)
    print("SIMULATED " + json.dumps(simulated), flush=True)
    rows = []
    records = [record for record in records if len(record["ids"]) > max(1, int(record["prompt_tokens"]))]
    size = together(records, int(baseline.model.config.get_text_config().vocab_size))
    for at in range(0, len(records), size):
        group = records[at : at + size]
        ids, mask = padded(group)
        expected = baseline.logits(group, ids, mask)
        found = other(ids, attention_mask=mask, use_cache=False).logits
        for record, reference, row in zip(group, expected, found, strict=True):
            rows.append(compared(record, reference, row[answer(record)]))
        print(f"Measuring: {100 * len(rows) // len(records):3d}% {len(rows)}/{len(records)}", flush=True)
    baseline.keep()
    print("MEASURED " + json.dumps(rows), flush=True)


def answer(record: dict[str, Any]) -> slice:
    """The positions whose next token the source chose: from the prompt's last to the one before the end."""
    return slice(max(0, int(record["prompt_tokens"]) - 1), len(record["ids"]) - 1)


def together(records: list[dict[str, Any]], vocabulary: int) -> int:
    """How many texts one pass takes: at most eight, and at most 400 MB of logits."""
    longest = max((len(record["ids"]) for record in records), default=1)
    return max(1, min(8, 100_000_000 // (longest * vocabulary)))


def padded(group: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Token ids filled up on the right, where no text sees it, and their mask: [texts, tokens] each."""
    import torch

    longest = max(len(record["ids"]) for record in group)
    ids = torch.tensor([[*record["ids"], *[0] * (longest - len(record["ids"]))] for record in group])
    lengths = torch.tensor([[len(record["ids"])] for record in group])
    return ids, (torch.arange(longest)[None] < lengths).long()


def compared(record: dict[str, Any], expected: Any, found: Any) -> dict[str, Any]:
    """One text's sums from both models' logits, [tokens, vocabulary] each. Raises SystemExit for NaN and infinity."""
    import torch

    p, q = torch.log_softmax(expected, -1), torch.log_softmax(found, -1)
    if not bool(torch.isfinite(q).all()):
        raise SystemExit("the quantized model gives no numbers (NaN or infinity)")
    begin = answer(record).start
    targets = torch.tensor(record["ids"][begin + 1 :])
    return {
        "tokens": len(targets),
        "kl": float((p.exp() * (p - q)).sum()),
        "top1": int((p.argmax(-1) == q.argmax(-1)).sum()),
        "logp_a": float(p.gather(1, targets[:, None]).sum()),
        "logp_b": float(q.gather(1, targets[:, None]).sum()),
    }


class Baseline:
    """The source's logits, from its kept hidden states where there are some."""

    def __init__(self, model: Any, kept: Path) -> None:
        import torch

        self.model, self._path, self._head = model, kept, model.get_output_embeddings()
        self._seen: list[Any] = []
        self._head.register_forward_pre_hook(lambda _, inputs: self._seen.append(inputs[0]))
        self._new = not kept.exists()
        self._hidden: dict[str, Any] = {} if self._new else torch.load(kept, weights_only=True)

    def logits(self, group: list[dict[str, Any]], ids: Any, mask: Any) -> list[Any]:
        """What the source predicts for each text's answer: [tokens, vocabulary] each."""
        import torch

        keys = [" ".join(map(str, [answer(record).start, *record["ids"]])) for record in group]
        self._seen.clear()
        if all(key in self._hidden for key in keys):
            return [self._head(self._hidden[key]) for key in keys]
        logits = self.model(ids, attention_mask=mask, use_cache=False).logits
        hidden = self._seen[-1]
        rows = [row[answer(record)] for row, record in zip(logits, group, strict=True)]
        for key, record, row, state in zip(keys, group, rows, hidden, strict=True):
            own = state[answer(record)].clone()
            if torch.allclose(self._head(own), row, atol=1e-3):
                self._hidden[key], self._new = own, True
        return rows

    def keep(self) -> None:
        """Write the hidden states for the next result."""
        import torch

        if self._new and self._hidden:
            part = self._path.with_name(f"{self._path.name}.part")
            torch.save(self._hidden, part)
            part.replace(self._path)


def refuse_merged(folder: Path, simulated: dict[str, int]) -> None:
    """Raise SystemExit where transformers merges quantized layers, so that their inputs would stay as they are."""
    from safetensors import safe_open  # type: ignore[import-not-found, unused-ignore]

    scales = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            scales += sum(name.endswith(".weight_scale") for name in names)
    if simulated["activations"] and simulated["weights"] < scales:
        raise SystemExit(
            f"{scales - simulated['weights']} of {scales} quantized layers are merged experts here, whose inputs would "
            "not be quantized: compare running servers instead (vq-console ab)"
        )


def unpack(model: Any) -> dict[str, int]:
    """Dequantize the weights in 32 bits and make the whole model compute so; how many layers simulate what.

    Raises SystemExit where the checkpoint quantizes something that this forward pass would leave out.
    """
    import torch

    halves = (torch.float16, torch.bfloat16)
    counts = {"weights": 0, "activations": 0, "kv_cache": 0}
    quantized = [module for module in model.modules() if getattr(module, "quantization_scheme", None) is not None]
    for module in quantized:
        scale = getattr(module, "weight_scale", None)
        if scale is not None and scale.dtype in halves:
            # A product with a 16-bit scale would be rounded a second time, which no kernel does.
            module.weight_scale = torch.nn.Parameter(scale.float(), requires_grad=False)
    model.hf_quantizer.compressor.decompress_model(model=model)
    torch.nn.Module.float(model)  # transformers forbids the method for packed weights, which these no longer are
    for module in quantized:
        scheme = module.quantization_scheme
        counts["weights"] += scheme.weights is not None
        if scheme.input_activations is None:
            continue
        attention = hasattr(module, "kv_cache")
        # compressed-tensors replaces the forward pass of a layer, and the cache of an attention module.
        if not attention and "forward" not in vars(module):
            raise SystemExit("the activations of this checkpoint are not simulated by this compressed-tensors")
        counts["kv_cache" if attention else "activations"] += 1
    if not quantized or not counts["weights"]:
        raise SystemExit("no layer of the result is quantized for this compressed-tensors")
    return counts


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
