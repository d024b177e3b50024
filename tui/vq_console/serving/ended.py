"""Why a server is over where its log does not say: what its exit, its keeper and the kernel tell. Pure.

A log without an error is not a healthy server: one that was killed from outside leaves exactly that.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from vq_console.logs.catalogue import diagnoses
from vq_console.logs.model import Diagnosis, Fix
from vq_console.preflight.model import Patch
from vq_console.serving.keeping.address import PORT_TAKEN
from vq_console.serving.model import ServerRecord, ServerState

_SILENT = frozenset({"ok", "warning"})
_CRASHES: Mapping[int, str] = {
    signal.SIGILL: "cpu-illegal-instruction",
    signal.SIGSEGV: "worker-died",
    signal.SIGBUS: "worker-died",
    signal.SIGABRT: "worker-died",
    signal.SIGFPE: "worker-died",
}
_OOM_WORDS = ("Out of memory: Killed process", "oom-kill:", "Memory cgroup out of memory", "oom_reaper")


def settle(
    record: ServerRecord, found: Diagnosis | None, incident: Mapping[str, Any] | None = None
) -> Diagnosis | None:
    """The diagnosis of a server: `found` in its log, or what else is known when it failed and its log does not say.

    `incident` is what its keeper wrote down when it died unasked.
    """
    if record.state is not ServerState.FAILED or record.log is None or not _silent(found):
        return found
    if record.cause == PORT_TAKEN:
        return _port_taken(record)
    # What the keeper ended itself, as after a start that took too long, was not killed by anybody else.
    died = record.incident is not None
    killed = -record.exit_code if died and record.exit_code is not None and record.exit_code < 0 else None
    ooms = _oom_kills(incident, killed)
    if ooms:
        words = f"{_sentence(record.reason)} Its log shows no error; the kernel says why: {ooms}"
        entry = diagnoses()["host-oom-killed"]
        return Diagnosis(entry.slug, entry.title, "error", explanation=words, fixes=_as_fixes(entry.fixes))
    if found is not None and found.severity == "unknown" and found.root_line:
        return found  # the engine went first; the log has that line, though not its cause
    if killed is None:
        title = "Ended without a word in its log" if died else record.reason[:1].upper() + record.reason[1:]
        return _unsaid(record, title, "Its log shows no error.")
    if slug := _CRASHES.get(killed):
        entry = diagnoses()[slug]
        words = f"{_sentence(record.reason)} It is a crash of native code, which leaves no traceback in the log."
        return Diagnosis(slug, entry.title, "error", explanation=words, fixes=_as_fixes(entry.fixes))
    words = f"Its log shows no error: somebody or something outside sent {signal_name(killed)}. {_by_whom(incident)}"
    return _unsaid(record, f"Killed from outside ({signal_name(killed)})", words.rstrip())


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 99` for what has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _silent(found: Diagnosis | None) -> bool:
    """Whether the log names no cause: nothing wrong in it, or nothing but a wrapper, or nothing at all."""
    return found is None or found.severity in _SILENT or found.slug == "root-cause-not-in-log"


def _port_taken(record: ServerRecord) -> Diagnosis:
    entry = diagnoses()["port-in-use"]
    asked = record.plan.get("args") or {}
    fixes: tuple[Fix, ...] = (Fix("Stop what listens there, or start this server later."),)
    if "port" in asked:
        fixes = (Fix("Remove port: a free one is then chosen.", Patch(remove_args=("port",))), *fixes)
    return Diagnosis(entry.slug, entry.title, "error", explanation=_sentence(record.reason), fixes=fixes)


def _unsaid(record: ServerRecord, title: str, words: str) -> Diagnosis:
    return Diagnosis(
        "root-cause-not-in-log",
        title,
        "unknown",
        explanation=f"{_sentence(record.reason)} {words}".strip(),
        fixes=(Fix(f"Start it again (vq-console restart {record.name}); its last lines say what it was doing."),),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _oom_kills(incident: Mapping[str, Any] | None, killed: int | None) -> str:
    """What the kernel said of killing for want of memory in this server's time; empty when it said nothing.

    Where only the engine went, the message must name one of vLLM's processes.
    """
    if incident is None or killed not in (None, signal.SIGKILL):
        return ""
    lines = [str(line) for line in incident.get("kernel_messages") or ()]
    told = [line for line in lines if any(words in line for words in _OOM_WORDS) and (killed or "VLLM::" in line)]
    if told:
        return told[-1]
    kills = incident.get("oom_kills")
    group = "of this control group killed for want of memory."
    return f"{kills} process{'' if kills == 1 else 'es'} {group}" if kills else ""


def _by_whom(incident: Mapping[str, Any] | None) -> str:
    """What is known of who sent the signal."""
    if incident is None:
        return ""
    missing = incident.get("kernel_messages_missing")
    if not missing:
        return "The kernel log of its time names no out-of-memory kill, so it was a person or another program."
    group = " (its control group counted none)" if incident.get("oom_kills") == 0 else ""
    return (
        f"Whether it was the out-of-memory killer cannot be told{group}: the kernel log is closed to this user"
        f" ({missing}); `sudo dmesg -T | grep -i oom` shows it."
    )


def _as_fixes(texts: tuple[str, ...]) -> tuple[Fix, ...]:
    return tuple(Fix(text) for text in texts)
