"""Writes what this machine's GPUs answer as a snapshot that tests replay: python -m vq_console.hardware.record

Process ids stay, names and commands are never read. For adding a machine to `tests/data/hardware`, or to a bug report.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from vq_console.hardware.probe import open_source
from vq_console.hardware.raw import (
    DYNAMIC_FIELDS,
    PROCESSES,
    STATIC_FIELDS,
    GpuSource,
    NoGpuSourceError,
    UnreadableError,
)


def record(source: GpuSource) -> dict[str, Any]:
    """The snapshot that `RecordedSource` takes; a reading that failed is kept with its reason."""

    def kept(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except UnreadableError as error:
            return {"error": error.reason}

    count = kept(source.count)
    indices = range(count) if isinstance(count, int) else range(0)
    return {
        "label": source.label,
        "driver": kept(lambda: source.system("driver")),
        "cuda": kept(lambda: source.system("cuda")),
        "gpus": [
            {
                field: kept(lambda index=index, field=field: source.read(index, field))  # type: ignore[misc]
                for field in (*STATIC_FIELDS, *DYNAMIC_FIELDS, PROCESSES)
            }
            for index in indices
        ],
    }


def main() -> int:
    """Print the snapshot."""
    try:
        source = open_source()
    except NoGpuSourceError as error:
        print(error.message, file=sys.stderr)
        return int(error.exit_code)
    try:
        print(json.dumps(record(source), indent=1))
    finally:
        source.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
