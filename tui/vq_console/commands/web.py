"""`web`: the console in a browser of this machine."""

from __future__ import annotations

import argparse

from vq_console.commands.common import Subparsers, add_command, emit, say
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode

PORT = 8417


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(subparsers, "web", help_of("web"), run_web)
    parser.description = (
        "Serve the console on 127.0.0.1 to a browser of this machine that knows the key in the printed address. From "
        f"another machine: ssh -L {PORT}:127.0.0.1:{PORT} HOST. Needs pip install 'vq-console[web]'."
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"port of 127.0.0.1 (default {PORT})")


def run_web(args: argparse.Namespace) -> ExitCode:
    """Serve until Ctrl+C."""
    from vq_console.ui.web import serve

    def ready(address: str) -> None:
        if args.json:
            emit("vq-console/web/1", {"address": address})
        say(f"The console is at {address}")
        say("Only this machine reaches it, and only with that key. Ctrl+C ends it; servers go on.")

    serve(args.port, ready)
    return ExitCode.DONE
