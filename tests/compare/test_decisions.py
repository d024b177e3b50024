"""Differences, placement, gates, regressions and arms decide without touching the world."""

from __future__ import annotations

import pytest

from compare.summaries import endpoint, summary
from vq_console.compare.arms import parse_arm
from vq_console.compare.comparison import AbSettings, share_time
from vq_console.compare.differences import ArmSettings, Difference, confounders, find_differences
from vq_console.compare.gates import failed_gates, parse_gates
from vq_console.compare.placement import ArmDemand, GpuRoom, plan_placement
from vq_console.compare.regression import compare_runs
from vq_console.core.errors import UsageError


def test_format_keys_are_the_question_and_others_confound() -> None:
    a = ArmSettings({"quantization": "fp8_per_tensor", "port": 1}, {}, {"max_num_seqs": 256}, "m")
    b = ArmSettings({"enforce_eager": True, "port": 2}, {"VLLM_X": "1"}, {"max_num_seqs": 128}, "m-int4")
    found = find_differences(a, b)
    assert {d.key: d.declared for d in found} == {
        "model": True,
        "quantization": True,
        "enforce_eager": False,
        "env.VLLM_X": False,
        "max_num_seqs": False,
    }
    assert {d.key for d in confounders(found)} == {"enforce_eager", "env.VLLM_X", "max_num_seqs"}
    declared = find_differences(a, b, declared=["enforce_eager", "env.VLLM_X", "max_num_seqs"])
    assert not confounders(declared)


def test_resolved_value_wins_over_what_was_asked() -> None:
    a = ArmSettings({"max_model_len": 4096}, {}, {"max_model_len": 4096})
    b = ArmSettings({}, {}, {"max_model_len": 4096})
    assert find_differences(a, b) == ()


def test_a_difference_is_told_in_words() -> None:
    assert Difference("kv_cache_dtype", "fp8", None, True).words() == (
        "differs in kv_cache_dtype: A fp8, B not set (the question)"
    )
    told = Difference("compilation_config", {"level": None}, True, False).words()
    assert told.startswith('differs in compilation_config: A {"level": null}, B true (NOT declared')


def arm(label: str, weights: float | None = 8.0, share: float | None = None, **more: object) -> ArmDemand:
    return ArmDemand(label, (), share, weights, **more)  # type: ignore[arg-type]


def test_two_gpus_of_one_kind_take_one_arm_each() -> None:
    gpus = [GpuRoom(i, "H100", 80, 79) for i in range(2)]
    placed = plan_placement(arm("A"), arm("B"), gpus, device="cuda")
    assert placed.design == "swapped-gpus"
    assert placed.gpus == {"A": (0,), "B": (1,)}
    wider = plan_placement(arm("A", gpu_count=2), arm("B"), [*gpus, GpuRoom(2, "H100", 80, 79)], device="cuda")
    assert wider.design == "separate-gpus", "two GPUs and one cannot change places"


def test_gpus_of_two_kinds_are_not_mixed() -> None:
    gpus = [GpuRoom(0, "H100", 80, 79), GpuRoom(1, "A100", 80, 79)]
    assert plan_placement(arm("A"), arm("B"), gpus, device="cuda").design == "co-resident"


def test_one_gpu_shares_are_planned_so_that_both_fit() -> None:
    placed = plan_placement(arm("A", 14.0), arm("B", 4.0), [GpuRoom(0, "4090", 48, 47)], device="cuda")
    assert placed.design == "co-resident"
    shares = {side: args["gpu_memory_utilization"] for side, args in placed.overrides.items()}
    assert sum(shares.values()) <= 47 / 48 - 0.03 + 1e-9
    assert shares["A"] * 48 > 14
    assert shares["B"] * 48 > 4


def test_shares_that_fit_are_left_alone() -> None:
    placed = plan_placement(arm("A", 4, 0.3), arm("B", 4, 0.3), [GpuRoom(0, "H200", 140, 139)], device="cuda")
    assert placed.overrides == {}


def test_a_baseline_gets_its_share_of_the_same_gpu() -> None:
    gpu = GpuRoom(0, "H200", 140, 139)
    placed = plan_placement(arm("A", 8.0), arm("B", 5.0), [gpu], device="cuda", third=arm("R", 15.0))
    assert placed.gpus == {"A": (0,), "B": (0,), "R": (0,)}
    shares = {side: args["gpu_memory_utilization"] for side, args in placed.overrides.items()}
    assert sum(shares.values()) <= 139 / 140 - 0.03 + 1e-9
    assert shares["R"] * 140 > 15


def test_a_baseline_beside_running_servers_takes_what_is_free() -> None:
    a, b = (ArmDemand(side, (0,), None, None, running=True) for side in "AB")
    placed = plan_placement(a, b, [GpuRoom(0, "H200", 140, 42)], device="cuda", third=arm("R", 15.0))
    assert placed.overrides["R"]["gpu_memory_utilization"] == pytest.approx(0.27)


def test_a_baseline_takes_the_third_gpu_where_there_is_one() -> None:
    gpus = [GpuRoom(index, "H200", 140, 139) for index in range(3)]
    placed = plan_placement(arm("A"), arm("B"), gpus, device="cuda", third=arm("R"))
    assert placed.gpus == {"A": (0,), "B": (1,), "R": (2,)}
    assert plan_placement(arm("A"), arm("B"), gpus[:2], device="cuda", third=arm("R")).design == "co-resident"


def test_what_does_not_fit_together_runs_one_at_a_time() -> None:
    placed = plan_placement(arm("A", 16.0), arm("B", 9.0), [GpuRoom(0, "4090", 24, 23.5)], device="cuda")
    assert placed.design == "one-at-a-time"


def test_cpu_arms_are_resident_together() -> None:
    assert plan_placement(arm("A"), arm("B"), [], device="cpu").design == "co-resident"


def test_a_run_of_fixed_length_gives_the_checks_what_the_starts_left() -> None:
    whole = AbSettings(within_s=440)
    quick_start, slow_start = share_time(whole, 90), share_time(whole, 250)
    for shared, spent in ((quick_start, 90), (slow_start, 250)):
        assert shared.latency_budget_s is not None
        assert shared.quality_budget_s is not None
        assert spent + shared.latency_budget_s + shared.quality_budget_s == pytest.approx(440)
        assert shared.latency_budget_s > shared.quality_budget_s >= 60
    assert share_time(whole, 200, quality_done=True).latency_budget_s == pytest.approx(240), "latency takes the rest"
    late = share_time(whole, 900)
    assert (late.latency_budget_s, late.quality_budget_s) == (60, 60), "late is no reason to measure nothing"
    assert share_time(AbSettings(within_s=440, quality=False), 40).latency_budget_s == pytest.approx(400)
    assert share_time(AbSettings(latency_budget_s=5), 90) == AbSettings(latency_budget_s=5)


def test_gates() -> None:
    assert parse_gates(["slower,fallback", "noticeable"]) == ("slower", "fallback", "noticeable")
    with pytest.raises(UsageError, match="did you mean slower"):
        parse_gates(["slowr"])
    value = summary()
    assert failed_gates(value, ("slower",)) == ["slower: tpot at 1", "slower: throughput at 64"]
    assert failed_gates(value, ("fallback",)) == ["fallback: B linear"]
    assert failed_gates(value, ("noticeable",)) == []
    assert failed_gates(value, ("small",)) == ["small: quality is SMALL"]
    assert failed_gates({**value, "quality": {"word": "UNRESOLVED"}}, ("damaging",)) == [
        "damaging: quality is UNRESOLVED"
    ]


def test_regressions_need_intervals_apart() -> None:
    before, after = summary(), summary()
    after["latency"] = {
        "endpoints": [
            endpoint("tpot", 1, 1.3, 1.28, 1.32, "slower"),
            endpoint("throughput", 64, 0.78, 0.76, 0.8, "slower"),
        ]
    }
    after["quality"] = {**before["quality"], "word": "NOTICEABLE", "kld": {"value": 0.07, "ci": [0.06, 0.08]}}
    words = {change.what: change.word for change in compare_runs(before, after)}
    assert words == {
        "tpot at 1, B/A": "regression",
        "throughput at 64, B/A": "unchanged",
        "quality": "regression",
        "kld": "regression",
    }
    assert {c.word for c in compare_runs(after, before)} == {"improvement", "unchanged"}


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("fp8", "profile", "fp8"),
        ("profile:both", "profile", "both"),
        ("server:both", "server", "both"),
        ("ref:base", "reference", "base"),
        ("http://h:8000/", "url", "http://h:8000"),
        ("./x/p.toml", "profile", "./x/p.toml"),
        ("running", "server", "running"),
    ],
)
def test_arms(text: str, kind: str, name: str) -> None:
    spec = parse_arm(text, profiles={"fp8", "both"}, servers={"running", "both"}, references={"base"})
    assert (spec.kind, spec.name) == (kind, name)


@pytest.mark.parametrize("text", ["both", "fp9", "profile:"])
def test_unclear_arms_are_wrong_use(text: str) -> None:
    with pytest.raises(UsageError):
        parse_arm(text, profiles={"fp8", "both"}, servers={"both"}, references=set())
