"""`python -m vq_console.simulator serve MODEL [vLLM flags]`, and the children that it starts."""

from __future__ import annotations

import sys


def main(argv: list[str]) -> int:
    """Dispatch; children import nothing but the standard library."""
    if argv[:1] == ["core"]:
        from vq_console.simulator.core_process import run

        return run(argv[1:])
    from vq_console.core.errors import VqError

    try:
        if argv[:1] == ["serve"]:
            from vq_console.simulator.server import serve

            return serve(argv[1:])
        if argv[:1] == ["scripts"]:
            from vq_console.simulator.script import script_names

            print("\n".join(script_names()))
            return 0
    except VqError as error:
        print(f"SIMULATED: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(
        "usage: python -m vq_console.simulator serve MODEL [vLLM flags] | scripts\n"
        "VQ_SIM_SPEC holds the specification: inline JSON or the path of a TOML or JSON file.",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
