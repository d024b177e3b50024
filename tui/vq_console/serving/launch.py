"""Starting a server: plan, folder, environment, and a detached keeper that does the rest.

Owns the claim of a name and of a folder. Must never put a secret on disk or into an argument, never use a shell, and
never start anything else than the plan's own argument list.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vq_console.core.errors import ExitCode, LaunchError, MissingError, UsageError
from vq_console.core.files import read_json, write_json
from vq_console.core.places import MEND, servers_dir
from vq_console.serving import registry
from vq_console.serving.environment import server_environment
from vq_console.serving.keeping import locks
from vq_console.serving.limits import BASE_S, ENGINE_DEFAULT_S, NEVER_S, on_network, startup_limit_s
from vq_console.serving.model import LIVE, ServerRecord

if TYPE_CHECKING:
    from vq_console.engines.model import Engine
    from vq_console.preflight.model import Plan
    from vq_console.profiles.model import Profile

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
KEEPER_START_S = 20.0
LOGS_KEPT = 3
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server is kept. None is the default of `keeping.settings.DEFAULTS` or chosen by size and disk.

    `startup_timeout_s` 0 never gives up. `restart_limit` is how often a server that was ready is started again.
    `min_free_gib` keeps it in the queue until so much GPU memory (main memory without a GPU) is free. `keeper` sets
    any other value of those defaults.
    """

    startup_timeout_s: float | None = None
    restart_limit: int = 0
    min_free_gib: float | None = None
    on_death: Sequence[str] = ()
    """A command that the keeper runs when the server dies unasked; it finds VQ_SERVER, VQ_REASON, VQ_INCIDENT."""
    keeper: Mapping[str, Any] = field(default_factory=dict)


def launch(
    profile: Profile,
    *,
    engine: Engine | None = None,
    name: str | None = None,
    gpus: Sequence[int] | None = None,
    args_override: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    force: bool = False,
) -> ServerRecord:
    """Plan `profile` and start it detached; returns at once, queued or starting. `control.wait_ready` waits.

    `args_override` replaces arguments for this server only. Raises ProfileError, EngineError, MissingError (a secret
    is not set), UsageError (not agreed to, name in use) and LaunchError when preflight says no and not `force`.
    """
    from vq_console.engines.find import choose_engine
    from vq_console.preflight.check import plan_json, plan_profile
    from vq_console.profiles.store import model_argument
    from vq_console.profiles.trust import is_trusted, trust_review

    if not is_trusted(profile):
        risks = "; ".join(f"{risk.key}: {risk.why}" for risk in trust_review(profile))
        raise UsageError(
            f"profile {profile.name!r} comes from elsewhere and nobody here agreed to it yet: {risks}",
            f"read it, then agree once: vq-console serve {profile.name} --trust",
        )
    if args_override:
        profile = replace(profile, args={**profile.args, **args_override})
    engine = engine or choose_engine(profile.vllm)
    if gpus is not None and not force:
        _check_gpus(gpus, simulated=engine.simulated)
    fixed_port = profile.args.get("port")
    plan = plan_profile(
        profile, engine=engine, port=None if fixed_port else free_port(), gpus=tuple(gpus) if gpus else None
    )
    errors = [finding for finding in plan.findings if finding.severity == "error"]
    if errors and not force:
        raise LaunchError(
            f"{profile.name}: preflight says no: {errors[0].message}",
            errors[0].fix or f"`vq-console lint {profile.name}` shows everything; --force starts it all the same",
            argv=plan.argv,
        )
    settings = settings or Settings()
    if settings.startup_timeout_s is None:
        settings = replace(
            settings, startup_timeout_s=_limit_of(model_argument(profile), plan.target.checkpoint.get("size_gib"))
        )
    told = plan_json(plan)
    stored = {**told.get("plan", told), "findings": told.get("findings", []), "target": dict(plan.target.facts)}
    return start(
        plan,
        engine=engine,
        name=name,
        stored_plan={**stored, "args": dict(profile.args)},
        profile_path=str(profile.path) if profile.path else None,
        port_fixed=bool(fixed_port),
        args_override=args_override,
        asked_gpus=gpus,
        settings=settings,
    )


def _check_gpus(gpus: Sequence[int], *, simulated: bool) -> None:
    """Raises UsageError for indices that this machine does not have, or that are given twice."""
    from vq_console.hardware.probe import read_machine

    if len(set(gpus)) != len(gpus) or any(index < 0 for index in gpus):
        raise UsageError(f"{','.join(map(str, gpus))} are no GPUs", "each index once, from 0 on")
    if simulated:
        return
    known = [gpu.index for gpu in read_machine(processes=False).gpus]
    absent = [index for index in gpus if index not in known]
    if absent:
        has = f"it has {', '.join(map(str, known))}" if known else "it shows none; on the CPU leave the choice out"
        raise UsageError(f"this machine has no GPU {', '.join(map(str, absent))}", f"{has}; `vq-console detect` lists")


def start(
    plan: Plan,
    *,
    engine: Engine | None = None,
    name: str | None = None,
    stored_plan: Mapping[str, Any] | None = None,
    profile_path: str | None = None,
    port_fixed: bool = False,
    args_override: Mapping[str, Any] | None = None,
    asked_gpus: Sequence[int] | None = None,
    settings: Settings | None = None,
) -> ServerRecord:
    """Start exactly `plan` detached. Raises UsageError (name), MissingError (secret), LaunchError (disk, keeper)."""
    settings = settings or Settings()
    python = engine.python if engine is not None and not engine.simulated else None
    simulated = bool(engine is not None and engine.simulated)
    limit = BASE_S if settings.startup_timeout_s is None else settings.startup_timeout_s
    plan_env = dict(plan.env)
    patience = limit or NEVER_S
    if patience > ENGINE_DEFAULT_S and READY_TIMEOUT not in plan_env and READY_TIMEOUT not in os.environ:
        plan_env[READY_TIMEOUT] = str(int(patience))  # else vLLM itself gives up on a slow disk before the keeper does
    env = server_environment(plan_env, plan.secret_env, python=python, given=os.environ)
    uuids, lock_names, labels = _start_locks(plan, simulated)
    with _disk_trouble(plan), claimed_folder(name, plan.profile) as (folder, lock):
        _put_away(folder)
        given = {
            "name": folder.name,
            "profile": plan.profile,
            "profile_path": profile_path,
            "engine": engine.python if engine is not None else None,
            "simulated": simulated,
            "argv": list(plan.argv),
            "env": plan_env,
            "secret_env": dict(plan.secret_env),
            "cwd": str(folder),
            "host": plan.host,
            "port": plan.port,
            "port_fixed": port_fixed,
            "tls": any(item.startswith("--ssl-certfile") for item in plan.argv),
            "model": plan.served_model,
            "api_key_env": plan.secret_env.get("VLLM_API_KEY", "VLLM_API_KEY") if env.get("VLLM_API_KEY") else None,
            "gpus": list(plan.gpus),
            "gpu_uuids": uuids,
            "locks": lock_names,
            "lock_labels": labels,
            "log": str(folder / "server.log"),
            "created": time.time(),
            "args_override": dict(args_override or {}),
            "asked_gpus": list(asked_gpus) if asked_gpus is not None else None,
            "min_free_gib": settings.min_free_gib,
            "keeper": {
                "startup_timeout_s": limit or None,
                "restart_limit": settings.restart_limit,
                "on_death": list(settings.on_death),
                **settings.keeper,
            },
            "plan": dict(stored_plan or {}),
        }
        write_json(folder / "server.json", given, mode=0o600)
        history = [{"state": "queued", "at": given["created"], "up": time.monotonic()}]
        write_json(folder / "state.json", {"state": "queued", "history": history}, mode=0o600)
        spawn_keeper(folder, env, lock)
    return wait_for_keeper(folder)


@contextlib.contextmanager
def _disk_trouble(plan: Plan) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LaunchError(
            f"{plan.profile}: {error.filename or servers_dir()}: {error.strerror or error}",
            f"a server's record is written before it starts: {MEND}",
            argv=plan.argv,
            exit_code=ExitCode.MISSING,
        ) from error


def _limit_of(model: str, size_gib: float | None) -> float:
    """How long the start of `model` (a folder, or a hub id) may take, by size, disk and whether it is here."""
    from vq_console.profiles.hubcache import find_cached

    weights: Path | None = Path(model) if model.startswith("/") else None
    if weights is None:
        cached = find_cached(model.partition(":")[0])
        weights = cached.path if cached is not None and not cached.incomplete else None
    return startup_limit_s(
        size_gib, local=weights is not None, network=weights is not None and on_network(str(weights))
    )


def _start_locks(plan: Plan, simulated: bool) -> tuple[list[str], list[str], dict[str, str]]:
    """GPU UUIDs, lock names and what people call them. The CPU counts as one; a simulation disturbs nobody else."""
    if simulated:
        import hashlib

        home = hashlib.sha256(str(servers_dir()).encode()).hexdigest()[:12]
        names = {f"simulated-{home}-{index}": f"simulated GPU {index}" for index in plan.gpus or (0,)}
        return [], list(names), names
    if plan.gpus:
        from vq_console.hardware.probe import read_machine

        found = {gpu.index: gpu.uuid for gpu in read_machine(processes=False).gpus}
        uuids = [uuid for index in plan.gpus if (uuid := found.get(index))]
        names = {f"gpu-{found.get(index) or index}": f"GPU {index}" for index in plan.gpus}
        return uuids, list(names), names
    return [], ["cpu"], {"cpu": "the CPU"}


def free_port() -> int:
    """A port that is free now and that no keeper has claimed. It is claimed for good by the keeper."""
    claimed = locks.claim_port("127.0.0.1", None, {})
    if claimed is None:
        raise LaunchError("no free port was found", "close some programs that listen")
    os.close(claimed[1])
    return claimed[0]


@contextlib.contextmanager
def claimed_folder(name: str | None, profile: str) -> Iterator[tuple[Path, int]]:
    """A server's folder with the keeper's lock on it: `name`, or the profile's name, `-2`, `-3` and so on.

    Raises UsageError when a given name is malformed or its server lives.
    """
    wanted = name or profile
    if not NAME.fullmatch(wanted):
        raise UsageError(f"{wanted!r} is no name for a server", "letters, digits, dot, dash and underscore, up to 100")
    base = servers_dir()
    base.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        folder = base / (wanted if number == 1 else f"{wanted}-{number}")
        folder.mkdir(mode=0o700, exist_ok=True)
        # A keeper may be on its way out, or cleaning up after one that was killed: the name is free in a moment.
        handle = _keeper_lock(folder, patience_s=2.0, unless=partial(_is_kept, folder))
        if handle is not None:
            try:
                if not _in_use(folder):
                    yield folder, handle
                    return
            finally:
                os.close(handle)
        if name is not None:
            raise UsageError(f"a server {name!r} runs already", f"take another name, or: vq-console stop {name}")
    raise UsageError(f"no name is left for another server of {profile!r}", "stop some of them")


def _is_kept(folder: Path) -> bool:
    """True when the folder's server is not over and has a living keeper."""
    try:
        state = read_json(folder / "state.json")
    except (OSError, ValueError):
        return False
    return str(state.get("state")) in LIVE and registry.is_alive(registry.identity_from(state.get("keeper")))


def _keeper_lock(folder: Path, patience_s: float = 0.05, unless: Callable[[], bool] | None = None) -> int | None:
    """The lock on `keeper.lock`; None when another has it longer than `patience_s`, or at once when `unless` says so.

    A reader holds it for a moment, to test whether it is held.
    """
    handle = os.open(folder / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() >= deadline or (unless is not None and unless()):
                os.close(handle)
                return None
            time.sleep(0.01)


def _in_use(folder: Path) -> bool:
    """True when the folder holds a server that lives without a keeper, or something attached or unreadable."""
    if not (folder / "server.json").exists():
        return False
    try:
        given = read_json(folder / "server.json")
        if given.get("attached"):
            return True
        record = registry.record_from(given, read_json(folder / "state.json"), folder)
    except FileNotFoundError:
        return False  # a launch that was killed before it wrote both files; it holds no lock any more
    except (OSError, ValueError, TypeError, AttributeError):
        return True  # broken: shown, never overwritten
    return record.state in LIVE and registry.is_alive(record.identity)


def _put_away(folder: Path) -> None:
    """Make room for a new life in a folder that held an earlier one; its last logs stay as `server.log.1` and on."""
    for number in range(LOGS_KEPT, 0, -1):
        older = folder / ("server.log" if number == 1 else f"server.log.{number - 1}")
        if older.exists():
            older.replace(folder / f"server.log.{number}")
    old = {"state.json", "members.json", "metrics.jsonl", "metrics.jsonl.1"}
    for path in folder.iterdir():
        if path.name in old or path.name.startswith("incident-") or path.suffix in {".command", ".taken", ".tmp"}:
            path.unlink(missing_ok=True)


def spawn_keeper(folder: Path, env: Mapping[str, str], lock: int, *, adopt: bool = False) -> None:
    """Start a keeper that is nobody's child; it inherits the lock, so that no moment is left for another.

    `env` is the server's; the keeper itself runs in the console's own.
    """
    with open(folder / "keeper.log", "ab") as output, _in_memory(json.dumps(dict(env))) as secrets:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "vq_console.serving.keeper",
                str(folder),
                "--lock-fd",
                str(lock),
                "--env-fd",
                str(secrets),
                *(["--adopt"] if adopt else []),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=Path(__file__).parents[2],
            pass_fds=(lock, secrets),
            start_new_session=True,
        )
        process.wait(KEEPER_START_S)  # it forks and leaves; the keeper goes on


@contextlib.contextmanager
def _in_memory(text: str) -> Iterator[int]:
    """A handle to read `text` from, which lies on no disk."""
    handle = os.memfd_create("vq-console")
    try:
        os.write(handle, text.encode())
        os.lseek(handle, 0, os.SEEK_SET)
        yield handle
    finally:
        os.close(handle)


def wait_for_keeper(folder: Path) -> ServerRecord:
    """The record once its keeper has reported. Raises LaunchError with the keeper's own words when it does not."""
    deadline = time.monotonic() + KEEPER_START_S
    while time.monotonic() < deadline:
        record = registry.read_record(folder, adopt=False)
        if record.keeper is not None:
            return record
        if not registry.look(record, folder).launching:
            break
        time.sleep(0.01)
    try:
        said = (folder / "keeper.log").read_text(errors="replace")[-2000:]
    except OSError:
        said = ""
    raise LaunchError(f"{folder.name}: its keeper did not start", f"see {folder / 'keeper.log'}", log_tail=said)


def adopt_server(folder: Path) -> bool:
    """Give a server whose keeper is gone a new one; False when somebody else is doing it."""
    handle = _keeper_lock(folder)
    if handle is None:
        return False
    try:
        given = read_json(folder / "server.json")
        try:
            env = server_environment(
                given.get("env") or {},
                given.get("secret_env") or {},
                python=None if given.get("simulated") else given.get("engine"),
                given=os.environ,
            )
        except MissingError:
            env = dict(os.environ)  # a secret is not set here: enough to watch and stop, which needs none
        spawn_keeper(folder, env, handle, adopt=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    finally:
        os.close(handle)
    return True
