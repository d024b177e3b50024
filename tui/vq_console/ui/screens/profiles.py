"""Profiles: find one, change it by form or as TOML, see beside it what a launch would be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import DataTable, Input, Static

from vq_console.core.errors import VqError
from vq_console.engines.model import Catalogue
from vq_console.preflight.model import Plan
from vq_console.profiles.store import Listed
from vq_console.ui.hub import Snapshot
from vq_console.ui.planview import plan_text
from vq_console.ui.screens.profile_actions import ProfileActions
from vq_console.ui.widgets.profileform import ProfileForm


class ProfilesScreen(ProfileActions):
    """List, form or TOML, live plan."""

    MODE = "profiles"
    TITLE_TEXT = "2 Profiles"
    AUTO_FOCUS = "#profile-list"
    PUMP_HZ = 2.0
    HELP_TEXT = (
        "A profile says how to serve one model. Change it in the form or as TOML; the plan says at once what a launch "
        "would run on this machine: kernel and grade, memory, problems and their fix. Nothing is written before "
        "ctrl+s. Ready profiles are copied to your own when you save them."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "launch", "Launch", tooltip="launch it as saved"),
        Binding("n", "new", "New", tooltip="new profile from a model"),
        Binding("k", "fork", "Same at …", tooltip="the same at another method"),
        Binding("a", "apply", "Fix", tooltip="apply a finding's fix"),
        Binding("t", "pane", "Form", tooltip="form or plan where one fits"),
        Binding("T", "toml", "TOML", key_display="T", tooltip="form or TOML"),
        Binding("ctrl+s", "save", "Save", tooltip="save"),
        Binding("b", "compare", "Compare", show=False, tooltip="take it as arm of an A/B"),
        Binding("u", "duplicate", "Duplicate", show=False, tooltip="copy under another name"),
        Binding("i", "import_file", "Import", show=False, tooltip="import, with trust review"),
        Binding("e", "export", "Export", show=False, tooltip="export to the clipboard"),
        Binding("y", "copy", "Copy command", show=False, tooltip="copy the exact command"),
        Binding("m", "matrix", "Matrix", show=False, tooltip="which kernel runs what where"),
        Binding("Q", "quantize", "Quantize", show=False, key_display="Q", tooltip="make a quantized checkpoint"),
        Binding("delete", "remove", "Delete", show=False, tooltip="delete it"),
        Binding("slash", "search", "Search", key_display="/", show=False, tooltip="search name, model, tag"),
        Binding("escape", "leave", "Leave field", show=False, tooltip="back to the list"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._listed: tuple[Listed, ...] = ()
        self._shown: tuple[Listed, ...] = ()
        self._form_first = False
        """The form stands where only one of form and plan fits."""

    def compose_body(self) -> ComposeResult:
        with Horizontal(id="profiles-body"):
            with Vertical(id="profile-list-box"):
                yield Input(placeholder="/ name, model, tag", id="profile-search", compact=True)
                yield DataTable[Text](id="profile-list", cursor_type="row", show_header=False)
            yield ProfileForm(id="profile-form")
            with VerticalScroll(id="plan-box", classes="detail"):
                yield Static(id="plan")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#profile-list", DataTable).add_columns("name")
        self.query_one("#profile-list-box").border_title = "profiles"
        self.query_one("#plan-box").border_title = "plan"
        if self.console_app.settings.toml:
            self.query_one(ProfileForm).toggle_text()
        self._load_catalogue()

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        self.load()

    def on_resize(self) -> None:
        super().on_resize()
        self._lay_out()

    def _lay_out(self) -> None:
        one = self.has_class("-narrow")
        self.query_one("#profile-form").display = not one or self._form_first
        box = self.query_one("#plan-box")
        box.display = not one or not self._form_first
        box.border_subtitle = "t form" if one else ""

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """The plan follows the profile, not every sample of the machine."""

    # Loading

    @work(group="load", exclusive=True, exit_on_error=False)
    async def load(self, select: str | None = None) -> None:
        """Read the profiles and draw the list."""
        from vq_console.profiles.store import list_profiles

        self._listed = await asyncio.to_thread(list_profiles)
        self._draw_list(select)

    def _draw_list(self, select: str | None = None) -> None:
        wanted = self.query_one("#profile-search", Input).value.lower()
        current = select or (self.path.stem if self.path else None)
        self._shown = tuple(
            entry
            for entry in self._listed
            if wanted
            in f"{entry.name} {entry.profile.model if entry.profile else ''} "
            f"{' '.join(entry.profile.tags) if entry.profile else ''}".lower()
        )
        table = self.query_one("#profile-list", DataTable)
        table.clear()
        for entry in self._shown:
            text = Text(entry.name, style="bold" if entry.origin == "user" else "")
            if entry.error:
                text = Text(f"✖ {entry.name} (broken)", style="red")
            table.add_row(text, key=str(entry.path))
        own = sum(entry.origin == "user" for entry in self._shown)
        self.query_one("#profile-list-box").border_subtitle = f"{own} own, {len(self._shown) - own} ready"
        row = next((i for i, entry in enumerate(self._shown) if entry.name == current), 0)
        if self._shown:
            table.move_cursor(row=row)
            if self.path is None or select:
                self._show(self._shown[row])
        else:
            self.query_one("#profile-head", Static).update(Text("No profile fits. n makes a new one.", style="dim"))

    @work(group="catalogue", exclusive=True, exit_on_error=False)
    async def _load_catalogue(self) -> None:
        from vq_console.engines.catalogue import read_catalogue, snapshot
        from vq_console.engines.find import choose_engine

        def read() -> Catalogue:
            try:
                return read_catalogue(choose_engine())
            except VqError:
                return snapshot(None)

        self.catalogue = await asyncio.to_thread(read)
        self.query_one(ProfileForm).offer(self.catalogue)
        self.fill()

    @on(DataTable.RowHighlighted, "#profile-list")
    def _moved(self, event: DataTable.RowHighlighted) -> None:
        entry = next((e for e in self._shown if str(e.path) == event.row_key.value), None)
        if entry is None or entry.path == self.path:
            return
        if self.dirty:
            self.notify("Not saved: ctrl+s saves, T and undo take it back.", severity="warning")
        else:
            self._show(entry)

    @on(DataTable.RowSelected, "#profile-list")
    def _into_form(self) -> None:
        if self.has_class("-narrow") and not self._form_first:
            self.action_pane()
        field = "#profile-toml" if self.query_one("#profile-toml").display else "#field-model"
        self.query_one(field).focus()

    @work(group="show", exclusive=True, exit_on_error=False)
    async def _show(self, entry: Listed) -> None:
        from vq_console.profiles.store import read_text

        self.path = entry.path
        try:
            self.text = self.saved_text = await asyncio.to_thread(read_text, entry.path)
        except VqError as error:
            self.text = self.saved_text = ""
            self.query_one("#plan", Static).update(Text(str(error), style="red"))
        self.fill()
        self._replan()

    def fill(self) -> None:
        self.query_one(ProfileForm).show(self.profile(), self.text, self.path, dirty=self.dirty)

    # Changing

    @on(ProfileForm.Patched)
    def _patched(self, event: ProfileForm.Patched) -> None:
        self.change(event.patch)

    def change(self, patch: Mapping[str, Any]) -> None:
        from vq_console.profiles.edit import patched_text

        try:
            self.text = patched_text(self.text, patch, self.path)
        except VqError as error:
            self._no(error)
            return
        self.fill()
        self._replan()

    @on(ProfileForm.Edited)
    def _edited(self, event: ProfileForm.Edited) -> None:
        if event.text != self.text:
            self.text = event.text
            self._replan()

    # The plan

    @work(group="plan", exclusive=True, exit_on_error=False)
    async def _replan(self) -> None:
        from vq_console.engines.find import choose_engine
        from vq_console.preflight.check import plan_profile
        from vq_console.profiles.format import parse_profile

        await asyncio.sleep(0.25)
        text, path, simulated = self.text, self.path, self.console_app.simulated

        def plan() -> Plan:
            profile = parse_profile(text, path)
            engine = choose_engine(profile.vllm, python="simulator") if simulated else None
            return plan_profile(profile, engine=engine)

        pane = self.query_one("#plan", Static)
        box = self.query_one("#plan-box")
        try:
            self.plan = await asyncio.to_thread(plan)
        except VqError as error:
            self.plan = None
            box.border_title = "this is no profile yet"
            pane.update(Text(str(error), style="red"))
            return
        version = self.plan.target.get("vllm_version")
        box.border_title = f"plan · {self.plan.target.origin} · vLLM {version or 'not here'}"
        width = box.size.width or self.size.width // 2
        pane.update(plan_text(self.plan, max(width - 2, 20), ascii_only=self.console_app.settings.ascii))

    # Keys that only move

    def action_search(self) -> None:
        self.query_one("#profile-search").focus()

    @on(Input.Changed, "#profile-search")
    def _searched(self) -> None:
        self._draw_list()

    @on(Input.Submitted, "#profile-search")
    def _search_done(self) -> None:
        self.action_leave()

    def action_leave(self) -> None:
        if self.has_class("-narrow") and self._form_first:
            self.action_pane()
        self.query_one("#profile-list").focus()

    def action_pane(self) -> None:
        """Where only one of form and plan fits, show the other; else go into the form."""
        if self.has_class("-narrow"):
            self._form_first = not self._form_first
            self._lay_out()
            self.call_after_refresh(self._replan)
        else:
            self.query_one("#field-model").focus()

    def action_toml(self) -> None:
        """Switch between the form and the text."""
        if self.has_class("-narrow") and not self._form_first:
            self.action_pane()
        shown = self.query_one(ProfileForm).toggle_text()
        if not shown:
            self.fill()

    def action_compare(self) -> None:
        """Take the profile as arm of a comparison."""
        profile = self.profile()
        if profile is not None:
            self.console_app.compare_arm = f"profile:{profile.name}"
            self.console_app.action_show("ab")
