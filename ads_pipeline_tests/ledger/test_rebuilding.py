"""A ledger that is exported and made anew elsewhere: the same to the digest, or refused and not there at all."""

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings

from ads_pipeline.domain.transitions import Action, Effect
from ads_pipeline.errors import ArchiveUnavailable, BadArchive, LedgerInUse, LogContradicted
from ads_pipeline.ledger import database
from ads_pipeline.ledger.archive import PARTS, STATES, Archive
from ads_pipeline.ledger.consistency.replay import histories, replay
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.rebuilding import Digest, digest, export, refill
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.tables import metadata
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import FakeClock, accepted, key, keys
from ads_pipeline_tests.ledger.status.finishes import listed
from ads_pipeline_tests.ledger.strategies import PLACES, SCRIPTED, Step, live, partition, steps

Edit = Callable[[list[str]], list[str]]


@pytest.fixture
def other_url(url: str, request: pytest.FixtureRequest) -> str:
    """An empty ledger in the other database."""
    kind = "postgres" if url.startswith("sqlite") else "sqlite"
    address: str = request.getfixturevalue(f"{kind}_url")
    return address


@pytest.fixture
def told(url: str, tmp_path: Path) -> Path:
    """The export of a ledger in which one of everything has happened."""
    clock = FakeClock()
    with Ledger.opened(url, clock=clock) as ledger:
        live(ledger, clock, SCRIPTED)
    export(url, tmp_path / "told.jsonl")
    return tmp_path / "told.jsonl"


def is_empty(url: str) -> bool:
    found = digest(url)
    return not any(rows for rows, _digest in found.parts.values())


def test_the_script_has_one_of_everything(url: str, told: Path) -> None:
    """Each part of an export has rows in the history that the tests share, and each effect a verdict."""
    filled = {name for name, (rows, _digest) in digest(url).parts.items() if rows}
    control = {"failed_fetches", "code_versions", "retry_schedule", "parkings"}
    assert filled == {part.name for part in (STATES, *PARTS)} - control
    with LedgerReader.opened(url) as ledger:
        effects = {each.effect for place in range(6) for each in ledger.attempts(partition(place))}
    assert effects == set(Effect)


@pytest.mark.invariant("L1", "S22")
def test_what_was_exported_is_made_anew_to_the_digest(url: str, other_url: str, told: Path) -> None:
    """In the other database the same states, logs, pointers and notes stand, and the statuses are the same rows."""
    done = refill(other_url, Archive(told))
    assert digest(other_url).parts == digest(url).parts
    assert (done.rows, done.states, done.statuses) == (len(told.read_text().splitlines()) - 2, 3, 6)
    with LedgerReader.opened(url) as lost, LedgerReader.opened(other_url) as found:
        assert list(lost.pages(StateFilter())) == list(found.pages(StateFilter()))
        asked: dict[str, Any] = {"source": "google_ads", "query_name": "campaign_daily"}
        assert lost.standings(**asked) == found.standings(**asked)
        assert lost.demotions(**asked) == found.demotions(**asked) != []
        assert lost.showing(**asked) == found.showing(**asked)
    with StatusTable.opened(url) as lost_book, StatusTable.opened(other_url) as found_book:
        assert listed(found_book) == listed(lost_book)


@pytest.mark.invariant("L1", "S22")
def test_any_history_is_made_anew(url: str, sqlite_template: Path, tmp_path: Path) -> None:
    """Whatever happened, in whatever order the clocks had it, the logs lead to the states that stood."""
    numbers, clock = itertools.count(), FakeClock()

    with Ledger.opened(url, clock=clock) as ledger:

        @settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
        @given(steps)
        def check(history: list[Step]) -> None:
            number = next(numbers)
            told, made = tmp_path / f"{number}.jsonl", tmp_path / f"{number}.db"
            shutil.copy(sqlite_template, made)
            live(ledger, clock, history, apart=number)
            export(url, told)
            refill(f"sqlite:///{made}", Archive(told))
            assert digest(f"sqlite:///{made}") == digest(url)

        check()


@pytest.mark.invariant("L1")
def test_a_rebuilt_ledger_goes_on(url: str, other_url: str, told: Path) -> None:
    """What happens next makes the same of both: ordinals, verdicts, acts and loads follow on."""
    refill(other_url, Archive(told))
    after = [
        Step(what=what, place=place, run=7, jump=10**13) for what in ("land", "accept") for place in range(PLACES)
    ]
    for address in (url, other_url):
        clock = FakeClock()
        with Ledger.opened(address, clock=clock) as ledger:
            live(ledger, clock, after)
    assert digest(other_url).parts == digest(url).parts


def test_the_logs_lead_to_the_states_that_stand(url: str, told: Path) -> None:
    """Held against the live rows, the replay finds no difference, and reads a ledger of any size in portions."""
    with database.opened(url, read_only=True) as engine, database.reading(engine) as connection:
        found = [(replay(history), history.recorded) for history in histories(connection)]
    assert len(found) == 6
    assert all(replayed == recorded for replayed, recorded in found)


def test_a_row_that_was_there_before_its_first_run_is_no_contradiction(url: str, clock: FakeClock) -> None:
    """Registered and judged in one instant, after somebody made the row: the verdict is dated by its own time."""
    with Ledger.opened(url, clock=clock) as ledger:
        ledger.insert_pending([key()])
        clock.tick()
        accepted(ledger, [key()])
    with database.opened(url, read_only=True) as engine, database.reading(engine) as connection:
        (history,) = histories(connection)
    assert replay(history) == history.recorded


def test_what_may_be_null_is_what_the_database_lets_be(backdoor: sa.Engine) -> None:
    """An export lacks no value that the database would ask for, and may lack any other."""
    inspector = sa.inspect(backdoor)
    for part in PARTS:
        columns = [column for column in inspector.get_columns(part.table.name) if column["name"] in part.names]
        assert {column["name"] for column in columns if column["nullable"]} == part.optional, part.name


def test_every_table_is_exported_or_said_not_to_be() -> None:
    """A table that comes later is not forgotten."""
    left = set(metadata.tables) - {part.table.name for part in PARTS}
    over = {"run_head", "run_events", "run_snapshots", "run_steps", "leases", "claims"}
    assert left == over | {"partition_status"}


def test_an_export_is_the_same_from_every_database(url: str, other_url: str, told: Path, tmp_path: Path) -> None:
    """Byte for byte, so that exports can be compared."""
    refill(other_url, Archive(told))
    export(other_url, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == told.read_bytes()


def test_an_export_replaces_another_only_when_told(url: str, told: Path) -> None:
    """And leaves nothing but the export in the folder, whatever came of it."""
    before = told.read_bytes()
    beside = sorted(told.parent.iterdir())
    with pytest.raises(ArchiveUnavailable):
        export(url, told)
    assert told.read_bytes() == before
    with Ledger.opened(url) as ledger:
        accepted(ledger, keys(1))
    export(url, told, replace=True)
    assert told.read_bytes() != before
    assert sorted(told.parent.iterdir()) == beside


def test_only_an_empty_ledger_is_rebuilt(url: str, told: Path) -> None:
    """Where anything is, nothing is added: two histories would be mixed."""
    before = digest(url)
    with pytest.raises(LedgerInUse, match="there are rows in operator_acts"):
        refill(url, Archive(told))
    assert digest(url) == before


def resealed(lines: list[str]) -> list[str]:
    """The lines with the digest that fits them, as by somebody who means it."""
    body = "".join(f"{line}\n" for line in lines[:-1])
    return [*lines[:-1], json.dumps({"end": hashlib.sha256(body.encode()).hexdigest()})]


def changed(part: str, *, of: str = "", **values: object) -> Edit:
    """The first row of a part, in which these words stand, with other values, under a digest that fits."""

    def edit(lines: list[str]) -> list[str]:
        rows = [n for n, line in enumerate(lines) if line.startswith(f'{{"part":"{part}"') and of in line]
        number = rows[0]
        row = {name: value for name, value in (json.loads(lines[number]) | values).items() if value != "absent"}
        return resealed([*lines[:number], json.dumps(row), *lines[number + 1 :]])

    return edit


REQUEUE = '"act_id":"act-11"'  # in the script
HOSTILE: dict[str, tuple[Edit, str]] = {
    "no export": (lambda lines: ["hello", *lines[1:]], "line 1 of the export: not JSON"),
    "empty": (lambda lines: lines[:0], "line 1 of the export: the export is cut off here"),
    "another format": (lambda lines: [lines[0].replace('export":1', 'export":2'), *lines[1:]], "line 1 .*format 1"),
    "another release": (lambda lines: [lines[0].replace("0005", "0099"), *lines[1:]], "line 1 .*'0099'"),
    "fewer parts": (lambda lines: [lines[0].replace('"runs"', '"rums"'), *lines[1:]], "line 1 .*parts"),
    "a negative part": (lambda lines: [lines[0].replace('"runs":', '"runs":-'), *lines[1:]], "line 1 .*none"),
    "no object": (lambda lines: [*lines[:3], "[]", *lines[4:]], "line 4 .*not a JSON object"),
    "a key twice": (lambda lines: [*lines[:3], '{"part":"runs","part":"runs"}', *lines[4:]], "line 4 .*twice"),
    "rows exchanged": (lambda lines: resealed([lines[0], lines[2], lines[1], *lines[3:]]), "line 3 .*not behind"),
    "a row twice": (lambda lines: resealed([*lines[:2], *lines[1:]]), "line 3 .*not behind"),
    "a row too few": (lambda lines: resealed([*lines[:2], *lines[3:]]), "a row of operator_acts must stand here"),
    "a row more": (lambda lines: [*lines, lines[-1]], "nothing may follow"),
    "a changed value": (lambda lines: [lines[0], lines[1].replace("ada", "eve"), *lines[2:]], "were changed"),
    "an unknown field": (changed("runs", password="x"), "'password' is no column of runs"),
    "a missing field": (changed("runs", ordinal="absent"), "ordinal is missing"),
    "a number as text": (changed("runs", ordinal="1"), "ordinal: '1' is refused"),
    "truth as a number": (changed("runs", ordinal=True), "ordinal: True is refused"),
    "too large": (changed("runs", record_count=1 << 63), "record_count: .* is refused"),
    "null": (changed("runs", ordinal=None), "ordinal: None is refused"),
    "no such day": (changed("runs", logical_date="2026-02-30"), "logical_date"),
    "no such instant": (changed("runs", registered_at="2026-02-03T00:00:00Z"), "registered_at"),
    "a name that climbs": (changed("runs", run_id="../x"), "run_id: '../x' is refused"),
    "a second line": (changed("operator_acts", reason="a\nb"), "reason: .* is refused"),
    "a nul": (changed("operator_acts", reason="a\x00b"), "reason: .* is refused"),
}


@pytest.mark.invariant("L2", "X2")
@pytest.mark.parametrize("edit", HOSTILE)
def test_a_hostile_export_is_refused_by_its_line(other_url: str, told: Path, edit: str) -> None:
    """What is not an export to the letter is told with its line, and nothing of it is written."""
    change, said = HOSTILE[edit]
    told.write_text("".join(f"{line}\n" for line in change(told.read_text().splitlines())))
    with pytest.raises(BadArchive, match=said):
        refill(other_url, Archive(told))
    assert is_empty(other_url)


@pytest.mark.invariant("L2")
def test_an_export_that_is_cut_anywhere_is_refused(other_url: str, told: Path) -> None:
    """At the end of any line or in the middle of one."""
    content = told.read_bytes()
    lines = content.splitlines(keepends=True)
    ends = list(itertools.accumulate(map(len, lines)))[:-1]
    for end in [*ends, *(end + 9 for end in ends)]:
        told.write_bytes(content[:end])
        with pytest.raises(BadArchive) as refused:
            list(Archive(told).rows(revision=database.newest_revision()))
        assert refused.value.line == content[:end].count(b"\n") + 1
    told.write_bytes(content[: ends[-1]])
    with pytest.raises(BadArchive, match="cut off"):
        refill(other_url, Archive(told))
    assert is_empty(other_url)


@pytest.mark.invariant("L2", "S5")
@pytest.mark.parametrize(
    "edit",
    [
        changed("attempts", effect="superseded"),
        changed("attempts", run_id="r2"),
        changed("attempts", current_ordinal=2),
        changed("attempts", judged_at="2020-01-01T00:00:00.000000Z"),
        changed("attempts", rows_read=4),
        changed("attempts", attempt_no=99),
        changed("acted_partitions", of=REQUEUE, status_before="success"),
        changed("acted_partitions", of=REQUEUE, attempt_no=77),
        changed("acted_partitions", of=REQUEUE, attempt_no=1),
        changed("unjudged", customer_id="1"),
        changed("runs", record_count=4),
    ],
)
def test_logs_that_break_the_rules_are_refused(other_url: str, told: Path, edit: Edit) -> None:
    """A log whose verdicts and acts cannot have followed on each other makes no ledger, whoever resealed it."""
    told.write_text("".join(f"{line}\n" for line in edit(told.read_text().splitlines())))
    with pytest.raises((LogContradicted, BadArchive)):
        refill(other_url, Archive(told))
    assert is_empty(other_url)


def test_acts_of_earlier_releases_are_placed_by_their_time(url: str, other_url: str, tmp_path: Path) -> None:
    """Where their place among the verdicts was not kept, it follows from when they were, as far as clocks tell it."""
    clock, told = FakeClock(), tmp_path / "told.jsonl"
    with Ledger.opened(url, clock=clock) as ledger:
        for number, (what, run_number) in enumerate(
            [("land", 1), ("accept", 1), ("act", 1), ("land", 2), ("reject", 2), ("requeue", 2), ("accept", 1)]
        ):
            act = Action.REQUEUE if what == "requeue" else Action.WITHDRAW
            validation = "v2" if number == 6 else ""
            step = Step(
                what="act" if what == "requeue" else what,
                place=0,
                run=run_number,
                jump=1_000_000,
                validation=validation,
                act=act,
            )
            step.take(ledger, clock, number)
    export(url, told)
    rows = [json.loads(line) for line in told.read_text().splitlines()]
    acts = [row for row in rows if row.get("part") == "acted_partitions"]
    assert [row["attempt_no"] for row in acts] == [1, 2]
    for row in acts:
        row["attempt_no"] = None
    told.write_text("".join(f"{line}\n" for line in resealed([json.dumps(row) for row in rows])))
    refill(other_url, Archive(told))
    assert digest(other_url).parts["partition_state"] == digest(url).parts["partition_state"]


# Makes the ledger anew, and kills itself at the n-th moment.
DYING = """
import os, signal, sys
from pathlib import Path
import sqlalchemy as sa
from ads_pipeline.ledger import database, rebuilding
from ads_pipeline.ledger.archive import Archive

moments = int(sys.argv[3])
def moment(*_):
    global moments
    moments -= 1
    if moments == 0:
        os.kill(os.getpid(), signal.SIGKILL)

for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
    sa.event.listen(sa.Engine, name, moment)
rebuilding.refill(sys.argv[1], Archive(Path(sys.argv[2])))
moment()
"""


@pytest.mark.invariant("L2")
def test_a_crash_leaves_no_half_of_a_ledger(url: str, other_url: str, told: Path) -> None:
    """Killed at any moment the ledger is empty or whole, and after an empty one the same command makes it whole."""
    whole = digest(url).parts
    seen = [after for moment in (1, 9, 30, 50, 70, 90, 100) for after in _left(other_url, told, moment)]
    assert len(seen) >= 4, "the making was hardly interrupted"
    assert all(parts == whole or not any(rows for rows, _digest in parts.values()) for parts in seen)
    if is_empty(other_url):
        refill(other_url, Archive(told))
    assert digest(other_url).parts == whole


def _left(url: str, told: Path, moment: int) -> Iterator[dict[str, tuple[int, str]]]:
    """What is there after a death at that moment; nothing where there was no death."""
    if not is_empty(url):
        return
    child = subprocess.run(
        [sys.executable, "-c", DYING, url, str(told), str(moment)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert child.returncode in (0, -9), child.stderr
    if child.returncode == -9:
        yield digest(url).parts


def test_a_digest_tells_any_difference(url: str, told: Path, backdoor: sa.Engine) -> None:
    """A row more in any table is another digest, and the part that differs can be named."""
    before = digest(url)
    database.transact(
        backdoor,
        lambda c: c.exec_driver_sql(
            "INSERT INTO parkings VALUES ('google_ads', 'query', 'q', 'x', 'y', '2026-03-01T00:00:00.000000Z')"
        ),
    )
    after = digest(url)
    assert after.whole != before.whole
    assert {name for name in after.parts if after.parts[name] != before.parts[name]} == {"parkings"}
    assert Digest(parts=before.parts).whole == before.whole
