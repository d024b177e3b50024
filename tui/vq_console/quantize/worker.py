"""The process that makes one checkpoint: data, recipe, tool, proof, rename, profile. Started by `jobs.start_job`.

Everything is made in a hidden folder beside the result and renamed when it has been verified; killed at any moment,
nothing under the result's own name exists.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vq_console.core.errors import VqError
from vq_console.core.files import append_jsonl, file_lock, read_json, write_json
from vq_console.core.places import state_dir
from vq_console.core.text import redact, strip_control
from vq_console.engines.install import tool_python
from vq_console.engines.job import run_tool, tail
from vq_console.engines.packages import clean_environment
from vq_console.quantize import data, jobs
from vq_console.quantize.here import judged_here
from vq_console.quantize.model import Judged, Request, Source
from vq_console.quantize.progress import Progress
from vq_console.quantize.recipe import CALIBRATION, RECIPE, recipe_text
from vq_console.quantize.schemes import TOOL_NAMES, label, needs_data
from vq_console.quantize.source import read_source
from vq_console.quantize.verify import verify

TOOLS = Path(__file__).parent / "tools"
RATES = "quantize-rates.jsonl"
_WRITE_S = 0.5


class ToolError(VqError):
    """The quantizing tool failed; the message is its own last words."""


@dataclass(slots=True)
class _State:
    """`job.json`, written when something changes, at most twice a second for progress."""

    folder: Path
    value: dict[str, Any]
    started: float = field(default_factory=time.monotonic)
    _written: float = 0.0

    def put(self, *, now: bool = True, **changes: Any) -> None:
        self.value.update(changes)
        if now or time.monotonic() - self._written > _WRITE_S:
            write_json(self.folder / jobs.STATE, self.value)
            self._written = time.monotonic()

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self.started


def main(folder: Path) -> int:
    """Run the job of a folder to its end and record it; the exit code is 0 when there is a result."""
    state = _State(folder, dict(read_json(folder / jobs.STATE)))
    state.put(begun=_now())

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, ended)
    part: Path | None = None
    try:
        request = Request.from_json(state.value["request"])
        part = part_folder(request.out)
        result = _make(request, folder, part, state)
        state.put(state=jobs.DONE, ended=_now(), eta_s=None, share=1.0, result=result)
        return 0
    except KeyboardInterrupt:
        state.put(state=jobs.CANCELLED, ended=_now(), error="cancelled")
        return 130
    except VqError as error:
        words = {"message": strip_control(error.message), "hint": error.hint, "exit_code": int(error.exit_code)}
        state.put(state=jobs.FAILED, ended=_now(), error=words["message"], failure=words)
        return int(error.exit_code)
    except Exception as error:
        state.put(state=jobs.FAILED, ended=_now(), error=f"{type(error).__name__}: {error}")
        raise
    finally:
        if part is not None and state.value["state"] != jobs.DONE:
            shutil.rmtree(part, ignore_errors=True)
            state.put(made=None)


def part_folder(out: Path) -> Path:
    """Where a result is made; hidden, on the same disk, found again by the next attempt."""
    return out.parent / f".{out.name}.part"


def _make(request: Request, folder: Path, part: Path, state: _State) -> dict[str, Any]:
    source = read_source(request.model)
    judged = judged_here(request, source)
    maker = judged.scheme.maker
    python = request.tool or tool_python(maker, say=lambda words: state.put(words=words))
    tool = tool_words(python, maker, request.tool is not None)
    seconds = _seconds_before(state, part)
    if seconds is None:
        seconds = _run_recipe(judged, source, python, tool, part, folder, state)
        state.put(made=round(seconds, 1))
    state.put(words="verifying", detail="", step=None, eta_s=None)
    problems = verify(part, judged, source)
    if problems:
        raise ToolError(f"the result is not whole: {'; '.join(problems[:3])}", f"log: {folder / jobs.LOG}")
    measured, trouble = None, None
    if judged.request.measure:
        try:
            measured = _measure(judged, source, part, python, folder, state)
        except ToolError as error:
            # The checkpoint is whole all the same.
            trouble = strip_control(error.message)
    _describe(part, folder, judged, source, tool, seconds, measured)
    os.rename(part, request.out)
    append_jsonl(
        state_dir() / RATES,
        {
            "scheme": judged.request.scheme,
            "method": judged.request.method,
            "samples": judged.request.samples,
            "parameters": source.parameters,
            "seconds": round(seconds, 1),
        },
    )
    from vq_console.quantize.outcome import save_result_profile, size_gib

    profile = save_result_profile(judged, source, tool, request.out) if request.profile else None
    return {
        "out": str(request.out),
        "label": label(judged.scheme, judged.request.method, judged.request.group_size, judged.request.kv_cache),
        "scheme": judged.request.scheme,
        "method": judged.request.method,
        "group_size": judged.request.group_size,
        "profile": profile,
        "seconds": round(state.passed_s, 1),
        "tool_seconds": round(seconds, 1),
        "size_gib": size_gib(request.out),
        "source_gib": round(source.size_bytes / 2**30, 3),
        "tool": tool,
        "recipe": str(request.out / RECIPE),
        "kld": measured,
        "kld_error": trouble,
    }


def _seconds_before(state: _State, part: Path) -> float | None:
    """What the tool took in an earlier life of this job that was killed after it; None when it has to run."""
    made = state.value.get(jobs.MADE)
    return float(made) if isinstance(made, int | float) and part.is_dir() else None


def _run_recipe(
    judged: Judged, source: Source, python: str, tool: str, part: Path, folder: Path, state: _State
) -> float:
    """Make the checkpoint in `part`; the seconds that the tool took."""
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    if needs_data(judged.scheme, judged.request.method, judged.request.kv_cache):
        data.write_calibration(folder / CALIBRATION, _calibration(judged, source, python, folder, state))
    (folder / RECIPE).write_text(recipe_text(judged, tool=tool, source_words=_source_words(source)), encoding="utf-8")
    begun = time.monotonic()
    _run(python, [str(folder / RECIPE), str(part)], folder, state, "the recipe")
    return time.monotonic() - begun


def _calibration(judged: Judged, source: Source, python: str, folder: Path, state: _State) -> list[dict[str, Any]]:
    if judged.request.data is not None:
        return data.read_user_data(judged.request.data)[: judged.request.samples]
    texts = _texts(judged, source, python, folder, state)
    return [{"text": record["text"]} for record in texts[data.HELD_OUT :][: judged.request.samples]]


def _texts(judged: Judged, source: Source, python: str, folder: Path, state: _State) -> list[dict[str, Any]]:
    """Texts that the source wrote, made once for a model: the first are held out, the others calibrate."""
    path = data.generated_texts(source)
    wanted = data.HELD_OUT + judged.request.samples
    texts = data.read_texts(path)
    if len(texts) < wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        state.put(words=f"letting the model write {wanted} texts", detail="", step=None)
        arguments = [str(TOOLS / "generate.py"), str(source.path), str(wanted), str(data.MAX_NEW_TOKENS)]
        # Another job of the same model waits for these.
        with file_lock(path.with_suffix(".lock")):
            if len(data.read_texts(path)) < wanted:
                more = [str(data.SEED), str(path), str(data.HELD_OUT)]
                _run(python, [*arguments, *more], folder, state, "writing calibration texts")
        texts = data.read_texts(path)
    if len(texts) < wanted:
        raise ToolError(f"{path}: {len(texts)} of {wanted} texts were written", f"log: {folder / jobs.LOG}")
    return texts


def _measure(judged: Judged, source: Source, part: Path, python: str, folder: Path, state: _State) -> dict[str, Any]:
    from vq_console.quantize.outcome import summarise

    texts = _texts(judged, source, python, folder, state)[: data.HELD_OUT]
    held_out = folder / "measured-on.jsonl"
    data.write_calibration(held_out, texts)
    state.put(words="measuring the divergence from the source", detail="", step=None)
    lines: list[str] = []
    kept = data.generated_texts(source).with_suffix(".hidden")
    arguments = [str(TOOLS / "measure.py"), str(source.path), str(part), str(held_out), str(kept)]
    _run(python, arguments, folder, state, "measuring", also=lines.append)
    answer = next((line.removeprefix("MEASURED ") for line in reversed(lines) if line.startswith("MEASURED ")), None)
    if answer is None:
        raise ToolError("the measurement gave no answer", f"log: {folder / jobs.LOG}")
    measured = summarise(json.loads(answer))
    if measured is None:
        raise ToolError("the measurement gave no answer", f"log: {folder / jobs.LOG}")
    simulated = next((line.removeprefix("SIMULATED ") for line in lines if line.startswith("SIMULATED ")), "null")
    return measured | {"simulated": json.loads(simulated)}


def _run(
    python: str,
    arguments: list[str],
    folder: Path,
    state: _State,
    what: str,
    *,
    also: Callable[[str], None] | None = None,
) -> None:
    progress = Progress()
    begun = time.monotonic()

    def line(text: str) -> None:
        if also is not None:
            also(text)
        progress.read(text)
        state.put(
            now=False,
            words=progress.words or state.value.get("words"),
            step=[progress.number, progress.total] if progress.total else None,
            detail=progress.detail,
            share=round(progress.share, 3),
            eta_s=progress.eta_s(time.monotonic() - begun),
        )

    code = run_tool(
        [python, "-u", *arguments],
        folder / jobs.LOG,
        on_line=line,
        # Threads that wait without spinning: other work on the machine is not starved, nor this by it.
        env={"OMP_WAIT_POLICY": "PASSIVE"}
        | clean_environment()
        | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        cwd=folder,
        own_group=False,
    )
    if code:
        raise _failure(folder / jobs.LOG, what, code)


def _failure(log: Path, what: str, code: int) -> ToolError:
    lines = tail(log, 60)
    text = "\n".join(lines)
    if code in (-signal.SIGKILL, 137):
        return ToolError(
            f"{what}: the tool was killed, most likely because main memory ran out",
            f"fewer --samples, a shorter --sequence-length, or a data-free scheme; log: {log}",
        )
    if code < 0:
        return ToolError(f"{what}: the tool was ended by {signal.Signals(-code).name}", f"log: {log}")
    if "No space left on device" in text:
        return ToolError(f"{what}: the disk is full", f"make room and run it again; log: {log}")
    if "out of memory" in text.lower() or "MemoryError" in text or "can't allocate memory" in text:
        return ToolError(f"{what}: memory ran out", f"fewer --samples or a shorter --sequence-length; log: {log}")
    errors = [line for line in lines if ("Error" in line or "error:" in line) and not line.startswith(" ")]
    words = redact(errors[-1] if errors else (lines[-1] if lines else f"exit code {code}"))
    return ToolError(f"{what} failed: {words[:300]}", f"log: {log}")


def _describe(
    part: Path, folder: Path, judged: Judged, source: Source, tool: str, seconds: float, measured: dict[str, Any] | None
) -> None:
    """Put the recipe, its data and where it all came from beside the result."""
    shutil.copy(folder / RECIPE, part / RECIPE)
    if (folder / CALIBRATION).exists():
        shutil.copy(folder / CALIBRATION, part / CALIBRATION)
    request = judged.request
    write_json(
        part / "vq-console.json",
        {
            "made_by": "vq-console quantize",
            "tool": tool,
            "scheme": request.scheme,
            "method": request.method,
            "label": label(judged.scheme, request.method, request.group_size, request.kv_cache),
            "group_size": request.group_size,
            "ignore": list(judged.ignore),
            "samples": request.samples if (folder / CALIBRATION).exists() else None,
            "source": {"model": source.model, "revision": source.revision, "size_bytes": source.size_bytes},
            "seconds": round(seconds, 1),
            "kld": measured,
            "date": _now(),
        },
    )


def tool_words(python: str, maker: str, own: bool) -> str:
    """What made it, by name and version: from the list of the console's environment, or by asking another."""
    package = TOOL_NAMES[maker]
    if not own:
        from vq_console.engines.pins import pins

        return f"{package} {pins(maker).version}"
    import subprocess

    ask = f"from importlib.metadata import version as v; print(v('{package}'))"
    done = subprocess.run(
        [python, "-c", ask], capture_output=True, text=True, timeout=60, check=False, env=clean_environment()
    )
    if done.returncode:
        raise ToolError(f"{python}: has no {package}", "leave out --tool, or install it there")
    return f"{package} {done.stdout.strip()}"


def _source_words(source: Source) -> str:
    return f"{source.model} (revision {source.revision[:12]})" if source.revision else source.model


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
