"""Rules about what a profile was made for: the engine it wants, and what it ran on when it was good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vq_console.preflight.rules.base import Context, Hit, rule
from vq_console.preflight.values import as_list
from vq_console.preflight.versions import version_text


@rule("engine-not-wanted", "warning", source="this console: [engine] of the profile")
def wanted_engine(context: Context) -> Iterator[Hit]:
    """An engine outside the range that the profile was made for."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    s = context.s
    if s.profile.vllm is None or s.version is None:
        return
    try:
        fits = SpecifierSet(s.profile.vllm).contains(version_text(s.version), prereleases=True)
    except InvalidSpecifier:
        return
    if not fits:
        yield Hit(
            f"the profile was made for vLLM {s.profile.vllm}, and this is {version_text(s.version)}",
            fix="Choose an engine that fits (vq-console engines list), or change [engine] after a good run",
        )


@rule("runs-other-kernels", "info", source="this console: [made_on] of the profile")
def other_kernels(context: Context) -> Iterator[Hit]:
    """Kernels that differ from those of the profile's last good run: there Machete, here Marlin."""
    s = context.s
    made = s.profile.made_on or {}
    given = made.get("kernels")
    there = {str(name) for name in (given.values() if isinstance(given, Mapping) else as_list(given))}
    here = {row.kernel for row in context.rows("linear", "moe") if row.kernel}
    if there and here and not here & there:
        place = " ".join(str(made[key]) for key in ("gpu", "vllm") if made.get(key))
        yield Hit(
            f"made on {place or 'another machine'} with {', '.join(sorted(there))}; here {', '.join(sorted(here))}",
            fix="Nothing to do; measure anew before comparing numbers",
        )
