"""`warehouse query` and `warehouse gaps`: rows and missing days as table, JSON and CSV."""

import csv
import io
import json

import pytest

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.builders import read_tree
from ads_pipeline_tests.ledger.builders import accepted_runs, action_request, key, publish_runs, run
from ads_pipeline_tests.operations.cli.running import WEEK, CommandLine, DemoCommandLine

CLICKS = "SELECT customer_id, sum(clicks) AS clicks FROM campaign_daily GROUP BY ALL ORDER BY ALL"
HOSTILE = "SELECT chr(27) || '[31m[red]' || chr(155) || chr(10) || 'ü' AS \"a b\", NULL AS n, true AS t"


def query(cli: CommandLine, sql: str, *arguments: str) -> list[str]:
    result = cli.run("warehouse", "query", sql, *arguments)
    assert (result.code, result.err) == (0, "")
    return result.lines


def query_error(cli: CommandLine, sql: str, *arguments: str) -> str:
    """The single error line of a query_error statement."""
    result = cli.run("warehouse", "query", sql, *arguments)
    assert (result.code, result.out) == (64, "")
    (line,) = result.err.splitlines()
    assert line.startswith("ads-pipeline: ")
    return line


def test_rows_are_printed_as_a_table(demo_cli: DemoCommandLine) -> None:
    """The table has a header with the column names and ends with the number of rows."""
    lines = query(demo_cli, CLICKS)
    assert lines[0].split() == ["customer_id", "clicks"]
    assert [line.split()[0] for line in lines[1:5]] == ["1180250317", "2046619385", "3391704826", "4727351908"]
    assert lines[5:] == ["", "4 rows"]


def test_formats_hold_the_same_values(demo_cli: DemoCommandLine) -> None:
    """Table, JSON lines and CSV hold the same values in the same order."""
    table = [tuple(line.split()) for line in query(demo_cli, CLICKS)[1:5]]
    objects = [json.loads(line) for line in query(demo_cli, CLICKS, "--json")]
    rows = list(csv.reader(query(demo_cli, CLICKS, "--csv")))
    assert [(each["customer_id"], str(each["clicks"])) for each in objects] == table
    assert rows == [["customer_id", "clicks"], *map(list, table)]


def test_only_safe_rows_are_read(demo_cli: DemoCommandLine) -> None:
    """Rejected runs have no rows, and a restated day has the rows of the newer run."""
    shown_days = "SELECT DISTINCT customer_id || logical_date AS seen, run_id FROM campaign_daily"
    seen = {row["seen"]: row["run_id"] for row in map(json.loads, query(demo_cli, shown_days, "--json"))}
    bad, restated = demo_cli.demo.negative_cost, demo_cli.demo.restated
    assert f"{bad.key.customer_id}{bad.key.logical_date}" not in seen
    assert seen[f"{restated.key.customer_id}{restated.key.logical_date}"] == restated.run_id
    assert len(seen) == 26


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_statements_run_in_utc(empty_cli: CommandLine, zone: str) -> None:
    """A statement gives the same result in every time zone of the machine."""
    sql = "SELECT TIMESTAMPTZ '2026-03-01 23:30:00+00'::VARCHAR AS t, TIMESTAMPTZ '2026-03-01 23:30:00+00'::DATE AS d"
    done = empty_cli.process("warehouse", "query", sql, "--csv", TZ=zone)
    assert (done.code, done.lines[1:]) == (0, ["2026-03-01 23:30:00+00,2026-03-01"])


def test_table_shows_100_rows_by_default(demo_cli: DemoCommandLine) -> None:
    """A cut table says so; --limit applies to every format; JSON and CSV have no default limit."""
    lines = query(demo_cli, "SELECT * FROM range(1500) t(n)")
    assert len(lines) == 1 + 100 + 2
    assert lines[-1] == "more than 100 rows; --limit N shows more, --json and --csv give every row"
    assert query(demo_cli, "SELECT * FROM range(1500) t(n)", "--limit", "1500")[-1] == "1,500 rows"
    assert query(demo_cli, "SELECT * FROM range(1) t(n)")[-1] == "1 row"
    assert len(query(demo_cli, "SELECT * FROM range(1500) t(n)", "--json")) == 1500
    assert len(query(demo_cli, "SELECT * FROM range(1500) t(n)", "--csv", "--limit", "1200")) == 1201


def test_wide_rows_are_printed_as_blocks(demo_cli: DemoCommandLine) -> None:
    """At 80 columns, a row with many columns becomes one line per column."""
    lines = query(demo_cli, "SELECT * FROM campaign_daily ORDER BY ALL LIMIT 2")
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("row ")] == ["row 1", "row 2"]
    (name, *_others) = [line for line in lines if line.startswith("campaign_name")]
    assert name.split(maxsplit=1)[1].strip().startswith("Fahrräder | ")


def test_empty_result_has_column_names(demo_cli: DemoCommandLine) -> None:
    """An empty result prints its column names, and no JSON objects."""
    nothing = "SELECT customer_id, clicks FROM campaign_daily WHERE false"
    assert [query(demo_cli, nothing)[0].split(), query(demo_cli, nothing)[-1]] == [
        ["customer_id", "clicks"],
        "0 rows",
    ]
    assert query(demo_cli, nothing, "--json") == []
    assert query(demo_cli, nothing, "--csv") == ["customer_id,clicks"]


def test_control_characters_are_escaped(demo_cli: DemoCommandLine) -> None:
    """Control characters are escaped in the table and in JSON; parsed JSON has the original value."""
    (_names, row, _empty, _count) = query(demo_cli, HOSTILE)
    assert row.split() == [r"\x1b[31m[red]\x9b\nü", "NULL", "true"]
    (line,) = query(demo_cli, HOSTILE, "--json")
    assert line.isprintable()
    assert "ü" in line
    assert json.loads(line) == {"a b": "\x1b[31m[red]\x9b\nü", "n": None, "t": True}


def test_json_covers_every_type(demo_cli: DemoCommandLine) -> None:
    """Dates, decimals, lists, bytes and non-finite numbers become valid JSON."""
    kinds = (
        "SELECT DATE '2026-03-01' AS day, 1.50::DECIMAL(4, 2) AS d, 'nan'::DOUBLE AS x, [DATE '2026-03-01'] AS l, "
        "{'a': 'inf'::DOUBLE} AS s, MAP {1: 2} AS m, '\\xAA'::BLOB AS b, 170141183460469231731687303715884105727 AS h"
    )
    (line,) = query(demo_cli, kinds, "--json")
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


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT nope FROM campaign_daily", 'Referenced column "nope" not found'),
        (
            "SELECT * FROM campaign",
            "(views: accounts, ad_group_daily, ad_group_daily_current, ad_group_daily_settled, campaign_daily, ",
        ),
        ("SELECT * FROM keyword_daily", "Table with name keyword_daily does not exist!"),
        ("SELECT 'x'::INT", "Could not convert string 'x' to INT32"),
        ("SELECT error(chr(10) || chr(27))", r"\x1b"),
        ("SELECT ?", "prepared statement parameters"),
        ("SELECT * FROM read_csv('/etc/passwd')", "Permission Error"),
        ("SELECT * FROM delta_campaign_daily", "Table with name delta_campaign_daily does not exist!"),
        ("SELECT * FROM delta_scan('/')", "delta_scan"),
        ("SELECT * FROM sql", "Table with name sql does not exist!"),
        ("", "only one SELECT"),
        ("/* nothing */", "only one SELECT"),
        ("SELECT 1; SELECT 2", "only one SELECT"),
    ],
)
def test_sql_error_is_one_line(demo_cli: DemoCommandLine, sql: str, message: str) -> None:
    """DuckDB's error is one line without the statement excerpt; for a missing view it lists the views."""
    line = query_error(demo_cli, sql)
    assert message in line
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
def test_other_statements_are_refused(demo_cli: DemoCommandLine, sql: str) -> None:
    """Nothing can be written through the command, in particular not to the warehouse."""
    before = read_tree(demo_cli.home / "warehouse")
    assert "only one SELECT" in query_error(demo_cli, sql.format(warehouse=demo_cli.home / "warehouse"))
    assert read_tree(demo_cli.home / "warehouse") == before


def test_deleted_data_file_is_not_an_error_of_the_statement(demo_cli: DemoCommandLine) -> None:
    """The exit code says that the warehouse is unavailable, and the message names the table and the file."""
    table = demo_cli.home / "warehouse" / "google_ads" / "campaign_daily"
    day = min(table.glob("logical_date=*"))
    day.rename(table / "_away")
    result = demo_cli.run("warehouse", "query", CLICKS)
    (table / "_away").rename(day)
    assert result.code == 69
    assert "google_ads/campaign_daily" in result.err
    assert day.name in result.err
    assert len(result.err.splitlines()) == 1


def test_json_refuses_duplicate_column_names(demo_cli: DemoCommandLine) -> None:
    """Duplicate column names are query_error, because JSON would lose one value."""
    assert "two columns are named v" in query_error(demo_cli, "SELECT 1 AS v, 2 AS v", "--json")


def test_json_and_csv_exclude_each_other(demo_cli: DemoCommandLine) -> None:
    """--json together with --csv is an error."""
    assert "choose one" in query_error(demo_cli, "SELECT 1", "--json", "--csv")


def test_warehouse_without_tables_says_so(empty_cli: CommandLine) -> None:
    """Before the first load, a query error says that nothing is loaded yet."""
    assert "(nothing is loaded yet)" in query_error(empty_cli, "SELECT * FROM campaign_daily")
    assert query(empty_cli, "SELECT 1 AS one")[1].strip() == "1"


def test_load_records_are_listed_in_three_formats(demo_cli: DemoCommandLine) -> None:
    """Table, JSON and CSV list the same loads; the record of the rows that readers see is marked."""
    arguments = ("warehouse", "loads", "--query", "campaign_daily", "--customer", "1180250317")
    lines = [json.loads(line) for line in demo_cli.run(*arguments, "--json").lines]
    days = {line["logical_date"] for line in lines}
    assert [line["logical_date"] for line in lines] == sorted(days)
    assert list(lines[0]) == [
        *("source", "customer_id", "query_name", "logical_date", "run_id", "schema_version", "record_count"),
        *("table_version", "loaded_at", "is_shown"),
    ]
    (listed,) = csv.reader(io.StringIO(demo_cli.run(*arguments, "--csv", "--limit", "1").out.partition("\n")[2]))
    assert listed[:8] == [str(value) for value in list(lines[0].values())[:8]]
    table = demo_cli.run(*arguments, "--limit", "2")
    assert table.lines[0].split()[:6] == ["customer", "query", "day", "loaded", "rows", "shown"]
    assert table.lines[1].split()[0] == "1180250317"
    seen = "SELECT DISTINCT run_id FROM campaign_daily WHERE customer_id = '1180250317' ORDER BY ALL"
    shown = sorted({line["run_id"] for line in lines if line["is_shown"]})
    assert [json.loads(line)["run_id"] for line in query(demo_cli, seen, "--json")] == shown


def test_load_records_are_listed_page_by_page(demo_cli: DemoCommandLine) -> None:
    """Each page prints how to continue, and all pages together list every record once."""
    every = demo_cli.run("warehouse", "loads", "--json", "--limit", "10000").lines
    paged, start = list[str](), list[str]()
    while True:
        result = demo_cli.run("warehouse", "loads", "--json", "--limit", "20", *start)
        paged += result.lines
        if "--after" not in result.err:
            break
        start = result.err.split()[-2:]
    assert paged == every
    assert demo_cli.run("warehouse", "loads", "--until", "2020-01-01").lines[-1].startswith("0 loads")


def test_gaps_are_listed_with_exit_code_1(demo_cli: DemoCommandLine) -> None:
    """Missing days are listed per query with the reason. A query that was never fetched is not expected."""
    result = demo_cli.run("warehouse", "gaps", *WEEK)
    assert result.code == 1
    assert [line.strip() for line in result.lines if line.endswith("_daily")] == ["ad_group_daily", "campaign_daily"]
    output = [" ".join(line.split()) for line in result.lines]
    assert "3391704826 2026-03-06 1 rejected the payload has 4 rows, the seal says 6" in output
    assert "4727351908 2026-03-08 1 missing no run arrived" in output
    assert output[-3:-1] == ["3 of 84 expected days are not readable", "next, for one of them:"]
    assert max(map(len, result.lines)) <= 80


def test_gaps_without_options_cover_every_query_from_the_first_sealed_day(demo_cli: DemoCommandLine) -> None:
    """Each customer's days are listed from the first sealed day on, not from the start_date of the query file.

    Consecutive days share a line.
    """
    days = demo_cli.run("warehouse", "gaps", "--json").objects
    assert {each["query_name"] for each in days} == {"ad_group_daily", "campaign_daily", "search_term_daily"}
    output = [" ".join(line.split()) for line in demo_cli.run("warehouse", "gaps").lines]
    assert any(line.startswith("1180250317 2026-03-09 to ") for line in output)
    assert min(each["logical_date"] for each in days) == "2026-03-06"
    assert max(each["logical_date"] for each in days) >= "2026-03-09"
    assert {each["condition"] for each in days} <= {"rejected", "missing", "late"}


def test_gaps_say_who_hid_a_day_and_why(empty_cli: CommandLine) -> None:
    """A withdrawn day names its operator, the reason and the command that shows an earlier run again."""
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, [key()])
        publish_runs(ledger, run(key(), "r1"))
        ledger.actions.execute(Action.WITHDRAW, [key()], action_request(reason="wrong currency"))
    day = str(key().logical_date)
    result = empty_cli.run("warehouse", "gaps", "--logical-date", day, "--query", "campaign_daily")
    assert result.lines[2].split(maxsplit=4)[3:] == ["hidden", "withdrawn by ada: wrong currency"]
    arguments = ("--logical-date", day, "--query", "campaign_daily", "--json")
    (hidden,) = empty_cli.run("warehouse", "gaps", *arguments).objects
    assert (hidden["reason"], hidden["operator"], hidden["detail"]) == ("withdrawn", "ada", "wrong currency")
    assert hidden["next_command"] == f"ads-pipeline state restore {_name(key())} --reason TEXT"


def _name(partition: PartitionKey) -> str:
    return str(partition).removeprefix(f"{partition.source}/")


def test_no_gaps_exit_with_0(demo_cli: DemoCommandLine) -> None:
    """Without gaps, one line says so."""
    result = demo_cli.run("warehouse", "gaps", *WEEK, "--query", "search_term_daily")
    assert (result.code, result.out) == (0, "all 28 expected days are readable\n")
    assert demo_cli.run("warehouse", "gaps", *WEEK, "--query", "search_term_daily", "--json").out == ""


def test_gaps_as_json(demo_cli: DemoCommandLine) -> None:
    """One object per gap with a reason code, and the same exit code."""
    result = demo_cli.run("warehouse", "gaps", *WEEK, "--query", "campaign_daily", "--json")
    assert result.code == 1
    assert [(each["logical_date"], each["reason"]) for each in result.objects] == [
        ("2026-03-07", "rejected"),
        ("2026-03-08", "nothing_sealed"),
    ]
    rejected, late = result.objects
    assert late["customer_id"] == demo_cli.demo.late.customer_id
    assert (late["condition"], late["because"], late["since"]) == (
        "missing",
        "no run arrived",
        "2026-03-09T12:00:00.000000+00:00",
    )
    assert late["next_command"] == f"ads-pipeline state enqueue {_name(demo_cli.demo.late)} --reason TEXT"
    assert (rejected["condition"], rejected["attempts"], rejected["operator"]) == ("rejected", 1, None)
    assert rejected["because"] == "its run was rejected"
    assert rejected["detail"].startswith("cost_micros must be at least 0 in 1 row")
    assert result.err.splitlines()[0] == "2 of 28 expected days are not readable"


def test_unknown_customer_is_said_to_be_unknown(demo_cli: DemoCommandLine) -> None:
    """A customer that nobody knows has no gaps. The exit code is 1, so that a typo does not look complete."""
    result = demo_cli.run("warehouse", "gaps", *WEEK, "--customer", "42")
    assert (result.code, result.lines) == (
        1,
        ["customer 42 is not known: it has no run, no failed fetch and no account", "no day is expected"],
    )


def test_days_before_start_date_are_not_expected(demo_cli: DemoCommandLine) -> None:
    """A window entirely before the query file's start_date is an error."""
    before = demo_cli.run("warehouse", "gaps", "--since", "2023-12-01", "--until", "2023-12-31")
    assert (before.code, before.out) == (64, "")
    assert "no day is expected before 2024-01-01" in before.err
