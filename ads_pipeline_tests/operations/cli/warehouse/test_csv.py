"""`warehouse query --csv`: other programs read back the same rows, and a spreadsheet executes nothing."""

import csv
import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ads_pipeline.operations.cli.command_line.csv_output import CsvFormat
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.operations.cli.running import CommandLine

Rows = Sequence[Sequence[str | int | None]]
NULL = r"\N"
# Text of a payload has neither NUL nor lone surrogates; the seal and the validator refuse them.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.sampled_from(
    [
        "\r",
        "a\rb",
        "\r\n",
        "\n",
        '"',
        '""',
        ",",
        " ",
        "",
        NULL,
        "NULL",
        "nan",
        "=1",
        "\t=1",
        "\ufeff",
        "\x1a",
        "\u2028",
        "\x85",
    ]
)
ROWS = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(st.none() | TEXTS, min_size=width, max_size=width)))


def write(rows: Rows, csv_format: CsvFormat) -> str:
    """The CSV of the rows, below the names of their columns."""
    names = [f"column{number}" for number in range(len(rows[0]) if rows else 1)]
    with redirect_stdout(io.StringIO(newline="")) as out:
        csv_format.write(names, rows)
    return out.getvalue()


def read_with_pandas(text: str, null: str | None = None) -> list[list[str | None]]:
    nulls = {} if null is None else {"na_values": [null]}
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, **nulls)
    return [[None if pd.isna(value) else value for value in row] for row in frame.to_numpy().tolist()]


@settings(max_examples=examples(200), deadline=None)
@given(ROWS)
@example([["a\rb", "", None, "=1"], ["\r", "x", "\r\n", '"']])
@example([[None], [""], ["\r"]])
def test_python_and_pandas_read_the_same_rows(rows: Rows) -> None:
    """The same number of rows, with the same text in the same columns; NULL is read as empty text."""
    text, texts = write(rows, CsvFormat(csv=True)), [[value or "" for value in row] for row in rows]
    assert list(csv.reader(io.StringIO(text, newline="")))[1:] == texts
    assert read_with_pandas(text) == texts


@settings(max_examples=examples(200), deadline=None)
@given(ROWS)
def test_named_null_is_distinguished_by_pandas(rows: Rows) -> None:
    """With --null, a reader of the bare text distinguishes NULL from every other text."""
    rows = [[value if value != NULL else "" for value in row] for row in rows]
    text = write(rows, CsvFormat(csv=True, null=NULL))
    assert read_with_pandas(text, NULL) == [list(row) for row in rows]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=ROWS.filter(lambda rows: bool(rows) and len(rows[0]) > 1))
def test_quotes_distinguish_empty_text_from_null(rows: Rows, tmp_path: Path) -> None:
    """DuckDB, as Postgres, reads an empty field as NULL and one in quotes as empty text."""
    path = tmp_path / "rows.csv"
    path.write_text(write(rows, CsvFormat(csv=True)), encoding="utf-8", newline="")
    columns = {f"column{number}": "VARCHAR" for number in range(len(rows[0]))}
    read = duckdb.read_csv(
        str(path),
        columns=columns,
        header=True,
        sep=",",
        quotechar='"',
        escapechar='"',
        na_values="",
        allow_quoted_nulls=False,
        parallel=False,
    )
    assert read.fetchall() == [tuple(row) for row in rows]


@pytest.mark.invariant("X2")
@pytest.mark.parametrize("start", list("=+-@\t\r\n＝＋－＠"))  # noqa: RUF001 - meant
def test_spreadsheet_executes_no_text(start: str) -> None:
    """With --spreadsheet, a text that would be a formula begins with an apostrophe; numbers stay numbers."""
    formula = f"{start}cmd|' /C calc'!A0"
    rows: Rows = [[formula, -5, None, "plain"]]
    (_names, read) = csv.reader(io.StringIO(write(rows, CsvFormat(csv=True, spreadsheet=True)), newline=""))
    assert read == [f"'{formula}", "-5", "", "plain"]
    (_names, read) = csv.reader(io.StringIO(write(rows, CsvFormat(csv=True)), newline=""))
    assert read[0] == formula


def test_csv_has_every_type_as_json_has(empty_cli: CommandLine) -> None:
    """Lists, structs and bytes have the text that --json gives them."""
    sql = (
        "SELECT [DATE '2026-03-01'] AS l, {'a': 'x,y'} AS s, '\\xAA'::BLOB AS b, true AS t, 1.50::DECIMAL(4, 2) AS d"
    )
    (_names, row) = csv.reader(io.StringIO(empty_cli.run("warehouse", "query", sql, "--csv").out))
    assert row == ['["2026-03-01"]', '{"a": "x,y"}', "aa", "true", "1.50"]
    (line,) = empty_cli.run("warehouse", "query", sql, "--json").objects
    assert [json.loads(row[0]), json.loads(row[1]), *row[2:3]] == [line["l"], line["s"], line["b"]]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--null", "NULL"], "--null needs --csv"),
        (["--spreadsheet", "--json"], "--spreadsheet needs --csv"),
        (["--csv", "--null", "a,b"], "use printable text without commas and quotes"),
        (["--csv", "--null", "\x1b"], "use printable text without commas and quotes"),
        (["--csv", "--json"], "choose one"),
    ],
)
def test_options_of_csv_need_csv(empty_cli: CommandLine, arguments: list[str], problem: str) -> None:
    """An option that would have no effect is refused, and so is a NULL that needs quotes."""
    result = empty_cli.run("warehouse", "query", "SELECT 1", *arguments)
    assert (result.code, result.out) == (64, "")
    assert problem in result.err
