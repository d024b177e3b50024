"""The line for a GPU's start: who asked first is first, the dead lose their place, and nobody blocks another."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from vq_console.serving.keeping.locks import FOLDER_VARIABLE, StartLocks


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


def waiting(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.wait*"))


def test_who_asked_first_is_first(folder: Path) -> None:
    keepers = [StartLocks(["gpu-a"], {"name": name}) for name in ("one", "two", "three", "four")]
    assert keepers[0].acquire() is None
    for keeper in keepers[1:]:
        assert keeper.acquire() is not None
    for turn, keeper in enumerate(keepers[1:], 1):
        keepers[turn - 1].release()
        for later in random.Random(turn).sample(keepers[turn + 1 :], len(keepers) - turn - 1):
            got = later.acquire()
            assert got is not None, "whoever looks first does not pass the others"
            assert got[0] == "gpu-a"
            assert got[1] in {k.holder["name"] for k in keepers[turn : keepers.index(later)]}
        assert keeper.acquire() is None
    keepers[-1].release()
    assert waiting(folder) == []


def test_the_next_in_line_is_named_also_while_nobody_starts() -> None:
    one, two, three = (StartLocks(["gpu-a"], {"name": name}) for name in ("one", "two", "three"))
    assert one.acquire() is None
    assert two.acquire() == ("gpu-a", "one")
    one.release()
    assert three.acquire() == ("gpu-a", "two")


def test_a_waiter_that_was_killed_loses_its_place(folder: Path) -> None:
    one, three = (StartLocks(["gpu-a"], {"name": name}) for name in ("one", "three"))
    assert one.acquire() is None
    code = (
        "from vq_console.serving.keeping.locks import StartLocks; import os, signal;"
        "print(StartLocks(['gpu-a'], {'name': 'two'}).acquire()); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-uc", code], capture_output=True, text=True, env=os.environ, timeout=30)
    assert done.stdout.strip() == "('gpu-a', 'one')"
    assert len(waiting(folder)) == 1
    assert three.acquire() == ("gpu-a", "one")
    one.release()
    assert three.acquire() is None
    assert waiting(folder) == [], "what it left is removed"


def test_who_leaves_the_line_holds_nobody_up() -> None:
    one, two, three = (StartLocks(["gpu-a"], {"name": name}) for name in ("one", "two", "three"))
    assert one.acquire() is None
    two.acquire()
    three.acquire()
    two.release()
    one.release()
    assert three.acquire() is None


def test_several_gpus_and_one_of_them_do_not_block_each_other() -> None:
    """Whatever the order in which they look, all of them start, one after the other."""
    for seed in range(30):
        dice = random.Random(seed)
        wanted = [["gpu-a", "gpu-b"], ["gpu-b"], ["gpu-a"], ["gpu-b", "gpu-c"], ["gpu-c", "gpu-a"]]
        left = [StartLocks(names, {"name": str(number)}) for number, names in enumerate(wanted)]
        holding: list[StartLocks] = []
        for _ in range(2000):
            if holding and dice.random() < 0.3:
                holding.pop(dice.randrange(len(holding))).release()
            elif left:
                keeper = dice.choice(left)
                if keeper.acquire() is None:
                    busy = {name for other in holding for name in other.names}
                    assert not busy & set(keeper.names)
                    left.remove(keeper)
                    holding.append(keeper)
            elif not holding:
                break
        assert not left, seed
        for keeper in holding:
            keeper.release()


def test_a_line_that_cannot_be_written_is_no_reason_not_to_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    keeper = StartLocks(["gpu-a"], {"name": "one"})
    monkeypatch.setattr("vq_console.serving.keeping.locks.Ticket", full)
    assert keeper.acquire() is None
