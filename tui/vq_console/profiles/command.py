"""`vllm serve …`, `python -m vllm…`, `docker run …` as somebody wrote it, read into a draft of a profile.

Pure: takes words apart, runs nothing, opens nothing. Which flags take a value comes from a catalogue.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vq_console.core.errors import UsageError
from vq_console.core.text import redact, strip_control
from vq_console.engines.model import Flag
from vq_console.profiles.arguments import SHORT_FORMS, takes_json_value
from vq_console.profiles.draft import Draft
from vq_console.profiles.values import argument_key

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+(?:\.\d+)?[eE][-+]?\d+)")
_OPERATORS = frozenset({";", "&", "&&", "|", "||", "(", ")", ";;"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_CONTAINER_SWITCHES = frozenset({
    "-d", "--detach", "-i", "--interactive", "-t", "--tty", "--rm", "--init", "--privileged", "-P", "--publish-all",
    "--no-healthcheck", "--oom-kill-disable", "--read-only", "-q", "--quiet", "--replace", "--sig-proxy",
})  # fmt: skip
_API_SERVER = re.compile(r"vllm\.entrypoints\.(?:openai\.api_server|cli\.main|grpc_server|api_server)")
_SWITCH_NAMES = re.compile(
    r"(?:enable|disable|enforce|trust|skip|return|use|fail_on|exclude)_\w+|headless|async_scheduling"
    r"|allow_credentials|allow_deprecated_quantization|language_model_only|fully_sharded_loras|grpc"
)
_VALUE_NAMES = frozenset({"disable_access_log_for_endpoints", "enable_log_deltas"})


def read_command(text: str, flags: Mapping[str, Flag] | None = None) -> Draft:
    """The draft of a shell command line; what of the line starts no server is named in its notes.

    Raises UsageError when it starts no vLLM server, runs another command for a value, or cannot be taken apart.
    """
    if _substitutes(text):
        raise UsageError(
            "the command runs another one for a value ($(…) or `…`), and nothing is run here",
            "write what that gives into the command",
        )
    draft = Draft()
    commands, redirected = _commands(text)
    found: list[str] | None = None
    left: list[str] = []
    for words in commands:
        mine = Draft()
        arguments = _server_arguments(_strip_prefixes(words, mine), mine) if found is None else None
        if arguments is not None:
            found = arguments
            draft.env.update(mine.env)
            draft.notes.extend(mine.notes)
            draft.gpu_count, draft.vllm = mine.gpu_count or draft.gpu_count, mine.vllm
        elif found is None and words[0] == "export":
            for assignment in filter(None, (_ASSIGNMENT.fullmatch(word) for word in words[1:])):
                draft.set_env(assignment[1], assignment[2])
        else:
            left.append(" ".join(_shown(word) for word in words))
    if found is None:
        raise UsageError(
            "no `vllm serve`, `python -m vllm.entrypoints.openai.api_server` or `docker run` in the command",
            "quote the whole command: --from-command 'vllm serve org/model --max-model-len 8192'",
        )
    read_arguments(found, draft, flags)
    draft.notes.extend(f"left out, for a profile only says how to serve: {part}" for part in (*left, *redirected))
    if draft.model and _SHELL_VARIABLE.search(draft.model):
        raise UsageError(f"the model is a variable of that shell: {draft.model}", "write its value, or say --model")
    return draft


_SHELL_VARIABLE = re.compile(r"\$(?:\{?[A-Za-z_])")


def _shown(word: str) -> str:
    """A word of a command that is left out, without what it may hold."""
    assignment = _ASSIGNMENT.fullmatch(word)
    return f"{assignment[1]}=…" if assignment else redact(strip_control(word))[:80]


def _substitutes(text: str) -> bool:
    """Whether a shell would run a command inside this one: `$(` or a backtick outside single quotes."""
    quote = ""
    skip = False
    for index, char in enumerate(text):
        if skip:
            skip = False
        elif quote == "'":
            quote = "" if char == "'" else quote
        elif char == "\\":
            skip = True
        elif char == '"':
            quote = "" if quote else char
        elif char == "'" and not quote:
            quote = char
        elif char == "`" or text[index : index + 2] == "$(":
            return True
    return False


def read_words(words: Sequence[str], flags: Mapping[str, Flag] | None = None) -> Draft:
    """The draft of a process's own argument list; raises UsageError when it is no vLLM server."""
    draft = Draft()
    arguments = _server_arguments(list(words), draft)
    if arguments is None:
        raise UsageError("that process is no vLLM server", f"its command is: {' '.join(words)[:200]}")
    read_arguments(arguments, draft, flags)
    return draft


def _commands(text: str) -> tuple[list[list[str]], list[str]]:
    """Simple commands of a shell line, which operators separate, and its redirections."""
    lexer = shlex.shlex(text.replace("\\\r\n", " ").replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise UsageError(f"the command cannot be taken apart: {error}", "check its quotes") from error
    commands: list[list[str]] = [[]]
    redirected: list[str] = []
    sign = ""
    for word in words:
        if word in _OPERATORS:
            commands.append([])
        elif set(word) <= set("<>&|") and word:
            # `2>&1` arrives as `2`, `>&`, `1`: the number before belongs to the redirection.
            number = commands[-1].pop() if commands[-1][-1:] in (["1"], ["2"]) else ""
            sign = number + word
        elif sign:
            redirected.append(f"{sign}{'' if sign.endswith('&') else ' '}{_shown(word)}")
            sign = ""
        else:
            commands[-1].append(word)
    return [command for command in commands if command], redirected


def _strip_prefixes(words: list[str], draft: Draft) -> list[str]:
    rest = list(words)
    while rest:
        assignment = _ASSIGNMENT.fullmatch(rest[0])
        if assignment:
            draft.set_env(assignment[1], assignment[2])
        elif rest[0] not in {"sudo", "nohup", "exec", "time", "env", "$", "setsid"} and rest[:2] != ["uv", "run"]:
            break
        rest = rest[2:] if rest[:2] == ["uv", "run"] else rest[1:]
    return rest


def _server_arguments(words: list[str], draft: Draft) -> list[str] | None:
    """What follows `vllm serve` in any of its forms, or None when the words start no vLLM server."""
    program = words[0].rsplit("/", 1)[-1] if words else ""
    if program in _CONTAINERS and "run" in words:
        return _container_arguments(words[words.index("run") + 1 :], draft)
    for index, word in enumerate(words):
        name = word.rsplit("/", 1)[-1]
        if name == "vllm" and words[index + 1 : index + 2] == ["serve"]:
            return words[index + 2 :]
        if word == "-m" and len(words) > index + 1:
            module = words[index + 1]
            if module in ("vllm", "vllm.entrypoints.cli.main") and words[index + 2 : index + 3] == ["serve"]:
                return words[index + 3 :]
            if _API_SERVER.fullmatch(module):
                return words[index + 2 :]
        if name == "api_server.py":
            return words[index + 1 :]
    return None


def _container_arguments(words: list[str], draft: Draft) -> list[str] | None:
    index = 0
    while index < len(words) and words[index].startswith("-"):
        option, equals, value = words[index].partition("=")
        if option in _CONTAINER_SWITCHES or (re.fullmatch(r"-[ditP]{2,}", option) and not equals):
            index += 1
            continue
        if not equals:
            if re.match(r"-[evpwum].", option) and not option.startswith("--"):
                option, value = option[:2], option[2:]
            else:
                index += 1
                value = words[index] if index < len(words) else ""
        _container_option(option, value, draft)
        index += 1
    if index >= len(words):
        return None
    image, arguments = words[index], words[index + 1 :]
    version = re.search(r":v?(\d+\.\d+)(?:\.\d+)?", image)
    if version:
        draft.vllm = f">={version[1]}"
    draft.notes.append(f"the container image {image} was left out: which engine runs it is a local choice")
    inner = _server_arguments(arguments, draft)
    return arguments if inner is None else inner


def _container_option(option: str, value: str, draft: Draft) -> None:
    if option in {"-e", "--env"}:
        name, equals, text = value.partition("=")
        draft.set_env(name, text if equals else f"${name}")
    elif option == "--gpus":
        devices = re.search(r"device=([\w,-]+)", value)
        if devices:
            draft.gpu_count = len(devices[1].split(","))
        elif value.isdigit():
            draft.gpu_count = int(value)
    elif option in {"-v", "--volume", "--mount", "-p", "--publish", "--env-file", "--entrypoint"}:
        draft.notes.append(f"{option} {value} of the container was left out")


def read_arguments(words: Iterable[str], draft: Draft, flags: Mapping[str, Flag] | None = None) -> None:
    """Add the arguments of `vllm serve` to a draft, with values typed as their flags have them.

    Knows one-dash forms, dotted JSON keys (`--kernel-config.linear_backend x`), `--no-` forms and unique
    abbreviations, as vLLM's own parser does.
    """
    queue = list(words)
    names = _Names(flags)
    while queue:
        word = queue.pop(0)
        if word == "--" or not word.startswith("-") or _NUMBER.fullmatch(word):
            if word != "--" and draft.model is None:
                draft.model = word
            elif word != "--":
                raise UsageError(f"do not know what `{word}` belongs to", "an option before it may need a value")
            continue
        option, equals, attached = word.partition("=")
        if re.fullmatch(r"-O\d", option):
            option, equals, attached = "-O", "=", option[2:]
        written = "optimization_level" if option == "-O" else argument_key(option)
        head, dot, rest = written.partition(".")
        key, flag, negated = names.find(head, short=not option.startswith("--"))
        if dot:
            text = attached if equals else (queue.pop(0) if queue else "")
            _set_dotted(draft, key, rest, text)
        elif negated:
            draft.set_arg(key, False)
        elif equals:
            draft.set_arg(key, typed(key, attached, flag))
        elif _is_switch(key, flag):
            draft.set_arg(key, True)
        else:
            values = _take_values(queue, key, flag)
            if not values:
                draft.set_arg(key, True)
            elif len(values) == 1:
                draft.set_arg(key, typed(key, values[0], flag))
            else:
                draft.set_arg(key, [typed(key, value, flag) for value in values])


class _Names:
    """Flag names by any spelling that vLLM's parser takes."""

    def __init__(self, flags: Mapping[str, Flag] | None) -> None:
        self.flags = dict(flags or {})
        self.aliases = {argument_key(alias): key for key, flag in self.flags.items() for alias in flag.aliases}

    def find(self, head: str, *, short: bool) -> tuple[str, Flag | None, bool]:
        """The flag's own name, its entry, and whether this is its `--no-` form."""
        if short:
            head = SHORT_FORMS.get(head, head)
        head = self.aliases.get(head, head)
        if head in self.flags:
            return head, self.flags[head], False
        if head.startswith("no_"):
            positive = head.removeprefix("no_")
            return positive, self.flags.get(positive), True
        longer = [key for key in self.flags if key.startswith(head)]
        return (longer[0], self.flags[longer[0]], False) if len(longer) == 1 else (head, None, False)


def _is_switch(key: str, flag: Flag | None) -> bool:
    if flag is not None and flag.kind is not None:
        return flag.kind == "bool"
    return bool(_SWITCH_NAMES.fullmatch(key)) and key not in _VALUE_NAMES


def _take_values(queue: list[str], key: str, flag: Flag | None) -> list[str]:
    many = key in {"api_key", "served_model_name", "lora_modules"} or (flag is not None and flag.many)
    values: list[str] = []
    while queue and (not queue[0].startswith("-") or re.fullmatch(r"-\d+(?:\.\d+)?", queue[0]) or queue[0] == "-"):
        values.append(queue.pop(0))
        if not many:
            break
    return values


def typed(key: str, text: str, flag: Flag | None = None) -> Any:
    """A word of a command line as the TOML value that gives it back: a number, a table, or the text itself."""
    kind = flag.kind if flag is not None else None
    if takes_json_value(key, flag) or (kind is None and text[:1] in "{["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return value if isinstance(value, dict | list) else text
    numbers = kind == "choice" and flag is not None and all(choice.isdigit() for choice in flag.choices or ("",))
    if kind in ("int", "float", None) or numbers:
        if _NUMBER.fullmatch(text) and str(int(text)) == text and abs(int(text)) < 2**63:
            return int(text)
        if _DECIMAL.fullmatch(text):
            return float(text)
    return text


def _set_dotted(draft: Draft, key: str, path: str, text: str) -> None:
    listed = path.endswith("+")
    *parents, last = path.removesuffix("+").split(".")
    table = draft.args.setdefault(key, {})
    for name in parents:
        table = table.setdefault(name, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"--{key}.{path} and --{key} contradict each other", "keep one form")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if value is None:
        return
    if listed:
        old = table.get(last)
        value = [*(old if isinstance(old, list) else []), *text.split(",")]
    table[last] = value
