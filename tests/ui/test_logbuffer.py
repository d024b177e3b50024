"""The lines behind the log view: read in steps that fit a frame, and from the end again after a long absence."""

from __future__ import annotations

from pathlib import Path

from textual.app import App, ComposeResult

from vq_console.ui.logbuffer import FAR_BEHIND_BYTES, STEP_BYTES, LogBuffer
from vq_console.ui.widgets.logstrip import LogStrip

INFO = "(EngineCore pid=2) INFO 11-03 09:00:00 [loggers.py:257] line {} of a busy log\n"
ERROR = "(EngineCore pid=2) ERROR 11-03 09:00:00 [core.py:1] ValueError: line {}\n"


def test_a_flood_is_taken_in_steps(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(INFO.format(0))
    buffer = LogBuffer(str(log))
    with log.open("a") as file:
        file.writelines(INFO.format(number) for number in range(1, 2000))
    counts = []
    while count := buffer.poll():
        counts.append(count)
    assert sum(counts) == 1999
    assert max(counts) <= STEP_BYTES // 60
    assert [buffer.number(0), buffer.number(1999)] == [1, 2000]
    buffer.close()


def test_after_a_long_absence_it_goes_on_at_the_end_with_its_filters(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(INFO.format(0))
    buffer = LogBuffer(str(log))
    buffer.filter(level="ERROR", process=None)
    buffer.search("valueerror")
    buffer.poll()
    assert not buffer.far_behind
    with log.open("a") as file:
        number = 0
        while file.tell() <= 2 * FAR_BEHIND_BYTES:
            file.writelines(INFO.format(number + step) for step in range(1000))
            number += 1000
        file.write(ERROR.format(number))
    buffer.poll()
    assert buffer.far_behind
    fresh = buffer.again()
    assert not fresh.far_behind
    assert [fresh.entries[position].text for position in fresh.shown] == [f"ValueError: line {number}"]
    assert fresh.matches == fresh.shown
    buffer.close()
    fresh.close()


async def test_a_strip_that_is_told_before_it_has_a_width_is_drawn_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(INFO.format(0) + ERROR.format(1))
    buffer = LogBuffer(str(log))

    class OneStrip(App[None]):
        CSS = "LogStrip { height: 1; }"

        def compose(self) -> ComposeResult:
            strip = LogStrip()
            strip.show(buffer, 0)
            yield strip

    app = OneStrip()
    async with app.run_test(size=(60, 5)) as pilot:
        await pilot.pause()
        assert app.query_one(LogStrip).render().plain == "┃" + "┄" * 29 + "E" + "┄" * 29
    buffer.close()
