"""`make soak`: the repeats and simulations that are too long for `make test`, one by one, resumable.

Each test marked `soak` is a process of its own. What ended at this commit is not run again; `--again` runs all, a word
runs the tests whose id contains it. Results go to tests/soak/results.json with date, commit and seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")


def collected() -> list[str]:
    """Ids of all tests marked `soak`."""
    options = ["-o", "addopts=--import-mode=importlib", "-m", "soak", "--collect-only", "-q"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options], capture_output=True, text=True, cwd=ROOT)
    return [line for line in done.stdout.splitlines() if "::" in line]


def commit() -> str:
    """The commit that is tested, with `+` when the tree differs from it."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    dirty = subprocess.run(["git", "status", "--porcelain", "tui", "tests"], capture_output=True, text=True, cwd=ROOT)
    changed = [line for line in dirty.stdout.splitlines() if "results.json" not in line]
    return head.stdout.strip() + ("+" if changed else "")


def main() -> int:
    """Run what is left; 1 when anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only tests whose id contains one of these")
    parser.add_argument("--again", action="store_true", help="also what passed at this commit already")
    args = parser.parse_args()
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    here = commit()
    wanted = [test for test in collected() if not args.words or any(word in test for word in args.words)]
    for number, test in enumerate(wanted, start=1):
        old = results.get(test)
        if old and old["passed"] and old["commit"] == here and not args.again:
            continue
        print(f"[{number}/{len(wanted)}] {test}", flush=True)
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-s", "-m", "soak", "--timeout=7200", test],
            capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        said = [line for line in done.stdout.splitlines() if line.startswith("soak: ")]
        results[test] = {
            "passed": done.returncode == 0,
            "date": time.strftime("%Y-%m-%d"),
            "commit": here,
            "seconds": round(time.monotonic() - began, 1),
            "said": said,
        }
        RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
        print("\n".join([*said, "passed"]) if done.returncode == 0 else done.stdout[-3000:], flush=True)
    failed = [test for test in wanted if not results[test]["passed"]]
    print(f"{len(wanted) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
