"""Every recorded log gets its recorded answer."""

from __future__ import annotations

import pytest

from logs.cases import DATA, Recorded, everything
from vq_console.logs.catalogue import diagnoses
from vq_console.logs.explain import explain_path

_ALL = everything()


@pytest.mark.parametrize("recorded", _ALL, ids=[recorded.name for recorded in _ALL])
def test_diagnosis_and_root_line(recorded: Recorded) -> None:
    diagnosis = explain_path(recorded.path).diagnosis
    assert diagnosis.slug in recorded.diagnoses, diagnosis
    if recorded.roots:
        assert diagnosis.root_line in recorded.roots, diagnosis


@pytest.mark.parametrize("recorded", [r for r in _ALL if r.expect], ids=[r.name for r in _ALL if r.expect])
def test_facts(recorded: Recorded) -> None:
    facts = explain_path(recorded.path).facts
    assert {key: facts.get(key, "absent") for key in recorded.expect} == recorded.expect


def test_no_healthy_log_is_called_failed() -> None:
    healthy = [recorded for recorded in _ALL if recorded.kind == "healthy"]
    assert len(healthy) > 20
    wrong = [r.name for r in healthy if explain_path(r.path).diagnosis.severity in ("error", "unknown")]
    assert wrong == []


def test_every_error_says_what_to_do_and_where() -> None:
    for recorded in _ALL:
        if recorded.kind != "error":
            continue
        diagnosis = explain_path(recorded.path).diagnosis
        assert diagnosis.explanation, recorded.name
        assert diagnosis.fixes, recorded.name
        assert diagnosis.root_line > 0, recorded.name
        assert diagnosis.evidence, recorded.name


def test_the_shipped_list_is_the_recorded_one() -> None:
    shipped = set(diagnoses())
    assert len(shipped) == 87
    used = {slug for recorded in _ALL for slug in recorded.diagnoses}
    assert used <= shipped
    assert (DATA / "diagnoses.toml").read_text(encoding="utf-8").count("[[diagnosis]]") == 87


def test_every_rule_names_a_diagnosis_of_the_list() -> None:
    from vq_console.logs.rules import TROUBLE, WARNINGS

    assert {rule.slug for rule in (*TROUBLE, *WARNINGS)} <= set(diagnoses())


@pytest.mark.parametrize(
    ("case", "arguments", "environment"),
    [
        ("kv-cache-too-small-4090", {"max_model_len": 37840}, {}),
        ("free-memory-less-than-util-a6000", {"gpu_memory_utilization": 0.65}, {}),
        ("gpu-mem-util-above-one", {"gpu_memory_utilization": 0.9}, {}),
        ("tp3-heads-not-divisible", {"tensor_parallel_size": 2}, {}),
        ("max-len-exceeds-model", {"max_model_len": 40960}, {}),
        ("cli-kv-dtype-invalid-choice", {"kv_cache_dtype": "float16"}, {}),
        ("tricky-recovered-retry-then-real-error", {"tool_call_parser": "qwen3_xml"}, {}),
        ("cuda-oom-sampler-warmup-1024", {"max_num_seqs": 256}, {}),
        ("engine-ready-timeout-slow-disk", {}, {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}),
        ("deepgemm-unknown-recipe-sm120", {}, {"VLLM_USE_DEEP_GEMM": "0"}),
        ("fp8-per-channel-on-ampere", {"quantization": "fp8_per_tensor"}, {}),
        ("bf16-on-t4", {"dtype": "half"}, {}),
        ("trust-remote-code-needed", {"trust_remote_code": True}, {}),
    ],
)
def test_the_first_patch_has_the_values_of_the_log(
    case: str, arguments: dict[str, object], environment: dict[str, str]
) -> None:
    fixes = explain_path(DATA / "cases" / case / "log.txt").diagnosis.fixes
    patch = next(fix.patch for fix in fixes if fix.patch is not None)
    assert dict(patch.set_args) == arguments
    assert dict(patch.set_env) == environment


@pytest.mark.parametrize(
    ("case", "removed"),
    [
        ("cli-swap-space-removed", {"swap_space", "disable_log_requests"}),
        ("conflict-gptq-ckpt-awq-flag", {"quantization"}),
        ("moe-backend-trtllm-on-sm120", {"moe_backend"}),
        ("attention-backend-not-valid-for-config", {"attention_backend"}),
        ("linear-backend-machete-fallback-warning", {"linear_backend"}),
        ("ignore-has-no-effect-on-checkpoint", {"quantization_config"}),
    ],
)
def test_what_must_go_is_removed(case: str, removed: set[str]) -> None:
    fixes = explain_path(DATA / "cases" / case / "log.txt").diagnosis.fixes
    patch = next(fix.patch for fix in fixes if fix.patch is not None)
    assert set(patch.remove_args) == removed


def test_the_warning_about_missing_hardware_is_not_repeated_as_a_fact() -> None:
    diagnosis = explain_path(DATA / "cases" / "marlin-fp4-fallback-on-blackwell" / "log.txt").diagnosis
    assert "Marlin" in diagnosis.explanation
    assert "does not have" not in diagnosis.explanation
