"""Profiles: find one, change it by form or as TOML, see beside it what a launch would be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import DataTable, Input, Label, Select, Static, TextArea

from vq_console.core.errors import VqError
from vq_console.core.text import strip_control
from vq_console.engines.model import Catalogue
from vq_console.preflight.model import Plan
from vq_console.profiles.model import Profile
from vq_console.profiles.store import Listed
from vq_console.ui.hub import Snapshot
from vq_console.ui.planview import METHOD_HELP, ordered, plan_text
from vq_console.ui.screens.base import ConsoleScreen
from vq_console.ui.widgets.dialogs import Ask, Choose, Confirm

FIELDS: tuple[tuple[str, str, str], ...] = (
    ("max_model_len", "context", "tokens; empty: the model's own"),
    ("gpu_memory_utilization", "GPU share", "0 to 1; empty: 0.92"),
    ("max_num_seqs", "streams", "requests at once; empty: vLLM's choice"),
    ("tensor_parallel_size", "GPUs", "split over so many; empty: 1"),
)


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


class ProfilesScreen(ConsoleScreen):
    """List, form or TOML, live plan."""

    MODE = "profiles"
    AUTO_FOCUS = "#profile-list"
    PUMP_HZ = 2.0
    HELP_TEXT = (
        "A profile says how to serve one model. Change it in the form or as TOML (T); the right side says at "
        "once what a launch would run on this machine: kernel and grade, memory, problems and their fix. "
        "Nothing is written before ctrl+s. Ready profiles that come with the console are copied when you save "
        "them."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "launch", "Launch"),
        Binding("n", "new", "New"),
        Binding("u", "duplicate", "Duplicate"),
        Binding("k", "fork", "Same at …"),
        Binding("a", "apply", "Apply fix"),
        Binding("T", "toml", "Form/TOML", key_display="T"),
        Binding("ctrl+s", "save", "Save"),
        Binding("i", "import_file", "Import", show=False),
        Binding("e", "export", "Export", show=False),
        Binding("y", "copy", "Copy command", show=False),
        Binding("m", "matrix", "Matrix", show=False),
        Binding("delete", "remove", "Delete", show=False),
        Binding("slash", "search", "Search", key_display="/", show=False),
        Binding("escape", "leave", "Leave field", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._listed: tuple[Listed, ...] = ()
        self._shown: tuple[Listed, ...] = ()
        self._catalogue: Catalogue | None = None
        self._text = ""
        self._saved_text = ""
        self._path: Path | None = None
        self._plan: Plan | None = None
        self._filling = False

    def compose_body(self) -> ComposeResult:
        with Horizontal(id="profiles-body"):
            with Vertical(id="profile-list-box"):
                yield Input(placeholder="search name, model, tag  (/)", id="profile-search", compact=True)
                yield DataTable[Text](id="profile-list", cursor_type="row", show_header=False)
            with VerticalScroll(id="profile-form"):
                yield Static(id="profile-head")
                with Vertical(id="form-fields"):
                    yield Label("model")
                    yield Input(id="field-model", compact=True)
                    yield Label("quantization")
                    yield Select[str](
                        [], id="field-quantization", allow_blank=True, prompt="as the checkpoint says", compact=True
                    )
                    yield Static(id="method-help")
                    yield Label("KV cache dtype")
                    yield Select[str]([], id="field-kv_cache_dtype", allow_blank=True, prompt="auto", compact=True)
                    for key, title, hint in FIELDS:
                        yield Label(title)
                        yield Input(id=f"field-{key}", placeholder=hint, compact=True)
                    yield Label("any other flag")
                    yield Input(id="field-free", placeholder="key = value, Enter sets; key = removes", compact=True)
                    yield Static(id="other-args")
                yield TextArea(id="profile-toml", show_line_numbers=True, tab_behavior="focus")
            with VerticalScroll(id="plan-box", classes="detail"):
                yield Static(id="plan")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#profile-toml").display = False
        self.query_one("#profile-list", DataTable).add_columns("name")
        self.query_one("#profile-list-box").border_title = "profiles"
        self.query_one("#plan-box").border_title = "plan"
        self._load_catalogue()

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        self.load()
        self.query_one("#profile-list").focus()

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
        current = select or (self._path.stem if self._path else None)
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
            elif entry.origin == "shipped":
                text.append("  ready", style="dim")
            table.add_row(text, key=str(entry.path))
        row = next((i for i, entry in enumerate(self._shown) if entry.name == current), 0)
        if self._shown:
            table.move_cursor(row=row)
            if self._path is None or select:
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

        self._catalogue = catalogue = await asyncio.to_thread(read)
        methods = [
            *(catalogue.online or ()),
            *(m for m in catalogue.quantization or () if m not in (catalogue.online or ())),
        ]
        self._filling = True
        for selector, values in (
            ("#field-quantization", methods),
            ("#field-kv_cache_dtype", catalogue.kv_cache_dtypes or ()),
        ):
            self.query_one(selector, Select).set_options([(value, value) for value in values])
        self._filling = False
        self._fill()

    @on(DataTable.RowHighlighted, "#profile-list")
    def _moved(self, event: DataTable.RowHighlighted) -> None:
        entry = next((e for e in self._shown if str(e.path) == event.row_key.value), None)
        if entry is not None and entry.path != self._path and not self._dirty:
            self._show(entry)

    @property
    def _dirty(self) -> bool:
        return self._text != self._saved_text

    def _show(self, entry: Listed) -> None:
        from vq_console.profiles.store import read_text

        self._path = entry.path
        try:
            self._text = self._saved_text = read_text(entry.path)
        except VqError as error:
            self._text = self._saved_text = ""
            self.query_one("#plan", Static).update(Text(str(error), style="red"))
        self._fill()
        self._replan()

    def _profile(self) -> Profile | None:
        from vq_console.profiles.format import parse_profile

        try:
            return parse_profile(self._text, self._path)
        except VqError:
            return None

    def _fill(self) -> None:
        """Put the profile's values into the form and the editor."""
        profile = self._profile()
        head = Text()
        if self._path is not None:
            head.append(profile.name if profile else self._path.stem, style="bold")
            head.append("  not saved (ctrl+s)" if self._dirty else "", style="bold yellow")
            if profile and profile.description:
                head.append(f"\n{strip_control(profile.description)}", style="dim")
        self.query_one("#profile-head", Static).update(head)
        area = self.query_one("#profile-toml", TextArea)
        if area.text != self._text:
            area.load_text(self._text)
        if profile is None:
            return
        self._filling = True
        self.query_one("#field-model", Input).value = profile.model
        for key in ("quantization", "kv_cache_dtype"):
            select = self.query_one(f"#field-{key}", Select)
            value = profile.args.get(key)
            if isinstance(value, str) and value in _values(select):
                select.value = value
            else:
                select.clear()
        for key, _, _ in FIELDS:
            value = profile.args.get(key)
            self.query_one(f"#field-{key}", Input).value = "" if value is None else str(value)
        self._filling = False
        shown = {"quantization", "kv_cache_dtype", *(key for key, _, _ in FIELDS)}
        others = [f"{key} = {value}" for key, value in profile.args.items() if key not in shown]
        others += [
            f"env {key} = {'(from environment)' if not isinstance(v, str) else v}" for key, v in profile.env.items()
        ]
        self.query_one("#other-args", Static).update(Text("\n".join(others), style="dim"))
        method = str(profile.args.get("quantization") or "")
        self.query_one("#method-help", Static).update(Text(METHOD_HELP.get(method, ""), style="dim"))

    # Changing

    def _change(self, patch: Mapping[str, Any]) -> None:
        from vq_console.profiles.edit import patched_text

        try:
            self._text = patched_text(self._text, patch, self._path)
        except VqError as error:
            self.notify(str(error), severity="error")
            return
        self._fill()
        self._replan()

    @on(Select.Changed)
    def _selected(self, event: Select.Changed) -> None:
        if self._filling or self._path is None or event.select.id is None:
            return
        key = event.select.id.removeprefix("field-")
        profile = self._profile()
        value = None if event.select.is_blank() else str(event.value)
        if profile is None or profile.args.get(key) == value:
            return
        self._change({"set_args": {key: value}} if value is not None else {"remove_args": [key]})

    @on(Input.Submitted)
    @on(Input.Blurred)
    def _typed(self, event: Input.Submitted | Input.Blurred) -> None:
        field = event.input.id or ""
        if self._filling or self._path is None or not field.startswith("field-"):
            return
        from vq_console.profiles.edit import toml_value

        key, value, profile = field.removeprefix("field-"), event.value.strip(), self._profile()
        if profile is None:
            return
        if key == "free":
            name, separator, right = value.partition("=")
            if separator and isinstance(event, Input.Submitted):
                event.input.value = ""
                name, right = name.strip(), right.strip()
                self._change({"set_args": {name: toml_value(right)}} if right else {"remove_args": [name]})
        elif key == "model":
            if value and value != profile.model:
                self._change({"set_model": value})
        elif value != ("" if profile.args.get(key) is None else str(profile.args[key])):
            self._change({"set_args": {key: toml_value(value)}} if value else {"remove_args": [key]})

    @on(TextArea.Changed, "#profile-toml")
    def _edited(self, event: TextArea.Changed) -> None:
        if event.text_area.text != self._text:
            self._text = event.text_area.text
            self._replan()

    # The plan

    @work(group="plan", exclusive=True, exit_on_error=False)
    async def _replan(self) -> None:
        from vq_console.engines.find import choose_engine
        from vq_console.preflight.check import plan_profile
        from vq_console.profiles.format import parse_profile

        await asyncio.sleep(0.25)
        text, path, simulated = self._text, self._path, self.console_app.simulated

        def plan() -> Plan:
            profile = parse_profile(text, path)
            engine = choose_engine(profile.vllm, python="simulator") if simulated else None
            return plan_profile(profile, engine=engine)

        pane = self.query_one("#plan", Static)
        box = self.query_one("#plan-box")
        try:
            self._plan = await asyncio.to_thread(plan)
        except VqError as error:
            self._plan = None
            box.border_title = "this is no profile yet"
            pane.update(Text(str(error), style="red"))
            return
        version = self._plan.target.get("vllm_version")
        box.border_title = f"plan · {self._plan.target.origin} · vLLM {version or 'not here'}"
        pane.update(plan_text(self._plan, max(box.size.width - 4, 20), ascii_only=self.console_app.settings.ascii))

    # Actions

    def action_search(self) -> None:
        self.query_one("#profile-search").focus()

    @on(Input.Changed, "#profile-search")
    def _searched(self) -> None:
        self._draw_list()

    def action_leave(self) -> None:
        self.query_one("#profile-list").focus()

    def action_toml(self) -> None:
        """Switch between the form and the text."""
        area, form = self.query_one("#profile-toml"), self.query_one("#form-fields")
        area.display, form.display = not area.display, not form.display
        if area.display:
            area.focus()
        else:
            self._fill()

    @work(exit_on_error=False)
    async def action_save(self) -> None:
        """Write the profile; a ready one is copied to the user's own."""
        from vq_console.profiles.format import parse_profile
        from vq_console.profiles.store import is_shipped, save_profile, write_checked

        if self._path is None:
            return
        try:
            profile = parse_profile(self._text, self._path)
            if is_shipped(self._path):
                self._path = await asyncio.to_thread(save_profile, profile)
                self.notify(f"copied to your own profiles as {self._path.name}")
            else:
                await asyncio.to_thread(write_checked, self._path, self._text)
                self.notify(f"{self._path.name} saved")
        except (VqError, OSError) as error:
            self.notify(str(error), severity="error", timeout=12)
            return
        self._saved_text = self._text
        self._fill()
        self.load(profile.name)

    def action_apply(self) -> None:
        """Apply the first fix that can be applied."""
        findings = ordered(self._plan.findings) if self._plan else []
        patch = next((finding.patch for finding in findings if finding.patch is not None), None)
        if patch is None:
            self.notify("No finding here has a fix that can be applied by itself.")
            return
        self._change({key: value for key, value in patch.to_json().items() if value})

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
            self.notify(str(error), severity="error", timeout=12)
            return
        self.load(name)

    @work(exit_on_error=False)
    async def action_duplicate(self) -> None:
        """Copy the profile under another name."""
        profile = self._profile()
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
            self.notify(str(error), severity="error", timeout=12)
            return
        self.load(name)

    @work(exit_on_error=False)
    async def action_fork(self) -> None:
        """The same profile with another method: the other arm of a comparison."""
        profile = self._profile()
        if profile is None or self._catalogue is None:
            return
        options = [(m, METHOD_HELP.get(m, "")) for m in self._catalogue.online or ()]
        options.append(("16-bit", "no quantization, the baseline"))
        method = await self.app.push_screen_wait(Choose(f"{profile.name}, the same at …", options))
        if method:
            patch = {"remove_args": ["quantization"]} if method == "16-bit" else {"set_args": {"quantization": method}}
            self._copy(profile.name, f"{profile.name}-{method.replace('_', '-')}"[:100], patch)

    @work(exit_on_error=False)
    async def action_launch(self) -> None:
        """Start the profile as it was saved."""
        profile = self._profile()
        if profile is None:
            self.notify("This profile cannot be read yet.", severity="error")
        elif self._dirty:
            self.notify("Save first (ctrl+s): what is launched is what is written.", severity="warning")
        else:
            await self._launch(profile)

    async def _launch(self, profile: Profile) -> None:
        from vq_console.engines.find import choose_engine
        from vq_console.profiles.trust import is_trusted, trust, trust_review
        from vq_console.serving.launch import launch

        if not is_trusted(profile):
            risks = "\n".join(f"{risk.key}: {risk.why}" for risk in trust_review(profile))
            if not await self.app.push_screen_wait(Confirm(f"{profile.name} comes from elsewhere. Run it?", risks)):
                return
            trust(profile)
        simulated = self.console_app.simulated
        engine = choose_engine(profile.vllm, python="simulator") if simulated else None
        try:
            record = await asyncio.to_thread(launch, profile, engine=engine)
        except VqError as error:
            self.app.notify(str(error), title="Not launched", severity="error", timeout=15)
            return
        self.console_app.selected_server = record.name
        self.app.notify(f"{record.name} is starting")
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
            self.notify(str(error), severity="error", timeout=12)

    @work(exit_on_error=False)
    async def action_export(self) -> None:
        """Copy the profile in another form to the clipboard."""
        from vq_console.profiles.exports import export_profile

        profile = self._profile()
        if profile is None:
            return
        form = await self.app.push_screen_wait(Choose("Export as", EXPORTS))
        if form:
            try:
                text = export_profile(profile, form).text
            except VqError as error:
                self.notify(str(error), severity="error", timeout=12)
                return
            self.app.copy_to_clipboard(text)
            self.notify(f"{form} copied to the clipboard ({len(text.splitlines())} lines)")

    def action_copy(self) -> None:
        """Copy the exact command."""
        if self._plan is not None:
            import shlex

            self.app.copy_to_clipboard(shlex.join(self._plan.argv))
            self.notify("command copied")

    def action_matrix(self) -> None:
        """Show which kernel each method runs on which GPU generation."""
        from vq_console.ui.screens.matrix import MatrixScreen

        self.app.push_screen(MatrixScreen())

    @work(exit_on_error=False)
    async def action_remove(self) -> None:
        """Delete a profile of the user after a question."""
        from vq_console.profiles.store import delete_profile

        profile = self._profile()
        if profile is None or not await self.app.push_screen_wait(Confirm(f"Delete {profile.name}?")):
            return
        try:
            delete_profile(profile.name)
        except VqError as error:
            self.notify(str(error), severity="error", timeout=12)
            return
        self._path = None
        self.load()


def _values(select: Select[str]) -> set[str]:
    return {str(value) for _, value in select._options if isinstance(value, str)}
