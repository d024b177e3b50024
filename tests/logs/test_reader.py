"""The reader of a growing log: runs, phases, facts, what it keeps."""

from __future__ import annotations

import io

import pytest

from logs.cases import DATA, text
from vq_console.logs.explain import explain_lines, explain_path, explain_stream
from vq_console.logs.phases import longest
from vq_console.logs.reader import FactReader

_HEALTHY = text(DATA / "real" / "h200-vllm-0.26.0" / "healthy-w4a16-machete.log")
_BUSY = text(DATA / "real" / "h200-vllm-0.26.0" / "gpu-busy-nvfp4.log")


def test_phases_of_a_start_in_order() -> None:
    reader = FactReader()
    seen = []
    for line in _HEALTHY:
        reader.feed([line])
        if not seen or seen[-1] != reader.phase:
            seen.append(reader.phase)
    assert seen == [
        "starting",
        "loading weights",
        "compiling and profiling memory",
        "profiling memory",
        "capturing CUDA graphs",
        "warming up",
        "starting the API server",
        "ready",
        "stopping",
    ]


def test_the_timeline_names_the_longest_part() -> None:
    phases = explain_path(DATA / "real" / "h200-vllm-0.26.0" / "healthy-w4a16-machete.log").phases
    assert [phase.name for phase in phases] == [
        "arguments and configuration",
        "engine process start",
        "model loading",
        "compilation",
        "memory profiling and KV cache",
        "CUDA graph capture",
        "warm-up",
        "API server start",
    ]
    slowest = longest(phases)
    assert slowest is not None
    assert (slowest.name, slowest.seconds) == ("arguments and configuration", 48.0)
    assert {phase.name: phase.seconds for phase in phases}["compilation"] == 26.07
    assert longest(()) is None


def test_requested_beside_resolved() -> None:
    facts = explain_path(DATA / "cases" / "conflict-gptq-ckpt-awq-flag" / "log.txt").facts
    assert facts["requested"]["quantization"] == "awq"
    facts = explain_path(DATA / "cases" / "fp8-e5m2-kv-with-fp8-checkpoint" / "log.txt").facts
    assert (facts["quantization"], facts["kv_cache_dtype"]) == ("compressed-tensors", "fp8_e5m2")


def test_a_key_in_the_arguments_is_hidden() -> None:
    line = (
        "(APIServer pid=1) INFO 11-03 09:00:00 [u.py:1] non-default args: "
        "{'model': 'a/b', 'api_key': ['sk-very-secret']}"
    )
    facts = explain_lines([line]).facts
    assert facts["requested"] == {"model": "a/b", "api_key": "***"}


def test_arguments_that_are_no_literals_are_kept_as_far_as_they_are() -> None:
    line = (
        "(APIServer pid=1) INFO 11-03 09:00:00 [u.py:1] non-default args: {'model': 'a/b', 'max_model_len': 8192,"
        " 'compilation_config': CompilationConfig(level=3, mode=<Mode.X: 3>), 'enforce_eager': True}"
    )
    requested = explain_lines([line]).facts["requested"]
    assert (requested["model"], requested["max_model_len"], requested["enforce_eager"]) == ("a/b", 8192, True)


def test_arguments_as_old_releases_print_them() -> None:
    line = (
        "INFO 12-05 20:24:46 api_server.py:586] args: Namespace(host=None, port=8000, model='Qwen/Qwen2-7B-AWQ',"
        " quantization='awq', dtype='auto', max_model_len=4096, enforce_eager=False, rope_scaling=None)"
    )
    facts = explain_lines([line]).facts
    assert facts["model"] == "Qwen/Qwen2-7B-AWQ"
    assert facts["requested"]["max_model_len"] == 4096


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (
            "INFO 11-29 00:00:00 [model_runner.py:1] model weights take 14.99GiB; non_torch_memory takes",
            "model_load_gib",
            14.99,
        ),
        ("INFO 11-29 00:00:00 model_runner.py:1067] Loading model weights took 5.2035 GB", "model_load_gib", 5.2035),
        (
            "INFO 11-29 00:00:00 [g.py:1] Model loading took 27.9180 GiB and 95.530197 seconds",
            "model_load_s",
            95.530197,
        ),
        ("INFO 11-29 00:00:00 [k.py:1] CPU KV cache size: 2,097,152 tokens", "kv_cache_tokens", 2097152),
        (
            (
                "INFO 11-29 00:00:00 [k.py:1] GPU + host KV cache size: 1,024 tokens, Maximum concurrency for 8 "
                "tokens per request: 1.50x"
            ),
            "max_concurrency",
            1.5,
        ),
        ("INFO 11-29 00:00:00 [c.py:1] Using Flash Attention backend on V1 engine.", "attention_backend", "FLASH_ATTN"),
        (
            "INFO 11-29 00:00:00 [c.py:1] Using AttentionBackendEnum.FLASHINFER backend.",
            "attention_backend",
            "FLASHINFER",
        ),
        (
            "INFO 11-29 00:00:00 [c.py:1] Using TRITON_ATTN attention backend out of potential backends: ['A'].",
            "attention_backend",
            "TRITON_ATTN",
        ),
        (
            "INFO 11-29 00:00:00 [f.py:1] Using TRITON Fp8 MoE backend out of potential backends: ['A'].",
            "moe_backend",
            "TRITON",
        ),
        ("INFO 11-29 00:00:00 [f.py:1] Using 'MARLIN' WNA16 MoE backend.", "moe_backend", "MARLIN"),
        (
            (
                "INFO 11-29 00:00:00 [k.py:1] Auto-fit max_model_len: reduced from 131072 to 37840 to fit in "
                "available KV cache memory (4 GiB)"
            ),
            "max_model_len",
            37840,
        ),
        (
            (
                "INFO 11-29 00:00:00 [c.py:1] init engine (profile, create kv cache, warmup model) took 31.77 s "
                "(compilation: 14.31 s)"
            ),
            "init_engine_s",
            31.77,
        ),
        ("INFO 11-29 00:00:00 [c.py:1] Available KV cache memory: -1.37 GiB", "kv_cache_gib", -1.37),
        ("INFO 11-29 00:00:00 [m.py:1] [backbone] torch.compile took 71.22 s in total", "compile_s", 71.22),
    ],
)
def test_templates_of_all_releases(line: str, key: str, value: object) -> None:
    assert explain_lines([line]).facts[key] == value


def test_of_several_ranks_the_slowest_and_the_smallest_decide() -> None:
    lines = [
        "(Worker_TP0 pid=1) INFO 11-03 09:00:20 [g.py:1] Model loading took 8.84 GiB memory and 11.4 seconds",
        "(Worker_TP1 pid=2) INFO 11-03 09:00:20 [g.py:1] Model loading took 8.90 GiB memory and 11.2 seconds",
        "(EngineCore_DP0 pid=3) INFO 11-03 09:00:20 [k.py:1] GPU KV cache size: 2,000 tokens",
        "(EngineCore_DP1 pid=4) INFO 11-03 09:00:20 [k.py:1] GPU KV cache size: 1,000 tokens",
    ]
    facts = explain_lines(lines).facts
    assert (facts["model_load_gib"], facts["model_load_s"], facts["kv_cache_tokens"]) == (8.9, 11.4, 1000)


def test_a_missing_kernel_line_is_not_guessed() -> None:
    facts = explain_path(DATA / "real" / "h200-vllm-0.26.0" / "healthy-gptq-int4.log").facts
    assert facts["kernels"] == []
    assert "moe_backend" not in facts


def test_the_last_of_many_runs_is_told() -> None:
    reader = FactReader()
    reader.feed(_BUSY)
    assert reader.failed
    reader.feed(_HEALTHY)
    assert not reader.failed
    assert reader.runs == 2
    assert reader.facts["model"] == "/models/l8b-w4a16"
    reader.feed(_BUSY)
    assert reader.failed
    assert reader.runs == 3
    diagnosis = reader.explanation().diagnosis
    assert diagnosis.slug == "gpu-memory-busy"
    assert diagnosis.root_line - len(_BUSY) - len(_HEALTHY) in (55, 93)


def test_two_api_servers_of_one_start_are_one_run() -> None:
    logo = " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0"
    reader = FactReader()
    reader.feed(
        [
            f"(ApiServer_0 pid=10) INFO 11-03 09:00:00 [api_utils.py:347] {logo}",
            f"(ApiServer_1 pid=11) INFO 11-03 09:00:00 [api_utils.py:347] {logo}",
        ]
    )
    assert reader.runs == 1
    reader.feed([f"(ApiServer_0 pid=10) INFO 11-03 09:30:00 [api_utils.py:347] {logo}"])
    assert reader.runs == 2


def test_a_restart_without_banner_is_seen_by_the_engine() -> None:
    line = (
        "(EngineCore pid={pid}) INFO 11-03 09:00:00 [core.py:1] Initializing a V1 LLM engine (v0.29.0) with config: "
        "model='{m}', seed=0"
    )
    facts = explain_lines([line.format(pid=5, m="first"), line.format(pid=9, m="second")]).facts
    assert facts["model"] == "second"


def test_data_parallel_engines_are_one_run() -> None:
    line = (
        "(EngineCore_DP{rank} pid={pid}) INFO 11-03 09:00:00 [core.py:1] Initializing a V1 LLM engine (v0.29.0) with "
        "config: model='m', seed=0"
    )
    reader = FactReader()
    reader.feed([line.format(rank=0, pid=5), line.format(rank=1, pid=6)])
    assert reader.runs == 1


def test_error_words_in_prompts_and_names_are_no_failure() -> None:
    lines = [
        "(APIServer pid=1) INFO 11-03 09:00:00 [u.py:1] non-default args: {'model': '/models/failed-error-OOM-killed'}",
        "INFO:     Application startup complete.",
        "(APIServer pid=1) INFO 11-03 09:00:40 [logger.py:52] Request a details: prompt: 'EngineCore failed to start."
        " Traceback (most recent call last): torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'",
        "(APIServer pid=1) INFO 11-03 09:00:40 [logger.py:66] Generated response a: output: 'Killed. "
        "Segmentation fault',"
        " output_token_ids: None, finish_reason: stop",
    ]
    assert explain_lines(lines).diagnosis.slug == "healthy"


def test_a_stop_on_request_is_not_a_crash_and_its_noise_no_cause() -> None:
    recorded = DATA / "real" / "h200-vllm-0.26.0" / "healthy-fp8-per-channel-fp8kv-then-sigterm-to-group.log"
    explanation = explain_path(recorded)
    assert explanation.diagnosis.slug == "healthy"
    assert explanation.facts["stopped_by"] == "SIGTERM"


def test_an_engine_that_vanishes_is_a_failure_whatever_the_exit_code() -> None:
    lines = [
        "INFO:     Application startup complete.",
        "(APIServer pid=1) WARNING 11-03 09:05:00 [core_client.py:817] [shutdown] MPClient: engine core exited "
        "unexpectedly;"
        " starting cleanup",
        "INFO:     Shutting down",
        "INFO:     Finished server process [1]",
    ]
    diagnosis = explain_lines(lines).diagnosis
    assert diagnosis.severity == "unknown"
    assert (diagnosis.slug, diagnosis.root_line) == ("root-cause-not-in-log", 2)


def test_an_interrupted_start() -> None:
    lines = [
        "(APIServer pid=1) INFO 11-03 09:00:00 [u.py:1] non-default args: {'model': 'a/b'}",
        (
            "(EngineCore pid=3) INFO 11-03 09:00:05 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: "
            "model='a/b', seed=0"
        ),
        "(EngineCore pid=3) INFO 11-03 09:00:08 [core.py:2] [shutdown] EngineCore: trigger received signal=SIGTERM",
        "Traceback (most recent call last):",
        '  File "/usr/local/bin/vllm", line 10, in <module>',
        "    sys.exit(main())",
        "KeyboardInterrupt: terminated",
    ]
    assert explain_lines(lines).diagnosis.slug == "startup-interrupted"


def test_stalls_are_told_of_logs_that_have_ended_only() -> None:
    lines = text(DATA / "cases" / "nccl-p2p-hang-5090" / "log.txt")
    reader = FactReader()
    reader.feed(lines)
    assert not reader.failed
    assert reader.explanation().diagnosis.slug == "nccl-hang"


def test_a_server_that_waits_for_a_worker_while_serving() -> None:
    wait = (
        "(EngineCore pid=127) INFO 07-11 03:{minute}:32 [shm_broadcast.py:698] No available shared memory broadcast "
        "block found in 60 seconds."
    )
    lines = ["INFO:     Application startup complete.", *(wait.format(minute=m) for m in range(28, 33))]
    diagnosis = explain_lines(lines).diagnosis
    assert (diagnosis.slug, diagnosis.root_line) == ("shm-broadcast-stall", 2)


def test_nothing_and_strangers_do_not_harm() -> None:
    assert explain_lines([]).diagnosis.slug == "root-cause-not-in-log"
    assert explain_lines(["", "  ", "\x00\x01", "{", "(", "[", "Traceback (most recent call last):"]).diagnosis.fixes
    explain_lines(["x" * 3_000_000, "\r" * 10_000, "█" * 5000, '{"message": 3}', "(A pid=1) "])


def test_a_year_may_end_during_the_start() -> None:
    lines = [
        "(APIServer pid=1) INFO 12-31 23:59:50 [u.py:1] non-default args: {'model': 'a/b'}",
        (
            "(EngineCore pid=3) INFO 01-01 00:00:05 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: "
            "model='a/b', seed=0"
        ),
    ]
    assert [phase.seconds for phase in explain_lines(lines).phases] == [15.0]


def test_the_line_of_a_number_can_be_asked_for() -> None:
    reader = FactReader()
    reader.feed(_BUSY)
    line = reader.line(reader.diagnosis.root_line)
    assert line is not None
    assert "Free memory on device" in line.message
    assert reader.line(10_000_000) is None


SERVED = [
    "(APIServer pid=31) INFO 11-01 08:00:00 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.31.0",
    "(EngineCore pid=32) INFO 11-01 08:00:20 [core.py:133] Initializing a V1 LLM engine (v0.31.0) with config: "
    "model='a/b',"
    " dtype=torch.bfloat16, max_seq_len=4096, quantization=awq, kv_cache_dtype=fp8",
    "(APIServer pid=31) INFO:     Application startup complete.",
]
REFUSED = ["usage: vllm serve [model_tag] [options]", "vllm serve: error: unrecognized arguments: --swap-space 4"]
RAISED = [
    "Traceback (most recent call last):",
    '  File "/usr/local/bin/vllm", line 10, in <module>',
    "    sys.exit(main())",
    '  File "/usr/local/lib/python3.12/dist-packages/huggingface_hub/utils/_validators.py", line 133, in check',
    "    raise HFValidationError(",
    "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/n'.",
]
STOPPED = ["(APIServer pid=31) INFO 11-01 08:30:00 [launcher.py:254] [shutdown] API server: shutdown triggered"]


@pytest.mark.parametrize("stopped", [[], STOPPED])
@pytest.mark.parametrize("last", [REFUSED, RAISED], ids=["refused", "raised"])
@pytest.mark.parametrize("prefix", ["", "web-1  | "])
def test_a_restart_that_dies_before_its_banner_is_the_last_run(
    prefix: str, last: list[str], stopped: list[str]
) -> None:
    alone = explain_lines([prefix + line for line in last]).diagnosis
    if last is RAISED and stopped:
        pytest.skip("a traceback behind a stop may be the stop's own")
    before = [*SERVED, *stopped]
    found = explain_lines([prefix + line for line in [*before, *last]])
    assert alone.severity == "error"
    assert (found.diagnosis.slug, found.diagnosis.root_line) == (alone.slug, alone.root_line + len(before))
    assert found.facts["ready"] is False


def test_a_prompt_about_tracebacks_is_no_restart() -> None:
    prompt = "\n".join(RAISED)
    quoted = f"(APIServer pid=31) INFO 11-01 08:01:00 [logger.py:40] Received request: prompt: {prompt!r}"
    lines = [*SERVED, quoted]
    assert explain_lines(lines).diagnosis.severity in ("ok", "warning")


def test_a_start_that_is_cut_off_is_not_called_running() -> None:
    diagnosis = explain_lines(SERVED[:2]).diagnosis
    assert (diagnosis.slug, diagnosis.title) == ("healthy", "Nothing has failed so far")
    assert "startup complete" not in diagnosis.explanation


def test_utf_16_as_powershell_writes_it() -> None:
    text = "\r\n".join(REFUSED)
    found = explain_stream(io.BytesIO(text.encode("utf-16")))
    assert (found.diagnosis.slug, found.diagnosis.root_line) == ("cli-unrecognized-argument", 2)
