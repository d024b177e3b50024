import os
from collections.abc import Callable
from typing import Any

if False:
    VLLM_CACHE_ROOT: str = ""

environment_variables: dict[str, Callable[[], Any]] = {
    # a comment with "VLLM_NOT_A_KEY": in it
    "VLLM_CACHE_ROOT": lambda: os.path.expanduser(
        os.getenv("VLLM_CACHE_ROOT", "~/.cache")
    ),
    "MAX_JOBS": lambda: {"1": True}.get(os.getenv("MAX_JOBS", "")),
}


def __getattr__(name: str):
    return environment_variables[name]()
