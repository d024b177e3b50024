"""Which pair the demo takes on which machine: what runs natively first, what runs at all otherwise."""

from __future__ import annotations

import pytest

from vq_console.demo.pair import demo_pairs


@pytest.mark.parametrize(
    ("device", "sm", "isa", "schemes", "quantization"),
    [
        ("cuda", 90, (), ("bf16", "w4a16"), "fp8_per_tensor"),
        ("cuda", 89, (), ("bf16", "w4a16"), "fp8_per_tensor"),
        ("cuda", 86, (), ("bf16", "w4a16"), "fp8_per_tensor"),
        ("cpu", None, ("avx2", "avx512f", "amx_tile"), ("w8a8", "w4a16"), None),
        ("cpu", None, ("avx2",), ("bf16", "w8a8"), None),
        ("cpu", None, (), ("bf16", "w8a8"), None),
    ],
)
def test_first_pair(
    device: str, sm: int | None, isa: tuple[str, ...], schemes: tuple[str, str], quantization: str | None
) -> None:
    pair = demo_pairs(device, sm, isa)[0]
    assert (pair.a.scheme, pair.b.scheme) == schemes
    assert pair.a.args.get("quantization") == quantization
    assert pair.why


def test_weight_only_fp8_is_called_that() -> None:
    assert "weight-only" in demo_pairs("cuda", 86, ())[0].why
    assert "weight-only" not in demo_pairs("cuda", 90, ())[0].why


def test_cpus_compute_in_what_they_are_fast_at_and_both_arms_alike() -> None:
    for isa, dtype in ((("avx2",), "float32"), (("avx2", "avx512f"), "bfloat16")):
        for pair in demo_pairs("cpu", None, isa):
            assert pair.a.args["dtype"] == pair.b.args["dtype"] == dtype
