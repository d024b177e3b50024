"""A growing file gives whole lines only, whatever is done to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vq_console.logs.follow import LogFollower
from vq_console.logs.tail import TailIndex


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_a_line_is_never_split(tmp_path: Path) -> None:
    log = tmp_path / "log"
    follower = LogFollower(log)
    assert follower.read() == []
    seen: list[str] = []
    for piece in (b"Selected kernel Fl", b"ashInfer\nnext", b"", b" line\n\nlast"):
        _append(log, piece)
        seen += follower.read()
    assert seen == ["Selected kernel FlashInfer", "next line", ""]
    _append(log, b"\n")
    assert follower.read() == ["last"]
    assert follower.offset == log.stat().st_size
    assert follower.behind == 0


def test_lines_split_at_newlines_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes("a\rb\x0bc\u2028d\x85e\r\nf\n".encode())
    assert LogFollower(log).read() == ["a\rb\x0bc\u2028d\x85e\r", "f"]


def test_invalid_utf8_is_replaced_even_across_reads(tmp_path: Path) -> None:
    log = tmp_path / "log"
    follower = LogFollower(log)
    _append(log, b"\xff\xfe bad \xe2\x82")
    assert follower.read() == []
    _append(log, b"\xac euro\n")
    assert follower.read() == ["\ufffd\ufffd bad € euro"]


def test_another_follower_goes_on_at_the_offset(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\nthr")
    first = LogFollower(log)
    assert first.read() == ["one", "two"]
    second = LogFollower(log, first.offset)
    _append(log, b"ee\n")
    assert second.read() == ["three"]


@pytest.mark.parametrize(("offset", "lines"), [(0, ["one", "two"]), (1, ["two"]), (4, ["two"]), (5, [])])
def test_an_offset_inside_a_line_begins_with_the_next(tmp_path: Path, offset: int, lines: list[str]) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\n")
    assert LogFollower(log, offset).read() == lines


def test_an_offset_inside_an_unfinished_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"unfini")
    follower = LogFollower(log, 3)
    assert follower.read() == []
    _append(log, b"shed\nwhole\n")
    assert follower.read() == ["whole"]


def test_truncation_begins_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old one\nold two\n")
    follower = LogFollower(log)
    assert len(follower.read()) == 2
    os.truncate(log, 0)
    assert follower.read() == []
    _append(log, b"new\n")
    assert follower.read() == ["new"]
    assert follower.restarts == 1


def test_a_file_rewritten_to_the_same_size_is_noticed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old one\nold two\n")
    follower = LogFollower(log)
    follower.read()
    with open(log, "r+b") as file:
        file.write(b"new one\nnew two\n")
    assert follower.read() == ["new one", "new two"]


def test_rotation_reads_the_old_file_to_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\n")
    follower = LogFollower(log)
    assert follower.read() == ["one"]
    log.rename(tmp_path / "log.1")
    _append(tmp_path / "log.1", b"two\nunfinished")
    assert follower.read() == ["two"]
    log.write_bytes(b"three\n")
    assert follower.read() == ["unfinished", "three"]
    _append(log, b"four\n")
    assert follower.read() == ["four"]


def test_a_limit_bounds_one_read_and_loses_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(400_000)))
    follower = LogFollower(log)
    blocks = []
    while block := follower.read(limit=1 << 20):
        blocks.append(block)
    assert len(blocks) > 3
    assert sum(map(len, blocks)) == 400_000
    assert blocks[-1][-1] == "line 399999"


def test_a_line_of_megabytes_in_pieces(tmp_path: Path) -> None:
    log = tmp_path / "log"
    follower = LogFollower(log)
    for _ in range(40):
        _append(log, b"x" * 100_000)
        assert follower.read() == []
    _append(log, b"\nshort\n")
    lines = follower.read()
    assert [len(line) for line in lines] == [4_000_000, 5]


def test_windows_of_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(1, 50_001)) + b"unfinished")
    index = TailIndex(log)
    last = index.last(3)
    assert last.lines == ("line 49999", "line 50000", "unfinished")
    assert index.line_number(last.starts[0]) == 49_999
    before = index.before(last.begin, 2)
    assert before.lines == ("line 49997", "line 49998")
    after = index.after(last.starts[1], 5)
    assert after.lines == ("line 50000", "unfinished")
    for number in (1, 2, 25_000, 50_001):
        offset = index.offset_of(number)
        assert offset is not None
        assert index.line_number(offset) == number
    assert index.offset_of(50_002) is None
    assert index.before(0, 5).lines == ()
    first = index.after(0, 1)
    assert (first.lines, first.begin) == (("line 1",), 0)


def test_windows_agree_with_the_whole_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [f"{number} " + "y" * (number * 37 % 3000) for number in range(2000)]
    log.write_bytes(("\n".join(lines) + "\n").encode())
    index = TailIndex(log)
    got: list[str] = []
    end = index.size()
    while True:
        window = index.before(end, 97)
        if not window.lines:
            break
        got = [*window.lines, *got]
        end = window.begin
    assert got == lines


def test_small_steps_lose_nothing_when_the_file_is_rotated_meanwhile(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [f"line {number} {'x' * (number % 50)}" for number in range(200)] + ["y" * 5000, "last"]
    log.write_text("\n".join(lines) + "\n")
    with LogFollower(log) as follower:
        read = follower.read(300)
        assert 0 < len(read) < 30
        log.rename(tmp_path / "log.1")
        log.write_text("new\n")
        for _ in range(400):
            read += follower.read(300)
    assert read == [*lines, "new"]
