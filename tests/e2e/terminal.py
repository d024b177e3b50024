"""A terminal of its own for a program: a pty, keys in, and what stands on the screen out."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_SEQUENCE = re.compile(
    r"\x1b(?:\[([0-9;?<>=]*)[ -/]*([@-~])|[\]P_^].*?(?:\x07|\x1b\\)|[()][A-Za-z0-9]|[=>78cDEHMNOZ])", re.S
)
KEYS = {"up": "\x1b[A", "down": "\x1b[B", "enter": "\r", "tab": "\t", "escape": "\x1b", "^p": "\x10"}


class Terminal:
    """Runs `vq-console WORDS` in a pty of `size`; understands as much of its output as is needed to read it."""

    def __init__(self, *words: str, size: tuple[int, int], env: Mapping[str, str], nohup: bool = False) -> None:
        self.width, self.height = size
        self.rows = [[" "] * self.width for _ in range(self.height)]
        self._x = self._y = 0
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", self.height, self.width, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vq_console", *words],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **env}, cwd=env.get("PWD") or str(Path.cwd()),
            preexec_fn=lambda: self._take_over(nohup),
        )  # fmt: skip
        os.close(slave)

    @staticmethod
    def _take_over(nohup: bool) -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def tear(self) -> None:
        """Let the terminal go, as a broken connection does; `close` is not to be called then."""
        os.close(self._master)

    def press(self, *keys: str) -> None:
        """Send keys by name, or text as it is."""
        for key in keys:
            os.write(self._master, KEYS.get(key, key).encode())
            self._read(0.15)

    def see(self, *texts: str, seconds: float = 30) -> str:
        """Wait until all texts stand on the screen; the screen."""
        if not self._until(lambda screen: all(text in screen for text in texts), seconds):
            missing = [text for text in texts if text not in self.screen()]
            raise AssertionError(f"not on the screen: {missing}\n{self.screen()}")
        return self.screen()

    def find(self, pattern: str, seconds: float = 30) -> re.Match[str]:
        """Wait until a pattern is found on the screen; what was found."""
        if not self._until(lambda screen: re.search(pattern, screen) is not None, seconds):
            raise AssertionError(f"not on the screen: {pattern}\n{self.screen()}")
        found = re.search(pattern, self.screen())
        assert found is not None
        return found

    def _until(self, good: Callable[[str], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read(0.1)
            if good(self.screen()):
                return True
            if self.process.poll() is not None:
                break
        return False

    def screen(self) -> str:
        """What a person sees."""
        return "\n".join("".join(row).rstrip() for row in self.rows)

    @contextlib.contextmanager
    def drawing(self) -> Iterator[list[int]]:
        """Take what the program draws without looking at it, as a fast terminal does; sizes in bytes of each read."""
        sizes: list[int] = []
        over = threading.Event()

        def take() -> None:
            while not over.is_set():
                if select.select([self._master], [], [], 0.1)[0]:
                    sizes.append(len(os.read(self._master, 65_536)))

        reader = threading.Thread(target=take)
        reader.start()
        try:
            yield sizes
        finally:
            over.set()
            reader.join()

    def wait(self, seconds: float = 30) -> int:
        """Wait for the program's end; its exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.1)
        return self.process.wait(timeout=1)

    def close(self) -> None:
        """End the program if it still runs, as closing a terminal window does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGHUP)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        os.close(self._master)

    def _read(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._master], [], [], left)[0]:
                return
            try:
                block = os.read(self._master, 65_536)
            except OSError:
                return
            self._take(self._decoder.decode(block))

    def _take(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
                continue
            found = _SEQUENCE.match(text, at)
            if found is None:
                if len(text) - at < 4_096:
                    self._rest = text[at:]
                    return
                at += 1
                continue
            self._obey(found.group(1) or "", found.group(2) or "")
            at = found.end()

    def _obey(self, numbers: str, letter: str) -> None:
        values = [int(n) if n.isdigit() else 0 for n in numbers.split(";")] if numbers else []
        if letter in {"H", "f"}:
            self._y = max((values[0] if values else 1) - 1, 0)
            self._x = max((values[1] if len(values) > 1 else 1) - 1, 0)
        elif letter == "J":
            self.rows = [[" "] * self.width for _ in range(self.height)]
        elif letter == "C":
            self._x += max(values[0] if values else 1, 1)

    def _put(self, char: str) -> None:
        if char == "\n":
            self._y += 1
        elif char == "\r":
            self._x = 0
        elif char >= " ":
            if self._x < self.width and self._y < self.height:
                self.rows[self._y][self._x] = char
            self._x += 1
