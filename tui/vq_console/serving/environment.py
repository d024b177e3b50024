"""The environment of a server: the launching one, the profile's own, and secrets by reference. Only decides."""

from __future__ import annotations

import os
from collections.abc import Mapping

from vq_console.core.errors import MissingError

QUIET_OUTPUT: Mapping[str, str] = {"NO_COLOR": "1", "VLLM_LOGGING_COLOR": "0", "PYTHONUNBUFFERED": "1"}
"""Plain whole lines in the log: no colours, nothing held back in a buffer."""
DROPPED = (
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "PYTHONHOME",
    "__PYVENV_LAUNCHER__",
    "PYTHONSAFEPATH",
    "PYTHONDONTWRITEBYTECODE",
)
"""Variables of the console's own interpreter or terminal that would mislead the engine's.

Without bytecode each of an engine's three processes compiles vLLM and torch anew, which doubles the time of a start;
a profile that wants it so says so in `[env]`.
"""


def server_environment(
    plan_env: Mapping[str, str],
    secret_env: Mapping[str, str],
    *,
    python: str | None,
    given: Mapping[str, str],
) -> dict[str, str]:
    """What the server gets: `given` (the launching environment), then quiet output, then the plan's own values.

    `secret_env` maps a variable to the variable of `given` that holds its value. `python` is the engine's interpreter:
    its folder leads PATH, as in an activated environment, because kernels are built with tools that lie there.
    Raises MissingError naming the variable that is not set.
    """
    env = {key: value for key, value in given.items() if key not in DROPPED}
    if python:
        folder = os.path.dirname(python)
        parts = env.get("PATH", os.defpath).split(os.pathsep)
        if folder and parts[0] != folder:
            env["PATH"] = os.pathsep.join([folder, *parts])
    env.update(QUIET_OUTPUT)
    env.update(plan_env)
    for name, source in secret_env.items():
        if not given.get(source):
            raise MissingError(
                f"the environment variable {source} is not set", f"export {source}=… : the profile takes {name} from it"
            )
        env[name] = given[source]
    return env
