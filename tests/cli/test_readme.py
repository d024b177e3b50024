"""The README's help is the program's own; `python tests/cli/test_readme.py` writes it anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- help: begin -->", "<!-- help: end -->"


def program_help() -> str:
    """What `vq-console --help` prints, at 100 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "vq_console", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHON_COLORS": "0"},
    )
    return f"```\n{done.stdout.strip()}\n```"


def test_help_in_readme_is_the_programs_own() -> None:
    text = README.read_text()
    block = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()

    # argparse words its headings differently from one Python version to the next; commands must agree exactly.
    def commands(value: str) -> list[str]:
        return [line.strip() for line in value.split("commands:")[1].splitlines() if line.strip()]

    assert commands(block) == commands(program_help())


if __name__ == "__main__":
    content = README.read_text()
    head, tail = content[: content.index(BEGIN) + len(BEGIN)], content[content.index(END) :]
    README.write_text(f"{head}\n{program_help()}\n{tail}")
