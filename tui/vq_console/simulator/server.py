"""The life of one simulated server process: log, port, children, signals, faults, exit.

Behaves like `vllm serve` to whoever watches it from outside; the first line of its log says SIMULATED.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from vq_console.simulator.core_process import child_command
from vq_console.simulator.script import Script, ScriptLine, fill, load_script
from vq_console.simulator.spec import ServeArguments, SimSpec, parse_serve, spec_for

if TYPE_CHECKING:
    from vq_console.simulator.api import Api
    from vq_console.simulator.engine import Engine

_ENGINE_DEATH_S = 1.0


class Log:
    """Standard output and error as vLLM uses them: its own lines on the one, uvicorn's on the other."""

    def __init__(
        self, script: Script, values: Mapping[str, str | Callable[[], str]], kernels: Mapping[str, str]
    ) -> None:
        self._values = values
        self._kernels = kernels
        self._prefixed = script.prefixed

    def replay(self, line: ScriptLine) -> None:
        """One recorded line."""
        text = fill(line.text, self._values, self._kernels)
        if " version " in text and "▄▄ ▄█" in text:
            # Inner lines of a multi-line message end in a carriage return, which stays the last character.
            text = text.rstrip("\r") + "  SIMULATED" + "\r" * text.endswith("\r")
        self.raw(text)

    def raw(self, text: str) -> None:
        """A line as it is."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def api(self, where: str, text: str, level: str = "INFO") -> None:
        """A line of the API server's logger."""
        self.raw(fill(f"(APIServer pid=«api») {level} «time» [{where}] {text}", self._values, {}))

    def core(self, where: str, text: str, level: str = "INFO") -> None:
        """A line of the engine's logger."""
        self.raw(fill(f"(EngineCore pid=«core») {level} «time» [{where}] {text}", self._values, {}))

    def uvicorn(self, text: str) -> None:
        """A line of uvicorn."""
        prefix = "(APIServer pid=«api») " if self._prefixed else ""
        sys.stderr.write(fill(f"{prefix}INFO:     {text}\n", self._values, {}))
        sys.stderr.flush()


class Children:
    """The processes below this one."""

    def __init__(self, spec: SimSpec, *, worker: bool) -> None:
        self.core: subprocess.Popen[bytes] | None = None
        self.pids: tuple[int, ...] = ()
        if not spec.engine_process:
            return
        words = ["core"]
        faults = spec.faults
        for wanted, flag in (
            (faults.orphan_engine, "--outlive"),
            (worker, "--worker"),
            (faults.grandchild, "--grandchild"),
        ):
            if wanted:
                words.append(flag)
        if spec.shm:
            words += ["--shm", "1"]
        self.core = subprocess.Popen(child_command(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.core.stdout is not None
        own = str(self.core.pid).encode()
        for line in self.core.stdout:
            pids = line.split()
            if pids and pids[0] == own:
                self.pids = tuple(int(pid) for pid in pids)
                break

    @property
    def core_pid(self) -> int:
        """The engine's pid; this process's own where there is no child."""
        return self.core.pid if self.core is not None else os.getpid()

    @property
    def worker_pid(self) -> int:
        """The worker's pid, else the engine's."""
        return self.pids[1] if len(self.pids) > 1 else self.core_pid

    def died(self) -> bool:
        """Whether the engine process is gone."""
        return self.core is not None and self.core.poll() is not None

    def kill(self) -> None:
        """The engine dies at once, as by a crash."""
        if self.core is not None and self.core.poll() is None:
            self.core.kill()

    def end(self) -> None:
        """The engine is asked to go and is given a moment; then it is killed, as vLLM's process manager does."""
        if self.core is None:
            return
        if self.core.stdin is not None:
            with contextlib.suppress(OSError):
                self.core.stdin.close()
        try:
            self.core.wait(0.5)
        except subprocess.TimeoutExpired:
            self.core.kill()
            self.core.wait()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    return sock


class Server:
    """One `serve`."""

    def __init__(self, arguments: ServeArguments, spec: SimSpec) -> None:
        self._arguments = arguments
        self._spec = spec
        self._script = load_script(spec.script)
        self._host = arguments.text("host", "0.0.0.0")
        self._port = arguments.number("port") or 8000
        served = arguments.flags.get("served_model_name") or arguments.model
        self._names = tuple(served) if isinstance(served, list) else (str(served),)
        self._max_model_len = spec.max_model_len or self._script.max_model_len
        self._kv_tokens = spec.kv_tokens or self._script.kv_tokens
        self._stop = asyncio.Event()
        self._exit_code: int | None = None
        self._children: Children | None = None
        self._log = Log(self._script, self._values(), spec.kernels)

    def _values(self) -> dict[str, str | Callable[[], str]]:
        shown = {"model_tag": self._arguments.model, **self._arguments.flags}
        return {
            "api": str(os.getpid()),
            "core": lambda: str(self._children.core_pid if self._children else os.getpid()),
            "worker": lambda: str(self._children.worker_pid if self._children else os.getpid()),
            "time": lambda: time.strftime("%m-%d %H:%M:%S"),
            "model": self._arguments.model,
            "served": self._names[0],
            "args": repr({key: "***" if key == "api_key" else value for key, value in shown.items()}),
            "host": self._host,
            "port": str(self._port),
            "max_len": str(self._max_model_len),
            "max_len,": f"{self._max_model_len:,}",
            "kv_tokens": f"{self._kv_tokens:,}",
            "concurrency": f"{self._kv_tokens / self._max_model_len:.2f}",
        }

    async def run(self) -> int:
        """From the first line to the exit code."""
        spec, log = self._spec, self._log
        log.raw(f"SIMULATED: stand-in for vLLM {self._script.vllm_version}, no GPU work is done ({self._script.about})")
        try:
            sock = _listen(self._host, self._port)
        except OSError as error:
            log.raw("Traceback (most recent call last):")
            log.raw('  File "vllm/entrypoints/openai/api_server.py", line 430, in create_server_socket')
            log.raw("    sock.bind(addr)")
            log.raw(f"OSError: [Errno {error.errno}] {error.strerror}")
            return 1
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            if spec.faults.ignore_sigterm:
                signal.signal(number, signal.SIG_IGN)
            else:
                loop.add_signal_handler(number, self._stop.set)
        worker = spec.worker_process if spec.worker_process is not None else spec.device == "CPU"
        self._children = Children(spec, worker=worker)
        try:
            with sock:
                return await self._live(sock)
        finally:
            if not (spec.faults.orphan_engine and self._children.died()):
                self._children.end()

    async def _live(self, sock: socket.socket) -> int:
        engine, api = self._make()
        tasks: set[asyncio.Task[None]] = set()
        if self._spec.faults.flood_lines_s:
            tasks.add(asyncio.create_task(self._flood(self._spec.faults.flood_lines_s)))
        try:
            if not await self._start():
                return self._interrupted()
            if self._script.exit_code is not None:
                return self._script.exit_code
            if self._spec.ready_delay_s:
                await asyncio.sleep(self._spec.ready_delay_s)
            return await self._serve(sock, engine, api, tasks)
        finally:
            for task in tasks:
                task.cancel()
            api.close()

    def _make(self) -> tuple[Engine, Api]:
        # Imported here: the first log line must not wait for aiohttp and numpy.
        from vq_console.simulator.api import Api
        from vq_console.simulator.engine import Engine
        from vq_console.simulator.generation import read_answers
        from vq_console.simulator.language import LanguageModel

        spec = self._spec
        engine = Engine(spec, self._kv_tokens)
        model = LanguageModel(
            spec.vocabulary_seed, kl=spec.kl, kl_spread=spec.kl_spread, kl_seed=spec.kl_seed, jitter_kl=spec.jitter_kl
        )
        keys = self._arguments.flags.get("api_key")
        if keys is None:
            keys = os.environ.get("VLLM_API_KEY") or []
        unlogged = self._arguments.text("disable_access_log_for_endpoints", "").split(",")
        hidden = tuple(f" {path} " for path in unlogged if path)
        most = self._arguments.number("max_logprobs")
        api = Api(
            spec,
            engine,
            model,
            names=self._names,
            version=spec.version or self._script.vllm_version,
            max_model_len=self._max_model_len,
            max_logprobs=20 if most is None else most,
            api_keys=[keys] if isinstance(keys, str) else list(keys),
            cache_dtype=self._arguments.text("kv_cache_dtype", "auto"),
            utilization=self._arguments.text("gpu_memory_utilization", "0.92"),
            answers=read_answers(spec.answers),
            access=lambda line: (
                self._log.uvicorn(line) if spec.access_log and not any(path in line for path in hidden) else None
            ),
        )
        return engine, api

    async def _start(self) -> bool:
        """Replay the start-up; False when it was interrupted."""
        recorded = self._script.seconds
        wanted = self._spec.startup_s
        scale = 1.0 if wanted is None or recorded == 0 else wanted / recorded
        began = time.monotonic()
        lines = self._script.start
        if self._script.exit_code is None:
            # The last lines are uvicorn's, printed when the port really listens.
            lines = tuple(line for line in lines if "INFO:     " not in line.text)
        for line in lines:
            wait = began + line.at_s * scale - time.monotonic()
            if wait > 0.002:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), wait)
            if self._stop.is_set():
                return False
            self._log.replay(line)
        rest = began + recorded * scale - time.monotonic()
        if rest > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), rest)
        return not self._stop.is_set()

    def _interrupted(self) -> int:
        prefix = "(APIServer pid=«api») " if self._script.prefixed else ""
        for line in (
            "Traceback (most recent call last):",
            '  File "vllm/v1/engine/utils.py", line 1201, in launch_core_engines',
            "KeyboardInterrupt: terminated",
        ):
            self._log.replay(ScriptLine(0, prefix + line))
        return 1

    async def _serve(self, sock: socket.socket, engine: Engine, api: Api, tasks: set[asyncio.Task[None]]) -> int:
        from aiohttp import web

        log = self._log
        log.uvicorn("Started server process [«api»]")
        log.uvicorn("Waiting for application startup.")
        api.on_request = lambda number: self._fault(number, engine)
        runner = web.AppRunner(api.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await runner.setup()
        try:
            await web.SockSite(runner, sock, backlog=2048).start()
            engine.mark_ready()
            log.uvicorn("Application startup complete.")
            tasks.add(asyncio.create_task(self._statistics(engine)))
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), 0.1)
                assert self._children is not None
                if self._children.died() and not self._stop.is_set():
                    await engine.kill()
                    return await self._engine_died()
            self._farewell()
            return 0
        finally:
            await engine.kill()
            await runner.cleanup()

    def _fault(self, number: int, engine: Engine) -> None:
        faults = self._spec.faults
        assert self._children is not None
        if faults.die_first_token:
            for line in self._script.first_token:
                self._log.replay(line)
            engine.dead.set()
            self._children.kill()
        elif faults.exit_zero_after is not None and number > faults.exit_zero_after:
            engine.dead.set()
            self._children.kill()

    async def _engine_died(self) -> int:
        """What vLLM does when its engine is gone: says so, answers 503 for a while, and ends with code 0."""
        log = self._log
        pid = self._children.core_pid if self._children else 0
        if not self._spec.faults.die_first_token:
            log.api(
                "core_client.py:601",
                f"[shutdown] MPClient: engine core exited unexpectedly; starting cleanup pid={pid}",
                "ERROR",
            )
            log.api("async_llm.py:906", "AsyncLLM output_handler failed.", "ERROR")
            log.api(
                "async_llm.py:906",
                "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
                "See stack trace (above) for the root cause.",
                "ERROR",
            )
        await asyncio.sleep(_ENGINE_DEATH_S)
        for text in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            log.uvicorn(text)
        log.uvicorn("Finished server process [«api»]")
        return 0

    def _farewell(self) -> None:
        log = self._log
        log.api("launcher.py:100", "[shutdown] API server: shutdown triggered")
        log.api("launcher.py:116", "[shutdown] API server: stopping engine client mode=abort timeout=0s")
        log.api("utils.py:626", "[shutdown] Process manager: force killing remaining processes count=1", "WARNING")
        log.api("core_client.py:662", "[shutdown] MPClient: complete")
        for text in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            log.uvicorn(text)

    async def _flood(self, lines_s: float) -> None:
        number = 0
        began = time.monotonic()
        while True:
            due = int((time.monotonic() - began) * lines_s)
            while number < due:
                number += 1
                self._log.core("scheduler.py:1", f"SIMULATED flood line {number}")
            await asyncio.sleep(0.02)

    async def _statistics(self, engine: Engine) -> None:
        """The line that vLLM writes every ten seconds while it works."""
        counters = engine.counters
        interval = self._spec.stats_interval_s
        before = (counters.prompt_tokens, counters.generation_tokens)
        was_idle = True
        while True:
            await asyncio.sleep(interval)
            now = (counters.prompt_tokens, counters.generation_tokens)
            idle = now == before and not counters.running
            if not (idle and was_idle):
                rate = counters.prefix_hits / counters.prefix_queries * 100 if counters.prefix_queries else 0.0
                used = min(100.0, counters.kv_used / engine.kv_tokens * 100)
                self._log.api(
                    "loggers.py:335",
                    f"Engine 000: Avg prompt throughput: {(now[0] - before[0]) / interval:.1f} tokens/s, "
                    f"Avg generation throughput: {(now[1] - before[1]) / interval:.1f} tokens/s, "
                    f"Running: {counters.running} reqs, Waiting: {counters.waiting} reqs, "
                    f"{self._spec.device} KV cache usage: {used:.1f}%, "
                    f"Prefix cache hit rate: {rate:.1f}%",
                )
            before, was_idle = now, idle


def serve(argv: Sequence[str]) -> int:
    """`serve MODEL [flags]`: returns the exit code of the process."""
    arguments = parse_serve(argv)
    spec = spec_for(arguments)
    # A programmed pace is only worth something when this process gets the CPU in time; not everyone may ask for it.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    return asyncio.run(_run(arguments, spec))


async def _run(arguments: ServeArguments, spec: SimSpec) -> int:
    return await Server(arguments, spec).run()
