"""`serve`, `attach`, `ps`, `stop`, `restart`, `fix`, `logs`, `reap`: servers from the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vq_console.commands.common import Subparsers, add_command, amount, confirm, count, emit, say, table
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode
from vq_console.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vq_console.profiles.model import Profile
    from vq_console.serving.model import ServerRecord


JSON_LINES = 1000
"""How many of the last lines `logs --json` holds when it was not told."""


def register(subparsers: Subparsers) -> None:
    """Add the commands of this group."""
    serve = add_command(subparsers, "serve", help_of("serve"), run_serve)
    serve.add_argument("profile", metavar="PROFILE", help="name or path of a profile")
    serve.add_argument("--wait", action="store_true", help="follow the start until a token came out")
    serve.add_argument("--engine", metavar="PYTHON", help="interpreter of the vLLM to use, or `simulator`")
    serve.add_argument("--name", metavar="N", help="name of the server (the profile's otherwise)")
    serve.add_argument("--gpus", metavar="I,J", help="GPU indices to use")
    serve.add_argument(
        "--restart", metavar="N", type=count, default=0, help="start again up to N times if it dies ready"
    )
    serve.add_argument(
        "--on-death", metavar="COMMAND", help="run this if it dies unasked; VQ_SERVER, VQ_REASON, VQ_INCIDENT say why"
    )
    serve.add_argument("--when-free", metavar="GIB", type=amount, help="wait until so much memory is free")
    serve.add_argument("--timeout", metavar="S", type=amount, help="give up after so many seconds (0: never)")
    serve.add_argument("--force", action="store_true", help="start although preflight says that it will fail")
    serve.add_argument("--trust", action="store_true", help="agree to what a profile from elsewhere can do")

    attach = add_command(subparsers, "attach", help_of("attach"), run_attach)
    attach.add_argument("url", metavar="URL", nargs="?", help="its address, with or without /v1")
    attach.add_argument("--pid", type=int, help="the process of a server on this machine")
    attach.add_argument("--container", metavar="C", help="a Docker container on this machine")
    attach.add_argument("--name", metavar="N", help="what to call it")
    attach.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds its key")

    add_command(subparsers, "ps", help_of("ps"), run_ps)

    stop = add_command(subparsers, "stop", help_of("stop"), run_stop)
    stop.add_argument("name", metavar="NAME", nargs="*")
    stop.add_argument("--all", action="store_true", help="every server that was started here")
    stop.add_argument("--timeout", metavar="S", type=amount, default=30.0, help="seconds before it is killed (30)")
    stop.add_argument("--forget", action="store_true", help="also remove its record and log; detaches an attached one")

    restart = add_command(subparsers, "restart", help_of("restart"), run_restart)
    restart.add_argument("name", metavar="NAME")
    restart.add_argument("--wait", action="store_true", help="follow the start until a token came out")

    fix = add_command(subparsers, "fix", help_of("fix"), run_fix)
    fix.add_argument("name", metavar="NAME")
    fix.add_argument("--choose", metavar="K", type=int, help="which of the fixes, counted from 1")
    fix.add_argument("--dry-run", action="store_true", help="only show the change")
    fix.add_argument("--wait", action="store_true", help="follow the start until a token came out")

    logs = add_command(subparsers, "logs", help_of("logs"), run_logs)
    logs.add_argument("name", metavar="NAME")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as it grows")
    part = logs.add_mutually_exclusive_group()
    part.add_argument("--head", metavar="N", type=count, help="only the first N lines")
    part.add_argument("--tail", metavar="N", type=count, help="only the last N lines")

    reap = add_command(subparsers, "reap", help_of("reap"), run_reap)
    reap.add_argument("--yes", action="store_true", help="remove without asking")


def run_serve(args: argparse.Namespace) -> ExitCode:
    """Launch detached; with `--wait` follow it to its first token."""
    import shlex

    from vq_console.core.errors import UsageError
    from vq_console.engines.find import choose_engine
    from vq_console.profiles.store import load_profile
    from vq_console.serving.launch import Settings, launch

    profile = load_profile(args.profile)
    _agree(profile, trust_it=args.trust)
    engine = choose_engine(profile.vllm, python=args.engine)
    try:
        gpus = [int(item) for item in args.gpus.split(",")] if args.gpus else None
    except ValueError:
        raise UsageError(f"--gpus {args.gpus!r}: indices were expected", "for example --gpus 0,1") from None
    try:
        on_death = shlex.split(args.on_death or "")
    except ValueError as error:
        raise UsageError(f"--on-death: {error}", "it is taken apart as a shell would, and run without one") from None
    record = launch(
        profile,
        engine=engine,
        name=args.name,
        gpus=gpus,
        settings=Settings(
            startup_timeout_s=args.timeout,
            restart_limit=args.restart,
            min_free_gib=args.when_free,
            on_death=on_death,
        ),
        force=args.force,
    )
    return _after_launch(record, args, "serve")


def _agree(profile: Profile, *, trust_it: bool) -> None:
    """Ask once about a profile from elsewhere; `launch` refuses it otherwise."""
    from vq_console.profiles.trust import is_trusted, trust, trust_review

    if is_trusted(profile):
        return
    say(f"{profile.name} comes from elsewhere, and could do this:")
    for risk in trust_review(profile):
        say(f"  {risk.key} = {risk.value}: {risk.why}")
    if confirm("Start it, and remember the answer?", yes=trust_it):
        trust(profile)


def _after_launch(record: ServerRecord, args: argparse.Namespace, command: str) -> ExitCode:
    from vq_console.commands.follow_start import follow_start, summary
    from vq_console.serving.view import server_json

    mark = "SIMULATED " if record.simulated else ""
    say(f"{mark}{record.name}: {record.state.value}{f', {record.phase}' if record.phase else ''} · log {record.log}")
    if args.wait:
        record = follow_start(record.name)
        if not args.json:
            print(summary(record))
    elif not args.json:
        say(f"it starts in the background: vq-console logs {record.name} -f, vq-console stop {record.name}")
    if args.json:
        emit(f"vq-console/{command}/1", _servers([server_json(record)]))
    return ExitCode.DONE


def _servers(servers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The JSON of server lists, marked when anything in it is simulated."""
    return {"simulated": any(server["simulated"] for server in servers), "servers": list(servers)}


def run_attach(args: argparse.Namespace) -> ExitCode:
    """Attach by URL, pid or container; without any, list what runs on this machine."""
    from vq_console.core.errors import UsageError
    from vq_console.serving import attach
    from vq_console.serving.view import server_json

    given = [item for item in (args.url, args.pid, args.container) if item is not None]
    if len(given) > 1:
        raise UsageError("one of URL, --pid and --container was expected")
    if not given:
        return _discover(args)
    if args.url is not None:
        record = attach.attach_url(args.url, name=args.name, api_key_env=args.api_key_env)
    elif args.pid is not None:
        record = attach.attach_pid(args.pid, name=args.name, api_key_env=args.api_key_env)
    else:
        record = attach.attach_container(args.container, name=args.name, api_key_env=args.api_key_env)
    if args.json:
        emit("vq-console/attach/1", _servers([server_json(record)]))
    else:
        say(f"attached {record.name}: {record.model} at {record.url}; it is never stopped from here")
    return ExitCode.DONE


def _discover(args: argparse.Namespace) -> ExitCode:
    from vq_console.core.text import redact, seconds_text
    from vq_console.serving.attach import discover
    from vq_console.serving.registry import list_servers

    known = frozenset(record.identity.pid for record in list_servers() if record.identity)
    found = discover(known)
    if args.json:
        rows = [
            {
                "pid": f.pid,
                "port": f.port,
                "url": f.url,
                "container": f.container,
                "user": f.user,
                "age_s": f.age_s,
                "command": redact(f.command),
            }
            for f in found
        ]
        emit("vq-console/attach/1", {**_servers([]), "found": rows})
    elif found:
        rows_text = [
            [
                str(f.pid),
                str(f.port or "–"),
                f.container or "–",
                f.user or "–",
                seconds_text(f.age_s),
                redact(f.command)[:60],
            ]
            for f in found
        ]
        print(table(rows_text, ["pid", "port", "container", "user", "age", "command"]))
        inside = any(f.container for f in found)
        say("attach one with: vq-console attach --pid PID" + (" or --container ID" if inside else ""))
    else:
        say("no other vLLM server runs on this machine; attach a remote one with: vq-console attach URL")
    return ExitCode.DONE


def run_ps(args: argparse.Namespace) -> ExitCode:
    """All servers of this host."""
    from vq_console.core.text import seconds_text, strip_control
    from vq_console.serving.registry import list_servers
    from vq_console.serving.view import model_name, server_json

    records = list_servers()
    servers = [server_json(record) for record in records]
    if args.json:
        emit("vq-console/ps/1", _servers(servers))
        return ExitCode.DONE
    if not servers:
        say("no servers yet: vq-console serve PROFILE")
        return ExitCode.DONE
    rows = []
    for record, server in zip(records, servers, strict=True):
        state = (
            server["state"]
            + (" (attached)" if server["attached"] else "")
            + (" SIMULATED" if server["simulated"] else "")
        )
        # Where the log names no cause, how it ended says more than the name for that.
        named = server["state"] == "failed" and server["diagnosis"] != "root-cause-not-in-log"
        said = server["phase"] or (named and server["diagnosis"]) or server["reason"] or ""
        gpus = ",".join(str(index) for index in server["gpus"]) or "–"
        up = seconds_text(server["uptime_s"])
        model = model_name(record, server["facts"]) or "–"
        rows.append([server["name"], state, model, gpus, str(server["port"] or "–"), up, strip_control(said)])
    print(table(rows, ["name", "state", "model", "gpu", "port", "up", ""]))
    return ExitCode.DONE


def run_stop(args: argparse.Namespace) -> ExitCode:
    """Stop the named servers, or all that were started here."""
    from vq_console.core.errors import UsageError
    from vq_console.core.places import host_id
    from vq_console.serving.control import stop_server
    from vq_console.serving.model import LIVE
    from vq_console.serving.registry import forget_server, get_server, list_servers
    from vq_console.serving.view import server_json

    if bool(args.name) == args.all:
        raise UsageError("name a server, or say --all", "vq-console ps lists them")
    names = args.name or [
        record.name
        for record in list_servers()
        if record.state in LIVE and not record.attached and record.host_id == host_id()
    ]
    stopped = []
    for name in names:
        record = get_server(name)
        last = [""]

        def tell(now: ServerRecord, last: list[str] = last) -> None:
            if now.phase and now.phase != last[0]:
                last[0] = now.phase
                say(f"{now.name}: {now.phase}")

        if not (record.attached and args.forget):
            record = stop_server(name, timeout_s=args.timeout, on_progress=tell)
        stopped.append(server_json(record))
        if args.forget:
            forget_server(name)
        say(f"{name}: {'forgotten' if args.forget else record.state.value}")
    if args.json:
        emit("vq-console/stop/1", _servers(stopped))
    return ExitCode.DONE


def run_restart(args: argparse.Namespace) -> ExitCode:
    """Stop and start again under the same name."""
    from vq_console.serving.control import restart_server

    return _after_launch(restart_server(args.name), args, "restart")


def run_fix(args: argparse.Namespace) -> ExitCode:
    """Apply a patch of the diagnosis to the profile and start it again."""
    from vq_console.serving.fix import apply_fix, choose_fix, patch_lines

    chosen = choose_fix(args.name, args.choose)
    say(f"{chosen.diagnosis.slug}: {chosen.fix.text}")
    for line in patch_lines(chosen.patch):
        if args.dry_run and not args.json:
            print(line)
        else:
            say(f"  {line}")
    if args.dry_run:
        if args.json:
            emit(
                "vq-console/fix/1", {"applied": False, "profile": chosen.profile_path, "patch": chosen.patch.to_json()}
            )
        return ExitCode.DONE
    changed, record = apply_fix(chosen)
    say(f"changed {changed}")
    return _after_launch(record, args, "fix")


def run_logs(args: argparse.Namespace) -> ExitCode:
    """Print the log, safe for a terminal; `-f` goes on until the server is over."""
    from vq_console.commands.follow_start import print_log
    from vq_console.serving.registry import get_server

    record = get_server(args.name)
    if args.json:
        from vq_console.commands.follow_start import log_lines
        from vq_console.serving.view import server_json

        tail = JSON_LINES if args.head is None and args.tail is None else args.tail
        lines = list(log_lines(record, head=args.head, tail=tail))
        emit("vq-console/logs/1", {**_servers([server_json(record)]), "lines": lines})
        return ExitCode.DONE
    print_log(record, head=args.head, tail=args.tail, follow=args.follow)
    return ExitCode.DONE


def run_reap(args: argparse.Namespace) -> ExitCode:
    """Show what was left behind, and remove it when agreed."""
    from vq_console.core.text import seconds_text
    from vq_console.serving.orphans import describe, find_orphans, gpu_strangers, reap
    from vq_console.serving.registry import list_servers
    from vq_console.serving.view import server_json

    found, strangers = find_orphans(), gpu_strangers()
    for orphan in (*found, *strangers):
        where = f"GPU {','.join(map(str, orphan.gpus))}, " if orphan.gpus else ""
        size = f"{orphan.memory_mib:,} MiB, " if orphan.memory_mib is not None else ""
        who = f"{orphan.user or 'unknown'}, pid {orphan.pid}, " if orphan.pid else ""
        say(f"{describe(orphan)}\n  {who}{where}{size}{seconds_text(orphan.age_s)} old")
    mine = [orphan for orphan in found if orphan.touchable]
    done = []
    if mine and confirm(f"Remove {counted(len(mine), 'left-over')}?", yes=args.yes):
        for orphan in mine:
            outcome = reap(orphan)
            done.append({**orphan.to_json(), "outcome": outcome})
            say(f"{orphan.name}: {outcome}")
    elif mine and not args.json:
        say("nothing was touched; vq-console reap --yes removes them")
    if not found:
        say("nothing was left behind")
    if args.json:
        servers = [server_json(record) for record in list_servers()]
        told = {
            "orphans": [orphan.to_json() for orphan in found],
            "reaped": done,
            "strangers": [orphan.to_json() for orphan in strangers],
        }
        emit("vq-console/reap/1", {**_servers(servers), **told})
    return ExitCode.DONE
