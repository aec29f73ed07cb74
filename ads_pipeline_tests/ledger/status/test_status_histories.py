"""Any history, and many writers at once: the rows are what the log of finishes folds to."""

import itertools
import multiprocessing
import random
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.freshness import (
    RAW,
    WAREHOUSE,
    AssetPartition,
    AttemptOutcome,
    PartitionStatus,
    Staleness,
    StaleReason,
)
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.ledger.events.run_completion import RunCompletionLog
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    key,
    keys,
    publish_runs,
    action_request,
    rejection,
    run,
    sealed_runs,
)
from ads_pipeline_tests.ledger.status.finishes import all_finishes, folded, listed, made, status, tried

SUCCEEDED, FAILED, CANCELLED = AttemptOutcome
HOUR = timedelta(hours=1)
STALE = Staleness(since=datetime(2026, 3, 1, tzinfo=UTC), reason=StaleReason.CODE_CHANGED, reasons=())

ACTS = st.one_of(
    st.tuples(st.just("time"), st.integers(-3, 3), st.none()),
    st.tuples(st.just("land"), st.integers(0, 1), st.none()),
    st.tuples(st.just("judge"), st.integers(0, 1), st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 2))),
    st.tuples(st.just("load"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("fail to load"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("end"), st.integers(0, 1), st.sampled_from([RunStatus.FAILED, RunStatus.CANCELLED])),
    st.tuples(st.just("withdraw"), st.integers(0, 1), st.none()),
)
_customers = itertools.count(1)


class History:
    """Carries acts out on one ledger, and remembers beside it what was last made and tried."""

    def __init__(self, ledger: Ledger, clock: FakeClock, customers: list[str]) -> None:
        self.ledger, self.clock = ledger, clock
        self.keys = [key(customer) for customer in customers]
        self.runs: list[list[Run]] = [[], []]
        self.origins = [EventOrigin(run_id=f"engine-{customer}", plan_version="p1") for customer in customers]
        self.pointed: dict[PartitionKey, str | None] = {}
        self.made: dict[tuple[str, PartitionKey], str] = {}
        self.tried: dict[tuple[str, PartitionKey], tuple[str, AttemptOutcome]] = {}
        self.heard: dict[tuple[Run, str], bool] = {}
        self.versions: dict[AssetPartition, str] = {}
        for place in (0, 0, 1, 1):
            self._land(place)

    def act(self, name: str, place: int, more: Any) -> None:
        if name == "time":
            self.clock.tick(timedelta(milliseconds=place))
        elif name == "land":
            self._land(place)
        elif name == "end":
            self._end(place, more)
        elif name == "withdraw":
            self._withdraw(place)
        else:
            number = more[0] if name == "judge" else more
            landed_run = self.runs[place][number % len(self.runs[place])]
            if name == "judge":
                self._judge(landed_run, good=more[1], validation=f"v{more[2]}")
            elif name == "load":
                self._load(landed_run)
            else:
                self.ledger.record_failed_loads({landed_run: "no"})
                self.tried[WAREHOUSE, landed_run.key] = (landed_run.run_id, FAILED)

    def _land(self, place: int) -> None:
        landed_run = run(self.keys[place], f"r{len(self.runs[place])}")
        self.runs[place].append(landed_run)
        with_origin = Ledger(self.ledger._engine, clock=self.clock, origin=self.origins[place])
        with_origin.register(sealed_runs(landed_run, schema_version=str(len(self.runs[place]) % 2)))

    def _judge(self, judged: Run, *, good: bool, validation: str) -> None:
        if self.heard.setdefault((judged, validation), good) is not good:
            return
        before = self.ledger.state(judged.key)
        verdict = acceptance(judged, validation) if good else rejection(judged, validation_id=validation)
        recorded = self.ledger.record_verdict(verdict)
        if recorded.redelivered:
            return
        self.tried[RAW, judged.key] = (judged.run_id, SUCCEEDED if good else FAILED)
        after = recorded.state
        if good and (before.status is not Status.SUCCESS or after.current_run_id != before.current_run_id):
            self.made[RAW, judged.key] = judged.run_id
        if after.status is Status.FAILED:
            self.pointed[judged.key] = None

    def _load(self, loaded: Run) -> None:
        if publish_runs(self.ledger, loaded).published and self.pointed.get(loaded.key) != loaded.run_id:
            self.pointed[loaded.key] = loaded.run_id
            self.made[WAREHOUSE, loaded.key] = loaded.run_id
            self.tried[WAREHOUSE, loaded.key] = (loaded.run_id, SUCCEEDED)

    def _end(self, place: int, ended: RunStatus) -> None:
        unjudged = [each for each in self.runs[place] if not any(judged == each for judged, _ in self.heard)]
        if RunCompletionLog(self.ledger._engine, clock=self.clock).complete_run(self.origins[place], ended):
            outcome = FAILED if ended is RunStatus.FAILED else CANCELLED
            self.tried[RAW, self.keys[place]] = (unjudged[-1].run_id, outcome)

    def _withdraw(self, place: int) -> None:
        action_id = f"act-{next(_customers)}"
        if self.ledger.execute(Action.WITHDRAW, [self.keys[place]], action_request(action_id)).changed:
            self.pointed[self.keys[place]] = None

    def rows(self) -> dict[tuple[str, PartitionKey], PartitionStatus]:
        return {
            (asset, partition): row
            for asset in (RAW, WAREHOUSE)
            for partition, row in self.ledger.partition_statuses(asset, self.keys).items()
            if row is not None
        }

    def check(self) -> None:
        rows = self.rows()
        assert {of: tried(row) for of, row in rows.items()} == self.tried
        assert {of: row.last_materialization_run_id for of, row in rows.items() if made(row)[0]} == self.made
        for row in rows.values():
            assert row.row_version >= self.versions.get(row.asset_partition, ""), "a version went back"
            self.versions[row.asset_partition] = row.row_version


@pytest.mark.invariant("P1", "P2", "P3", "P8", "P10", "S22")
def test_any_history_leaves_the_row_of_its_finishes(sqlite_url: str, postgres_url: str) -> None:
    """The rows are those of the finishes in any order, those that are made anew, and the same on both databases."""
    clock = FakeClock()
    with Ledger.opened(sqlite_url, clock=clock) as here, Ledger.opened(postgres_url, clock=clock) as there:

        @settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(ACTS, min_size=4, max_size=16), st.randoms(use_true_random=False))
        def check(acts: list[tuple[str, int, Any]], chance: random.Random) -> None:
            customers = [str(next(_customers)) for _ in range(2)]
            clock.now += HOUR
            begun = clock.now
            histories = []
            for ledger in (here, there):
                clock.now = begun
                histories.append(History(ledger, clock, customers))
                for name, place, more in acts:
                    histories[-1].act(name, place, more)
                    histories[-1].check()
                _check_folded(histories[-1], chance)
            assert histories[0].rows() == histories[1].rows()

        check()
        for ledger in (here, there):
            book = StatusTable(ledger._engine)
            live = listed(book)
            assert book.rebuild() == len(live) > 20
            assert listed(book) == live


def _check_folded(history: History, chance: random.Random) -> None:
    finishes = {of: found for of, found in all_finishes(history.ledger._engine).items() if of[1] in history.keys}
    rows = history.rows()
    assert set(finishes) == set(rows)
    for (asset, partition), found in finishes.items():
        shuffled = found + chance.choices(found, k=2)
        chance.shuffle(shuffled)
        assert folded(asset, partition, shuffled) == rows[asset, partition]


CONTESTED = keys(2)
WRITERS = 4
RUNS_EACH = 12


def hammer(url: str, writer: int) -> None:
    """Judge, load, fail to load and sweep the same rows, with a clock that nobody could trust."""
    chance = random.Random(writer)

    def clock() -> datetime:
        return datetime.now(UTC) + chance.uniform(-1, 1) * HOUR

    with Ledger.opened(url, clock=clock) as ledger:
        book = StatusTable(ledger._engine)
        for number, partition in itertools.product(range(RUNS_EACH), CONTESTED):
            mine = run(partition, f"w{writer}-{number}")
            ledger.record_verdict(rejection(mine) if chance.random() < 0.3 else acceptance(mine))
            if chance.random() < 0.5:
                publish_runs(ledger, mine)
            else:
                ledger.record_failed_loads({mine: "no"})
            if number % 4 == 0:
                book.store_staleness([(row, STALE) for row in book.read_all() if row.last_materialization_at])


@pytest.mark.invariant("P2", "P8", "P10")
def test_versions_grow_in_many_processes(url: str) -> None:
    """Four processes with clocks hours apart write the same rows: whoever looks on sees versions only grow."""
    runs = [run(partition, f"w{w}-{n}") for w in range(WRITERS) for n in range(RUNS_EACH) for partition in CONTESTED]
    context = multiprocessing.get_context("spawn")
    with Ledger.opened(url) as ledger:
        ledger.register(sealed_runs(*runs))
        writers = [context.Process(target=hammer, args=(url, writer)) for writer in range(WRITERS)]
        for writer in writers:
            writer.start()
        seen: dict[AssetPartition, list[PartitionStatus]] = {}
        book = StatusTable(ledger._engine)
        while any(writer.is_alive() for writer in writers):
            for row in book.read_all():
                seen.setdefault(row.asset_partition, []).append(row)
            time.sleep(0.005)
        assert [writer.exitcode for writer in writers] == [0] * WRITERS
        for rows in seen.values():
            assert len({row.row_version for row in rows}) > 5, "nobody looked on"
            for earlier, later in pairwise(rows):
                assert later.row_version > earlier.row_version or later == earlier
        _check_finishes(ledger)


def _check_finishes(ledger: Ledger) -> None:
    """Each verdict is later than the one before, each finish has its own version, and the rows are theirs."""
    attempts = [ledger.attempts(partition) for partition in CONTESTED]
    for times in ([attempt.judged_at for attempt in listed_] for listed_ in attempts):
        assert len(times) == WRITERS * RUNS_EACH
        assert all(earlier < later for earlier, later in pairwise(times))
    finishes = all_finishes(ledger._engine)
    for (asset, partition), found in finishes.items():
        assert len({each.version for each in found}) == len(found)
        row = status(ledger, partition, asset)
        expected = folded(asset, partition, found)
        assert (made(row), tried(row)) == (made(expected), tried(expected))
        assert row.last_attempt_at == expected.last_attempt_at
        assert row.row_version >= expected.row_version
    assert sum(len(found) for (asset, _), found in finishes.items() if asset == WAREHOUSE) > len(CONTESTED)


@pytest.mark.invariant("P2", "P10")
@pytest.mark.parametrize("asset", [RAW, WAREHOUSE])
def test_a_sweep_amid_a_finish_loses_neither(postgres_url: str, asset: str, clock: FakeClock) -> None:
    """A row that a sweep wrote after an attempt had read it is read again: the attempt is in log and row."""
    with Ledger.opened(postgres_url, clock=clock) as ledger:
        accepted_runs(ledger, [key()])
        publish_runs(ledger, run(key(), "r1"))
        ledger.register(sealed_runs(run(key(), "r2")))
        book = StatusTable(ledger._engine)  # its clock is the database's, far ahead of the ledger's
        row = status(ledger, key(), asset)
        swept: list[int] = []

        def sweep_before_writing(_c: Any, _cursor: Any, _statement: str, parameters: Any, _x: Any, _m: Any) -> None:
            if '"row_version"' in str(parameters) and not swept:
                swept.append(-1)
                swept[0] = book.store_staleness([(row, STALE)])

        sa.event.listen(ledger._engine, "before_cursor_execute", sweep_before_writing)
        if asset == RAW:
            ledger.record_verdict(rejection(run(key(), "r2")))
        else:
            ledger.record_failed_loads({run(key(), "r2"): "no"})
        assert swept == [1]
        after = status(ledger, key(), asset)
        assert tried(after) == ("r2", FAILED)
        assert (after.stale_since, after.stale_reason_code) == (STALE.since, STALE.reason)
        finishes = all_finishes(ledger._engine)[asset, key()]
        assert len(finishes) == 2
        assert folded(asset, key(), finishes) == replace(after, stale_since=None, stale_reason_code=None)
