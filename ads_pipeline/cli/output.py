"""Writes answers: as tables for people, as lines of JSON or CSV for programs.

Text from outside is made printable on its way to people, and nothing of it is taken for markup.
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

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ads_pipeline.errors import printable

GAP: Final = (0, 2, 0, 0)


class Paper(Console):
    """Standard output, as wide as the terminal, and 80 columns where there is none."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Rich would end the program here, with the code 1."""
        raise BrokenPipeError


def listing(**columns: Any) -> Table:
    """An empty table of these columns, each with how its cells are laid: 'left', 'right' or 'fold'."""
    table = Table(box=None, pad_edge=False, padding=GAP, header_style="bold")
    for heading, laid in columns.items():
        justify: Any = "right" if laid == "right" else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=laid != "fold")
    return table


def cell(value: object, *, style: str = "") -> Text:
    """A value as people read it; nothing for None."""
    return Text("" if value is None else printable(str(value)), style=style)


def moment(instant: datetime) -> str:
    """An instant as people read it: in UTC, to the second."""
    return f"{instant:%Y-%m-%d %H:%M:%S}Z"


def instant_of(instant: datetime | None) -> str | None:
    """An instant as programs read it."""
    return None if instant is None else instant.isoformat(timespec="microseconds")


def counted(count: int, noun: str) -> str:
    """The number with its noun, in the plural where there is not one."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def write_records(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows of any columns as a table; each row as a block of lines where the table would be wider than the paper."""
    paper = Paper()
    table = Table(box=None, pad_edge=False, padding=GAP, header_style="bold")
    for number, name in enumerate(names):
        numeric = any(isinstance(row[number], Number) and not isinstance(row[number], bool) for row in rows)
        table.add_column(cell(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_sql_cell, row))
    fits = Measurement.get(paper, paper.options.update(width=1_000_000), table).maximum <= paper.width + GAP[1]
    paper.print(*([table] if fits or not rows else _blocks(names, rows)), sep="\n")


def write_json(lines: Iterable[Mapping[str, object]]) -> None:
    """One JSON object a line. What cannot be printed is escaped, which says the same to a program."""
    for line in lines:
        text = json.dumps({name: _plain(value) for name, value in line.items()}, ensure_ascii=False, default=str)
        if not text.isprintable():
            text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
        sys.stdout.write(text + "\n")


def write_csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Comma-separated values with a line of names; None is empty. A terminal is spared control characters."""
    clean = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in chain([names], rows):
        writer.writerow(["" if value is None else clean(_spelt(value)) for value in row])


def _sql_cell(value: object) -> Text:
    return Text("NULL", style="dim") if value is None else cell(_spelt(value))


def _spelt(value: object) -> str:
    """A value as SQL writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _blocks(names: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[Table | Text]:
    for number, row in enumerate(rows, 1):
        yield Text(f"row {number}", style="bold")
        block = Table(box=None, pad_edge=False, padding=GAP, show_header=False)
        block.add_column(style="dim")
        block.add_column(overflow="fold")
        for name, value in zip(names, row, strict=True):
            block.add_row(cell(name), _sql_cell(value))
        yield block


def _plain(value: object) -> object:
    """What JSON can say of a value: numbers that are none become text, as dates do."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case bytes():
            return value.hex()
    return value
