"""Every command: the module of this package that holds it, and its line of help. All that `--help` needs."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "detect": ("detect", "show GPUs, host and vLLM installations"),
    "engines": ("engines", "vLLM installations"),
    "profiles": ("profiles", "list, make, change, share profiles"),
    "pull": ("profiles", "fetch a model from the hub; `smollm2` makes the starter model"),
    "lint": ("lint", "say before a launch what will happen and what is wrong"),
    "suggest": ("lint", "rank the ways of serving a model on this machine"),
    "matrix": ("lint", "print which kernel serves which method on which GPU"),
    "serve": ("serve", "start a profile's server; it outlives this command"),
    "attach": ("serve", "watch a server that was started elsewhere; lists them without URL"),
    "ps": ("serve", "list servers, with what runs and what is wrong"),
    "stop": ("serve", "stop a server and wait until nothing of it is left"),
    "restart": ("serve", "stop a server and start its profile again, as it is now"),
    "fix": ("serve", "change the profile as the diagnosis says and start it again"),
    "logs": ("serve", "print or follow a server's log"),
    "reap": ("serve", "find and remove what dead servers left behind"),
    "explain": ("explain", "say what happened in a vLLM log, and what to do about it"),
    "check": ("check", "measure one server: latency or quality"),
    "ab": ("ab", "compare two arms for speed, quality and memory"),
    "ask": ("ab", "send one prompt to two arms and show where they part"),
    "reference": ("reference", "record a baseline for the quality check, replay it on another arm"),
    "tasks": ("tasks", "list the task generators, run them on an arm, import lm_eval samples"),
    "quantize": ("quantize", "make a quantized checkpoint with LLM Compressor or ModelOpt"),
    "history": ("history", "list, tag, import and delete runs"),
    "report": ("history", "print or write the report of a run"),
    "diff": ("history", "compare two runs of the same pair"),
    "web": ("web", "open the console in a browser of this machine"),
    "demo": ("demo", "make an engine, a model and two servers, and compare them"),
}
"""Module and help by name, in the order of the help."""


def help_of(name: str) -> str:
    """The line of help of a command."""
    return COMMANDS[name][1]


def module_of(name: str | None) -> str | None:
    """The module that holds a command; None where there is no such command."""
    return COMMANDS[name][0] if name in COMMANDS else None
