"""The form of a profile: fields whose choices come from the engine's catalogue, any other flag, or the text itself.

Shows what it is given and says what the user changed; reads and writes no file and judges no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Input, Label, Select, Static

from vq_console.core.text import strip_control
from vq_console.engines.model import Catalogue
from vq_console.profiles.model import Profile
from vq_console.ui.planview import METHOD_HELP
from vq_console.ui.widgets.titles import entitle

if TYPE_CHECKING:
    from textual.widgets import TextArea

FIELDS: tuple[tuple[str, str, str], ...] = (
    ("max_model_len", "context", "tokens; empty: the model's own"),
    ("gpu_memory_utilization", "GPU share", "0 to 1; empty: 0.92"),
    ("max_num_seqs", "streams", "requests at once; empty: vLLM's choice"),
    ("tensor_parallel_size", "GPUs", "split over so many; empty: 1"),
)
SELECTS = ("quantization", "kv_cache_dtype")


class ProfileForm(VerticalScroll):
    """Form or text of one profile."""

    class Patched(Message):
        """The user set or removed something: the patch to apply to the profile's text."""

        def __init__(self, patch: Mapping[str, Any]) -> None:
            super().__init__()
            self.patch = patch

    class Edited(Message):
        """The user changed the text."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._profile: Profile | None = None
        self._filling = False
        self._as_text = False
        self._area: TextArea | None = None
        self._text = ""
        self._shown = False

    def compose(self) -> ComposeResult:
        yield Static(id="profile-head")
        with Vertical(id="form-fields"):
            yield Label("model")
            yield Input(id="field-model", compact=True)
            yield Label("quantization")
            yield Select[str]([], id="field-quantization", prompt="as the checkpoint says", compact=True)
            yield Static(id="method-help")
            yield Label("KV cache dtype")
            yield Select[str]([], id="field-kv_cache_dtype", prompt="auto", compact=True)
            for key, title, hint in FIELDS:
                yield Label(title)
                yield Input(id=f"field-{key}", placeholder=hint, compact=True)
            yield Label("any other flag")
            yield Input(id="field-free", placeholder="key = value, Enter sets; key = removes", compact=True)
            yield Static(id="other-args")

    def on_mount(self) -> None:
        self._lay_out(shown=False)

    def _lay_out(self, *, shown: bool) -> None:
        if self._area is not None:
            self._area.display = shown and self._as_text
        self.query_one("#form-fields").display = shown and not self._as_text

    def offer(self, catalogue: Catalogue) -> None:
        """Fill the choices from what this engine knows, methods on load first."""
        online = catalogue.online or ()
        methods = [*online, *(m for m in catalogue.quantization or () if m not in online)]
        self._filling = True
        for key, values in (("quantization", methods), ("kv_cache_dtype", catalogue.kv_cache_dtypes or ())):
            self.query_one(f"#field-{key}", Select).set_options([(value, value) for value in values])
        self._filling = False

    def toggle_text(self) -> bool:
        """Switch between form and text; True when the text is shown now."""
        self._as_text = not self._as_text
        if self._as_text and self._area is None:
            # The editor is dear to load and to mount, and most profiles are never edited as text.
            from textual.widgets import TextArea

            self._area = TextArea(self._text, id="profile-toml", show_line_numbers=True, tab_behavior="focus")
            self.mount(self._area)
        self._lay_out(shown=self._shown)
        if self._as_text and self._shown:
            self.enter()
        return self._as_text

    def enter(self) -> None:
        """Put the keys into the editor or the first field, whichever is shown."""
        if self._as_text and self._area is not None:
            self._area.focus()
        else:
            self.query_one("#field-model").focus()

    def show(self, profile: Profile | None, text: str, path: Path | None, *, dirty: bool) -> None:
        """Put the profile's values into the form and its text into the editor; None is text that is no profile.

        Without a path nothing is chosen, and nothing is shown.
        """
        self._profile, self._shown = profile, path is not None
        self._lay_out(shown=self._shown)
        head = Text()
        if profile and profile.description:
            head.append(strip_control(profile.description), style="dim")
        name = "" if path is None else profile.name if profile else path.stem
        entitle(self, name, foot="not saved: ctrl+s" if dirty else "")
        self.query_one("#profile-head", Static).update(head)
        self._text = text
        if self._area is not None and self._area.text != text:
            self._area.load_text(text)
        if profile is None:
            return
        self._filling = True
        self.query_one("#field-model", Input).value = profile.model
        for key in SELECTS:
            select = self.query_one(f"#field-{key}", Select)
            value = profile.args.get(key)
            if isinstance(value, str) and value in {str(v) for _, v in select._options if isinstance(v, str)}:
                select.value = value
            else:
                select.clear()
        for key, _, _ in FIELDS:
            value = profile.args.get(key)
            self.query_one(f"#field-{key}", Input).value = "" if value is None else str(value)
        self._filling = False
        shown = {*SELECTS, *(key for key, _, _ in FIELDS)}
        others = [f"{key} = {value}" for key, value in profile.args.items() if key not in shown]
        others += [
            f"env {key} = {value if isinstance(value, str) else '(from environment)'}"
            for key, value in profile.env.items()
        ]
        lines = [strip_control(line).replace("\n", " ") for line in others]
        self.query_one("#other-args", Static).update(
            Text("\n".join(lines), style="dim", no_wrap=True, overflow="ellipsis")
        )
        method = str(profile.args.get("quantization") or "")
        self.query_one("#method-help", Static).update(Text(METHOD_HELP.get(method, ""), style="dim"))

    @on(Select.Changed)
    def _selected(self, event: Select.Changed) -> None:
        event.stop()
        if self._filling or self._profile is None or event.select.id is None:
            return
        key = event.select.id.removeprefix("field-")
        value = None if event.select.is_blank() else str(event.value)
        if self._profile.args.get(key) != value:
            self.post_message(self.Patched({"set_args": {key: value}} if value else {"remove_args": [key]}))

    @on(Input.Submitted)
    @on(Input.Blurred)
    def _typed(self, event: Input.Submitted | Input.Blurred) -> None:
        event.stop()
        field, profile = event.input.id or "", self._profile
        if self._filling or profile is None or not field.startswith("field-"):
            return
        from vq_console.profiles.edit import toml_value

        key, value = field.removeprefix("field-"), event.value.strip()
        if key == "free":
            name, separator, right = value.partition("=")
            if separator and isinstance(event, Input.Submitted):
                event.input.value = ""
                name, right = name.strip(), right.strip()
                patch = {"set_args": {name: toml_value(right)}} if right else {"remove_args": [name]}
                self.post_message(self.Patched(patch))
        elif key == "model":
            if value and value != profile.model:
                self.post_message(self.Patched({"set_model": value}))
        elif value != ("" if profile.args.get(key) is None else str(profile.args[key])):
            self.post_message(self.Patched({"set_args": {key: toml_value(value)}} if value else {"remove_args": [key]}))

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """The user, or `show`, changed the editor's text."""
        event.stop()
        self.post_message(self.Edited(event.text_area.text))
