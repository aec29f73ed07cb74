"""Writes CSV that Python, pandas, DuckDB and Postgres read back as the same rows.

A field that holds a comma, a quote or a line break, also a lone carriage return, is quoted. NULL is a field without
quotes, and a text equal to it has quotes: by default NULL is empty and the empty text is `""`, as in Postgres.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Final

import typer

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.quoting import printable, quoted
from ads_pipeline.operations.cli.command_line.output import is_number, sql_text

_SPECIAL: Final = re.compile('[",\r\n]')
# A spreadsheet takes a text that begins so for a formula, also after it has dropped the line break or the tab.
# The last four are the wide forms, which East Asian versions read alike.
_FORMULA_STARTS: Final = tuple("=+-@\t\r\n＝＋－＠")  # noqa: RUF001 - meant
_TEXT_MARK: Final = "'"  # spreadsheets take what follows for text


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """The options that choose CSV and say how it is written."""

    csv: Annotated[bool, typer.Option("--csv", help="Write CSV with a header line.")] = False
    null: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help='With --csv: write NULL as this text. Default: empty, and "" is empty text.'
        ),
    ] = None
    spreadsheet: Annotated[
        bool, typer.Option("--spreadsheet", help="With --csv: put ' before text that a spreadsheet would execute.")
    ] = False

    def check(self, *, as_json: bool) -> None:
        """Raise BadCommand for options that exclude each other."""
        if as_json and self.csv:
            raise BadCommand("--json and --csv cannot be combined: choose one")
        for option, given in {"--null": self.null is not None, "--spreadsheet": self.spreadsheet}.items():
            if given and not self.csv:
                raise BadCommand(f"{option} needs --csv")
        if self.null and (_SPECIAL.search(self.null) or not self.null.isprintable()):
            raise BadCommand(
                f"--null {quoted(self.null)}: use printable text without commas and quotes, such as NULL"
            )

    def write(self, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write a header line and the rows. On a terminal, control characters are escaped."""
        on_terminal = sys.stdout.isatty()
        for row in chain([names], rows):
            line = ",".join(self._field(value, on_terminal=on_terminal) for value in row)
            # Readers skip an empty line, so the only value of a row is never an empty field.
            sys.stdout.write((line or '""') + "\n")

    def _field(self, value: object, *, on_terminal: bool) -> str:
        null = self.null or ""
        if value is None:
            return null
        text = sql_text(value)
        if self.spreadsheet and not is_number(value) and text.startswith(_FORMULA_STARTS):
            text = _TEXT_MARK + text
        if on_terminal:
            text = printable(text, limit=len(text) * 10 + 1)
        if text == null or text != text.strip() or _SPECIAL.search(text):  # readers skip lines of blanks
            return '"' + text.replace('"', '""') + '"'
        return text


NO_CSV: Final = CsvFormat()
