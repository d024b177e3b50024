"""Starting a profile from any screen: the trust review before the first launch, then the launch itself."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.app import App

from vq_console.profiles.model import Profile
from vq_console.ui.widgets.dialogs import Confirm


async def trusted(app: App[Any], profile: Profile) -> bool:
    """True when the profile may run: the user's own, trusted before, or trusted now after the review."""
    from vq_console.profiles.trust import is_trusted, trust, trust_review

    if await asyncio.to_thread(is_trusted, profile):
        return True
    risks = "\n".join(f"▲ {risk.key}: {risk.why}" for risk in trust_review(profile)) or "It runs no foreign code."
    if not await app.push_screen_wait(Confirm(f"{profile.name} comes from elsewhere. Run it?", risks)):
        return False
    await asyncio.to_thread(trust, profile)
    return True


def launch_here(profile: Profile, *, simulated: bool) -> str:
    """Start a profile on the engine that fits it (the stand-in within the simulated tour); what to tell."""
    from vq_console.engines.find import choose_engine
    from vq_console.serving.launch import launch

    engine = choose_engine(profile.vllm, python="simulator") if simulated else None
    return f"{launch(profile, engine=engine).name} is starting"
