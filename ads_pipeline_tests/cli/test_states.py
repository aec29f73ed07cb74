"""`state inspect`: which states are listed, how people and programs read them, and where the next page begins."""

from dataclasses import fields

import duckdb
import pytest

from ads_pipeline.domain.transitions import Outcome, PartitionState, Verdict
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import Publication, RunRegistration
from ads_pipeline_tests.cli.running import CommandLine, DemoCommandLine
from ads_pipeline_tests.ledger.builders import acceptance, accepted_runs, key, registered_runs, rejection, run

CURRENT = (
    "display_status",
    "stale_since",
    "stale_reasons",
    "last_materialization_run_id",
    "last_materialization_at",
    "last_attempt_run_id",
    "last_attempt_at",
    "last_attempt_outcome",
)
AHEAD = {
    *("next_try_at", "next_try_why", "terminal", "marked_terminal"),
    *("requested", "requested_at", "requested_by_act", "parked", "held_by_run"),
}
HOSTILE = "\x1b[31m[red]\nforged :smile:"


def test_a_page_is_a_table_under_its_headings(demo_cli: DemoCommandLine) -> None:
    """One line a partition, in key order, then the tally of all that match."""
    ended = demo_cli.run("state", "inspect", "--customer", "1180250317", "--query", "campaign_daily")
    assert ended.lines[0].split() == ["customer", "query", "day", "status", "rows", "attempts", "data"]
    cells = [line.split() for line in ended.lines[1:8]]
    assert [row[2] for row in cells] == [f"2026-03-0{day}" for day in range(2, 9)]
    assert cells[1] == ["1180250317", "campaign_daily", "2026-03-03", "success", "3", "2", "current"]
    assert ended.lines[8:] == ["", "7 partitions: 7 success"]
    assert (ended.code, ended.err) == (0, "")


def test_a_failure_is_told_below_the_table(demo_cli: DemoCommandLine) -> None:
    """What the validator said of a failed partition can be read where it is listed."""
    ended = demo_cli.run("state", "inspect", "--status", "failed")
    told = " ".join(ended.out.split())
    assert "cost_micros must be at least 0 in 1 row" in told
    assert "the payload has 4 rows, the seal says 6" in told
    assert str(demo_cli.demo.bad) in ended.out
    assert ended.lines[-1] == "2 partitions: 2 failed"


def test_a_wide_terminal_is_told_more(demo_cli: DemoCommandLine) -> None:
    """Where there is room, the current run and the time of the last change stand in the table."""
    wide = CommandLine(home=demo_cli.home, more={"COLUMNS": "130"}).run("state", "inspect", "--limit", "1")
    assert wide.lines[0].split()[-2:] == ["updated", "run"]
    assert wide.lines[1].split()[-1].startswith("20260303T043000000Z-")


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ((), 83),
        (("--status", "success"), 81),
        (("--status", "failed", "--status", "success"), 83),
        (("--status", "pending"), 0),
        (("--customer", "1180250317"), 21),
        (("--customer", "1180250317", "--customer", "2046619385"), 42),
        (("--query", "campaign_daily", "--query", "ad_group_daily"), 55),
        (("--query", "keyword_daily"), 0),
        (("--since", "2026-03-08"), 11),
        (("--until", "2026-03-02"), 12),
        (("--since", "2026-03-03", "--until", "2026-03-04", "--query", "campaign_daily"), 8),
        (("--customer", "99"), 0),
    ],
)
def test_filters_narrow_together(demo_cli: DemoCommandLine, words: tuple[str, ...], count: int) -> None:
    """Values of one option widen, options narrow, and both ends of a window are in it."""
    assert len(demo_cli.run("state", "inspect", "--json", *words).objects) == count


def test_a_program_gets_every_field(demo_cli: DemoCommandLine) -> None:
    """Each line is one object with the key's fields and the state's, and the tally does not stand among them."""
    ended = demo_cli.run("state", "inspect", "--json", "--status", "failed")
    (bad, damaged) = ended.objects
    own = {field.name for field in fields(PartitionState)} - {"key"}
    current = {f"{asset}_{name}" for asset in ("raw", "warehouse") for name in CURRENT}
    assert bad.keys() == own | current | AHEAD | {"source", "customer_id", "query_name", "logical_date"}
    assert (bad["raw_display_status"], bad["raw_last_attempt_outcome"]) == ("NeverMaterialized", "FAILED")
    assert (bad["customer_id"], bad["logical_date"]) == (demo_cli.demo.bad.key.customer_id, "2026-03-07")
    assert (bad["status"], bad["attempt_count"], bad["current_run_id"]) == ("failed", 1, None)
    assert damaged["error_message"].endswith("the payload has 4 rows, the seal says 6")
    assert ended.err == "2 partitions: 2 failed\n"


@pytest.mark.parametrize("limit", [1, 40, 82, 83, 10_000])
def test_pages_make_the_whole(demo_cli: DemoCommandLine, limit: int) -> None:
    """Going on from the key that each page names gives each partition once, and the last page names none."""
    seen: list[str] = []
    more: tuple[str, ...] = ()
    for _page in range(3):
        ended = demo_cli.run("state", "inspect", "--json", "--limit", str(limit), *more)
        seen += [f"{each['customer_id']}/{each['query_name']}/{each['logical_date']}" for each in ended.objects]
        notes = ended.err.splitlines()
        if len(notes) == 1:
            break
        assert notes[1] == f"{83 - len(seen)} more follow; go on with"
        more = tuple(notes[2].split())
    assert seen == sorted(set(seen))
    assert len(seen) == min(83, 3 * limit)


def test_what_is_very_many_is_not_counted_to_its_end(demo_cli: DemoCommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a status that very many have, the remarks say that there are more than were counted."""
    monkeypatch.setattr("ads_pipeline.cli.states.MOST", 40)
    ended = demo_cli.run("state", "inspect", "--limit", "50")
    assert ended.lines[-3:-1] == [
        "more than 42 partitions: more than 40 success, 2 failed",
        "33 more follow; go on with",
    ]
    monkeypatch.setattr("ads_pipeline.cli.states.MOST", 30)
    ended = demo_cli.run("state", "inspect", "--limit", "50")
    assert ended.lines[-2] == "more than 30 more follow; go on with"


def test_a_line_fits_eighty_columns(demo_cli: DemoCommandLine) -> None:
    """No line of the table, of the messages or of the remarks is wider, down to the key to go on from."""
    ended = demo_cli.run("state", "inspect", "--limit", "70")
    assert max(map(len, ended.lines)) <= 80
    assert "--after google_ads/4727351908/" in ended.out


def test_nothing_found_is_said(empty_cli: CommandLine) -> None:
    """An empty answer is no error, and a query that the query file does not know is named."""
    ended = empty_cli.run("state", "inspect", "--query", "campaign_dayly")
    assert ended.code == 0
    assert "no recorded partition matches" in ended.lines
    assert "campaign_dayly is no query of" in ended.out
    assert "campaign_daily" in ended.out


def test_hostile_text_reaches_no_terminal(empty_cli: CommandLine) -> None:
    """A message that somebody's rows shaped can neither colour, nor break the line, nor be taken for markup."""
    bad = run(key(), "r1")
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        ledger.register([RunRegistration(run=bad, schema_version="1", record_count=1)])
        ledger.record_verdict(
            Verdict(run=bad, outcome=Outcome.REJECTED, error_class="row_contract", error_message=HOSTILE)
        )
    ended = empty_cli.run("state", "inspect")
    assert r"\x1b[31m[red]\nforged :smile:" in ended.out
    assert all(line.isprintable() for line in ended.lines)
    (state,) = empty_cli.run("state", "inspect", "--json").objects
    assert state["error_message"] == r"\x1b[31m[red]\nforged :smile:"


def test_how_current_the_data_are_stands_beside_the_status(empty_cli: CommandLine) -> None:
    """A success is not loaded, then current, then has a bad rerun behind it; it stays a success all the while."""
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, [key()])
        assert _told(empty_cli) == ["success", "3", "1", "not", "loaded"]
        ledger.publish([Publication(run=run(key(), "r1"), table_version=0)])
        assert _told(empty_cli) == ["success", "3", "1", "current"]
        (newer, worse) = registered_runs(ledger, key(), "r2", "r3")
        ledger.record_verdict(acceptance(newer))
        assert _told(empty_cli) == ["success", "3", "2", "not", "loaded"]
        (told,) = empty_cli.run("state", "inspect", "--json").objects
        assert (told["warehouse_display_status"], told["warehouse_stale_reasons"]) == ("Stale", ["UPSTREAM_CHANGED"])
        assert told["warehouse_stale_since"] == told["raw_last_materialization_at"]
        ledger.publish([Publication(run=newer, table_version=1)])
        ledger.record_verdict(rejection(worse))
        assert _told(empty_cli) == ["success", "3", "3", "bad", "rerun"]
        (told,) = empty_cli.run("state", "inspect", "--json").objects
        assert told["raw_display_status"] == "MaterializedButLastAttemptFailed"
        assert (told["current_run_id"], told["raw_last_attempt_run_id"]) == ("r2", "r3")


def _told(cli: CommandLine) -> list[str]:
    return cli.run("state", "inspect").lines[1].split()[3:]


def test_the_status_file_is_published_for_others(demo_cli: DemoCommandLine) -> None:
    """The command says how many rows it wrote and where, and DuckDB reads them."""
    ended = demo_cli.run("state", "publish")
    file = demo_cli.home / "partition_status.parquet"
    found = duckdb.sql(f"SELECT asset_key, partition_values['date'] FROM '{file}'").fetchall()
    assert ended.out.startswith(f"{len(found)} rows in {file}")
    assert {asset for asset, _day in found} == {
        f"{asset}/{name}"
        for asset in ("raw", "warehouse")
        for name in ("campaign_daily", "ad_group_daily", "search_term_daily")
    }
