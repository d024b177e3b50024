"""Rules about the model: whether it is there, may be read, is known to this vLLM, and is whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vq_console.core.text import nearest
from vq_console.preflight.fit import GIB, weight_bytes
from vq_console.preflight.method import Resolution
from vq_console.preflight.model import Method, Patch
from vq_console.preflight.names import is_gated, is_local
from vq_console.preflight.rules import knowledge
from vq_console.preflight.rules.base import Context, Hit, put, rule
from vq_console.preflight.scheme import NONE
from vq_console.preflight.values import as_list, json_table, real, truthy, whole
from vq_console.preflight.versions import parse_version, span, version_text, vllm_text

REGISTRY = "vLLM source: model_executor/models/registry.py (0.32.0)"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".tensors")
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
    "spiece.model",
    "tokenizer_config.json",
    "tokenization_",
    ".tiktoken",
)


@rule("model-path-not-found", "error", source="huggingface_hub: a path that does not exist is taken for a hub id")
def path_missing(context: Context) -> Iterator[Hit]:
    """A local path that is not there."""
    s = context.s
    if s.target.get("path_exists") is False:
        yield Hit(f"{s.model} does not exist", fix="Correct the path, or mount it into the container")


@rule("weights-missing", "error", source="vLLM source: model_loader/default_loader.py")
def no_weights(context: Context) -> Iterator[Hit]:
    """A directory with a config and no weights, as after a download that broke off."""
    s = context.s
    files = s.target.get("model_dir_files")
    if not isinstance(files, list) or s.args.get("load_format") == "dummy":
        return
    names = [str(name).lower() for name in files]
    if not any(name.endswith(_WEIGHTS) for name in names):
        yield Hit(
            f"{s.model} holds no weights",
            evidence=", ".join(names[:12]),
            fix="Finish the download, or point the profile at the directory with *.safetensors",
        )
        return
    if any(name.endswith((".incomplete", ".part", ".aria2")) for name in names):
        yield Hit(f"{s.model} holds an unfinished download", evidence=", ".join(names[:12]), fix="Finish the download")
    if not any(name in {"config.json", "params.json"} or name.endswith(".gguf") for name in names):
        yield Hit(f"{s.model} holds no config.json", evidence=", ".join(names[:12]), fix="Finish the download")


@rule("weights-missing", "error", source="safetensors index: every shard that it names must be there")
def shard_missing(context: Context) -> Iterator[Hit]:
    """`model-00003-of-00004.safetensors` says how many there must be."""
    import re

    files = context.s.target.get("model_dir_files")
    if not isinstance(files, list):
        return
    found: dict[tuple[str, int], set[int]] = {}
    for name in files:
        match = re.fullmatch(r"(.+)-(\d+)-of-(\d+)\.(?:safetensors|bin)", str(name))
        if match:
            found.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, total), have in found.items():
        missing = sorted(set(range(1, total + 1)) - have)
        if missing:
            yield Hit(
                f"{len(missing)} of {total} weight files are missing",
                evidence=f"{stem}-{missing[0]:05d}-of-{total:05d}",
                fix="Finish the download",
            )


@rule("tokenizer-load-failed", "error", source="transformers AutoTokenizer: needs one of its file kinds")
def no_tokenizer(context: Context) -> Iterator[Hit]:
    """A directory without tokenizer files, and no `--tokenizer`."""
    s = context.s
    files = s.target.get("model_dir_files")
    if not isinstance(files, list) or s.args.get("tokenizer") or s.on("skip_tokenizer_init"):
        return
    names = [str(name).lower() for name in files]
    if any(name.endswith(".gguf") for name in names) or not any(name.endswith(_WEIGHTS) for name in names):
        return
    if not any(name.startswith(_TOKENIZERS) or name.endswith(_TOKENIZERS) for name in names):
        yield Hit(
            f"{s.model} holds no tokenizer",
            evidence=", ".join(names[:12]),
            fix="Add the tokenizer files, or name one with --tokenizer",
        )


_ABSENT = ("is missing", "holds no weights", "blob that is not there", "weight files are missing")
_DAMAGED = ("cut off", "LFS pointer", "damaged", "no safetensors", "not valid JSON", "describes a tensor wrongly")


def _problems(context: Context, signs: tuple[str, ...]) -> list[str]:
    given = context.s.target.get("checkpoint_problems")
    if not isinstance(given, list | tuple) or context.s.args.get("load_format") == "dummy":
        return []
    return [str(line) for line in given if any(sign in str(line) for sign in signs)]


@rule("checkpoint-corrupt", "error", source="safetensors: 8 bytes of header length, then JSON, then data")
def corrupt(context: Context) -> Iterator[Hit]:
    """What reading the headers of the weight files found."""
    for problem in _problems(context, _DAMAGED):
        yield Hit(problem, fix="Download the file again; git lfs pull where it is a pointer")


@rule("weights-missing", "error", source="safetensors index against the files that are there")
def absent(context: Context) -> Iterator[Hit]:
    """Weight files that an index names and that are not there."""
    if isinstance(context.s.target.get("model_dir_files"), list):
        return
    for problem in _problems(context, _ABSENT):
        yield Hit(problem, fix="Finish the download (vq-console pull)")


@rule("hf-gated-repo", "error", source="Hugging Face: gated repositories answer 401 without a token")
def gated(context: Context) -> Iterator[Hit]:
    """A family whose files need an accepted licence, and no token."""
    s = context.s
    if not is_gated(s.model) or s.target.get("model_cached") is True:
        return
    token = s.env.get("HF_TOKEN", s.env.get("HUGGING_FACE_HUB_TOKEN"))
    if token is None and s.target.get("hf_token") is not None:
        token = "set" if s.target.get("hf_token") else ""
    if token is not None and not token.strip():
        yield Hit(
            f"{s.model} is gated, and there is no Hugging Face token",
            evidence="HF_TOKEN is empty",
            fix="Accept the licence on its page, then set HF_TOKEN (or log in with hf auth login)",
        )


@rule("hf-offline-cache-miss", "error", source="huggingface_hub: HF_HUB_OFFLINE")
def offline(context: Context) -> Iterator[Hit]:
    """Offline by the environment, and the model is not in the cache."""
    s = context.s
    off = [n for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if truthy(s.env.get(n))]
    if off and s.target.get("model_cached") is False and not is_local(s.model):
        yield Hit(
            f"{off[0]} is set, and {s.model} is not in the cache",
            fix="Fetch it first (vq-console pull), unset the variable, or give a local path",
            patch=Patch(remove_env=tuple(off)),
        )


@rule("disk-full", "error", source="sizes of the published weights against the cache's file system")
def disk(context: Context) -> Iterator[Hit]:
    """A download that does not fit the disk."""
    s = context.s
    free = real(s.target.get("disk_free_gib"))
    if free is None or is_local(s.model) or s.target.get("model_cached") is True or s.target.get("path_exists"):
        return
    need = _download_gib(context)
    if need is not None and need > free:
        yield Hit(
            f"{s.model} takes about {need:.0f} GiB, and {free:g} GiB are free for the cache",
            fix="Free space, or set HF_HOME to a larger volume",
        )
    elif need is None and free < 5:
        yield Hit(
            f"only {free:g} GiB are free where the model would be stored",
            fix="Free space, or set HF_HOME to a larger volume",
            severity="warning",
        )


def _download_gib(context: Context) -> float | None:
    s = context.s
    stored = real(s.fact("weights_gib") or s.fact("size_gib"))
    if stored is not None:
        return stored
    shape = context.shape
    if shape is None:
        return None
    resolution = context.resolution
    if resolution.online or resolution.linear is None:
        resolution = Resolution(Method(None, None, None), NONE, NONE)
    weights = weight_bytes(s, resolution, shape)
    return None if weights is None else weights.resident * s.tp * s.pp / GIB


@rule("arch-removed", "error", source=f"{REGISTRY} _PREVIOUSLY_SUPPORTED_MODELS")
def dropped(context: Context) -> Iterator[Hit]:
    """A model class that an older release had."""
    s = context.s
    if s.version is None:
        return
    for name in s.architectures[:1]:
        last = knowledge.previously_supported().get(name)
        if last is not None and (until := parse_version(last)) is not None and s.version > until:
            yield Hit(
                f"{name} was supported until vLLM {last}, and is gone from {version_text(s.version)}",
                fix=f"Use vLLM {last} for this model, or a newer model",
                severity="warning" if name in knowledge.transformers_architectures() else None,
            )


@rule("arch-unsupported", "error", source=REGISTRY)
def not_implemented(context: Context) -> Iterator[Hit]:
    """A model class that this vLLM does not have."""
    s = context.s
    names = as_list(s.stated("architectures") or s.stated("architecture"))
    if not names or s.version is None:
        return
    if s.args.get("model_impl") == "transformers" or s.args.get("model_class_overrides"):
        return
    own = s.target.get("supported_architectures")
    known = frozenset(as_list(own)) if own else knowledge.architectures()
    if any(n in knowledge.transformers_architectures() for n in names):
        if not any(n in known for n in names):
            yield Hit(
                f"{names[0]} has no own code in vLLM: its Transformers backend serves it, slower",
                fix="Accept it, or choose a model that vLLM implements",
                severity="info",
            )
        return
    name = names[0]
    previously = knowledge.previously_supported()
    if any(n in known or n in previously for n in names):
        return
    if name in knowledge.out_of_tree():
        yield Hit(
            f"{name} moved out of vLLM into a plugin",
            evidence=knowledge.out_of_tree()[name],
            fix=f"Install the plugin: {knowledge.out_of_tree()[name]}",
            severity=None if s.version >= (0, 20, 0) else "warning",
        )
        return
    if own is None and s.version > (0, 33, 0):
        return
    certain = own is not None or s.version <= (0, 32, 0)
    near = nearest(name, known)
    yield Hit(
        f"{name} is not implemented in {vllm_text(s.version)}",
        evidence=f"nearest: {near}" if near else "",
        fix="Upgrade vLLM, or try --model-impl transformers",
        patch=put(model_impl="transformers"),
        severity=None if certain and not (s.stated("auto_map") and s.on("trust_remote_code")) else "warning",
    )


@rule("trust-remote-code-required", "error", source="transformers: auto_map of config.json")
def custom_code(context: Context) -> Iterator[Hit]:
    """A repository whose model is Python code of its own, not known to vLLM or transformers."""
    s = context.s
    if not s.stated("auto_map") or s.on("trust_remote_code"):
        return
    native = knowledge.architectures() | knowledge.transformers_architectures()
    if any(name in native for name in s.architectures):
        return
    yield Hit(
        f"{s.model} needs its own Python code, and --trust-remote-code is off",
        evidence="auto_map in config.json",
        fix="Read the code, then add --trust-remote-code",
        patch=put(trust_remote_code=True),
    )


@rule("chat-template-missing", "warning", source="transformers: tokenizer_config.json chat_template")
def no_template(context: Context) -> Iterator[Hit]:
    """A base model: chat requests answer 400."""
    s = context.s
    if s.stated("chat_template") is False and not s.args.get("chat_template"):
        yield Hit(
            "the tokenizer has no chat template: /v1/chat/completions will answer 400",
            fix="Add --chat-template, use an instruct model, or use /v1/completions",
        )


@rule("max-len-exceeds-model", "error", source="vLLM source: config/model.py _get_and_verify_max_len")
def too_long(context: Context) -> Iterator[Hit]:
    """`--max-model-len` above what the model's positions allow."""
    s = context.s
    wanted = s.count("max_model_len")
    limit = _longest(s.facts)
    if wanted is None or limit is None or wanted <= limit or truthy(s.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN")):
        return
    overrides = json_table(s.args.get("hf_overrides")) or {}
    if any("rope" in key or "position" in key for key in overrides) or s.args.get("rope_scaling"):
        return
    stated = s.stated("max_position_embeddings") is not None or s.stated("model_max_length") is not None
    yield Hit(
        f"--max-model-len {wanted:,} is above the model's {limit:,} positions",
        fix=f"Use --max-model-len {limit}, or rope scaling in --hf-overrides",
        patch=put(max_model_len=limit),
        severity=None if stated else "warning",
    )


def _longest(facts: Mapping[str, Any]) -> int | None:
    keys = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
    found = [value for key in keys if (value := whole(facts.get(key)))]
    if not found:
        return None
    limit = min(found)
    rope = facts.get("rope_scaling") or facts.get("rope_parameters")
    if isinstance(rope, Mapping):
        kind = str(rope.get("rope_type") or rope.get("type") or "default")
        factor = real(rope.get("factor")) or 1.0
        if kind in {"linear", "dynamic"}:
            return int(limit * factor)
        if kind == "yarn":
            original = whole(rope.get("original_max_position_embeddings")) or limit
            return int(original * factor)
    return limit


@rule("checkpoint-weights-mismatch", "warning", source="vLLM source: layers/quantization/auto_gptq.py TYPE_MAP")
def gptq_types(context: Context) -> Iterator[Hit]:
    """GPTQ widths that vLLM has no kernel type for."""
    s = context.s
    resolved = context.resolution.method.resolved or ""
    if not resolved.endswith("gptq") or not span(">=0.24").holds(s.version):
        return
    bits, symmetric = whole(s.stated("bits")), s.stated("sym")
    if (bits is not None and bits not in {4, 8}) or symmetric is False:
        yield Hit(
            f"GPTQ with bits={bits} sym={symmetric} is not supported: vLLM takes 4 or 8 bits, symmetric",
            fix="Use a symmetric 4-bit or 8-bit GPTQ checkpoint, or AWQ",
            severity="error",
        )
