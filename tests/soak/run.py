"""`make soak`: the repeats and simulations that are too long for `make test`, resumable.

The tests marked `soak` run one after the other, one process per file; each result is written when it is there. What
passed since the code last changed is not run again; `--again` runs all, a word runs the tests whose id contains it.
Results go to tests/soak/results.json with date, commit and seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
CODE = ("tui", "tests", "profiles", "pyproject.toml", ":!tests/soak/results.json")
"""What a result depends on, as paths of git."""


def collected() -> list[str]:
    """Ids of all tests marked `soak`."""
    options = ["-o", "addopts=--import-mode=importlib", "-m", "soak", "--collect-only", "-q"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options], capture_output=True, text=True, cwd=ROOT)
    return [line for line in done.stdout.splitlines() if "::" in line]


def git(*words: str) -> str:
    """What git says."""
    return subprocess.run(["git", *words], capture_output=True, text=True, cwd=ROOT).stdout.strip()


def commit() -> str:
    """The commit that last changed code or tests, with `+` when the tree differs from it."""
    return git("log", "-1", "--format=%h", "--", *CODE) + ("+" if git("status", "--porcelain", "--", *CODE) else "")


class Recorder:
    """A pytest plugin: writes each test's result as soon as it is there."""

    def __init__(self, results: dict[str, dict[str, Any]], here: str, total: int) -> None:
        self.results, self._here, self._total = results, here, total
        self._bad: set[str] = set()
        self._skipped: set[str] = set()
        self._seconds: dict[str, float] = defaultdict(float)
        self._said: dict[str, list[str]] = defaultdict(list)
        self.done = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest after setup, call and teardown of each test."""
        test = report.nodeid
        self._seconds[test] += report.duration
        if report.failed:
            self._bad.add(test)
        if report.skipped:
            self._skipped.add(test)
        if report.when != "teardown":
            return
        self._said[test] += [line for line in report.capstdout.splitlines() if line.startswith("soak: ")]
        word = "failed" if test in self._bad else "skipped" if test in self._skipped else "passed"
        self.done += 1
        self.results[test] = {
            "passed": word == "passed",
            "date": time.strftime("%Y-%m-%d"),
            "commit": self._here,
            "seconds": round(self._seconds[test], 1),
            "said": self._said[test],
            **({"skipped": True} if word == "skipped" else {}),
        }
        RESULTS.write_text(json.dumps(dict(sorted(self.results.items())), indent=1) + "\n")
        print(f"\n[{self.done}/{self._total}] {test} {word}, {self._seconds[test]:.0f} s", flush=True)
        print("".join(f"{line}\n" for line in self._said[test]), end="", flush=True)


def run_file(path: str, tests: list[str], here: str, number: int, total: int) -> None:
    """Run these tests of one file in this process."""
    import pytest

    recorder = Recorder(json.loads(RESULTS.read_text()) if RESULTS.exists() else {}, here, total)
    recorder.done = number
    options = ["-q", "-m", "soak", "--timeout=7200", "--show-capture=stdout", "-o", "console_output_style=none"]
    pytest.main([*options, *tests], plugins=[recorder])
    for test in set(tests) - set(recorder._seconds):
        recorder.results[test] = {"passed": False, "date": time.strftime("%Y-%m-%d"), "commit": here,
                                  "seconds": 0.0, "said": [f"{path} ended before it"]}  # fmt: skip
    RESULTS.write_text(json.dumps(dict(sorted(recorder.results.items())), indent=1) + "\n")


def main() -> int:
    """Run what is left; 1 when anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only tests whose id contains one of these")
    parser.add_argument("--again", action="store_true", help="also what passed since the code last changed")
    parser.add_argument("--file", nargs=4, metavar=("ORDER", "COMMIT", "NUMBER", "TOTAL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.file:
        order, here, number, total = args.file
        value = json.loads(Path(order).read_text())
        run_file(value["path"], value["tests"], here, int(number), int(total))
        return 0
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    here = commit()
    known = collected()
    wanted = [test for test in known if not args.words or any(word in test for word in args.words)]
    results = {test: result for test, result in results.items() if test in known}
    RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    left: dict[str, list[str]] = defaultdict(list)
    for test in wanted:
        old = results.get(test)
        if args.again or not (old and old["passed"] and old["commit"] == here):
            left[test.partition("::")[0]].append(test)
    total, number = sum(map(len, left.values())), 0
    order = ROOT / ".make" / "soak.json"
    order.parent.mkdir(exist_ok=True)
    for path, tests in left.items():
        order.write_text(json.dumps({"path": path, "tests": tests}))
        subprocess.run([sys.executable, __file__, "--file", str(order), here, str(number), str(total)], cwd=ROOT)
        number += len(tests)
    results = json.loads(RESULTS.read_text())
    failed = [test for test in wanted if not results.get(test, {}).get("passed")]
    print(f"{len(wanted) - len(failed)} passed, {len(failed)} did not")
    print("".join(f"  {test}\n" for test in failed), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
