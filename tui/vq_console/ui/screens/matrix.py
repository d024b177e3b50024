"""The knowledge table: which kernel runs which method on which GPU generation, and where that is known from."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from vq_console.preflight.matrix import DEVICES, Cell, cell_text, cells
from vq_console.preflight.versions import READ, version_text

STYLES = {"native": "green", "weight-only": "yellow", "emulated": "yellow", "unsupported": "red", "unknown": "dim"}


class MatrixScreen(ModalScreen[None]):
    """One version at a time; the source of the cell under the cursor is shown below."""

    HELP_TEXT = "Which kernel serves which method where. Arrows move, v takes the next vLLM version, Escape closes."
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,m", "dismiss", "Close"), ("v", "version", "vLLM version")]

    def __init__(self) -> None:
        super().__init__()
        self._version = len(READ) - 1
        self._cells: dict[tuple[int, int], Cell] = {}

    def compose(self) -> ComposeResult:
        with Vertical(id="matrix-box"):
            yield Static(id="matrix-head")
            yield DataTable[Text](id="matrix-table", fixed_columns=2, zebra_stripes=True)
            yield Static(id="matrix-source")

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_columns("method", "layers", *DEVICES)
        table.focus()
        self._fill()

    def _fill(self) -> None:
        version = READ[self._version]
        head = Text(f"vLLM {version_text(version)}  ", style="bold")
        head.append("v next version   ✖ cannot run   ? not known   ◐ weight-only or emulated, else native", style="dim")
        self.query_one("#matrix-head", Static).update(head)
        rows: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells(versions=[version]):
            rows.setdefault((cell.method, cell.kind), []).append(cell)
        table = self.query_one(DataTable)
        table.clear()
        self._cells.clear()
        for index, ((method, kind), found) in enumerate(rows.items()):
            texts = [Text(cell_text(cell), style=STYLES.get(cell.grade, "")) for cell in found]
            table.add_row(Text(method, style="bold"), Text(kind, style="dim"), *texts)
            self._cells.update({(index, column + 2): cell for column, cell in enumerate(found)})

    @on(DataTable.CellHighlighted)
    def _moved(self, event: DataTable.CellHighlighted) -> None:
        cell = self._cells.get((event.coordinate.row, event.coordinate.column))
        text = Text()
        if cell is not None:
            text.append(f"{cell.method}, {cell.kind} layers, {cell.device}: ", style="bold")
            text.append(f"{cell.kernel or 'no kernel'}, {cell.grade}\n")
            text.append(cell.source or "no source: not known", style="dim")
        self.query_one("#matrix-source", Static).update(text)

    def action_version(self) -> None:
        """Show the next vLLM version."""
        self._version = (self._version + 1) % len(READ)
        self._fill()
