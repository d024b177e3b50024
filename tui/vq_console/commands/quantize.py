"""`quantize`: make a quantized checkpoint with LLM Compressor or ModelOpt, judged before and verified after."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vq_console.commands.common import Subparsers, add_command, confirm, emit, profile_name, say, table
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode
from vq_console.core.text import counted

if TYPE_CHECKING:
    from vq_console.quantize.jobs import Job
    from vq_console.quantize.model import Request
    from vq_console.quantize.run import Prepared


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(subparsers, "quantize", help_of("quantize"), run_quantize)
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="folder or hub id of the 16-bit model, on this machine"
    )
    parser.add_argument(
        "--scheme", metavar="S", help="FP8_DYNAMIC, W8A8, W4A16-gptq, … (--schemes lists them); several with commas"
    )
    parser.add_argument("--method", metavar="M", help="rtn (the default), gptq, awq, smoothquant, smoothquant-gptq")
    parser.add_argument("--out", metavar="DIR", help="where the result goes (among the console's models otherwise)")
    parser.add_argument("--group-size", type=int, metavar="N", help="inputs that share a scale, for INT weights")
    parser.add_argument("--kv-cache", choices=("fp8", "fp8_per_head"), help="also scales for an FP8 KV cache")
    parser.add_argument("--data", metavar="F.jsonl", help="calibration prompts (texts that the model writes otherwise)")
    parser.add_argument("--samples", type=int, default=32, metavar="N", help="calibration samples (32)")
    parser.add_argument(
        "--sequence-length", type=int, default=512, metavar="N", help="tokens of a sample at most (512)"
    )
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="LAYER", help="leave in 16 bits; re:… is a regex"
    )
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs that will share the result")
    parser.add_argument("--measure", action="store_true", help="measure the divergence from the source afterwards")
    parser.add_argument("--prove", action="store_true", help="serve the result once, until its first token")
    parser.add_argument("--profile", metavar="NAME", help="name of the profile for the result")
    parser.add_argument("--no-profile", action="store_true", help="write no profile")
    parser.add_argument("--tool", metavar="PYTHON", help="another environment that has the tool")
    parser.add_argument("--dry-run", action="store_true", help="judge and show the recipe, make nothing")
    parser.add_argument("--detach", action="store_true", help="start the job and return")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--schemes", action="store_true", help="list schemes and methods")
    others.add_argument("--jobs", action="store_true", help="list jobs")
    others.add_argument("--follow", metavar="JOB", help="follow a job to its end")
    others.add_argument("--resume", metavar="JOB", help="go on with a job that was killed, cancelled or failed")
    others.add_argument("--cancel", metavar="JOB", help="end a job; nothing half-made stays")


def run_quantize(args: argparse.Namespace) -> ExitCode:
    """Make one checkpoint, or look after the jobs that do."""
    import signal

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    # Whoever ends this command means the job as well: it is cancelled, as by Ctrl-C.
    signal.signal(signal.SIGTERM, ended)
    if args.schemes:
        return _schemes(args)
    if args.jobs:
        return _jobs(args)
    if args.cancel:
        return _cancel(args)
    if args.follow or args.resume:
        return _follow(args)
    return _make(args)


def _make(args: argparse.Namespace) -> ExitCode:
    from vq_console.core.errors import UsageError
    from vq_console.quantize import jobs
    from vq_console.quantize.run import make, prepare, refuse

    if args.prove and (args.no_profile or args.detach):
        raise UsageError("--prove serves the profile of the result", "leave out --no-profile and --detach")
    if not args.model or not args.scheme:
        raise UsageError(
            "quantize: MODEL and --scheme are needed", "such as: vq-console quantize ./model --scheme W4A16"
        )
    if "," in args.scheme:
        return _make_several(args)
    prepared = prepare(_request(args))
    if args.dry_run:
        return _dry_run(args, prepared)
    refuse(prepared)
    _show(prepared)
    say()
    for line in prepared.recipe.rstrip().split("\n"):
        say(f"  │ {line}".rstrip())
    say()
    judged = prepared.judged
    if not args.json and not args.yes and _interactive() and not confirm("make it?", yes=False):
        return ExitCode.NO
    if args.detach:
        judged.request.out.parent.mkdir(parents=True, exist_ok=True)
        job = jobs.start_job(judged.request)
        if args.json:
            emit("vq-console/quantize/1", _job_json(job))
        else:
            print(job.name)
        return ExitCode.DONE
    started: list[Job] = []

    def note(job: Job) -> None:
        started.append(job)
        say(f"log: {job.log}")

    result = make(prepared, say, on_job=note)
    if args.prove and result.get("profile"):
        from vq_console.quantize.prove import prove

        result["served"] = prove(result["profile"], say)
    _emit(args, result, started[0], prepared)
    return ExitCode.DONE


def _make_several(args: argparse.Namespace) -> ExitCode:
    """One checkpoint after the other, each in a folder of its own below --out; ends with a table."""
    from copy import copy
    from pathlib import Path

    from vq_console.core.errors import UsageError, VqError
    from vq_console.quantize.run import make, prepare, refuse, result_label

    if args.dry_run or args.detach or args.profile:
        raise UsageError("several schemes at once take neither --dry-run, --detach nor --profile", "name one scheme")
    wanted: list[Prepared] = []
    for name in (part.strip() for part in args.scheme.split(",") if part.strip()):
        one = copy(args)
        one.scheme, one.out = name, str(Path(args.out) / name) if args.out else None
        wanted.append(prepare(_request(one)))
        refuse(wanted[-1])
    results: list[dict[str, Any]] = []
    for prepared in wanted:
        say(f"{result_label(prepared.judged)} into {prepared.judged.request.out}")
        started: list[Job] = []
        about = {"label": result_label(prepared.judged), **_judged_json(prepared)}
        try:
            result = make(prepared, say, on_job=started.append)
        except VqError as error:
            # One that cannot be made says nothing about the others.
            say(f"✗ {error}")
            result = {"error": {"message": error.message, "hint": error.hint}}
        results.append({**about, **result, "job": started[0].name, "log": str(started[0].log)})
    if args.json:
        emit("vq-console/quantize/1", {"results": results})
    else:
        print(_results_table(results))
    return ExitCode.NO if any("error" in result for result in results) else ExitCode.DONE


def _results_table(results: list[dict[str, Any]]) -> str:
    rows = []
    for result in results:
        if "error" in result:
            rows.append([result["label"], *["–"] * 5, result["error"]["message"][:60]])
            continue
        kld = result.get("kld")
        measured = ["–"] * 4
        if kld:
            low, high = kld["ci"] or (kld["value"], kld["value"])
            measured = [f"{kld['value']:.4f}", f"{low:.4f} to {high:.4f}", f"{kld['top1_agreement']:.1%}"]
            measured.append(f"{kld['ppl_ratio']:.3f}")
        rows.append([result["label"], f"{result['size_gib']:.3f}", f"{result['tool_seconds']:.0f}", *measured])
    return table(rows, ["checkpoint", "GiB", "seconds", "KL (nats/token)", "95 %", "same top token", "perplexity ×"])


def _request(args: argparse.Namespace) -> Request:
    import os
    from dataclasses import replace
    from pathlib import Path

    from vq_console.core.errors import UsageError
    from vq_console.profiles.store import resolve_model
    from vq_console.quantize.model import Request
    from vq_console.quantize.run import default_out
    from vq_console.quantize.schemes import find_scheme, label, split_kv_cache

    for name in ("samples", "sequence_length", "tensor_parallel"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')}: {getattr(args, name)} is less than 1")
    name, kv_cache = split_kv_cache(args.scheme)
    kv_cache = args.kv_cache or kv_cache
    scheme, method = find_scheme(name, args.method)
    request = Request(
        model=resolve_model(args.model, None),
        scheme=scheme.name,
        method=method,
        out=Path(),
        group_size=args.group_size,
        kv_cache=kv_cache,
        data=Path(os.path.abspath(Path(args.data).expanduser())) if args.data else None,
        samples=args.samples,
        sequence_length=args.sequence_length,
        ignore=tuple(args.ignore),
        tensor_parallel=args.tensor_parallel,
        measure=args.measure,
        profile=not args.no_profile,
        profile_name=profile_name(args.profile),
        tool=os.path.abspath(Path(args.tool).expanduser()) if args.tool else None,
    )
    if args.out:
        out = Path(os.path.abspath(Path(args.out).expanduser()))
    else:
        out = default_out(request, label(scheme, method, args.group_size, kv_cache))
    return replace(request, out=out)


def _show(prepared: Prepared) -> None:
    """What is known before it runs."""
    from vq_console.quantize.run import result_label

    judged, source = prepared.judged, prepared.source
    say(
        f"{result_label(judged)} of {source.model}: {counted(len(judged.quantized), 'layer')}, "
        f"{source.size_bytes / 2**30:.2f} → about {judged.size_gib:.2f} GiB, into {judged.request.out}"
    )
    for note in judged.notes:
        mark = {"error": "✗", "warning": "!", "info": "·"}[note.severity]
        say(f" {mark} {note.message}" + (f" ({note.fix})" if note.fix else ""))


def _dry_run(args: argparse.Namespace, prepared: Prepared) -> ExitCode:
    from vq_console.quantize.run import check_out

    if not prepared.judged.errors:
        check_out(prepared.judged.request)
    if args.json:
        emit("vq-console/quantize/1", _judged_json(prepared) | {"recipe_text": prepared.recipe})
    else:
        _show(prepared)
        if not prepared.judged.errors:
            print(prepared.recipe, end="")
    return ExitCode.NO if prepared.judged.errors else ExitCode.DONE


def _judged_json(prepared: Prepared) -> dict[str, Any]:
    judged = prepared.judged
    return {
        "scheme": judged.request.scheme,
        "method": judged.request.method,
        "group_size": judged.request.group_size,
        "model": judged.request.model,
        "out": str(judged.request.out),
        "layers": len(judged.quantized),
        "ignore": list(judged.ignore),
        "expected": {
            "size_gib": round(judged.size_gib, 4),
            "memory_gib": round(judged.memory_gib, 2),
            "seconds": None if judged.seconds is None else round(judged.seconds, 1),
        },
        "findings": [note.to_json() for note in judged.notes],
    }


def _emit(args: argparse.Namespace, result: dict[str, Any], job: Job, prepared: Prepared | None) -> None:
    if args.json:
        value = _judged_json(prepared) if prepared is not None else {}
        emit("vq-console/quantize/1", {**value, **result, "log": str(job.log), "job": job.name})
        return
    from vq_console.core.text import seconds_text

    print(f"{result['out']}: {result['size_gib']:.2f} GiB, made and verified in {seconds_text(result['seconds'])}")
    kld = result.get("kld")
    if result.get("kld_error"):
        print(f"its divergence could not be measured: {result['kld_error']}")
    if kld:
        low, high = kld["ci"] or (kld["value"], kld["value"])
        print(
            f"divergence from its source: {kld['value']:.4f} nats per token "
            f"(95 % {low:.4f} to {high:.4f}), same likeliest token in {kld['top1_agreement']:.1%}, "
            f"perplexity × {kld['ppl_ratio']:.3f}; {counted(kld['sequences'], 'text')}, "
            f"{counted(kld['tokens'], 'token')}"
        )
    if result.get("profile"):
        name = result["profile"]
        print(f"profile: {name} (vq-console lint {name}); against its source: vq-console ab source:{name} {name}")


def _schemes(args: argparse.Namespace) -> ExitCode:
    from vq_console.quantize.schemes import METHODS, SCHEMES

    if args.json:
        schemes = [{"name": s.name, "words": s.words, "methods": list(s.methods), "bits": s.bits} for s in SCHEMES]
        emit("vq-console/quantize/1", {"schemes": schemes, "methods": METHODS})
    else:
        print(table([[s.name, s.words, ", ".join(s.methods)] for s in SCHEMES], ["scheme", "what", "methods"]))
        print()
        print(table([[name, words] for name, words in METHODS.items()], ["method", "what"]))
    return ExitCode.DONE


def _jobs(args: argparse.Namespace) -> ExitCode:
    from vq_console.quantize.jobs import list_jobs

    jobs = list_jobs()
    if args.json:
        emit("vq-console/quantize/1", {"jobs": [_job_json(job) for job in jobs]})
    elif not jobs:
        print("no jobs")
    else:
        rows = [[job.name, job.state, str(job.value.get("words") or job.value.get("error") or "")] for job in jobs]
        print(table(rows, ["job", "state", "what"]))
    return ExitCode.DONE


def _cancel(args: argparse.Namespace) -> ExitCode:
    from vq_console.quantize.jobs import cancel_job, read_job

    job = read_job(args.cancel)
    done = cancel_job(job)
    if args.json:
        emit("vq-console/quantize/1", _job_json(read_job(job.name)))
    else:
        print(f"{job.name}: {'cancelled' if done else f'was not running ({job.state})'}")
    return ExitCode.DONE


def _follow(args: argparse.Namespace) -> ExitCode:
    from vq_console.quantize.jobs import read_job
    from vq_console.quantize.run import follow, resume

    name = args.follow or args.resume
    result = resume(read_job(name), say) if args.resume else follow(name, say)
    _emit(args, result, read_job(name), None)
    return ExitCode.DONE


def _job_json(job: Job) -> dict[str, Any]:
    keys = ("request", "words", "step", "detail", "share", "eta_s", "begun", "ended", "error", "result", "pid")
    return {
        "job": job.name,
        "state": job.state,
        "log": str(job.log),
        **{key: job.value.get(key) for key in keys},
    }


def _interactive() -> bool:
    import sys

    return sys.stdin.isatty() and sys.stderr.isatty()
