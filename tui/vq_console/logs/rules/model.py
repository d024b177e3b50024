"""Causes in the model: architecture, library versions, tokenizer, template, weights, hub.

Texts: vLLM 0.6 to 0.33 (model_executor/models, model_loader, transformers_utils), transformers, huggingface_hub,
safetensors, tokenizers.
"""

from __future__ import annotations

import re

from vq_console.logs.model import Fix
from vq_console.logs.rules.rule import Hit, rule, say, set_args

_REMOVED_IN_5 = (
    r"all_special_tokens_extended|AutoModelForVision2Seq|is_torch_(?:fx|sdpa)_available|batch_encode_plus|encode_plus|"
    r"additional_special_tokens|PretrainedConfig|is_flash_attn_greater|TFPreTrainedModel|FlaxPreTrainedModel|"
    r"HybridCache|SlidingWindowCache|_CHECKPOINT_FOR_DOC|use_kernel_forward|ROPE_INIT_FUNCTIONS|"
    r"LogitsWarper|[A-Z0-9]+_ATTENTION_CLASSES|ALLOWED_LAYER_TYPES|BeamSearchScorer"
)
_TENSOR = (
    r"\.(?:weight|bias|scale|zero_point|[\w]*_scale\w*|[\w]*_weight|qweight|qzeros|scales|g_idx|weight_packed"
    r"|weight_shape|k_scale|v_scale)"
)
_LOADING = (
    "load_weights",
    "weight_loader",
    "_load_module",
    "load_merged",
    "default_weight_loader",
    "load_column",
    "load_row",
)


def _loading(hit: Hit) -> bool:
    return any(word in hit.frames for word in _LOADING)


def _hub_fixes(_hit: Hit) -> tuple[Fix, ...]:
    return (
        say(
            "Accept the licence on the model's page, then log in (`hf auth login`) or set HF_TOKEN to a token "
            "with access."
        ),
        say('In a profile: HF_TOKEN = { from_env = "HF_TOKEN" } in [env].'),
    )


def _path_fixes(hit: Hit) -> tuple[Fix, ...]:
    path = hit.group("path")
    return (
        say(
            f"Check that {path} exists where vLLM runs (in a container: is it mounted?)."
            if path
            else "Check the path; in a container, whether it is mounted."
        ),
    )


def _upgrade(hit: Hit) -> tuple[Fix, ...]:
    kind = hit.group("kind")
    return (
        say(
            f"Upgrade transformers in the engine's environment{f' for {kind}' if kind else ''}, within the range "
            f"that vLLM allows."
        ),
        say("Or upgrade vLLM."),
    )


RULES = (
    rule(
        "arch-unsupported",
        "are not supported for now. Supported architectures",
        90,
        pattern=r"Model architectures (?P<names>\[.*?\]) are not supported for now",
        fixes=lambda hit: (
            set_args("Try the Transformers implementation.", model_impl="transformers"),
            say("Or upgrade vLLM."),
        ),
        explain=lambda hit: f"This vLLM has no implementation of {hit.match['names']}.",
    ),
    rule(
        "arch-unsupported",
        "is not compatible with vLLM",
        86,
        pattern=r"Transformers implementation of .* is not compatible with vLLM",
    ),
    rule("arch-unsupported", "Cannot find model module", 84),
    rule("arch-unsupported", "is not supported by ROCm for now", 84),
    rule("arch-unsupported", "No model architectures are specified", 80),
    rule("arch-unsupported", "GGUF model with architecture", 84),
    rule("arch-unsupported", "odel architectur", 60, pattern=r"odel architectures? .*(?:is|are) not supported"),
    rule("arch-unsupported", "Unrecognized model in", 78),
    rule("arch-unsupported", "Unsupported model", 55, pattern=r"Unsupported model (?:type|architecture)"),
    rule(
        "arch-removed",
        "was supported in vLLM until",
        92,
        pattern=r"Model architecture (?P<name>\S+) was supported in vLLM until v?(?P<version>[\d.]+)",
        fixes=lambda hit: (
            say(f"Install vLLM {hit.match['version'].rstrip('.')} for this model, or choose another model."),
        ),
    ),
    rule("arch-removed", "is not supported in-tree anymore", 92),
    rule(
        "transformers-too-old",
        "does not recognize this architecture",
        90,
        pattern=r"model type `(?P<kind>[^`]+)`.*does not recognize this architecture",
        fixes=_upgrade,
    ),
    rule("transformers-too-old", "does not recognize this architecture", 89, fixes=_upgrade),
    rule(
        "transformers-too-old",
        "transformers",
        74,
        pattern=(
            r"cannot import name '(?P<kind>\w+(?:Config|Processor|ForConditionalGeneration|ForCausalLM|Model"
            r"|ImageProcessor\w*))' from 'transformers"
        ),
        when=lambda hit: re.search(_REMOVED_IN_5, hit.line.message) is None,
        fixes=_upgrade,
    ),
    rule(
        "transformers-too-old",
        "transformers",
        72,
        pattern=(
            r"(?:[Pp]lease (?:upgrade|update|install)|requires?|needs?) (?:to )?(?:at least )?(?:the "
            r")?`?transformers`?(?: version)? ?(?:>=|at least|v?\d)"
        ),
        fixes=_upgrade,
    ),
    rule("transformers-too-old", "has no module named 'transformers.models.", 72, fixes=_upgrade),
    rule("transformers-too-old", "No module named 'transformers.models.", 72, fixes=_upgrade),
    rule(
        "transformers-too-new",
        "has no attribute",
        82,
        pattern=(
            rf"(?:Tokenizer\w*|Config|Model|transformers\S*)'?\"? (?:object )?has no attribute '?(?:{_REMOVED_IN_5})"
        ),
        fixes=lambda hit: (
            say("Install the transformers range that this vLLM asks for (for 0.11: transformers<5)."),
            say("Or upgrade vLLM."),
        ),
    ),
    rule(
        "transformers-too-new",
        "has no attribute 'rope_",
        72,
        pattern=r"Config' object has no attribute 'rope_(?:theta|scaling)'",
        fixes=lambda hit: (say("Install the transformers range that this vLLM asks for."), say("Or upgrade vLLM.")),
    ),
    rule(
        "transformers-too-new",
        "cannot import name",
        80,
        pattern=rf"cannot import name '(?:{_REMOVED_IN_5})' from 'transformers",
        fixes=lambda hit: (say("Install the transformers range that this vLLM asks for."), say("Or upgrade vLLM.")),
    ),
    rule(
        "transformers-too-new",
        "transformers",
        60,
        pattern=r"(?:transformers|huggingface[-_]hub)\S* ?(?:<|!=)[\d=.]+\S* (?:is required|but found)",
    ),
    rule(
        "transformers-too-new",
        "has no attribute",
        58,
        pattern=r"(?:Tokenizer(?:Fast)?|module 'transformers[\w.]*'|\w+Config'?)(?: object)? has no attribute",
        when=lambda hit: "transformers" in hit.frames,
    ),
    rule("tokenizer-load-failed", "Couldn't instantiate the backend tokenizer", 88),
    rule("tokenizer-load-failed", "Can't load tokenizer for", 88),
    rule("tokenizer-load-failed", "did not match any variant of untagged enum", 86),
    rule(
        "tokenizer-load-failed",
        "Tokenizer class",
        84,
        pattern=r"Tokenizer class \S+ does not exist or is not currently imported",
    ),
    rule(
        "tokenizer-load-failed",
        "tiktoken",
        80,
        pattern=r"(?:tiktoken\.model not found|Could not find tiktoken|tokenizer\.model in)",
    ),
    rule(
        "tokenizer-load-failed",
        "okenizer",
        70,
        pattern=(
            r"(?:[Ff]ailed to load the tokenizer|No tokenizer (?:file )?found|tokenizer\.json.*(?:not found|No such "
            r"file)|Error loading tokenizer)"
        ),
    ),
    rule(
        "tokenizer-load-failed",
        "expected str, bytes or os.PathLike object, not NoneType",
        68,
        when=lambda hit: "tokeniz" in hit.frames,
    ),
    rule(
        "tokenizer-load-failed",
        "Error",
        34,
        pattern=r"^[\w.]*(?:Error|Exception)\b",
        when=lambda hit: hit.spot.raised and "tokeniz" in hit.frames[-500:] and "from_pretrained" in hit.frames[-2500:],
    ),
    rule(
        "trust-remote-code-required",
        "contains custom code which must be executed",
        90,
        fixes=lambda hit: (set_args("Read the code of the repository first, then allow it.", trust_remote_code=True),),
    ),
    rule(
        "trust-remote-code-required",
        "trust_remote_code=True",
        84,
        pattern=r"(?:pass|set|option|argument).{0,40}`?trust_remote_code=True",
        fixes=lambda hit: (set_args("Read the code of the repository first, then allow it.", trust_remote_code=True),),
    ),
    rule(
        "trust-remote-code-required",
        "requires you to execute",
        82,
        fixes=lambda hit: (set_args("Read the code of the repository first, then allow it.", trust_remote_code=True),),
    ),
    rule(
        "chat-template-missing",
        "default chat template is no longer allowed",
        80,
        serving=True,
        fixes=lambda hit: (
            say("Give --chat-template a template file, serve an instruct model, or use /v1/completions."),
        ),
    ),
    rule(
        "chat-template-missing",
        "chat template",
        74,
        serving=True,
        pattern=(
            r"(?:you must provide a chat template|No chat template|does not (?:have|define) a chat "
            r"template|tokenizer\.chat_template is not set|Cannot use chat template functions|chat template path "
            r"doesn't exist|appears path-like, but doesn't exist)"
        ),
    ),
    rule("chat-template-missing", "chat template", 72, serving=True, pattern=r"supplied chat template (?:path|string)"),
    rule(
        "checkpoint-weights-mismatch",
        "There is no module or parameter named",
        88,
        pattern=r"There is no module or parameter named '?(?P<name>[\w.]+)",
        explain=lambda hit: f"The checkpoint holds {hit.match['name']}, for which the model has no place.",
    ),
    rule("checkpoint-weights-mismatch", "were not initialized from checkpoint", 88),
    rule(
        "checkpoint-weights-mismatch",
        "KeyError: ",
        78,
        pattern=rf"KeyError: ['\"](?P<name>[\w.]*{_TENSOR})['\"]",
        explain=lambda hit: f"The checkpoint holds {hit.match['name']}, which the model does not expect.",
    ),
    rule("checkpoint-weights-mismatch", "KeyError: ", 62, pattern=r"KeyError: ['\"][\w.]*layers\.\d+\.[\w.]+['\"]"),
    rule(
        "checkpoint-weights-mismatch",
        "into parameter",
        78,
        pattern=r"(?:Attempted to load weight|Tried to load weights? of size).*(?:into|to) (?:a )?parameter",
    ),
    rule("checkpoint-weights-mismatch", "Attempted to load nested weight", 78),
    rule("checkpoint-weights-mismatch", "has no parameter", 76, pattern=r"has no parameter .* for checkpoint weight"),
    rule("checkpoint-weights-mismatch", "size mismatch for", 74),
    rule("checkpoint-weights-mismatch", "in loaded state", 74, pattern=r"Missing keys .* in loaded state"),
    rule("checkpoint-weights-mismatch", "must be equal. But got", 70, pattern=r"input_scales of w1 and w3"),
    rule("checkpoint-weights-mismatch", "so the tied weight is uninitialized", 74),
    rule(
        "checkpoint-weights-mismatch",
        "size",
        56,
        pattern=(
            r"(?:The size of tensor a|The expanded size of the tensor|exceeds dimension size|shape "
            r"mismatch|mismatched shape|must match the (?:existing|size))"
        ),
        when=_loading,
    ),
    rule("checkpoint-weights-mismatch", "AssertionError", 52, pattern=r"^AssertionError\b", when=_loading),
    rule(
        "checkpoint-weights-mismatch",
        "Error",
        36,
        pattern=r"^(?:KeyError|ValueError|IndexError|RuntimeError|AttributeError)\b",
        when=lambda hit: hit.spot.raised and _loading(hit),
    ),
    rule("checkpoint-corrupt", "SafetensorError", 86, pattern=r"SafetensorError: (?P<why>.*)"),
    rule("checkpoint-corrupt", "Error while deserializing header", 85),
    rule("checkpoint-corrupt", "MetadataIncompleteBuffer", 85),
    rule("checkpoint-corrupt", "git-lfs", 84, pattern=r"version https://git-lfs|git-lfs"),
    rule("checkpoint-corrupt", "PytorchStreamReader failed", 84),
    rule("checkpoint-corrupt", "invalid load key", 84),
    rule("checkpoint-corrupt", "UnpicklingError", 78),
    rule("checkpoint-corrupt", "Consistency check failed", 82),
    rule("checkpoint-corrupt", "nexpected EOF", 76),
    rule("checkpoint-corrupt", "is not a valid JSON file", 76),
    rule(
        "checkpoint-corrupt",
        "JSONDecodeError",
        56,
        when=lambda hit: "config" in hit.frames or "safetensors" in hit.frames,
    ),
    rule(
        "weights-missing",
        "Cannot find any",
        88,
        pattern=r"Cannot find any (?:safetensors )?model weights with `?(?P<path>[^`]*)",
    ),
    rule("weights-missing", "Weight files referenced in index but missing", 88),
    rule("weights-missing", "Could not find checkpoint files", 84),
    rule(
        "weights-missing",
        "No such file or directory",
        74,
        pattern=r"No such file or directory: '?[^']*\.(?:safetensors|bin|pt|pth|gguf)'?",
    ),
    rule(
        "weights-missing",
        "does not appear to have a file named",
        80,
        pattern=r"does not appear to have (?:a file|files) named \(?'?(?:pytorch_model|model|tf_model)",
    ),
    rule("weights-missing", "No safetensors", 76, pattern=r"No safetensors (?:files|weights) found"),
    rule("weights-missing", "Could not detect config format", 78),
    rule(
        "model-path-not-found",
        "Repo id must",
        86,
        pattern=r"Repo id must (?:be in the form|use alphanumeric).*?: ?'(?P<path>[^']+)'",
        fixes=_path_fixes,
    ),
    rule(
        "model-path-not-found",
        "No supported config format found in",
        78,
        pattern=r"No supported config format found in '?(?P<path>\S+?)'?\.?$",
        fixes=_path_fixes,
    ),
    rule("model-path-not-found", "HFValidationError", 82, fixes=_path_fixes),
    rule(
        "model-path-not-found",
        "Invalid repository ID or local directory specified",
        86,
        pattern=r"Invalid repository ID or local directory specified: '(?P<path>[^']*)'",
        fixes=_path_fixes,
    ),
    rule(
        "model-path-not-found",
        "Can't load the configuration of",
        72,
        pattern=r"Can't load the configuration of '(?P<path>[./~][^']*)'",
        fixes=_path_fixes,
    ),
    rule(
        "model-path-not-found",
        "No such file or directory",
        66,
        pattern=r"No such file or directory: '(?P<path>[^']*(?:config|tokenizer\w*|index)\.json)'",
        fixes=_path_fixes,
    ),
    rule("model-path-not-found", "does not appear to have a file named config.json", 70, fixes=_path_fixes),
    rule("hf-gated-repo", "gated repo", 86, pattern=r"You are trying to access a gated repo", fixes=_hub_fixes),
    rule("hf-gated-repo", "Cannot access gated repo", 82, fixes=_hub_fixes),
    rule("hf-gated-repo", "GatedRepoError", 80, fixes=_hub_fixes),
    rule("hf-gated-repo", "is restricted", 78, pattern=r"Access to model \S+ is restricted", fixes=_hub_fixes),
    rule("hf-gated-repo", "awaiting a review", 79, fixes=_hub_fixes),
    rule("hf-gated-repo", "403", 70, pattern=r"403 (?:Client Error|Forbidden)|'403 Forbidden'", fixes=_hub_fixes),
    rule(
        "hf-gated-repo",
        "401",
        62,
        pattern=r"401 (?:Client Error|Unauthorized)|'401 Unauthorized'|Invalid (?:user token|credentials)",
        fixes=_hub_fixes,
    ),
    rule(
        "hf-repo-not-found",
        "Repository Not Found for url",
        84,
        pattern=r"Repository Not Found for url: \S+?/(?:api/models/)?(?P<name>[\w.\-]+/[\w.\-]+?)(?:/resolve.*|\.)?$",
        explain=lambda hit: f"The hub does not know {hit.match['name']}, or it is private.",
    ),
    rule("hf-repo-not-found", "Repository Not Found for url", 83),
    rule(
        "hf-repo-not-found",
        "is not a valid model identifier",
        85,
        pattern=r"(?P<name>\S+) is not a local folder and is not a valid model identifier",
    ),
    rule("hf-repo-not-found", "RepositoryNotFoundError", 80),
    rule("hf-repo-not-found", "RevisionNotFoundError", 80),
    rule("hf-repo-not-found", "EntryNotFoundError", 70, pattern=r"(?<!Local)EntryNotFoundError"),
    rule("hf-repo-not-found", "404", 60, pattern=r"404 (?:Client Error|Not Found).*(?:huggingface|Request ID|hf\.co)"),
    rule("hf-offline-cache-miss", "LocalEntryNotFoundError", 84),
    rule("hf-offline-cache-miss", "outgoing traffic has been disabled", 83),
    rule("hf-offline-cache-miss", "OfflineModeIsEnabled", 82),
    rule("hf-offline-cache-miss", "We couldn't connect to", 82),
    rule("hf-offline-cache-miss", "Cannot reach http", 80),
    rule(
        "hf-offline-cache-miss",
        "huggingface.co",
        70,
        pattern=(
            r"(?:Failed to resolve|Max retries exceeded|NameResolutionError|Name or service not known|Temporary "
            r"failure in name resolution|ConnectTimeout|Network is unreachable).*|.*(?:Failed to resolve|Max retries "
            r"exceeded|Name or service not known|Temporary failure in name resolution)"
        ),
    ),
    rule(
        "hf-offline-cache-miss",
        "name resolution",
        58,
        pattern=r"Temporary failure in name resolution|Name or service not known",
    ),
)
