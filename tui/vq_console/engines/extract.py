"""The catalogue of one vLLM, read from its source as text.

Each list is read on its own: where a symbol has moved, that list is None with the reason in `unknown`, and the rest
still holds. Places of the symbols: vLLM 0.20 to 0.33.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from vq_console.engines.extract_flags import read_flags
from vq_console.engines.extract_source import MovedError, Source, constant_return, enum_members
from vq_console.engines.model import Catalogue, OnlineScheme

QUANTIZATION = "model_executor/layers/quantization/__init__.py"
ONLINE = "config/quantization.py"
ONLINE_BASE = "model_executor/layers/quantization/online/base.py"
KERNEL_CONFIG = "config/kernel.py"
LINEAR = "model_executor/kernels/linear/__init__.py"
PLATFORMS = ("cuda", "rocm", "xpu", "cpu", "tpu")

T = TypeVar("T")


def extract(root: Path, version: str | None) -> Catalogue:
    """Read everything from the package folder `root` (`…/site-packages/vllm`). Takes 0.1 to 0.3 s; never raises for
    what it cannot find."""
    source = Source(root)
    unknown: dict[str, str] = {}

    def read(field: str, function: Callable[[], T]) -> T | None:
        try:
            return function()
        except MovedError as error:
            unknown[field] = str(error)
        except (RecursionError, ValueError, TypeError, AttributeError, AssertionError) as error:
            unknown[field] = f"its source has a shape that cannot be read ({type(error).__name__})"
        return None

    classes = read("method_classes", lambda: _method_classes(source))
    return Catalogue(
        vllm_version=version,
        origin="source",
        quantization=read("quantization", lambda: source.strings(QUANTIZATION, "QuantizationMethods")),
        deprecated=read("deprecated", lambda: source.strings(QUANTIZATION, "DEPRECATED_QUANTIZATION_METHODS")),
        online=read("online", lambda: _online(source)),
        online_schemes=read("online_schemes", lambda: _online_schemes(source)),
        quant_keys=read("quant_keys", lambda: source.strings(ONLINE, "QUANT_KEY_NAMES")),
        kv_cache_dtypes=read("kv_cache_dtypes", lambda: source.strings("config/cache.py", "CacheDType")),
        kv_cache_dtypes_closed=read("kv_cache_dtypes_closed", lambda: _kv_closed(source)),
        linear_backends=read("linear_backends", lambda: source.strings(KERNEL_CONFIG, "LinearBackend")),
        moe_backends=read("moe_backends", lambda: source.strings(KERNEL_CONFIG, "MoEBackend")),
        attention_backends=read("attention_backends", lambda: _attention(source)),
        load_formats=read(
            "load_formats", lambda: source.strings("model_executor/model_loader/__init__.py", "LoadFormats")
        ),
        dtypes=read("dtypes", lambda: source.strings("config/model.py", "ModelDType")),
        flags=read("flags", lambda: read_flags(source)),
        env=read("env", lambda: source.strings("envs.py", "environment_variables")),
        min_capability=read("min_capability", lambda: _min_capability(source, classes)),
        method_classes={name: owner for name, (owner, _) in classes.items()} if classes is not None else None,
        linear_backend_kernels=read("linear_backend_kernels", lambda: _backend_kernels(source)),
        kernel_order=read("kernel_order", lambda: _kernel_order(source)),
        platform_quantization=read("platform_quantization", lambda: _platforms(source)),
        unknown=unknown,
    )


def _online(source: Source) -> tuple[str, ...]:
    if "_ONLINE_SHORTHANDS" in source.names(ONLINE) or "OnlineQuantScheme" not in source.names(ONLINE):
        return source.strings(ONLINE, "_ONLINE_SHORTHANDS")
    return source.strings(ONLINE, "OnlineQuantScheme")


def _online_schemes(source: Source) -> dict[str, OnlineScheme]:
    """What each shorthand sets, with vLLM's key symbols put back into the names that a user writes."""
    value = source.value(ONLINE, "_ONLINE_SHORTHANDS")
    names: dict[str, str] = {}
    keys = source.value(ONLINE, "QUANT_KEY_NAMES")
    if isinstance(keys, ast.Dict):
        for word, value_of in zip(keys.keys, keys.values, strict=True):
            if isinstance(word, ast.Constant) and isinstance(value_of, ast.Name):
                names[value_of.id] = str(word.value)
    if not isinstance(value, ast.Dict):
        raise MovedError(f"_ONLINE_SHORTHANDS in {ONLINE} is no dict")
    methods = {kind: _online_methods(source, f"_ONLINE_{kind.upper()}_METHODS") for kind in ("linear", "moe")}
    schemes = {}
    for key, item in zip(value.keys, value.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(item, ast.Call)):
            raise MovedError(f"_ONLINE_SHORTHANDS in {ONLINE} has entries of another shape")
        parts: dict[str, str] = {}
        for layer in item.keywords:
            if isinstance(layer.value, ast.Call):
                for side in layer.value.keywords:
                    symbol = ast.unparse(side.value)
                    parts[f"{layer.arg}_{side.arg}"] = names.get(symbol, symbol)
                    if side.arg == "weight" and symbol in methods.get(str(layer.arg), {}):
                        method, activation = methods[str(layer.arg)][symbol]
                        parts[f"{layer.arg}_method"] = method
                        if activation:
                            own = " or ".join(names.get(name, name) for name in activation)
                            parts.setdefault(f"{layer.arg}_activation", own)
        schemes[str(key.value)] = OnlineScheme(
            parts.get("linear_weight"),
            parts.get("linear_activation"),
            parts.get("moe_weight"),
            parts.get("moe_activation"),
            parts.get("linear_method"),
            parts.get("moe_method"),
        )
    return schemes


def _online_methods(source: Source, table: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """By weight key symbol: the method class, and the activation key symbols that this class sets."""
    try:
        value = source.value(ONLINE_BASE, table)
    except MovedError:
        return {}
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for key, method in zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ():
        if isinstance(key, ast.Name) and isinstance(method, ast.Name):
            symbols: list[str] = []
            try:
                _, statement = source.find(ONLINE_BASE, method.id)
            except MovedError:
                continue
            for node in ast.walk(statement):
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("activation_quant_key"):
                    symbols += [item.id for item in ast.walk(node.value) if isinstance(item, ast.Name)]
            keys = (name for name in dict.fromkeys(symbols) if name[:1] == "k" and name[1:2].isupper())
            found[key.id] = (method.id, tuple(keys))
    return found


def _kv_closed(source: Source) -> bool:
    """False where a plugin may register more KV cache types (`register_kv_cache_dtype`, 0.33)."""
    source.statement("config/cache.py", "CacheDType")
    return "register_kv_cache_dtype" not in source.names("config/cache.py")


def _attention(source: Source) -> tuple[str, ...]:
    _, head = source.class_head("v1/attention/backends/registry.py", "AttentionBackendEnum")
    return tuple(name for name, _ in enum_members(head))


def _method_classes(source: Source) -> dict[str, tuple[str, tuple[str, str]]]:
    """By method: its configuration class, and where that is (file, name). Online shorthands share one class."""
    function = source.statement(QUANTIZATION, "get_quantization_config")
    table: ast.Dict | None = None
    renamed: dict[str, str] = {}
    for node in ast.walk(function):
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        if not isinstance(target, ast.Name) or not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        if isinstance(node.value, ast.Dict):
            table = node.value
        elif isinstance(node.value, ast.Name):
            renamed[target.id] = node.value.id
    if table is None:
        raise MovedError(f"get_quantization_config in {QUANTIZATION} has no table of methods")
    imports = source.imports(QUANTIZATION)
    found: dict[str, tuple[str, tuple[str, str]]] = {}
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
            name = renamed.get(value.id, value.id)
            where = imports.get(name, (QUANTIZATION, name))
            found[str(key.value)] = (where[1], where)
    if "online" in found:
        for shorthand in _online(source):
            found.setdefault(shorthand, found["online"])
    return found


def _min_capability(source: Source, classes: Mapping[str, tuple[str, tuple[str, str]]] | None) -> dict[str, int]:
    if classes is None:
        raise MovedError("the classes of the methods are unknown")
    known: dict[tuple[str, str], int | None] = {}
    found: dict[str, int] = {}
    for method, (_, where) in classes.items():
        if where not in known:
            try:
                known[where] = constant_return(source.method(*where, "get_min_capability")[1])
            except MovedError:
                known[where] = None
        value = known[where]
        if value is not None:
            found[method] = value
    if not found:
        raise MovedError("no class says get_min_capability")
    return found


def _backend_kernels(source: Source) -> dict[str, tuple[str, ...]]:
    value = source.value(LINEAR, "_LINEAR_BACKEND_KERNEL_MAP")
    if not isinstance(value, ast.Dict):
        raise MovedError(f"_LINEAR_BACKEND_KERNEL_MAP in {LINEAR} is no dict")
    return {
        str(key.value): tuple(sorted(_class_names(kernels)))
        for key, kernels in zip(value.keys, value.values, strict=True)
        if isinstance(key, ast.Constant)
    }


def _kernel_order(source: Source) -> dict[str, dict[str, tuple[str, ...]]]:
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for name in source.names(LINEAR):
        if not (name.startswith("_POSSIBLE_") and name.endswith("KERNELS")):
            continue
        value = source.value(LINEAR, name)
        short = name.removeprefix("_POSSIBLE_").removesuffix("KERNELS").strip("_").lower() or "mixed_precision"
        if isinstance(value, ast.Dict):
            found[short] = {
                ast.unparse(key).rpartition(".")[2]: _class_names(kernels)
                for key, kernels in zip(value.keys, value.values, strict=True)
                if key is not None
            }
        else:
            found[short] = {"CUDA": _class_names(value)}
    if not found:
        raise MovedError(f"no list _POSSIBLE_…KERNELS is in {LINEAR}")
    return found


def _class_names(node: ast.expr) -> tuple[str, ...]:
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        raise MovedError(f"a list of kernels in {LINEAR} is computed")
    return tuple(ast.unparse(item).rpartition(".")[2] for item in node.elts)


def _platforms(source: Source) -> dict[str, tuple[str, ...] | None]:
    found: dict[str, tuple[str, ...] | None] = {}
    for platform in PLATFORMS:
        file = f"platforms/{platform}.py"
        if not (source.root / file).is_file():
            continue
        found[platform] = None
        for name in source.names(file):
            if not name.endswith(("Platform", "PlatformBase")) or not source.is_class(file, name):
                continue
            for item in source.class_head(file, name)[1].body:
                target: ast.expr | None = item.target if isinstance(item, ast.AnnAssign) else None
                if isinstance(item, ast.Assign):
                    target = item.targets[0]
                if isinstance(target, ast.Name) and target.id == "supported_quantization":
                    value = getattr(item, "value", None)
                    found[platform] = source.strings_of(file, value) if isinstance(value, ast.expr) else None
    if not found:
        raise MovedError("platforms/ has none of " + ", ".join(PLATFORMS))
    return found
