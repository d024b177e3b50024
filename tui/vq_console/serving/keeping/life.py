"""The life of one server as its keeper lives it: queued, started, watched, ended, started again.

Reads `server.json`, takes commands from files beside it and writes `state.json`; whoever holds `keeper.lock` is the
only writer. Every step is short: nothing here waits for the server, a helper or the disk.
"""

from __future__ import annotations

import os
import select
import signal
import time

from vq_console.serving.keeping import files, gpu, locks, procfs
from vq_console.serving.keeping.address import PORT_TAKEN, near_host, url_of, who_has, with_port
from vq_console.serving.keeping.child import Helper, StartError, start
from vq_console.serving.keeping.ending import Ending
from vq_console.serving.keeping.group import Group
from vq_console.serving.keeping.incident import death_words, oom_kills, run_on_death, write_incident
from vq_console.serving.keeping.logfile import LogFile
from vq_console.serving.keeping.record import StateFile
from vq_console.serving.keeping.settings import DEFAULTS
from vq_console.serving.keeping.vitals import Vitals, how_busy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ADDRESS_IN_USE = ("Address already in use", "[Errno 98]")


class Life:
    """One server's life. `step` is what the present state does each time; None ends the keeper."""

    def __init__(self, folder: str, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = env
        given = files.read_json(f"{folder}/server.json")
        if given is None:
            raise SystemExit(f"{folder}/server.json: absent or broken")
        self.given = given
        self.every = {**DEFAULTS, **(given.get("keeper") or {})}
        self.boot = procfs.boot_id()
        self.state = StateFile(folder, self.boot)
        self.log = LogFile(
            given["log"], cap_bytes=int(self.every["log_cap_bytes"]), head_bytes=int(self.every["log_head_bytes"])
        )
        self.holder = {"name": given["name"], "pid": os.getpid(), "user": os.getuid()}
        self.start_locks = locks.StartLocks(list(given.get("locks") or []), self.holder)
        self.port_lock = -1
        self.uuids = [str(uuid) for uuid in given.get("gpu_uuids") or []]
        self.tool = gpu.find_nvidia_smi() if self.uuids else None
        self.group: Group | None = None
        self.vitals: Vitals | None = None
        self.ending: Ending | None = None
        self.helper: Helper | None = None
        self.step: Callable[[float], None] | None = self._queued
        self.gpus: list[dict[str, Any]] = []
        self.gpu_fields = len(gpu.FIELDS)
        self.restarts = int(self.state.get("restarts") or 0)
        self.port_tries = 0
        self.oom_before = oom_kills()
        self.tells_sockets = procfs.can_tell_sockets()
        self._due: dict[str, float] = {}
        self._since = 0.0
        self._wake_read, self._wake_write = os.pipe()

    # The loop.

    def run(self) -> None:
        """Go on until the server is gone and cleaned up."""
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.state.save()
        while self.step is not None:
            now = time.monotonic()
            self._commands(now)
            if self.step is not None:
                self.step(now)
            self.state.save()
            if self.step is not None:
                self._wait()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        pause = float(self.every["tick_s"])
        if self.step in (self._starting, self._queued, self._backing_off):
            pause = min(pause, self.every["probe_s"] / 2)
        elif self.step == self._ending or self.helper is not None:
            pause = 0.1
        if self.group is not None and self.group.pidfd >= 0 and not self.group.ended:
            poll.register(self.group.pidfd, select.POLLIN)
        exchange = self.vitals.exchange if self.vitals else None
        if exchange is not None and not exchange.done:
            poll.register(exchange.fileno(), exchange.events)
        poll.poll(max(10, int(pause * 1000)))
        try:
            while os.read(self._wake_read, 512):
                pass
        except BlockingIOError:
            pass

    def _every(self, what: str, seconds: float, now: float) -> bool:
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + seconds
        return True

    def _commands(self, now: float) -> None:
        """Take what a console asked for. A command is a file that is renamed before it is read, so none gets lost."""
        for name in ("stop", "quiet"):
            path = f"{self.folder}/{name}.command"
            try:
                os.rename(path, path + ".taken")
            except OSError:
                continue
            command = files.read_json(path + ".taken") or {}
            if name == "quiet" and self.vitals is not None:
                self.vitals.quiet_until = now + min(3600.0, float(command.get("seconds") or 0))
            elif name == "stop":
                given = command.get("timeout_s")
                timeout_s = float(self.every["stop_timeout_s"] if given is None else given)
                if self.ending is not None:
                    self.ending.hurry(now, timeout_s)
                elif self.group is None:
                    self._end("stopped", "cancelled before it began")
                else:
                    self._begin_end(now, timeout_s, state="stopped", reason="stopped")

    # Queued.

    def _queued(self, now: float) -> None:
        self.state.set("queued")
        wanted = self.given.get("min_free_gib")
        if wanted:
            free = self._free_gib(now)
            if free is None or free < wanted:
                said = "" if free is None else f" ({free:.1f} now)"
                self.state.set(phase=f"waiting for {wanted:g} GiB free{said}")
                self.start_locks.release()
                return
        taken = self.start_locks.acquire()
        if taken is not None:
            name, other = taken
            label = (self.given.get("lock_labels") or {}).get(name, name)
            self.state.set(phase=f"waiting for {other} to start on {label}")
            return
        self._start(now)

    def _backing_off(self, now: float) -> None:
        if now >= self._since:
            self.step = self._queued

    def _free_gib(self, now: float) -> float | None:
        if not self.uuids:
            return gpu.available_ram_gib()
        self._sample_gpus(now, 2.0)
        free = [row["total_mib"] - row["used_mib"] for row in self.gpus if "total_mib" in row and "used_mib" in row]
        return min(free) / 1024 if free else None

    def _start(self, now: float) -> None:
        argv = self._claimed_argv()
        if argv is None:
            return
        self.state.set(
            "starting", phase="starting the process", argv=argv, exit_code=None, ended_at=None, reason="", cause=""
        )
        try:
            output = self.log.open_for_child()
        except OSError as error:
            self._end("failed", f"{self.log.path}: {error.strerror}")
            return
        try:
            pid = start(argv, self.env, cwd=self.given.get("cwd") or self.folder, output=output)
        except StartError as error:
            self.log.note(str(error))
            self._end("failed", str(error))
            return
        finally:
            os.close(output)
        proc = procfs.read_proc(pid)
        self.group = Group(self.folder, pid, proc.start_ticks if proc else 0, self.boot, child=True)
        self._since = now
        server = {"pid": pid, "start_ticks": self.group.ticks, "boot_id": self.boot}
        self.state.set(server=server, phase="loading", started_at=time.time())
        self.state.save()
        self._watch()

    def _claimed_argv(self) -> list[str] | None:
        """The arguments with a port that is free and claimed; None when there is none, and the life has ended."""
        argv = [str(item) for item in self.given["argv"]]
        port, host = self.given.get("port"), self.given.get("host") or "127.0.0.1"
        if port is None:
            return argv
        fixed = bool(self.given.get("port_fixed"))
        claimed = locks.claim_port(host, int(port), self.holder) if fixed or not self.port_tries else None
        if claimed is None and not fixed:
            claimed = locks.claim_port(host, None, self.holder)
        if claimed is None:
            reason = f"port {port} is taken by {who_has(int(port))}" if fixed else "no port is free"
            self._end("failed", reason, cause=PORT_TAKEN)
            return None
        self.port_lock = claimed[1]
        self.state.set(port=claimed[0], url=url_of(host, claimed[0], bool(self.given.get("tls"))))
        return with_port(argv, int(port), claimed[0])

    def _watch(self) -> None:
        self.vitals = Vitals(
            near_host(self.given.get("host") or ""),
            int(self.state.get("port") or 0),
            model=self.given.get("model") or "",
            api_key=self.env.get("VLLM_API_KEY"),
            tls=bool(self.given.get("tls")),
            every=self.every,
        )
        self.step = self._starting

    # Starting and running.

    def _look(self, now: float, scan_s: float) -> bool:
        """What every tick of a living server does; False when its main process is gone."""
        assert self.group is not None
        self.log.look()
        if self.group.look_at_main():
            self._died(now)
            return False
        if self._every("scan", scan_s, now) or (self.group.segments_changed() and self._every("segments", scan_s, now)):
            self.group.scan()
        return True

    def _starting(self, now: float) -> None:
        if not self._look(now, self.every["scan_start_s"]):
            return
        assert self.group is not None
        assert self.vitals is not None
        limit = self.every["startup_timeout_s"]
        if limit and now - self._since > limit:
            reason = f"no token within {limit:.0f} s ({self.state.get('phase')})"
            self._begin_end(now, self.every["stop_timeout_s"], state="failed", reason=reason)
        elif self.vitals.exchange is not None:
            self.vitals.step_start(now)
            self.state.set(phase=self.vitals.phase or self.state.get("phase", ""))
        elif self._every("port", self.every["probe_s"] / 2, now):
            # Where nothing can be told, the claim on the port and the test before the start are all there is.
            ours = self.group.owns_port(self.vitals.port) if self.tells_sockets else True
            if ours is False:
                self._stolen(now)
            elif ours:
                self.vitals.step_start(now)
                self.state.set(phase=self.vitals.phase or "listening")
            else:
                self.state.set(phase="loading")
        if self.vitals.ready:
            self.group.scan(look_at_segments=True)
            self.start_locks.release()
            self.state.set("ready", phase="", reason="", ready_at=time.time(), start_s=round(now - self._since, 2))
            self._since = now
            self.step = self._running

    def _stolen(self, now: float) -> None:
        """Somebody else listens on the port, alone or beside the server: what answers there proves nothing."""
        port = int(self.state.get("port"))
        reason = f"port {port} is taken by {who_has(port)}"
        self.state.set(cause=PORT_TAKEN)
        self._begin_end(now, self.every["stop_timeout_s"], state="failed", reason=reason, again=self._other_port())

    def _other_port(self) -> str:
        """`port` when another port may be tried."""
        if self.given.get("port_fixed") or self.port_tries >= self.every["port_tries"]:
            return ""
        self.port_tries += 1
        return "port"

    def _running(self, now: float) -> None:
        if not self._look(now, self.every["scan_rest_s"]):
            return
        assert self.group is not None
        assert self.vitals is not None
        self.vitals.step_running(now)
        if self.vitals.trouble:
            if self._every("cpu", self.every["retry_s"], now):
                self.state.set(cpu_pct=self.group.cpu_pct(now))
            busy = how_busy(self.state.get("cpu_pct"), self.gpus)
            self.state.set("unresponsive", reason=self.vitals.trouble + (f"; {busy}" if busy else ""))
        else:
            self.state.set("ready", reason="", cpu_pct=None)
        if now - self._since > self.every["restart_forgive_s"]:
            self.restarts = 0
        self._sample_gpus(now, self.every["retry_s"] if self.vitals.trouble else self.every["gpu_s"])
        if self.vitals.record is not None:
            row = {"t": round(time.time(), 1), "cpu_pct": self.group.cpu_pct(now), **self.vitals.record}
            self.vitals.record = None
            files.append_line(f"{self.folder}/metrics.jsonl", {**row, **({"gpus": self.gpus} if self.gpus else {})})

    def _sample_gpus(self, now: float, every_s: float) -> None:
        if self.helper is not None:
            if self.helper.poll(now):
                if self.helper.output is None:
                    self.gpu_fields = len(gpu.FIELDS) - 1  # the last one has two names, by the age of the driver
                self.gpus = gpu.read_gpus(self.helper.output) or self.gpus
                self.helper = None
        elif self.tool and self._every("gpu", every_s, now):
            self.helper = gpu.ask_gpus(self.tool, self.uuids, now, self.gpu_fields)

    # The end.

    def _died(self, now: float) -> None:
        """The main process ended although nobody asked."""
        assert self.group is not None
        before, code = self.state.state, self.group.exit_code
        reason = death_words(before, code)
        tail = self.log.tail()
        self.state.set(exit_code=code)
        again = ""
        if before == "starting" and any(all(part in line for part in ADDRESS_IN_USE) for line in tail[-60:]):
            again = self._other_port()
        elif before in ("ready", "unresponsive") and self._may_restart():
            again = "restart"
        if again != "port":
            incident = write_incident(
                self.folder,
                summary=reason,
                exit_code=code,
                state=before,
                log_lines=tail,
                metrics=self.vitals.metrics if self.vitals else None,
                gpus=self.gpus,
                members=self.group.scan(),
                since_s=self.group.ticks / procfs.CLOCK_TICKS,
                oom_kills_before=self.oom_before,
            )
            self.state.set(incident=incident)
            reason += self._tell_death(reason, incident, served=before != "starting")
        self._begin_end(now, self.every["survivors_s"], state="failed", reason=reason, again=again)

    def _tell_death(self, reason: str, incident: str | None, *, served: bool) -> str:
        """Run the command for deaths; what is to be added to the reason: why it, or the wished restart, cannot be."""
        added = ""
        if argv := [str(item) for item in self.every["on_death"]]:
            told = {"server": str(self.given["name"]), "reason": reason, "incident": incident or ""}
            trouble = run_on_death(argv, self.folder, told)
            added = f"; the command for this could not run: {trouble}" if trouble else ""
        if served and self.restarts < self.every["restart_limit"] and (lost := self._lost_secrets()):
            added += f"; not started again: {', '.join(lost)} of its first launch is not known any more"
        return added

    def _lost_secrets(self) -> list[str]:
        """A keeper that adopted the server may not have its secrets; without them it would be another server."""
        return [name for name in self.given.get("secret_env") or {} if name not in self.env]

    def _may_restart(self) -> bool:
        return not self._lost_secrets() and self.restarts < self.every["restart_limit"]

    def _begin_end(self, now: float, timeout_s: float, *, state: str, reason: str, again: str = "") -> None:
        assert self.group is not None
        if self.vitals is not None:
            self.vitals.drop()
        if self.helper is not None:
            self.helper.kill()
            self.helper = None
        self.ending = Ending(
            self.group,
            now=now,
            timeout_s=timeout_s,
            survivors_s=self.every["survivors_s"],
            kill_wait_s=self.every["kill_wait_s"],
            state=state,
            reason=reason,
            again=again,
            tool=self.tool,
            gpu_uuids=self.uuids,
        )
        if self.ending.main_was_alive:
            self.state.set("stopping", reason="" if state == "stopped" else reason)
        self.step = self._ending

    def _ending(self, now: float) -> None:
        ending, group = self.ending, self.group
        assert ending is not None
        assert group is not None
        self.log.look()
        over = ending.step(now)
        self.state.set(phase=ending.phase)
        if not over:
            return
        if group.exit_code is not None:
            self.state.set(exit_code=group.exit_code)
        self.state.set(removed_segments=ending.removed)
        self.ending = self.group = self.vitals = None
        if not ending.again:
            self._end(ending.state, ending.reason)
            return
        self._let_go()
        # Both states at once: nobody must take a start that goes on for one that failed.
        self.state.set("failed", reason=ending.reason, ended_at=time.time(), server=None)
        if ending.again == "port":
            self.log.note(f"{ending.reason}: trying another port")
            self.state.set("queued", phase="trying another port")
            self.step = self._queued
            return
        self.restarts += 1
        wait_s = self.every["restart_backoff_s"] * 2 ** (self.restarts - 1)
        said = f"restart {self.restarts} of {self.every['restart_limit']} in {wait_s:.0f} s"
        self.log.note(f"{ending.reason}: {said}")
        self.state.set("queued", phase=said, restarts=self.restarts)
        self._since = now + wait_s
        self.step = self._backing_off

    def _let_go(self) -> None:
        self.start_locks.release()
        if self.port_lock >= 0:
            os.close(self.port_lock)
            self.port_lock = -1

    def _end(self, state: str, reason: str, **more: str) -> None:
        self._let_go()
        self.state.set(state, reason=reason, **more, phase="", ended_at=time.time(), cpu_pct=None)
        self.step = None

    def adopt(self) -> None:
        """Take over a server whose keeper is gone: nothing of it can be waited for, so it is watched by pid."""
        server, before = self.state.get("server") or {}, self.state.state
        pid = int(server.get("pid") or 0)
        self.state.set(adopted=True)
        if not pid or server.get("boot_id") != self.boot:
            self._end("failed", "the machine was restarted" if pid else "its keeper was killed before the server began")
            return
        self.group = Group(self.folder, pid, int(server.get("start_ticks") or 0), self.boot, child=False)
        self.log.watch()
        self._since = now = time.monotonic()
        if self.state.get("port"):
            self.port_lock = locks.try_lock(f"port-{self.state.get('port')}", self.holder) or -1
        self._watch()
        if before == "starting":
            self.start_locks.acquire()
        elif before == "stopping":
            self._begin_end(now, self.every["stop_timeout_s"], state="stopped", reason="stopped")
        elif self.vitals is not None:
            self.vitals.ready = True
            self.step = self._running
