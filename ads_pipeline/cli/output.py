"""Writes results as tables, JSON lines or CSV.

External text is made printable before it reaches a terminal, and is never interpreted as markup.
"""

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from numbers import Number
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.progress import ProgressReporter, no_progress, progress_on
from ads_pipeline.quoting import printable

CELL_PADDING: Final = (0, 2, 0, 0)


class OutputConsole(Console):
    """Standard output, as wide as the terminal, or 80 columns without one."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raise, because Rich would exit with code 1."""
        raise BrokenPipeError


def new_table(**columns: Any) -> Table:
    """An empty table with these columns; each value is 'left', 'right' or 'fold' (left, wrapped)."""
    table = Table(box=None, pad_edge=False, padding=CELL_PADDING, header_style="bold")
    for heading, layout in columns.items():
        justify: Any = "right" if layout == "right" else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=layout != "fold")
    return table


def new_grid(**first_column: Any) -> Table:
    """An empty table without headings: a column that is never wrapped, and a wrapped one."""
    table = Table.grid(padding=CELL_PADDING)
    table.add_column(no_wrap=True, **first_column)
    table.add_column(overflow="fold")
    return table


def partition_table(**columns: Any) -> Table:
    """An empty table for partitions, with more columns; `key_cells` fills the first three."""
    return new_table(customer="left", query="fold", day="left", **columns)


def with_key(key: PartitionKey, message: str) -> str:
    """The message with the partition in front; the validator's messages already start with it."""
    return message if message.startswith(str(key)) else f"{key}: {message}"


def table_blocks(table: Table) -> list[RenderableType]:
    """The table and an empty line, or nothing for a table without rows."""
    return [table, Text("")] if table.row_count else []


def key_cells(key: PartitionKey) -> list[Text]:
    return [cell(key.customer_id), cell(key.query_name), cell(key.logical_date)]


def cell(value: object, *, style: str = "") -> Text:
    """A printable cell; empty for None."""
    return Text("" if value is None else printable(str(value)), style=style)


def format_instant(instant: datetime) -> str:
    """For people: UTC, to the second."""
    return f"{instant:%Y-%m-%d %H:%M:%S}Z"


def iso_instant(instant: datetime | None) -> str | None:
    """For programs: ISO 8601 with microseconds."""
    return None if instant is None else instant.isoformat(timespec="microseconds")


def count_of(count: int, noun: str) -> str:
    """A number with its noun: '1 run', '2 runs'."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def terminal_progress() -> ProgressReporter:
    """Shows progress on standard error when that is a terminal, else nothing."""
    return progress_on(sys.stderr) if sys.stderr.isatty() else no_progress


def write_results(
    lines: Iterable[Mapping[str, object]],
    blocks: Iterable[RenderableType],
    notes: Iterable[object],
    *,
    as_json: bool,
    wrap_notes: bool = False,
) -> None:
    """Write JSON lines, with the notes on standard error, or else the blocks and below them the notes.

    Notes are formatted last, so they may count what was written. Wrapped notes cannot be copied as commands.
    """
    if as_json:
        write_json(lines)
        sys.stderr.writelines(f"{printable(str(note))}\n" for note in notes)
        return
    console = OutputConsole()
    for block in blocks:
        console.print(block)
    for note in notes:
        console.print(cell(note), soft_wrap=not wrap_notes)


def write_rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write rows as a table, or as one block per row when the table is wider than the terminal."""
    console = OutputConsole()
    table = Table(box=None, pad_edge=False, padding=CELL_PADDING, header_style="bold")
    for number, name in enumerate(names):
        numeric = any(isinstance(row[number], Number) and not isinstance(row[number], bool) for row in rows)
        table.add_column(cell(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_sql_cell, row))
    unlimited = console.options.update(width=1_000_000)
    fits = Measurement.get(console, unlimited, table).maximum <= console.width + CELL_PADDING[1]
    console.print(*([table] if fits or not rows else _blocks(names, rows)), sep="\n")


def write_json(lines: Iterable[Mapping[str, object]]) -> None:
    """Write one JSON object per line, with unprintable characters escaped."""
    for line in lines:
        text = json.dumps({name: _json_value(value) for name, value in line.items()}, ensure_ascii=False, default=str)
        if not text.isprintable():
            text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
        sys.stdout.write(text + "\n")


def write_csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write CSV with a header line; None is empty. Control characters are removed only on a terminal."""
    clean = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in chain([names], rows):
        writer.writerow(["" if value is None else clean(_sql_text(value)) for value in row])


def _sql_cell(value: object) -> Text:
    return Text("NULL", style="dim") if value is None else cell(_sql_text(value))


def _sql_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _blocks(names: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[Table | Text]:
    for number, row in enumerate(rows, 1):
        yield Text(f"row {number}", style="bold")
        block = Table(box=None, pad_edge=False, padding=CELL_PADDING, show_header=False)
        block.add_column(style="dim")
        block.add_column(overflow="fold")
        for name, value in zip(names, row, strict=True):
            block.add_row(cell(name), _sql_cell(value))
        yield block


def _json_value(value: object) -> object:
    """Convert what JSON lacks: NaN and infinities to text, bytes to hex."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case list() | tuple():
            return [_json_value(each) for each in value]
        case dict():
            return {str(name): _json_value(each) for name, each in value.items()}
        case bytes():
            return value.hex()
    return value
