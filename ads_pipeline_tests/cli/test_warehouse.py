"""`warehouse query` and `warehouse gaps`: rows and what is missing, for people and for programs."""

import csv
import io
import json

import pytest

from ads_pipeline_tests.builders import tree
from ads_pipeline_tests.cli.running import WEEK, CommandLine, DemoCommandLine

CLICKS = "SELECT customer_id, sum(clicks) AS clicks FROM campaign_daily GROUP BY ALL ORDER BY ALL"
HOSTILE = "SELECT chr(27) || '[31m[red]' || chr(155) || chr(10) || 'ü' AS \"a b\", NULL AS n, true AS t"


def ask(cli: CommandLine, sql: str, *words: str) -> list[str]:
    ended = cli.run("warehouse", "query", sql, *words)
    assert (ended.code, ended.err) == (0, "")
    return ended.lines


def refused(cli: CommandLine, sql: str, *words: str) -> str:
    """The one line that says what is wrong with a statement."""
    ended = cli.run("warehouse", "query", sql, *words)
    assert (ended.code, ended.out) == (64, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("ads-pipeline: ")
    return line


def test_rows_come_as_a_table(demo_cli: DemoCommandLine) -> None:
    """Under the names of its columns, with how many rows there are."""
    lines = ask(demo_cli, CLICKS)
    assert lines[0].split() == ["customer_id", "clicks"]
    assert [line.split()[0] for line in lines[1:5]] == ["1180250317", "2046619385", "3391704826", "4727351908"]
    assert lines[5:] == ["", "4 rows"]


def test_every_form_tells_the_same(demo_cli: DemoCommandLine) -> None:
    """The table, the JSON lines and the CSV hold the same values in the same order."""
    table = [tuple(line.split()) for line in ask(demo_cli, CLICKS)[1:5]]
    objects = [json.loads(line) for line in ask(demo_cli, CLICKS, "--json")]
    rows = list(csv.reader(ask(demo_cli, CLICKS, "--csv")))
    assert [(each["customer_id"], str(each["clicks"])) for each in objects] == table
    assert rows == [["customer_id", "clicks"], *map(list, table)]


def test_only_what_is_safe_is_read(demo_cli: DemoCommandLine) -> None:
    """Rows of the rejected runs are not there, and of the restated day there are the newer ones."""
    shown_days = "SELECT DISTINCT customer_id || logical_date AS seen, run_id FROM campaign_daily"
    seen = {row["seen"]: row["run_id"] for row in map(json.loads, ask(demo_cli, shown_days, "--json"))}
    bad, restated = demo_cli.demo.bad, demo_cli.demo.restated
    assert f"{bad.key.customer_id}{bad.key.logical_date}" not in seen
    assert seen[f"{restated.key.customer_id}{restated.key.logical_date}"] == restated.run_id
    assert len(seen) == 26


def test_a_table_shows_a_hundred_rows_unless_told_otherwise(demo_cli: DemoCommandLine) -> None:
    """A table that was cut says so; a limit is kept in every form; programs get everything without one."""
    lines = ask(demo_cli, "SELECT * FROM range(1500) t(n)")
    assert len(lines) == 1 + 100 + 2
    assert lines[-1] == "more than 100 rows; --limit N shows more, --json and --csv give every row"
    assert ask(demo_cli, "SELECT * FROM range(1500) t(n)", "--limit", "1500")[-1] == "1,500 rows"
    assert ask(demo_cli, "SELECT * FROM range(1) t(n)")[-1] == "1 row"
    assert len(ask(demo_cli, "SELECT * FROM range(1500) t(n)", "--json")) == 1500
    assert len(ask(demo_cli, "SELECT * FROM range(1500) t(n)", "--csv", "--limit", "1200")) == 1201


def test_rows_wider_than_the_paper_are_written_as_blocks(demo_cli: DemoCommandLine) -> None:
    """At 80 columns a row of many columns is a line for each of them, not a column of single letters."""
    lines = ask(demo_cli, "SELECT * FROM campaign_daily ORDER BY ALL LIMIT 2")
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("row ")] == ["row 1", "row 2"]
    (name, *_others) = [line for line in lines if line.startswith("campaign_name")]
    assert name.split(maxsplit=1)[1].strip().startswith("Fahrräder | ")


def test_no_rows_still_have_names(demo_cli: DemoCommandLine) -> None:
    """An empty answer shows its columns, and is an empty stream of objects."""
    nothing = "SELECT customer_id, clicks FROM campaign_daily WHERE false"
    assert [ask(demo_cli, nothing)[0].split(), ask(demo_cli, nothing)[-1]] == [["customer_id", "clicks"], "0 rows"]
    assert ask(demo_cli, nothing, "--json") == []
    assert ask(demo_cli, nothing, "--csv") == ["customer_id,clicks"]


def test_hostile_values_reach_no_terminal(demo_cli: DemoCommandLine) -> None:
    """Control characters are escaped in the table and in JSON, which a program reads back unchanged."""
    (_names, row, _empty, _count) = ask(demo_cli, HOSTILE)
    assert row.split() == [r"\x1b[31m[red]\x9b\nü", "NULL", "true"]
    (line,) = ask(demo_cli, HOSTILE, "--json")
    assert line.isprintable()
    assert "ü" in line
    assert json.loads(line) == {"a b": "\x1b[31m[red]\x9b\nü", "n": None, "t": True}


def test_every_kind_of_value_is_json(demo_cli: DemoCommandLine) -> None:
    """Days, decimals, lists, bytes and numbers that JSON lacks become text that any program can read."""
    kinds = (
        "SELECT DATE '2026-03-01' AS day, 1.50::DECIMAL(4, 2) AS d, 'nan'::DOUBLE AS x, [DATE '2026-03-01'] AS l, "
        "{'a': 'inf'::DOUBLE} AS s, MAP {1: 2} AS m, '\\xAA'::BLOB AS b, 170141183460469231731687303715884105727 AS h"
    )
    (line,) = ask(demo_cli, kinds, "--json")
    assert json.loads(line, parse_constant=pytest.fail) == {
        "day": "2026-03-01",
        "d": "1.50",
        "x": "nan",
        "l": ["2026-03-01"],
        "s": {"a": "inf"},
        "m": {"1": 2},
        "b": "aa",
        "h": 170141183460469231731687303715884105727,
    }


def test_csv_survives_what_values_hold(demo_cli: DemoCommandLine) -> None:
    """Commas, quotes and line breaks in a value are read back by any reader of CSV."""
    ended = demo_cli.run("warehouse", "query", "SELECT 'a,\"b\"' || chr(10) || 'c' AS v, NULL AS n, 1 AS v", "--csv")
    assert list(csv.reader(io.StringIO(ended.out))) == [["v", "n", "v"], ['a,"b"\nc', "", "1"]]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT nope FROM campaign_daily", 'Referenced column "nope" not found'),
        ("SELECT * FROM campaign", "(there are ad_group_daily, ad_group_daily_current, campaign_daily, "),
        ("SELECT * FROM keyword_daily", "Table with name keyword_daily does not exist!"),
        ("SELECT 'x'::INT", "Could not convert string 'x' to INT32"),
        ("SELECT error(chr(10) || chr(27))", r"\x1b"),
        ("SELECT ?", "prepared statement parameters"),
        ("SELECT * FROM read_csv('/etc/passwd')", "Permission Error"),
        ("", "write one SELECT"),
        ("/* nothing */", "write one SELECT"),
        ("SELECT 1; SELECT 2", "write one SELECT"),
    ],
)
def test_a_mistake_in_sql_is_one_line(demo_cli: DemoCommandLine, sql: str, said: str) -> None:
    """What DuckDB has to say, without its drawing, and which views there are when one is missing."""
    line = refused(demo_cli, sql)
    assert said in line
    assert line.isprintable()
    assert "LINE 1" not in line


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{warehouse}/google_ads/out.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{warehouse}/google_ads/out.csv'",
        "INSERT INTO delta_campaign_daily SELECT * FROM delta_campaign_daily",
        "EXPORT DATABASE '{warehouse}/google_ads/out'",
        "ATTACH '{warehouse}/google_ads/out.db' AS other",
        "CREATE TABLE t AS SELECT 1",
        "SET enable_external_access = true",
    ],
)
def test_what_is_not_a_select_does_not_run(demo_cli: DemoCommandLine, sql: str) -> None:
    """Nothing can be written through the command, in the warehouse least of all."""
    before = tree(demo_cli.home / "warehouse")
    assert "write one SELECT" in refused(demo_cli, sql.format(warehouse=demo_cli.home / "warehouse"))
    assert tree(demo_cli.home / "warehouse") == before


def test_json_keeps_no_two_columns_under_one_name(demo_cli: DemoCommandLine) -> None:
    """One of the two values would be lost, so they must be told apart first."""
    assert "two columns are named v" in refused(demo_cli, "SELECT 1 AS v, 2 AS v", "--json")


def test_two_forms_at_once_are_refused(demo_cli: DemoCommandLine) -> None:
    """Whoever asks for JSON and for CSV is asked to choose."""
    assert "choose one" in refused(demo_cli, "SELECT 1", "--json", "--csv")


def test_a_warehouse_without_tables_says_so(empty_cli: CommandLine) -> None:
    """Before the first load there is no view, which is no fault of the statement's spelling."""
    assert "(nothing was loaded yet)" in refused(empty_cli, "SELECT * FROM campaign_daily")
    assert ask(empty_cli, "SELECT 1 AS one")[1].strip() == "1"


def test_gaps_are_told_and_end_with_one(demo_cli: DemoCommandLine) -> None:
    """Each query's missing days stand under its name with the reason, days in a row on one line."""
    ended = demo_cli.run("warehouse", "gaps", *WEEK)
    assert ended.code == 1
    assert [line.strip() for line in ended.lines if "_daily" in line] == [
        "ad_group_daily",
        "campaign_daily",
        "keyword_daily",
    ]
    told = [" ".join(line.split()) for line in ended.lines]
    assert "3391704826 2026-03-06 1 its run was rejected:" in told
    assert "4727351908 2026-03-08 1 no run was registered" in told
    assert told.count("1180250317 2026-03-02 to 2026-03-08 7 no run was registered") == 1
    assert told[-1] == "31 of 112 expected partitions missing"
    assert "the payload has 4 rows, the seal says 6" in " ".join(told)
    assert max(map(len, ended.lines)) <= 80


def test_no_gaps_end_with_nought(demo_cli: DemoCommandLine) -> None:
    """Where all that is expected can be read there is one line to say so."""
    ended = demo_cli.run("warehouse", "gaps", *WEEK, "--query", "search_term_daily")
    assert (ended.code, ended.out) == (0, "none of 28 expected partitions missing\n")
    assert demo_cli.run("warehouse", "gaps", *WEEK, "--query", "search_term_daily", "--json").out == ""


def test_gaps_can_be_read_by_programs(demo_cli: DemoCommandLine) -> None:
    """One object a gap, with a word for the reason that code may compare, and the same exit code."""
    ended = demo_cli.run("warehouse", "gaps", *WEEK, "--query", "campaign_daily", "--json")
    assert ended.code == 1
    assert [(each["logical_date"], each["reason"]) for each in ended.objects] == [
        ("2026-03-07", "rejected"),
        ("2026-03-08", "nothing_sealed"),
    ]
    assert ended.objects[1]["customer_id"] == demo_cli.demo.late.customer_id
    assert ended.err == "2 of 28 expected partitions missing\n"


def test_customers_may_be_named(demo_cli: DemoCommandLine) -> None:
    """A named customer is expected even when the ledger never heard of it; the others are left out."""
    ended = demo_cli.run("warehouse", "gaps", *WEEK, "--query", "campaign_daily", "--customer", "42")
    assert ended.lines[2].split() == ["42", "2026-03-02", "to", "2026-03-08", "7", "no", "run", "was", "registered"]
    assert ended.lines[-1] == "7 of 7 expected partitions missing"


def test_days_before_the_beginning_are_not_expected(demo_cli: DemoCommandLine) -> None:
    """The start_date of the query file cuts the window; a window wholly before it makes no sense."""
    words = ("--query", "campaign_daily", "--customer", "42")
    ended = demo_cli.run("warehouse", "gaps", "--since", "2023-12-01", "--until", "2024-01-02", *words)
    assert ended.lines[-1] == "2 of 2 expected partitions missing"
    before = demo_cli.run("warehouse", "gaps", "--since", "2023-12-01", "--until", "2023-12-31", *words)
    assert (before.code, before.out) == (64, "")
    assert "begins with 2024-01-01" in before.err


def test_a_ledger_that_knows_nobody_is_no_good_news(empty_cli: CommandLine) -> None:
    """With no customer to expect anything of, the answer is a refusal and not "no gaps"."""
    ended = empty_cli.run("warehouse", "gaps", *WEEK)
    assert (ended.code, ended.out) == (64, "")
    assert "--customer" in ended.err
