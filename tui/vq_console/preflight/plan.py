"""The plan of one launch: what will be executed, with which method, which kernels, how it fits, what is wrong with it.

Pure: everything it needs is given. `argv` of the plan is exactly what is executed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vq_console.engines.model import Catalogue, Engine
from vq_console.preflight.fit import memory_fit
from vq_console.preflight.judge import findings
from vq_console.preflight.layers import layer_table
from vq_console.preflight.method import resolve
from vq_console.preflight.model import Plan, Target
from vq_console.preflight.situation import Situation
from vq_console.preflight.values import as_list, sound_facts, whole
from vq_console.profiles.arguments import serve_arguments
from vq_console.profiles.configfacts import model_facts
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.quantfacts import quantization_facts

DEFAULT_LAUNCH = ("vllm", "serve")
"""What a command line shows for an engine that is not at hand (a target file)."""
_OWN = ("host", "port", "served_model_name")
_UNLOGGED = "disable_access_log_for_endpoints"
_ACCESS_LOG = frozenset({_UNLOGGED, "disable_uvicorn_access_log", "log_config_file", "logging_config"})


def make_plan(
    profile: Profile,
    target: Target,
    *,
    engine: Engine | None,
    catalogue: Catalogue,
    checkpoint_facts: Mapping[str, Any] | None = None,
    port: int | None = None,
    gpus: Sequence[int] | None = None,
    name: str | None = None,
) -> Plan:
    """The plan of serving `profile` on `target`.

    `checkpoint_facts` are merged under those that the target itself states. `port`, `gpus` (indices as NVML counts
    them) and `name` (the served model name) are the launcher's choices; what the profile's `[args]` say wins over
    port and name. A relative model path must have been resolved by the caller. Raises ProfileError for a value that
    cannot become an argument.
    """
    facts = dict(target.facts)
    if engine is not None:
        facts.setdefault("vllm_version", engine.vllm_version)
        if engine.device:
            facts.setdefault("device", engine.device)
    judged = Target({key: value for key, value in facts.items() if value is not None}, target.origin)
    checkpoint = sound_facts({**(checkpoint_facts or {}), **flat_checkpoint(judged.checkpoint)})
    situation = Situation(profile, judged, catalogue, checkpoint)
    resolution = resolve(situation)
    fit = memory_fit(situation, resolution)
    layers = layer_table(situation, resolution)

    host = str(profile.args.get("host") or "127.0.0.1")
    chosen_port = whole(profile.args.get("port"))
    if chosen_port is None:
        chosen_port = port
    served = as_list_once(profile.args.get("served_model_name")) or name or profile.name
    argv = (*_launch(engine), profile.model, *serve_arguments(_arguments(profile), catalogue.flags))
    argv += (f"--host={host}",)
    if chosen_port is not None:
        argv += (f"--port={chosen_port}",)
    argv += _served(profile, served, catalogue) + _own_looks_unlogged(profile, catalogue)

    env, secrets = _environment(profile, gpus)
    return Plan(
        profile=profile.name,
        argv=argv,
        env=env,
        secret_env=secrets,
        gpus=tuple(gpus) if gpus is not None else _default_gpus(situation),
        host=host,
        port=chosen_port,
        served_model=served,
        method=resolution.method,
        layers=layers,
        fit=fit,
        findings=findings(situation, resolution, layers, fit),
        target=dataclasses.replace(judged, facts={**judged.facts, "checkpoint": checkpoint}),
    )


_MOST_GPUS = 4096
_NESTED = ("quantization_config", "compression_config", "text_config", "hf_quant_config")


def flat_checkpoint(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Facts of a checkpoint that a target describes; a config.json that stands there as it is becomes flat facts."""
    if not any(isinstance(given.get(key), Mapping) for key in _NESTED):
        return given
    config = {key: value for key, value in given.items() if key != "hf_quant_config"}
    own = given.get("hf_quant_config")
    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    return {**plain, **model_facts(config), **quantization_facts(config, own if isinstance(own, dict) else None)}


def as_list_once(value: Any) -> str | None:
    """The first served name: vLLM answers to all and calls itself by the first."""
    names = as_list(value) if not isinstance(value, str) else [value]
    return names[0] if names else None


def _launch(engine: Engine | None) -> tuple[str, ...]:
    if engine is None or not engine.launch:
        return DEFAULT_LAUNCH
    return engine.launch


def _arguments(profile: Profile) -> dict[str, Any]:
    return {key: value for key, value in profile.args.items() if key.replace("-", "_") not in _OWN}


def _served(profile: Profile, served: str, catalogue: Catalogue) -> tuple[str, ...]:
    given = profile.args.get("served_model_name")
    return serve_arguments({"served_model_name": given if given is not None else served}, catalogue.flags)


def _own_looks_unlogged(profile: Profile, catalogue: Catalogue) -> tuple[str, ...]:
    """The console asks for health and metrics all the time; its own looks must not fill the server's log.

    Silent where the profile says anything of its access log, or this vLLM does not have the flag.
    """
    said = {key.replace("-", "_") for key in profile.args}
    if _UNLOGGED not in (catalogue.flags or {}) or said & _ACCESS_LOG:
        return ()
    return serve_arguments({_UNLOGGED: "/health,/metrics"}, catalogue.flags)


def _environment(profile: Profile, gpus: Sequence[int] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Plain variables, and secrets as variable → variable of the launching environment."""
    env = {key: value for key, value in profile.env.items() if isinstance(value, str)}
    secrets = {key: value.from_env for key, value in profile.env.items() if isinstance(value, EnvRef)}
    if gpus and "CUDA_VISIBLE_DEVICES" not in profile.env and "device_ids" not in profile.args:
        # NVML counts by bus, CUDA by speed unless told otherwise.
        env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in gpus)
    return env, secrets


def _default_gpus(situation: Situation) -> tuple[int, ...]:
    if not situation.cuda:
        return ()
    wanted = situation.profile.gpu_count or situation.world * situation.dp
    return tuple(range(min(wanted, _MOST_GPUS)))
