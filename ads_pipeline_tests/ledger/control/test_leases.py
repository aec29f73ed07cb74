"""Tests leases: which run may write a partition, for how long, and what happens when two runs want it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import LeaseLost, LedgerRefused, LedgerUnavailable
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.ledger.events.completed_runs import RunCompletionLog
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import claims, leases
from ads_pipeline.ledger.write_steps.leases import Lease, renewing
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    key,
    keys,
    open_lease,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
    set_on_exit,
)
from ads_pipeline_tests.ledger.state.test_concurrency import wait_until_a_transaction_waits
from ads_pipeline_tests.ledger.test_database_constraints import assert_refused, read_all_tables

LASTS = timedelta(seconds=60)
Opening = Callable[..., Lease]


@pytest.fixture
def lease(backdoor: sa.Engine, clock: FakeClock) -> Opening:
    """Opens leases on the test's clock."""

    def open_lease(engine_run_id: str = "engine-1", *, lasts: timedelta = LASTS) -> Lease:
        opened = Lease(backdoor, engine_run_id, duration=lasts, clock=clock)
        opened.open()
        return opened

    return open_lease


@pytest.fixture
def reader(url: str) -> Iterator[LedgerReader]:
    with LedgerReader.opened(url) as opened:
        yield opened


def ledger_under(lease: Lease) -> Ledger:
    """A ledger that writes as the run of this lease."""
    return Ledger(
        lease._engine,
        clock=lease._clock,
        origin=EventOrigin(engine_run_id=lease.engine_run_id, plan_version="p1"),
        lease=lease,
    )


@pytest.mark.invariant("O4")
def test_partition_is_granted_to_one_run_at_a_time(lease: Opening, clock: FakeClock) -> None:
    """The first claim wins and may be repeated; another run gets the holder and the end of its lease."""
    first, second = lease("engine-1"), lease("engine-2")
    both, rest = keys(3)[:2], keys(3)[1:]
    assert dict(first.claim(both).granted) == dict.fromkeys(both, 1)
    assert dict(first.claim(both).granted) == dict.fromkeys(both, 1)
    answer = second.claim(rest)
    assert dict(answer.granted) == {rest[1]: 1}
    holder = answer.held[rest[0]]
    assert (holder.engine_run_id, holder.fence, holder.claimed_at) == ("engine-1", 1, clock.now)
    assert holder.expires_at == clock.now + LASTS
    assert str(holder) == "run engine-1 holds it, at least until 2026-03-01 00:01:00 UTC"


@pytest.mark.invariant("O3", "O4")
def test_fence_grows_with_each_holder(lease: Opening, clock: FakeClock) -> None:
    """A partition is free when its holder has ended or not renewed its lease, and not before."""
    first = lease("engine-1")
    first.claim([key()])
    first.end()
    second = lease("engine-2")
    assert dict(second.claim([key()]).granted) == {key(): 2}
    clock.tick(LASTS - timedelta(microseconds=1))
    third = lease("engine-3")
    assert list(third.claim([key()]).held) == [key()]
    clock.tick(timedelta(microseconds=1))
    assert dict(third.claim([key()]).granted) == {key(): 3}


@pytest.mark.invariant("O3")
def test_renewal_keeps_but_never_revives_a_lease(lease: Opening, clock: FakeClock) -> None:
    """Renewed in time, a lease never expires; once expired or ended, nothing brings it back."""
    kept, silent, ended = lease("engine-1"), lease("engine-2"), lease("engine-3")
    ended.end()
    for _ in range(3):
        clock.tick(LASTS / 2)
        assert kept.renew()
    assert not silent.renew()
    assert not ended.renew()
    for lost in (silent, ended):
        with pytest.raises(LeaseLost, match=f"run {lost.engine_run_id} may not write: .*; start a new run"):
            lost.open()
        with pytest.raises(LeaseLost):
            lost.claim([key()])
    kept.open()
    assert dict(kept.claim([key()]).granted) == {key(): 1}


def test_clock_going_back_does_not_shorten_a_lease(lease: Opening, clock: FakeClock) -> None:
    """A renewal never moves the expiry to an earlier time."""
    held = lease()
    clock.tick(-timedelta(hours=1))
    assert held.renew()
    clock.tick(timedelta(hours=1) + LASTS - timedelta(seconds=1))
    assert held.renew()


@pytest.mark.invariant("O3")
def test_lost_lease_cannot_claim(lease: Opening, clock: FakeClock, backdoor: sa.Engine) -> None:
    """A run without a live lease changes no claim, not even on a partition that was never claimed."""
    silent = lease()
    clock.tick(LASTS)
    before = read_all_tables(backdoor)
    with pytest.raises(LeaseLost):
        silent.claim([key()])
    assert read_all_tables(backdoor) == before


def test_claim_statements_do_not_grow_with_partitions(lease: Opening, backdoor: sa.Engine) -> None:
    """Claiming 2,000 partitions takes as many statements as claiming a few."""
    counted: list[int] = []
    sa.event.listen(backdoor, "before_cursor_execute", lambda *_: counted.append(1))
    first, second = lease("engine-1"), lease("engine-2")
    many = [key(str(n), day=day) for n in range(400) for day in range(1, 6)]
    counted.clear()
    assert len(first.claim(many).granted) == 2_000
    of_many = len(counted)
    counted.clear()
    second.claim(many[:3])
    assert of_many <= 6
    assert len(counted) <= of_many + 4, "a connection prepares statements once"


def test_reader_lists_lease_holders(lease: Opening, reader: LedgerReader, backdoor: sa.Engine) -> None:
    """The reader names run, start and expiry of live claims, by the database's clock, and omits free partitions."""
    held = Lease(backdoor, "engine-1", duration=timedelta(hours=1))
    held.open()
    held.claim([key(day=1)])
    past = Lease(backdoor, "engine-2", duration=timedelta(seconds=0))
    past.open()
    with pytest.raises(LeaseLost):
        past.claim([key(day=2)])
    found = reader.leases.holders([key(day=1), key(day=2), key(day=3)])
    assert list(found) == [key(day=1)]
    holder = found[key(day=1)]
    assert holder.engine_run_id == "engine-1"
    assert holder.claimed_at < holder.expires_at
    held.end()
    assert reader.leases.holders([key(day=1)]) == {}


WRITES: dict[str, Callable[[Ledger], object]] = {
    "register": lambda ledger: ledger.registrations.register(sealed_runs(run(key(), "late"))),
    "verdict": lambda ledger: record_verdict(ledger, acceptance(run(key(), "r2"))),
    "rejection": lambda ledger: record_verdict(ledger, rejection(run(key(), "r1"), validation_id="again")),
    "demotion": lambda ledger: ledger.verdicts.begin_demotions([rejection(run(key(), "r1"), validation_id="again")]),
    "publication": lambda ledger: publish_runs(ledger, run(key(), "r1")),
    "failed load": lambda ledger: ledger.loads.record_failed({run(key(), "r1"): "no disk"}),
    "final check": lambda ledger: ledger.loads.publishable_runs([run(key(), "r1")]),
}


def prepare(ledger: Ledger) -> None:
    """A partition on which each of the writes would change or find something."""
    accepted_runs(ledger, [key()])
    registered_runs(ledger, key(), "r2")


@pytest.mark.invariant("O3")
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("how", ["taken over", "expired", "ended", "never claimed"])
def test_run_writes_only_partitions_it_holds(
    lease: Opening, timed_ledger: Ledger, clock: FakeClock, backdoor: sa.Engine, how: str, write: str
) -> None:
    """Whatever ended the claim, every write of the partition is refused and changes nothing."""
    prepare(timed_ledger)
    held = lease()
    if how != "never claimed":
        held.claim([key()])
    if how in ("expired", "taken over"):
        clock.tick(LASTS)
    if how == "ended":
        held.end()
    if how == "taken over":
        lease("engine-2").claim([key()])
    before = read_all_tables(backdoor)
    with pytest.raises(LeaseLost, match=f"^{key()}: run engine-1 may not write to it: ") as caught:
        WRITES[write](ledger_under(held))
    assert (caught.value.engine_run_id, caught.value.partition) == ("engine-1", str(key()))
    assert not caught.value.is_transient
    assert read_all_tables(backdoor) == before


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("has_lease", [True, False])
def test_holder_may_write(
    lease: Opening, timed_ledger: Ledger, backdoor: sa.Engine, has_lease: bool, write: str
) -> None:
    """A run changes the partitions that it holds. A writer without a lease needs no claim, also beside a holder."""
    prepare(timed_ledger)
    held = lease()
    held.claim([key()])
    before = read_all_tables(backdoor)
    result = WRITES[write](ledger_under(held) if has_lease else timed_ledger)
    changed = {name for name, rows in read_all_tables(backdoor).items() if rows != before[name]}
    assert result == {run(key(), "r1")} if write == "final check" else "run_events" in changed
    assert "claims" not in changed


@pytest.mark.invariant("O3")
def test_one_unclaimed_partition_refuses_the_whole_call(lease: Opening, backdoor: sa.Engine) -> None:
    """A call with verdicts on claimed and unclaimed partitions records none of them."""
    held = lease()
    held.claim([key(day=1)])
    runs = [run(key(day=day), "r1") for day in (1, 2)]
    Ledger(backdoor).registrations.register(sealed_runs(*runs))
    before = read_all_tables(backdoor)
    with pytest.raises(LeaseLost, match=str(key(day=2))):
        ledger_under(held).verdicts.record([acceptance(each) for each in runs])
    assert read_all_tables(backdoor) == before
    ledger_under(held).verdicts.record([acceptance(runs[0])])


def test_checking_claims_costs_one_statement(lease: Opening, backdoor: sa.Engine) -> None:
    """The check is one statement per call, whatever the number of partitions."""
    counted: list[bool] = []  # for each statement, whether it reads claims
    many = keys(100)
    held = lease()
    held.claim(many)
    # Different partitions, because a second accepted run of one is compared with the first.
    runs = [[run(each, "r1") for each in half] for half in (many[:50], many[50:])]
    Ledger(backdoor).registrations.register(sealed_runs(*runs[0], *runs[1]))
    sa.event.listen(backdoor, "before_cursor_execute", lambda *call: counted.append(" claims" in call[2]))
    numbers = []
    for ledger, some in ((Ledger(backdoor), runs[0]), (ledger_under(held), runs[1])):
        counted.clear()
        ledger.verdicts.record([acceptance(each) for each in some])
        numbers.append(sum(counted))
    assert numbers == [0, 1]


@pytest.mark.invariant("O3", "O4")
@pytest.mark.parametrize("first", ["write", "claim"])
def test_takeover_and_late_write_are_serialized(postgres_url: str, first: str) -> None:
    """The second waits for the first: a claim then sees the verdict, and a verdict sees the claim."""
    with Ledger.opened(postgres_url) as plain, database.open_checked_engine(postgres_url) as slow:
        (r1,) = registered_runs(plain, key(), "r1")
        old, new = (Lease(engine, name, duration=LASTS) for engine, name in ((slow, "engine-1"), (slow, "engine-2")))
        for each in (old, new):
            each.open()
        old.claim([key()])
        hold, held = threading.Event(), threading.Event()

        def pause(_connection: sa.Connection) -> None:
            held.set()
            hold.wait(300)

        with database.open_checked_engine(postgres_url) as quick, ThreadPoolExecutor(2) as pool, set_on_exit(hold):
            late = Ledger(slow if first == "write" else quick, lease=old)
            taking = Lease(quick if first == "write" else slow, "engine-2", duration=LASTS)
            if first == "claim":
                old.end()
            sa.event.listen(slow, "commit", pause)

            def write() -> object:
                return record_verdict(late, acceptance(r1))

            def claim() -> object:
                if first == "write":
                    end_lease(quick, "engine-1")
                return taking.claim([key()])

            one, two = (write, claim) if first == "write" else (claim, write)
            holding = pool.submit(one)
            assert held.wait(300)
            waiting = pool.submit(two)
            wait_until_a_transaction_waits(postgres_url)
            hold.set()
            holding.result()
            if first == "write":
                waiting.result()
            else:
                with pytest.raises(LeaseLost, match="run engine-2 claimed it"):
                    waiting.result()
        assert plain.states.get(key()).attempt_count == (first == "write")
        assert plain.leases.holders([key()])[key()].engine_run_id == "engine-2"


def end_lease(engine: sa.Engine, engine_run_id: str) -> None:
    """End the lease, as if it had run out."""
    database.transact(
        engine,
        lambda c: c.execute(
            sa.update(leases).where(leases.c.engine_run_id == engine_run_id).values(ended_at=sa.func.now())
        ),
    )


@pytest.mark.invariant("O4")
def test_waiting_claim_sees_the_new_holder(postgres_url: str) -> None:
    """Of two runs that claim a free partition, the second sees the first's lease after it waited."""
    with database.open_checked_engine(postgres_url) as slow, database.open_checked_engine(postgres_url) as quick:
        dead = Lease(quick, "engine-0", duration=LASTS)
        dead.open()
        dead.claim([key()])
        dead.end()
        first, second = Lease(slow, "engine-1", duration=LASTS), Lease(quick, "engine-2", duration=LASTS)
        first.open()
        second.open()
        hold, held = threading.Event(), threading.Event()

        def pause(_connection: sa.Connection) -> None:
            held.set()
            hold.wait(300)

        sa.event.listen(slow, "commit", pause)
        with ThreadPoolExecutor(2) as pool, set_on_exit(hold):
            taking = pool.submit(first.claim, [key()])
            assert held.wait(300)
            waiting = pool.submit(second.claim, [key()])
            wait_until_a_transaction_waits(postgres_url)
            hold.set()
            assert dict(taking.result().granted) == {key(): 2}
            assert waiting.result().held[key()].engine_run_id == "engine-1"


@pytest.mark.invariant("O3", "O4")
def test_processes_of_one_run_share_its_lease(lease: Opening, clock: FakeClock) -> None:
    """A process that ends leaves the lease open for the next one, which has the same fences and never shortens the
    lease. When no process renews it in time, it is lost for all of them."""
    first, other = lease("engine-1"), lease("engine-2", lasts=LASTS * 10)
    first.claim([key(day=1)])
    first.stay_open(LASTS * 3)
    clock.tick(LASTS * 2)
    assert list(other.claim([key(day=1)]).held) == [key(day=1)]
    second = lease("engine-1")
    assert dict(second.claim([key(day=1), key(day=2)]).granted) == {key(day=1): 1, key(day=2): 1}
    clock.tick(LASTS - timedelta(microseconds=1))
    assert list(other.claim([key(day=1)]).held) == [key(day=1)]
    clock.tick(timedelta(microseconds=1))
    second.stay_open(LASTS)
    assert dict(other.claim([key(day=1), key(day=2)]).granted) == {key(day=1): 2, key(day=2): 2}
    for attempt in (second.open, lambda: first.claim([key(day=3)]), lambda: lease("engine-1")):
        with pytest.raises(LeaseLost):
            attempt()


@pytest.mark.invariant("O3")
@pytest.mark.parametrize("wait", [None, LASTS * 3])
def test_lease_stays_open_as_long_as_its_block_says(
    backdoor: sa.Engine, reader: LedgerReader, wait: timedelta | None
) -> None:
    """It is asked when the block has ended, also by an error."""

    def hold() -> None:
        with Lease.held(backdoor, "engine-1", duration=LASTS, find_wait=lambda: wait) as lease:
            lease.claim([key()])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        hold()
    holders = reader.leases.holders([key()])
    assert bool(holders) == bool(wait)
    for holder in holders.values():
        assert holder.expires_at > holder.claimed_at + LASTS * 2


def test_renewal_survives_an_outage(backdoor: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewing thread continues after a database outage and ends when the lease is lost."""
    answers = iter(["out of reach", "out of reach", "kept", "lost"])
    lost = threading.Event()

    def beat(_self: Lease) -> bool:
        answer = next(answers)
        if answer == "out of reach":
            raise LedgerUnavailable("the ledger's database is busy or out of reach: no connection")
        if answer == "lost":
            lost.set()
        return answer == "kept"

    monkeypatch.setattr(Lease, "renew", beat)
    with renewing(Lease(backdoor, "engine-1", duration=timedelta(milliseconds=40))):
        assert lost.wait(300)


def test_outage_while_ending_the_lease_is_suppressed(
    url: str, reader: LedgerReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the lease cannot be ended, the outcome of the block stays the same, and the lease expires."""

    def out_of_reach(_lease: Lease) -> None:
        raise LedgerUnavailable("the ledger's database is busy or out of reach: no connection")

    monkeypatch.setattr(Lease, "end", out_of_reach)
    with open_lease(url, "engine-1", duration=LASTS) as lease:
        lease.claim([key()])
    with pytest.raises(ZeroDivisionError), open_lease(url, "engine-2", duration=LASTS):
        raise ZeroDivisionError
    assert reader.leases.holders([key()])[key()].engine_run_id == "engine-1"


@pytest.mark.invariant("O3")
def test_ending_a_run_ends_its_lease(lease: Opening, timed_ledger: Ledger, clock: FakeClock) -> None:
    """Ending a run frees its partitions; only runs with expired leases are overdue."""
    log = RunCompletionLog(timed_ledger.engine, clock=clock)
    living, silent = lease("engine-1", lasts=LASTS * 3), lease("engine-2")
    living.claim([key(day=1)])
    silent.claim([key(day=2)])
    assert log.list_expired_runs() == []
    clock.tick(LASTS)
    assert log.list_expired_runs() == ["engine-2"]
    for each in (living, silent):
        log.complete_run(
            EventOrigin(engine_run_id=each.engine_run_id, plan_version="p1"), RunStatus.FAILED, reason="it is gone"
        )
        assert not each.renew()
    assert log.list_expired_runs() == []
    successor = lease("engine-3")
    assert dict(successor.claim([key(day=1), key(day=2)]).granted) == {key(day=1): 2, key(day=2): 2}


@pytest.mark.invariant("O3", "O4")
def test_database_refuses_invalid_lease_changes(lease: Opening, backdoor: sa.Engine) -> None:
    """Triggers refuse a revived lease, a falling fence and a holder that changes under the same fence."""
    held, other = lease("engine-1"), lease("engine-2")
    held.claim([key()])
    assert_refused(backdoor, "UPDATE claims SET engine_run_id = 'engine-2'")
    assert_refused(backdoor, "UPDATE claims SET fence = 0")
    assert_refused(backdoor, "UPDATE claims SET engine_run_id = 'nobody', fence = 2")
    assert_refused(backdoor, "DELETE FROM claims")
    assert_refused(backdoor, "DELETE FROM leases")
    assert_refused(backdoor, "UPDATE leases SET expires_at = opened_at")
    other.end()
    assert_refused(backdoor, "UPDATE leases SET ended_at = NULL WHERE engine_run_id = 'engine-2'")
    with pytest.raises(LedgerRefused):
        Lease(backdoor, "engine-3", duration=LASTS).claim([key("7")])
    assert claims.c.keys()[-3:] == ["engine_run_id", "fence", "claimed_at"]
