"""Reading specifications, flags and log scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from vq_console.core.errors import UsageError
from vq_console.simulator.script import fill, load_script, parse_script, script_names
from vq_console.simulator.spec import SPEC_VARIABLE, parse_serve, read_spec, spec_for, spec_from


def test_flags_in_every_form() -> None:
    words = "org/model --port=8001 --max-model-len 4k --enforce-eager --no-enable-prefix-caching"
    found = parse_serve(f"{words} --served-model-name a b -q fp8".split())
    assert found.model == "org/model"
    assert found.number("port") == 8001
    assert found.number("max_model_len") == 4000
    assert found.flags["enforce_eager"] is True
    assert found.flags["enable_prefix_caching"] is False
    assert found.flags["served_model_name"] == ["a", "b"]


def test_a_model_is_needed() -> None:
    with pytest.raises(UsageError):
        parse_serve(["--port", "1"])


@pytest.mark.parametrize(
    ("model", "script"),
    [("llama-fp8", "h200-fp8"), ("l-W4A16", "h200-w4a16"), ("smol-int8", "cpu-int8"), ("llama", "h200-bf16")],
)
def test_the_log_fits_the_model(model: str, script: str) -> None:
    assert spec_for(parse_serve([model]), {}).script == script


def test_specification_from_file_and_inline(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text("ttft_ms = 30\n[faults]\nloops_after = 64\n[tpot_ms]\n1 = 5.0\n16 = 9.0\n")
    spec = spec_for(parse_serve(["m"]), {SPEC_VARIABLE: str(path)})
    assert spec.ttft_ms == 30
    assert spec.faults.loops_after == 64
    assert [spec.tpot_at(batch) for batch in (1, 8.5, 16, 99)] == [5.0, 7.0, 9.0, 9.0]
    assert read_spec('{"kl": 0.1}') == {"kl": 0.1}


@pytest.mark.parametrize("values", [{"tftt_ms": 1}, {"faults": {"loop_after": 3}}])
def test_an_unknown_key_names_the_nearest(values: dict[str, object]) -> None:
    with pytest.raises(UsageError) as error:
        spec_from(values)
    assert "Did you mean" in error.value.hint


@pytest.mark.parametrize("text", ["{not json", "/no/such/file.toml"])
def test_a_broken_specification_is_said(text: str) -> None:
    with pytest.raises(UsageError):
        read_spec(text)


def test_every_shipped_script_is_whole() -> None:
    assert {"h200-fp8", "h200-w4a16", "cpu-int8", "fail-kv-too-small"} <= set(script_names())
    for name in script_names():
        script = load_script(name)
        assert len(script.start) > 20, name
        assert [line.at_s for line in script.start] == sorted(line.at_s for line in script.start)
        assert (script.exit_code is not None) == name.startswith("fail-")


def test_holes_and_kernels_are_filled() -> None:
    script = parse_script("x", "# about\n# vllm 0.30.0\n0\tpid=«api» «max_len,» Selected OldKernel\n@exit 3\n")
    line = fill(script.start[0].text, {"api": "7", "max_len,": "8,192"}, {"OldKernel": "NewKernel"})
    assert line == "pid=7 8,192 Selected NewKernel"
    assert script.exit_code == 3
    assert script.prefixed


def test_an_unknown_script_names_those_there_are() -> None:
    with pytest.raises(UsageError) as error:
        load_script("h100")
    assert "h200-fp8" in error.value.hint
