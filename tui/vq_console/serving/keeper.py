"""The keeper: a small process that owns one server and outlives the console (`python -m vq_console.serving.keeper`).

It starts the server, knows all its processes, learns when it is ready, records, stops it in stages and cleans up after
it (`keeping/`). Its own death ends nothing: the next console starts a new keeper with `--adopt`. Standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import sys

from vq_console.serving.keeping.life import Life

PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """`FOLDER [--lock-fd N] [--env-fd N] [--adopt]`: leave the console behind, keep the server until it is gone.

    The server's environment comes as JSON on a handle: secrets in it reach no disk, and a profile's variables such as
    PYTHONPATH do not reach the keeper.
    """
    folder = os.path.abspath(arguments[0])
    if os.fork():
        os._exit(0)  # the console collects this one at once; the keeper itself is nobody's child to wait for
    os.setsid()
    if "--lock-fd" in arguments:
        lock = int(arguments[arguments.index("--lock-fd") + 1])
        os.set_inheritable(lock, False)
    else:
        lock = os.open(f"{folder}/keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another keeper has this server", file=sys.stderr)
            return 1
    env = dict(os.environ)
    if "--env-fd" in arguments:
        with open(int(arguments[arguments.index("--env-fd") + 1]), encoding="utf-8") as file:
            env = {str(key): str(value) for key, value in json.load(file).items()}
    os.chdir("/")
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    life = Life(folder, env)
    if "--adopt" in arguments:
        life.adopt()
    life.run()
    os._exit(0)  # at once: until it is gone, its lock keeps the name of the server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
