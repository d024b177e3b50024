"""What a person does to a running server: wait for it, stop it, start it again, ask for quiet.

Speaks to keepers through files in the server's folder and a wake-up signal; signals nothing but a keeper whose
identity was just compared. An attached server is never stopped.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from vq_console.core.errors import LaunchError, UsageError
from vq_console.core.files import read_json, write_json
from vq_console.core.places import host_id
from vq_console.serving.keeping import procfs
from vq_console.serving.model import LIVE, ServerRecord, ServerState
from vq_console.serving.registry import get_server, is_alive, read_record

POLL_S = 0.1
Watcher = Callable[[ServerRecord], None]


def wait_ready(name: str, *, timeout_s: float | None = None, on_progress: Watcher | None = None) -> ServerRecord:
    """Wait until the server gave a token, or is over. `on_progress` gets the record at every look; it may raise.

    Raises LaunchError with the diagnosis of its log when it failed or was stopped, or after `timeout_s` (it then runs
    on). The keeper has a time-out of its own, so without one this ends too.
    """
    started = time.monotonic()
    while True:
        record = get_server(name)
        if on_progress is not None:
            on_progress(record)
        if record.state is ServerState.READY:
            remember_good_run(record)
            return record
        if record.state not in LIVE:
            raise launch_error(record)
        if timeout_s is not None and time.monotonic() - started > timeout_s:
            what = record.phase or record.state.value
            raise LaunchError(
                f"{name} is not ready after {timeout_s:.0f} s ({what})",
                f"it goes on starting; `vq-console logs {name} -f` follows it, `vq-console stop {name}` ends it",
            )
        time.sleep(POLL_S)


def remember_good_run(record: ServerRecord) -> None:
    """Keep GPU, vLLM and kernels of a profile that came up, for `[made_on]` when it is shared. Trouble is not worth
    an error: the server runs."""
    from vq_console.hardware.probe import read_machine
    from vq_console.profiles.remember import remember_run
    from vq_console.serving.view import read_log

    seen = read_log(record)
    if record.profile is None or record.simulated or record.attached or seen is None:
        return
    machine = read_machine(processes=False)
    gpu = next((g for g in machine.gpus if g.index in record.gpus), None)
    kernels = list(dict.fromkeys(str(k["kernel"]) for k in seen.facts.get("kernels") or ()))
    made_on = {
        "gpu": gpu.name if gpu else machine.host.cpu_model,
        "sm": gpu.sm if gpu else None,
        "vllm": seen.facts.get("vllm_version"),
        "kernels": kernels,
    }
    try:
        remember_run(record.profile, made_on)
    except OSError:
        return


def launch_error(record: ServerRecord) -> LaunchError:
    """Why a server is not ready, from its log where that says more than the keeper saw."""
    from vq_console.serving.view import diagnose_server, diagnosis_json, tail_of

    diagnosis = diagnose_server(record)
    message = f"{record.name} {record.state.value}: {record.reason or 'no reason is known'}"
    hint = f"`vq-console logs {record.name}` shows its log"
    more = {
        "server": record.name,
        "diagnosis": diagnosis.slug if diagnosis else None,
        "problem": diagnosis_json(diagnosis) if diagnosis else None,
    }
    if diagnosis is not None and diagnosis.severity in ("error", "unknown") and record.state is ServerState.FAILED:
        where = f" (log line {diagnosis.root_line})" if diagnosis.root_line else ""
        message += f"\n  {diagnosis.slug}: {diagnosis.title}{where}"
        if diagnosis.evidence:
            message += f"\n  {diagnosis.evidence}"
        patched = next((fix for fix in diagnosis.fixes if fix.patch is not None), None)
        if patched is not None:
            hint = f"{patched.text} `vq-console fix {record.name}` does it."
        elif diagnosis.fixes:
            hint = diagnosis.fixes[0].text
    argv = tuple(str(item) for item in record.plan.get("argv") or ())
    return LaunchError(message, hint, argv=argv, log_tail=tail_of(record), more=more)


def stop_server(name: str, *, timeout_s: float = 30.0, on_progress: Watcher | None = None) -> ServerRecord:
    """Stop the server in stages and wait until nothing of it is left; returns its last record.

    `timeout_s` is how long it may take by itself before it is killed. A server that is over is left as it is. Raises
    UsageError for an attached one or one of another host, LaunchError when even killing does not end it.
    """
    record = get_server(name)
    if record.attached:
        raise UsageError(
            f"{name!r} was not started here, so it is not stopped here",
            "stop it where it was started; --forget detaches it",
        )
    if record.host_id != host_id():
        raise UsageError(f"{name!r} runs on {record.host_id}", "stop it there")
    told: tuple[int, int] | None = None
    deadline = time.monotonic() + timeout_s + 120
    while record.state in LIVE:
        if on_progress is not None:
            on_progress(record)
        keeper = record.keeper
        if keeper is not None and is_alive(keeper) and told != (keeper.pid, keeper.start_ticks):
            told = (keeper.pid, keeper.start_ticks)
            _tell(record, "stop", {"timeout_s": timeout_s})
        if time.monotonic() > deadline:
            raise LaunchError(f"{name} could not be stopped: {record.phase or record.reason}", f"see {record.folder}")
        time.sleep(POLL_S / 2)
        record = get_server(name)
    if on_progress is not None:
        on_progress(record)
    return record


def keep_quiet(name: str, seconds: float) -> None:
    """Ask the keeper not to send anything to its server for a while, so that a measurement is alone with it."""
    record = get_server(name)
    if not record.attached and record.state in LIVE:
        _tell(record, "quiet", {"seconds": seconds})


def _tell(record: ServerRecord, command: str, value: dict[str, float]) -> None:
    if record.folder is None or record.keeper is None:
        return
    path = Path(record.folder) / f"{command}.command"
    try:
        write_json(path, value, mode=0o600)
    except OSError:
        path.touch(mode=0o600)  # a full disk has room for an empty file, which means the command with its defaults
    procfs.send_signal(record.keeper.pid, record.keeper.start_ticks, signal.SIGUSR1)


def restart_server(
    name: str, *, timeout_s: float = 30.0, on_progress: Watcher | None = None, profile_path: str | None = None
) -> ServerRecord:
    """Stop the server if it lives and start its profile again under the same name, as the profile is now.

    Engine, GPUs and overridden arguments stay as they were. Returns the new record, queued or starting.
    """
    from vq_console.engines.find import choose_engine
    from vq_console.profiles.model import EnvRef
    from vq_console.profiles.store import load_profile
    from vq_console.serving.environment import server_environment
    from vq_console.serving.launch import Settings, launch

    record = get_server(name)
    if record.attached or record.folder is None:
        raise UsageError(f"{name!r} was not started here", "restart it where it was started")
    given = read_json(Path(record.folder) / "server.json")
    profile = load_profile(profile_path or given.get("profile_path") or record.profile or name)
    engine = choose_engine(profile.vllm, python="simulator" if record.simulated else record.engine)
    # What it would lack afterwards is said before it is stopped.
    secrets = {key: value.from_env for key, value in profile.env.items() if isinstance(value, EnvRef)}
    server_environment({}, secrets, python=None, given=os.environ)
    stop_server(name, timeout_s=timeout_s, on_progress=on_progress)
    keeper = dict(given.get("keeper") or {})
    limit = int(keeper.pop("restart_limit", 0))
    on_death = [str(item) for item in keeper.pop("on_death", ())]
    keeper.pop("startup_timeout_s", None)
    return launch(
        profile,
        engine=engine,
        name=name,
        gpus=given.get("asked_gpus"),
        args_override=given.get("args_override") or None,
        settings=Settings(
            restart_limit=limit, min_free_gib=given.get("min_free_gib"), on_death=on_death, keeper=keeper
        ),
    )


def reread(record: ServerRecord) -> ServerRecord:
    """The same server now."""
    return read_record(Path(record.folder)) if record.folder else record
