"""A profile over several machines: commands with Ray, and with vLLM's own `--nnodes`.

Pure text: bash scripts that are run on every node with its role. Source: vLLM 0.32 `config/parallel.py` and the flags
nnodes, node_rank, master_addr, headless, distributed_executor_backend of its catalogue.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from vq_console.engines.model import Flag
from vq_console.profiles.arguments import serve_arguments
from vq_console.profiles.exports import Exported, comment, server_args, shell_environment, shell_words
from vq_console.profiles.exports_deploy import world_size
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.share import shared_profile

_NODES = frozenset({"nnodes", "node_rank", "master_addr", "master_port", "headless", "distributed_executor_backend"})


def export_ray(profile: Profile, flags: Mapping[str, Flag] | None = None) -> Exported:
    """A script: `head`, then `worker HEAD_ADDRESS` on the others, then `serve` on the head."""
    safe, notes = _prepared(profile)
    arguments = {"distributed_executor_backend": "ray", **server_args(safe)}
    serve = _serve(safe, shell_words(serve_arguments(arguments, flags)))
    text = f"""#!/usr/bin/env bash
{comment(safe.description)}# {safe.name} over several nodes with Ray: {world_size(safe.args)} GPUs in all.
# The same engine, model path and environment on every node.
set -euo pipefail
{_environment(safe)}
case "${{1:-}}" in
  head)
    ray start --head --port=6379
    ;;
  worker)
    ray start --address="${{2:?address of the head}}:6379"
    ;;
  serve)
    ray status
{_indent(serve, 4)}
    ;;
  *)
    echo "usage: $0 head | worker HEAD_ADDRESS | serve" >&2
    exit 2
    ;;
esac
"""
    return Exported(text, notes)


def export_multi_node(profile: Profile, flags: Mapping[str, Flag] | None = None) -> Exported:
    """A script for vLLM's own launcher: `RANK HEAD_ADDRESS` on every node, rank 0 answers requests."""
    safe, notes = _prepared(profile)
    words = shell_words(serve_arguments(server_args(safe), flags))
    serve = _serve(
        safe, [*words, '--nnodes="$nodes"', '--node-rank="$rank"', '--master-addr="$head"', '"${headless[@]}"']
    )
    text = f"""#!/usr/bin/env bash
{comment(safe.description)}# {safe.name} over several nodes without Ray: {world_size(safe.args)} GPUs in all.
# The same engine, model path and environment on every node; rank 0 runs on the head.
set -euo pipefail
nodes="${{NODES:-2}}"
rank="${{1:?rank of this node, from 0}}"
head="${{2:?address of the head}}"
headless=()
if [ "$rank" != 0 ]; then headless=(--headless); fi
{_environment(safe)}
{serve}
"""
    return Exported(text, notes)


def _prepared(profile: Profile) -> tuple[Profile, tuple[str, ...]]:
    safe, notes = shared_profile(profile)
    for key in _NODES & set(safe.args):
        notes = (*notes, f"args.{key} was left out: the script decides it")
    args = {key: value for key, value in safe.args.items() if key not in _NODES}
    if world_size(args) < 2:
        notes = (*notes, "this profile needs one GPU: raise tensor_parallel_size or pipeline_parallel_size first")
    from dataclasses import replace

    return replace(safe, args=args), notes


def _environment(profile: Profile) -> str:
    lines = [f"export {line}" for line in shell_environment(profile.env)]
    names = [name for name, value in profile.env.items() if isinstance(value, EnvRef)]
    return "\n".join(lines) if lines or names else "# no variables are set"


def _serve(profile: Profile, words: list[str]) -> str:
    return " \\\n".join([f"vllm serve {shlex.quote(profile.model)}", *("  " + word for word in words)])


def _indent(text: str, columns: int) -> str:
    return "\n".join(" " * columns + line for line in text.splitlines())
