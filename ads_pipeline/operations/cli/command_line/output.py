"""Writes results as tables or JSON lines. CSV is in `csv_output`.

External text is made printable before it reaches a terminal, and is never interpreted as markup.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from numbers import Number
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.quoting import printable
from ads_pipeline.pipeline.progress import ProgressReporter, no_progress, progress_on

Fields = Mapping[str, Any]  # a row: the fields that JSON has, by name
CELL_PADDING: Final = (0, 2, 0, 0)
MAX_LINES_BESIDE: Final = 3
NARROWEST: Final = 16  # of a wrapped column
_WORDS: Final = re.compile(r"\S*\s+|\S+")
# What stays on one line in a word that is broken: up to a mark such as "_", or one letter of East Asia.
_WIDE: Final = r"\u2e80-\U0010ffff"
_PIECES: Final = re.compile(rf"[{_WIDE}]\s*|[^\s_/:.{_WIDE}-]*(?:[_/:.-]+\s*|\s+)|[^\s_/:.{_WIDE}-]+")
INDENT: Final = 2
# Statuses of partitions, runs, steps, verdicts and checks, by their text.
STATUS_STYLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("success", "current", "COMPLETED", "SUCCEEDED", "ok"), "green"),
    **dict.fromkeys(("failed", "rejected", "missing", "blocked", "damaged", "FAILED", "error"), "red"),
    **dict.fromkeys(("skipped", "unrecoverable", "acknowledged", "acknowledged_rerun", "hidden"), "dim"),
    **dict.fromkeys(("pending", "awaiting verdict", "unregistered", "RUNNING", "warning"), "yellow"),
    **dict.fromkeys(("late", "parked", "rejected_rerun", "blocked_rerun", "in_progress"), "yellow"),
}


class OutputConsole(Console):
    """Standard output, as wide as the terminal, or 80 columns without one."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)

    def print(self, *objects: Any, sep: str = " ", end: str = "\n", **options: Any) -> None:
        """Break the lines of texts between words only, so that a partition or a path can be copied."""
        for number, each in enumerate(objects, 1):
            own = options | {"end": end if number == len(objects) else sep}
            if isinstance(each, str | Text) and not options.get("soft_wrap"):
                super().print(_keep_words(each, self.width), **own | {"soft_wrap": True})
            else:
                super().print(each, **own)

    def on_broken_pipe(self) -> None:
        """Raise, because Rich would exit with code 1."""
        raise BrokenPipeError


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and the field of a row that it shows, or a function of the row.

    Values of a column with `wrap` may be wrapped. `from_width` is the terminal width from which the column is
    shown, where there is room for it.
    A last column with `below` is shown below its row where it would be too narrow.
    """

    heading: str
    value: str | Callable[[Fields], object]
    wrap: bool = False
    from_width: int = 0
    below: bool = False

    def of(self, row: Fields) -> object:
        return row[self.value] if isinstance(self.value, str) else self.value(row)


PARTITION_COLUMNS: Final = (
    Column("customer", "customer_id"),
    Column("query", "query_name", wrap=True),
    Column("day", "logical_date"),
)


def fields_of(value: Any, **more: object) -> dict[str, object]:
    """The fields of a dataclass as a row. A partition or a run among them gives its own fields."""
    row: dict[str, object] = {}
    for each in fields(value):
        part = getattr(value, each.name)
        row |= fields_of(part) if isinstance(part, PartitionKey | Run) else {each.name: part}
    return row | more


def table_of(rows: Iterable[Fields], columns: Sequence[Column], *, title: str | Text = "") -> list[RenderableType]:
    """A table of the rows below its title, and an empty line; nothing without rows. `cell` shows a value.

    Where even the columns that are always shown do not fit into the width, each row becomes a block.
    """
    known = list(rows)
    if not known:
        return []
    heading = [cell(title, style="bold")] if title else []
    width = OutputConsole().width
    for limit in sorted({column.from_width for column in columns if column.from_width <= width}, reverse=True):
        shown = [column for column in columns if column.from_width <= limit]
        values = [[column.of(row) for column in shown] for row in known]
        has_text_below = shown[-1].below and not _fits(values, shown, width)
        beside = shown[:-1] if has_text_below else shown
        widths = _find_widths(_column_widths(values, beside), [column.wrap for column in beside], width)
        if widths is not None:
            make = _rows_with_text_below if has_text_below else _rows_below_headings
            return [*heading, *make(values, shown, widths), Text("")]
    blocks = _blocks([column.heading for column in shown], (list(map(cell, row)) for row in values))
    return [*heading, *(part for block in blocks for part in (block, Text("")))]


def _rows_below_headings(
    values: Sequence[Sequence[object]], columns: Sequence[Column], widths: Sequence[int]
) -> Iterator[RenderableType]:
    table = Table(box=None, pad_edge=False, padding=CELL_PADDING, header_style="bold")
    for column, size, of_column in zip(columns, widths, zip(*values, strict=True), strict=True):
        justify: Any = "right" if any(map(is_number, of_column)) else "left"
        table.add_column(column.heading, justify=justify, overflow="fold", width=size)
    for of_row in values:
        table.add_row(*(_break_words(cell(value), size) for value, size in zip(of_row, widths, strict=True)))
    yield table


def _fits(values: Sequence[Sequence[object]], columns: Sequence[Column], width: int) -> bool:
    """True if the last column can show each text on a few lines without breaking a word."""
    left = width - sum(size + CELL_PADDING[1] for size in _column_widths(values, columns)[:-1])
    texts = [cell(row[-1]) for row in values]
    longest = max((cell_len(word) for text in texts for word in text.plain.split()), default=0)
    return longest <= left and all(text.cell_len <= MAX_LINES_BESIDE * left for text in texts)


def _rows_with_text_below(
    values: Sequence[Sequence[object]], columns: Sequence[Column], widths: Sequence[int]
) -> Iterator[RenderableType]:
    """The rows with all columns but the last, whose text follows each row, indented."""
    for number, row in enumerate(([column.heading for column in columns], *values)):
        line = Table(box=None, pad_edge=False, padding=CELL_PADDING, show_header=False)
        for size in widths:
            line.add_column(width=size, overflow="fold")
        style = "" if number else "bold"
        beside = zip(row[:-1], widths, strict=True)
        line.add_row(*(_break_words(cell(value, style=style), size) for value, size in beside))
        yield line
        if number and (text := cell(row[-1])):
            yield Padding(text, (0, 0, 0, INDENT))


def _column_widths(values: Sequence[Sequence[object]], columns: Sequence[Column]) -> list[int]:
    """The width of each column without wrapping."""
    cells = zip(*values, strict=True)
    return [
        max(len(column.heading), *(cell(value).cell_len for value in of_column))
        for column, of_column in zip(columns, cells, strict=False)
    ]


def _find_widths(natural: Sequence[int], can_wrap: Sequence[bool], width: int) -> list[int] | None:
    """The widths of columns that fit into the width together. None where one would become too narrow to read.

    Columns that can be wrapped share what the others leave, and none gets more than it needs.
    """
    found, wrapped = list(natural), [number for number, wraps in enumerate(can_wrap) if wraps]
    left = width - CELL_PADDING[1] * (len(natural) - 1)
    left -= sum(size for size, wraps in zip(natural, can_wrap, strict=True) if not wraps)
    for place, number in enumerate(sorted(wrapped, key=natural.__getitem__)):
        found[number] = min(natural[number], left // (len(wrapped) - place))
        left -= found[number]
    is_readable = all(found[number] >= min(natural[number], NARROWEST) for number in wrapped)
    return found if left >= 0 and is_readable else None


def _keep_words(text: str | Text, width: int) -> Text:
    """The text with line breaks between words. A word that is wider than the line is not broken."""
    return _wrap(Text(text) if isinstance(text, str) else text, _WORDS, width)


def _break_words(text: Text, width: int) -> Text:
    """The text with line breaks in words that are wider than the column, after a mark such as "_"."""
    is_wide = any(cell_len(word) > width for word in text.plain.split())
    return _wrap(text, _PIECES, width) if is_wide else text


def _wrap(text: Text, pieces: re.Pattern[str], width: int) -> Text:
    offsets, position, used = list[int](), 0, 0
    for piece in pieces.findall(text.plain):
        if used and used + cell_len(piece.rstrip()) > width:
            offsets.append(position)
            used = 0
        used = 0 if piece.endswith("\n") else used + cell_len(piece)
        position += len(piece)
    lines = text.divide(offsets)
    for line in lines[:-1]:
        line.rstrip()
    return Text("\n").join(lines) if offsets else text


def grid_of(lines: Iterable[tuple[object, object]], **first_column: Any) -> Table:
    """Labels, never wrapped, and beside each its text, which is. Lines without a text are left out."""
    grid = Table.grid(padding=CELL_PADDING)
    grid.add_column(no_wrap=True, **first_column)
    grid.add_column(overflow="fold")
    for label, text in lines:
        if text:
            grid.add_row(cell(label), cell(text))
    return grid


def cell(value: object, *, style: str = "") -> Text:
    """A printable cell: empty for None, numbers with separators, times in UTC, statuses in their colour."""
    match value:
        case Text():
            return value
        case None:
            text = ""
        case datetime():
            text = format_instant(value)
        case int() if is_number(value):
            text = f"{value:,}"
        case _:
            text = printable(str(value))
    return Text(text, style=style or (STATUS_STYLES.get(value, "") if isinstance(value, StrEnum) else ""))


def is_number(value: object) -> bool:
    """True for a number, which a boolean is not."""
    return isinstance(value, Number) and not isinstance(value, bool)


def format_instant(instant: datetime) -> str:
    """For people: UTC, to the second."""
    return f"{instant:%Y-%m-%d %H:%M:%S}Z"


def format_minute(instant: datetime | None) -> str | None:
    """For narrow tables: UTC, to the minute."""
    return None if instant is None else f"{instant:%Y-%m-%d %H:%M}Z"


def iso_instant(instant: datetime | None) -> str | None:
    """For programs: ISO 8601 with microseconds."""
    return None if instant is None else instant.isoformat(timespec="microseconds")


def terminal_progress() -> ProgressReporter:
    """Shows progress on standard error when that is a terminal, else nothing."""
    return progress_on(sys.stderr) if sys.stderr.isatty() else no_progress


def write_results(
    lines: Iterable[Mapping[str, object]],
    blocks: Iterable[RenderableType],
    notes: Iterable[object],
    *,
    as_json: bool,
) -> None:
    """Write JSON lines, with the notes on standard error, or else the blocks and below them the notes.

    Notes are read last, so they may count what was written. A note that starts with two spaces is to be copied into a
    command: it is not wrapped.
    """
    if as_json:
        write_json(lines)
        sys.stderr.writelines(f"{printable(str(note))}\n" for note in notes)
        return
    console = OutputConsole()
    for block in blocks:
        console.print(block)
    for note in notes:
        console.print(cell(note), soft_wrap=str(note).startswith("  "))


def write_list(rows: Sequence[Fields], columns: Sequence[Column], notes: Iterable[object], *, as_json: bool) -> None:
    """Write rows as JSON lines with every field, or as a table with these columns; then the notes."""
    write_results(rows, table_of(rows, columns), notes, as_json=as_json)


def write_rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write rows as a table, or as one block per row when the table is wider than the terminal."""
    console = OutputConsole()
    table = Table(box=None, pad_edge=False, padding=CELL_PADDING, header_style="bold")
    for number, name in enumerate(names):
        numeric = any(is_number(row[number]) for row in rows)
        table.add_column(cell(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_sql_cell, row))
    unlimited = console.options.update(width=1_000_000)
    fits = Measurement.get(console, unlimited, table).maximum <= console.width + CELL_PADDING[1]
    if fits or not rows:
        console.print(table)
        return
    blocks = _blocks([cell(name) for name in names], (list(map(_sql_cell, row)) for row in rows))
    for number, block in enumerate(blocks, 1):
        console.print(Text(f"row {number}", style="bold"), block, sep="\n")


def write_json(lines: Iterable[Mapping[str, object]]) -> None:
    """Write one JSON object per line, with unprintable characters escaped."""
    for line in lines:
        text = json.dumps({name: _json_value(value) for name, value in line.items()}, ensure_ascii=False, default=str)
        if not text.isprintable():
            text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
        sys.stdout.write(text + "\n")


def _sql_cell(value: object) -> Text:
    return Text("NULL", style="dim") if value is None else cell(sql_text(value))


def sql_text(value: object) -> str:
    """A value as text: lists and structs as JSON, bytes as hex, as `--json` has them."""
    match value:
        case bool():
            return str(value).lower()
        case bytes():
            return value.hex()
        case list() | tuple() | dict():
            return json.dumps(_json_value(value), ensure_ascii=False, default=str)
    return str(value)


def _blocks(names: Sequence[str | Text], rows: Iterable[Sequence[Text]]) -> Iterator[Table]:
    """Each row as a block, with a line for each value beside its name."""
    for row in rows:
        block = Table(box=None, pad_edge=False, padding=CELL_PADDING, show_header=False)
        block.add_column(style="dim")
        block.add_column(overflow="fold")
        for name, value in zip(names, row, strict=True):
            block.add_row(name, value)
        yield block


def _json_value(value: object) -> object:
    """Convert what JSON lacks: NaN and infinities to text, bytes to hex, times to ISO 8601."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case list() | tuple():
            return [_json_value(each) for each in value]
        case dict():
            return {str(name): _json_value(each) for name, each in value.items()}
        case bytes():
            return value.hex()
        case datetime():
            return iso_instant(value)
    return value
