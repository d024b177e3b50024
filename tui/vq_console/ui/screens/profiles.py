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
from vq_console.core.text import strip_control
from vq_console.engines.model import Catalogue
from vq_console.preflight.model import Plan
from vq_console.profiles.store import Listed
from vq_console.ui.details import cut
from vq_console.ui.hub import Snapshot
from vq_console.ui.planview import plan_text
from vq_console.ui.screens.profile_actions import ProfileActions
from vq_console.ui.widgets.profileform import ProfileForm
from vq_console.ui.widgets.titles import entitle


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
        Binding("k", "fork", "Variant", tooltip="the same profile at another method"),
        Binding("a", "apply", "Fix", tooltip="apply a finding's fix"),
        Binding("t", "pane", "Form", tooltip="form or plan where one fits"),
        Binding("T", "toml", "TOML", key_display="T", tooltip="form or TOML"),
        Binding("ctrl+s", "save", "Save", tooltip="save"),
        Binding("b", "compare", "Compare", show=False, tooltip="take it as arm of an A/B"),
        Binding("o", "compare_source", "Against source", show=False, tooltip="compare with what it was quantized from"),
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
        self._room = 0
        """Cells for a name in the list."""
        self._problem = ""
        """Why the text is no profile."""

    def compose_body(self) -> ComposeResult:
        with Horizontal(id="profiles-body"):
            with Vertical(id="profile-list-box"):
                yield Input(placeholder="/ name, model, tag", id="profile-search", compact=True)
                yield DataTable[Text](id="profile-list", cursor_type="row", show_header=False)
            yield ProfileForm(id="profile-form")
            with VerticalScroll(id="plan-box", classes="detail"):
                yield Static(id="plan")

    def begin(self) -> None:
        self.query_one("#profile-list", DataTable).add_columns("name")
        self.query_one("#profile-list-box").border_title = "profiles"
        self.query_one("#plan-box").border_title = "plan"
        if self.console_app.settings.toml:
            self.query_one(ProfileForm).toggle_text()
        self._load_catalogue()

    def resumed(self) -> None:
        self.load()

    def resized(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        one = self.has_class("-narrow")
        self.query_one("#profile-form").display = not one or self._form_first
        box = self.query_one("#plan-box")
        box.display = not one or not self._form_first
        entitle(box, foot="t form" if one else "")
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        """What was drawn for another width is drawn again."""
        if self._list_room() != self._room:
            self._draw_list()
        self._draw_plan()

    def _list_room(self) -> int:
        return max(self.query_one("#profile-list").size.width - 3, 12)

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
        self._room = self._list_room()
        table.clear()
        for entry in self._shown:
            name = strip_control(entry.name)
            text = Text(cut(name, self._room), style="bold" if entry.origin == "user" else "")
            if entry.error:
                text = Text(cut(f"✖ broken: {name}", self._room), style="red")
            table.add_row(text, key=str(entry.path))
        own = sum(entry.origin == "user" for entry in self._shown)
        box = self.query_one("#profile-list-box")
        entitle(box, foot=f"{own} own, {len(self._shown) - own} ready" if self._shown else "none fits")
        row = next((i for i, entry in enumerate(self._shown) if entry.name == current), 0)
        if self._shown:
            table.move_cursor(row=row)
            if select or (self._shown[row].path != self.path and not self.dirty):
                self._show(self._shown[row])
        elif not self.dirty:
            # What is not in the list is neither shown nor launched.
            self.path, self.text, self.saved_text, self.plan = None, "", "", None
            self.fill()
            self._replan()

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
        self.query_one(ProfileForm).enter()

    @work(group="show", exclusive=True, exit_on_error=False)
    async def _show(self, entry: Listed) -> None:
        from vq_console.profiles.store import read_text

        self.path = entry.path
        try:
            self.text = self.saved_text = await asyncio.to_thread(read_text, entry.path)
        except VqError as error:
            self.text = self.saved_text = ""
            self.plan, self._problem = None, str(error)
            self.fill()
            self._draw_plan()
            return
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

        if path is None:
            self.plan, self._problem = None, ""
        else:
            try:
                self.plan, self._problem = await asyncio.to_thread(plan), ""
            except VqError as error:
                self.plan, self._problem = None, str(error)
        self._draw_plan()

    def _draw_plan(self) -> None:
        """The plan as it is known now, for the width that its pane has now."""
        box, pane = self.query_one("#plan-box"), self.query_one("#plan", Static)
        if self.plan is not None:
            version = self.plan.target.get("vllm_version")
            entitle(box, f"plan · {self.plan.target.origin} · vLLM {version or 'not here'}")
            width = box.size.width or self.size.width // 2
            pane.update(plan_text(self.plan, max(width - 4, 20), ascii_only=self.console_app.settings.ascii))
        elif self._problem:
            entitle(box, "this is no profile yet")
            pane.update(Text(self._problem, style="red"))
        elif self._listed and not self._shown:
            entitle(box, "plan")
            wanted = strip_control(self.query_one("#profile-search", Input).value)
            pane.update(Text(f"No profile fits {wanted!r}.\n\nesc  show all\nn    new profile", style="dim"))

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
        search, table = self.query_one("#profile-search", Input), self.query_one("#profile-list")
        if search.value and (not self._shown or self.focused is table):
            search.value = ""
        table.focus()

    def action_pane(self) -> None:
        """Where only one of form and plan fits, show the other; else go into the form."""
        if self.has_class("-narrow"):
            self._form_first = not self._form_first
            self._lay_out()
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
