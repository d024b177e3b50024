"""What the keys of the Profiles screen do: new, copies, import with its review, export, launch, quantize, delete.

Routes to `profiles` and `serving`; what a profile means is decided there.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual import work

from vq_console.core.errors import VqError
from vq_console.core.text import counted
from vq_console.engines.model import Catalogue
from vq_console.preflight.model import Plan
from vq_console.profiles.model import Profile
from vq_console.ui.planview import METHOD_HELP, ordered
from vq_console.ui.screens.base import ConsoleScreen
from vq_console.ui.screens.launching import launch_here, trusted
from vq_console.ui.widgets.dialogs import Ask, Choose, Confirm
from vq_console.ui.widgets.job import JobScreen

EXPORTS = (
    ("toml", "the profile to share, without secrets and local choices"),
    ("command", "shell command"),
    ("python", "LLM(…) in Python"),
    ("yaml", "vLLM's own --config file"),
    ("compose", "Docker Compose"),
    ("systemd", "systemd unit"),
    ("kubernetes", "Deployment and Service"),
    ("ray", "several nodes by Ray"),
    ("multi-node", "several nodes by vLLM's own flags"),
)


class ProfileActions(ConsoleScreen):
    """Actions on the profile that is shown. `text` is the profile as edited, `path` its file."""

    text = ""
    saved_text = ""
    path: Path | None = None
    plan: Plan | None = None
    catalogue: Catalogue | None = None

    @property
    def dirty(self) -> bool:
        """True when the text differs from the file."""
        return self.text != self.saved_text

    def profile(self) -> Profile | None:
        """The text as a profile, or None while it is none."""
        from vq_console.profiles.format import parse_profile

        try:
            return parse_profile(self.text, self.path)
        except VqError:
            return None

    def load(self, select: str | None = None) -> object:
        """Read the profiles again and select one."""
        raise NotImplementedError

    def change(self, patch: Mapping[str, Any]) -> None:
        """Apply a patch to the text."""
        raise NotImplementedError

    def fill(self) -> None:
        """Draw the form again."""
        raise NotImplementedError

    def _no(self, error: Exception) -> None:
        self.notify(str(error), severity="error", timeout=12, markup=False)

    @work(exit_on_error=False)
    async def action_apply(self) -> None:
        """Apply the fix of a finding; with several, ask which."""
        findings = ordered(self.plan.findings) if self.plan else []
        fixes = [(number, f) for number, f in enumerate(findings, start=1) if f.patch is not None]
        if not fixes:
            self.notify("No finding here has a fix that can be applied by itself.")
            return
        number = fixes[0][0]
        if len(fixes) > 1:
            options = [(str(n), f.fix or f.message) for n, f in fixes]
            chosen = await self.app.push_screen_wait(Choose("Apply which fix?", options))
            if not chosen:
                return
            number = int(chosen)
        patch = dict(fixes)[number].patch
        if patch is not None:
            self.change({key: value for key, value in patch.to_json().items() if value})

    @work(exit_on_error=False)
    async def action_quantize(self) -> None:
        """Make a quantized checkpoint of this profile's model, as a job with its progress here."""
        profile = self.profile()
        if profile is None:
            return
        if importlib.util.find_spec("vq_console.commands.quantize") is None:
            self.notify("This version makes no checkpoints; quantization on load is in the form.", severity="warning")
            return
        options = [("w4a16", "INT4 weights"), ("w8a8", "INT8 weights and activations"), ("fp8", "FP8, dynamic")]
        scheme = await self.app.push_screen_wait(Choose(f"Quantize {profile.model} to …", options, free=True))
        if scheme:
            argv = (sys.executable, "-m", "vq_console", "quantize", profile.model, "--scheme", scheme)
            await self.app.push_screen_wait(JobScreen(f"quantize {profile.model} {scheme}", argv))
            self.load()

    @work(exit_on_error=False)
    async def action_compare_source(self) -> None:
        """Compare the profile with what its checkpoint was quantized from: both arms chosen, the source first."""
        from vq_console.profiles.origin import source_arm

        profile = self.profile()
        if profile is None:
            return
        try:
            source = await asyncio.to_thread(source_arm, profile)
        except (VqError, OSError) as error:
            self._no(error)
            return
        self.console_app.compare_pair = (f"profile:{source}", f"profile:{profile.name}")
        self.console_app.action_show("ab")

    @work(exit_on_error=False)
    async def action_save(self) -> None:
        """Write the profile; a ready one is copied to the user's own."""
        from vq_console.profiles.format import parse_profile
        from vq_console.profiles.store import is_shipped, save_profile, write_checked

        if self.path is None:
            return
        try:
            profile = parse_profile(self.text, self.path)
            if is_shipped(self.path):
                self.path = await asyncio.to_thread(save_profile, profile)
                self.notify(f"copied to your own profiles as {self.path.name}")
            else:
                await asyncio.to_thread(write_checked, self.path, self.text)
                self.notify(f"{self.path.name} saved")
        except (VqError, OSError) as error:
            self._no(error)
            return
        self.saved_text = self.text
        self.fill()
        self.load(profile.name)

    @work(exit_on_error=False)
    async def action_new(self) -> None:
        """A new profile from a model."""
        from vq_console.profiles.store import save_profile

        model = await self.app.push_screen_wait(Ask("Which model?", "hub id or folder, e.g. Qwen/Qwen3-8B"))
        if not model:
            return
        name = await self.app.push_screen_wait(Ask("Its name?", value=Path(model).name))
        if not name:
            return
        try:
            await asyncio.to_thread(save_profile, Profile(name=name, model=model))
        except VqError as error:
            self._no(error)
            return
        self.load(name)

    @work(exit_on_error=False)
    async def action_duplicate(self) -> None:
        """Copy the profile under another name."""
        profile = self.profile()
        if profile is None:
            return
        name = await self.app.push_screen_wait(Ask(f"Copy {profile.name} as", value=f"{profile.name}-copy"))
        if name:
            self._copy(profile.name, name)

    def _copy(self, source: str, name: str, patch: Mapping[str, Any] | None = None) -> None:
        from vq_console.profiles.edit import patched_text
        from vq_console.profiles.store import copy_profile, read_text, write_checked

        try:
            path = copy_profile(source, name)
            if patch:
                write_checked(path, patched_text(read_text(path), patch, path))
        except (VqError, OSError) as error:
            self._no(error)
            return
        self.load(name)

    @work(exit_on_error=False)
    async def action_fork(self) -> None:
        """The same profile with another method: the other arm of a comparison."""
        profile = self.profile()
        if profile is None or self.catalogue is None:
            return
        options = [(m, METHOD_HELP.get(m, "")) for m in self.catalogue.online or ()]
        options.append(("16-bit", "no quantization, the baseline"))
        method = await self.app.push_screen_wait(Choose(f"{profile.name}, the same at …", options))
        if method:
            patch = {"remove_args": ["quantization"]} if method == "16-bit" else {"set_args": {"quantization": method}}
            self._copy(profile.name, f"{profile.name}-{method.replace('_', '-')}"[:100], patch)

    @work(exit_on_error=False)
    async def action_launch(self) -> None:
        """Start the profile as it was saved."""
        profile = self.profile()
        if profile is None:
            self.notify("This profile cannot be read yet.", severity="error")
        elif self.dirty:
            self.notify("Save first (ctrl+s): what is launched is what is written.", severity="warning")
        else:
            await self._launch(profile)

    async def _launch(self, profile: Profile) -> None:
        if not await trusted(self.app, profile):
            return
        try:
            said = await asyncio.to_thread(launch_here, profile, simulated=self.console_app.simulated)
        except (VqError, OSError) as error:
            self.app.notify(str(error), title="Not launched", severity="error", timeout=15, markup=False)
            return
        self.console_app.selected_server = said.partition(" ")[0]
        self.app.notify(said, markup=False)
        self.console_app.hub.refresh()
        self.console_app.action_show("servers")

    @work(exit_on_error=False)
    async def action_import_file(self) -> None:
        """Show a profile from a file or URL, then keep it."""
        from vq_console.profiles.share import keep_import, parse_import, read_sources
        from vq_console.profiles.trust import trust_review

        where = await self.app.push_screen_wait(Ask("Import from", "file, folder or https://…"))
        if not where:
            return
        try:
            sources = await asyncio.to_thread(lambda: list(read_sources(where)))
            for source in sources:
                profile = parse_import(source)
                risks = (
                    "\n".join(f"▲ {risk.key}: {risk.why}" for risk in trust_review(profile))
                    or "it runs no foreign code"
                )
                if await self.app.push_screen_wait(Confirm(f"Keep {profile.name} ({profile.model})?", risks)):
                    keep_import(profile)
                    self.load(profile.name)
        except (VqError, OSError) as error:
            self._no(error)

    @work(exit_on_error=False)
    async def action_export(self) -> None:
        """Copy the profile in another form to the clipboard."""
        from vq_console.profiles.exports import export_profile

        profile = self.profile()
        if profile is None:
            return
        form = await self.app.push_screen_wait(Choose("Export as", EXPORTS))
        if form:
            try:
                text = export_profile(profile, form).text
            except VqError as error:
                self._no(error)
                return
            self.app.copy_to_clipboard(text)
            self.notify(f"{form} copied to the clipboard ({counted(len(text.splitlines()), 'line')})")

    def action_copy(self) -> None:
        """Copy the exact command."""
        if self.plan is not None:
            import shlex

            self.app.copy_to_clipboard(shlex.join(self.plan.argv))
            self.notify("command copied")

    def action_matrix(self) -> None:
        """Show which kernel each method runs on which GPU generation."""
        from vq_console.ui.screens.matrix import MatrixScreen

        self.app.push_screen(MatrixScreen())

    @work(exit_on_error=False)
    async def action_remove(self) -> None:
        """Delete a profile of the user after a question."""
        from vq_console.profiles.store import delete_profile

        profile = self.profile()
        if profile is None or not await self.app.push_screen_wait(Confirm(f"Delete {profile.name}?")):
            return
        try:
            delete_profile(profile.name)
        except VqError as error:
            self._no(error)
            return
        self.path = None
        self.load()
