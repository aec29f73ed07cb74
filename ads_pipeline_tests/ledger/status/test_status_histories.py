"""Tests that status rows equal the fold of the attempt logs, for random histories and concurrent writers."""

import itertools
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

from ads_pipeline.domain.days.materialization_status import (
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
from ads_pipeline.ledger.events.completed_runs import RunCompletionLog
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    publish_runs,
    record_verdict,
    rejection,
    run,
    sealed_runs,
)
from ads_pipeline_tests.ledger.status.finished_attempts import (
    fold_all,
    last_attempt,
    materialization,
    read_attempts,
    read_status,
    read_statuses,
)
from ads_pipeline_tests.processes import fork_server

SUCCEEDED, FAILED, CANCELLED = AttemptOutcome
HOUR = timedelta(hours=1)
STALE = Staleness(since=datetime(2026, 3, 1, tzinfo=UTC), reason=StaleReason.CODE_CHANGED, reasons=())

STEPS = st.one_of(
    st.tuples(st.just("time"), st.integers(-3, 3), st.none()),
    st.tuples(st.just("land"), st.integers(0, 1), st.none()),
    st.tuples(st.just("judge"), st.integers(0, 1), st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 2))),
    st.tuples(st.just("load"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("fail to load"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("end"), st.integers(0, 1), st.sampled_from([RunStatus.FAILED, RunStatus.CANCELLED])),
    st.tuples(st.just("withdraw"), st.integers(0, 1), st.none()),
)
_customers = itertools.count(10**9)  # of one length: texts have the order of their numbers in every example


class History:
    """Applies steps to one ledger, and models the last materialization and the last attempt."""

    def __init__(self, ledger: Ledger, clock: FakeClock, customers: list[str]) -> None:
        self.ledger, self.clock = ledger, clock
        self.keys = [key(customer) for customer in customers]
        self.runs: list[list[Run]] = [[], []]
        self.origins = [EventOrigin(engine_run_id=f"engine-{customer}", plan_version="p1") for customer in customers]
        self.published: dict[PartitionKey, str | None] = {}
        self.materialized: dict[tuple[str, PartitionKey], str] = {}
        self.attempted: dict[tuple[str, PartitionKey], tuple[str, AttemptOutcome]] = {}
        self.verdicts: dict[tuple[Run, str], bool] = {}
        self.versions: dict[AssetPartition, str] = {}
        for index in (0, 0, 1, 1):
            self._land(index)

    def apply(self, name: str, index: int, argument: Any) -> None:
        if name == "time":
            self.clock.tick(timedelta(milliseconds=index))
        elif name == "land":
            self._land(index)
        elif name == "end":
            self._complete(index, argument)
        elif name == "withdraw":
            self._withdraw(index)
        else:
            number = argument[0] if name == "judge" else argument
            landed_run = self.runs[index][number % len(self.runs[index])]
            if name == "judge":
                self._judge(landed_run, good=argument[1], validation=f"v{argument[2]}")
            elif name == "load":
                self._load(landed_run)
            else:
                self.ledger.loads.record_failed({landed_run: "no"})
                self.attempted[WAREHOUSE, landed_run.key] = (landed_run.run_id, FAILED)

    def _land(self, index: int) -> None:
        landed_run = run(self.keys[index], f"r{len(self.runs[index])}")
        self.runs[index].append(landed_run)
        with_origin = Ledger(self.ledger.engine, clock=self.clock, origin=self.origins[index])
        with_origin.registrations.register(sealed_runs(landed_run, schema_version=str(len(self.runs[index]) % 2)))

    def _judge(self, judged: Run, *, good: bool, validation: str) -> None:
        if self.verdicts.setdefault((judged, validation), good) is not good:
            return
        before = self.ledger.states.get(judged.key)
        verdict = acceptance(judged, validation) if good else rejection(judged, validation_id=validation)
        recorded = record_verdict(self.ledger, verdict)
        if recorded.redelivered:
            return
        self.attempted[RAW, judged.key] = (judged.run_id, SUCCEEDED if good else FAILED)
        after = recorded.state
        if good and (before.status is not Status.SUCCESS or after.current_run_id != before.current_run_id):
            self.materialized[RAW, judged.key] = judged.run_id
        if after.status is Status.FAILED:
            self.published[judged.key] = None

    def _load(self, loaded: Run) -> None:
        if publish_runs(self.ledger, loaded).published and self.published.get(loaded.key) != loaded.run_id:
            self.published[loaded.key] = loaded.run_id
            self.materialized[WAREHOUSE, loaded.key] = loaded.run_id
            self.attempted[WAREHOUSE, loaded.key] = (loaded.run_id, SUCCEEDED)

    def _complete(self, index: int, status: RunStatus) -> None:
        unjudged = [each for each in self.runs[index] if not any(judged == each for judged, _ in self.verdicts)]
        if RunCompletionLog(self.ledger.engine, clock=self.clock).complete_run(self.origins[index], status):
            outcome = FAILED if status is RunStatus.FAILED else CANCELLED
            self.attempted[RAW, self.keys[index]] = (unjudged[-1].run_id, outcome)

    def _withdraw(self, index: int) -> None:
        action_id = f"act-{next(_customers)}"
        if self.ledger.actions.execute(Action.WITHDRAW, [self.keys[index]], action_request(action_id)).changed:
            self.published[self.keys[index]] = None

    def rows(self) -> dict[tuple[str, PartitionKey], PartitionStatus]:
        return {
            (asset, partition): row
            for asset in (RAW, WAREHOUSE)
            for partition, row in self.ledger.statuses.get_many(asset, self.keys).items()
            if row is not None
        }

    def check(self) -> None:
        rows = self.rows()
        assert {partition: last_attempt(row) for partition, row in rows.items()} == self.attempted
        assert {
            of: row.last_materialization_run_id for of, row in rows.items() if materialization(row)[0]
        } == self.materialized
        for row in rows.values():
            assert row.row_version >= self.versions.get(row.asset_partition, ""), "a row version decreased"
            self.versions[row.asset_partition] = row.row_version


@pytest.mark.invariant("P1", "P2", "P3", "P8", "P10", "S22")
def test_rows_equal_the_fold_of_any_history(sqlite_url: str, postgres_url: str) -> None:
    """Rows equal the fold of attempts in any order and a rebuild, and are the same on both databases."""
    clock = FakeClock()
    with Ledger.opened(sqlite_url, clock=clock) as sqlite, Ledger.opened(postgres_url, clock=clock) as postgres:

        @settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(STEPS, min_size=4, max_size=16), st.randoms(use_true_random=False))
        def check(steps: list[tuple[str, int, Any]], chance: random.Random) -> None:
            customers = [str(next(_customers)) for _ in range(2)]
            clock.now += HOUR
            start = clock.now
            histories = []
            for ledger in (sqlite, postgres):
                clock.now = start
                histories.append(History(ledger, clock, customers))
                for name, index, argument in steps:
                    histories[-1].apply(name, index, argument)
                    histories[-1].check()
                _check_fold(histories[-1], chance)
            assert histories[0].rows() == histories[1].rows()

        check()
        for ledger in (sqlite, postgres):
            accepted_runs(ledger, keys(21))  # random histories may leave few rows
            table = StatusTable(ledger.engine)
            live = read_statuses(table)
            assert table.rebuild() == len(live) > 20
            assert read_statuses(table) == live


def _check_fold(history: History, chance: random.Random) -> None:
    logged = read_attempts(history.ledger.engine)
    attempts = {partition: found for partition, found in logged.items() if partition[1] in history.keys}
    rows = history.rows()
    assert set(attempts) == set(rows)
    for (asset, partition), found in attempts.items():
        shuffled = found + chance.choices(found, k=2)
        chance.shuffle(shuffled)
        assert fold_all(asset, partition, shuffled) == rows[asset, partition]


CONTESTED = keys(2)
WRITERS = 4
RUNS_EACH = 12


def write_randomly(url: str, writer: int) -> None:
    """Judge, load, fail to load and sweep the same rows, with a clock that is up to an hour off."""
    chance = random.Random(writer)

    def clock() -> datetime:
        return datetime.now(UTC) + chance.uniform(-1, 1) * HOUR

    with Ledger.opened(url, clock=clock) as ledger:
        table = StatusTable(ledger.engine)
        for number, partition in itertools.product(range(RUNS_EACH), CONTESTED):
            mine = run(partition, f"w{writer}-{number}")
            record_verdict(ledger, rejection(mine) if chance.random() < 0.3 else acceptance(mine))
            if chance.random() < 0.5:
                publish_runs(ledger, mine)
            else:
                ledger.loads.record_failed({mine: "no"})
            if number % 4 == 0:
                table.store_staleness([(row, STALE) for row in table.read_all() if row.last_materialization_at])


@pytest.mark.invariant("P2", "P8", "P10")
def test_row_versions_grow_across_processes(url: str) -> None:
    """Four processes with clocks hours apart write the same rows. A reader sees their versions only grow."""
    runs = [run(partition, f"w{w}-{n}") for w in range(WRITERS) for n in range(RUNS_EACH) for partition in CONTESTED]
    context = fork_server()
    with Ledger.opened(url) as ledger:
        ledger.registrations.register(sealed_runs(*runs))
        writers = [context.Process(target=write_randomly, args=(url, writer)) for writer in range(WRITERS)]
        for writer in writers:
            writer.start()
        seen: dict[AssetPartition, list[PartitionStatus]] = {}
        table = StatusTable(ledger.engine)
        while any(writer.is_alive() for writer in writers):
            for row in table.read_all():
                seen.setdefault(row.asset_partition, []).append(row)
            time.sleep(0.005)
        assert [writer.exitcode for writer in writers] == [0] * WRITERS
        for rows in seen.values():
            assert len({row.row_version for row in rows}) > 5, "the reader saw too few versions"
            for earlier, later in pairwise(rows):
                assert later.row_version > earlier.row_version or later == earlier
        _check_attempts(ledger)


def _check_attempts(ledger: Ledger) -> None:
    """Check that verdict times grow, that row versions differ, and that rows equal the fold of the attempts."""
    for times in ([attempt.judged_at for attempt in ledger.runs.attempts(partition)] for partition in CONTESTED):
        assert len(times) == WRITERS * RUNS_EACH
        assert all(earlier < later for earlier, later in pairwise(times))
    attempts = read_attempts(ledger.engine)
    for (asset, partition), found in attempts.items():
        assert len({each.version for each in found}) == len(found)
        row = read_status(ledger, partition, asset)
        expected = fold_all(asset, partition, found)
        assert (materialization(row), last_attempt(row)) == (materialization(expected), last_attempt(expected))
        assert row.last_attempt_at == expected.last_attempt_at
        assert row.row_version >= expected.row_version
    assert sum(len(found) for (asset, _), found in attempts.items() if asset == WAREHOUSE) > len(CONTESTED)


@pytest.mark.invariant("P2", "P10")
@pytest.mark.parametrize("asset", [RAW, WAREHOUSE])
def test_sweep_during_an_attempt_loses_neither_write(postgres_url: str, asset: str, clock: FakeClock) -> None:
    """If a sweep writes a row between the read and the write of an attempt, the attempt is folded again."""
    with Ledger.opened(postgres_url, clock=clock) as ledger:
        accepted_runs(ledger, [key()])
        publish_runs(ledger, run(key(), "r1"))
        ledger.registrations.register(sealed_runs(run(key(), "r2")))
        table = StatusTable(ledger.engine)  # its clock is the database's, far ahead of the ledger's
        row = read_status(ledger, key(), asset)
        swept: list[int] = []

        def sweep_before_writing(_c: Any, _cursor: Any, _statement: str, parameters: Any, _x: Any, _m: Any) -> None:
            if '"row_version"' in str(parameters) and not swept:
                swept.append(-1)
                swept[0] = table.store_staleness([(row, STALE)])

        sa.event.listen(ledger.engine, "before_cursor_execute", sweep_before_writing)
        if asset == RAW:
            record_verdict(ledger, rejection(run(key(), "r2")))
        else:
            ledger.loads.record_failed({run(key(), "r2"): "no"})
        assert swept == [1]
        after = read_status(ledger, key(), asset)
        assert last_attempt(after) == ("r2", FAILED)
        assert (after.stale_since, after.stale_reason_code) == (STALE.since, STALE.reason)
        attempts = read_attempts(ledger.engine)[asset, key()]
        assert len(attempts) == 2
        assert fold_all(asset, key(), attempts) == replace(after, stale_since=None, stale_reason_code=None)
