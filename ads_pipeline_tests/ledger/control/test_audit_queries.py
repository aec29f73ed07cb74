"""What was done to all partitions, in pages: acts of operators, what they changed, and verdicts."""

from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import LoggedAction, StateFilter
from ads_pipeline_tests.ledger.builders import FakeClock, accept, accepted, key, keys, landed, order, reject

ALL = StateFilter(source="google_ads")


def test_acts_come_newest_first_in_pages_that_make_the_whole(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Of one moment the id decides, so that none is left out or told twice where a page ends."""
    accepted(timed_ledger, keys(2))
    for moment in range(3):
        clock.tick()
        for number in range(3):
            timed_ledger.carry_out(Action.REPROCESS, keys(2), order(f"a-{moment}-{number}"))
    whole = timed_ledger.all_acts()
    assert [act.act_id for act in whole] == [f"a-{moment}-{number}" for moment in (2, 1, 0) for number in (2, 1, 0)]
    assert (whole[-1].partitions_changed, whole[-1].operator, whole[-1].acted_at) == (2, "ada", whole[-2].acted_at)
    for limit in (1, 2, 4, 9):
        found, last = list[LoggedAction](), None
        while page := timed_ledger.all_acts(after=last, limit=limit):
            found += page
            last = page[-1]
        assert found == whole


def test_an_act_is_found_with_its_parts(ledger: Ledger) -> None:
    """By its own id, which is no pattern; what it changed is listed once, with what each was before."""
    accepted(ledger, keys(5))
    for act_id, some in (("a_1.1", keys(5)[:3]), ("a_1.2", keys(5)[3:]), ("ab1.1", keys(1)), ("a_10", keys(1))):
        ledger.carry_out(Action.WITHDRAW, some, order(act_id))
    assert [part.act_id for part in ledger.act("a_1")] == ["a_1.1", "a_1.2"]
    assert [part.act_id for part in ledger.act("a_1.2")] == ["a_1.2"]
    assert ledger.act("nothing") == []
    ids = ["a_1.1", "a_1.2"]
    assert ledger.acted(ids) == [(each, Status.SUCCESS) for each in keys(5)]
    first = ledger.acted(ids, limit=2)
    assert first + ledger.acted(ids, after=first[-1][0]) == ledger.acted(ids)


def test_verdicts_on_what_matches_come_in_pages(ledger: Ledger) -> None:
    """In key order and as they were recorded, from just behind one of them; filters narrow."""
    accepted(ledger, [key("1"), key("2", query_name="ad_group_daily"), key("3", day=2)])
    for number in range(2, 5):
        (newer,) = landed(ledger, key("1"), f"r{number}")
        ledger.record_verdict(accept(newer) if number % 2 else reject(newer))
    whole = ledger.attempts_on(ALL)
    assert [(each.run.key.customer_id, each.attempt_no) for each in whole] == [
        ("1", 1),
        ("1", 2),
        ("1", 3),
        ("1", 4),
        ("2", 1),
        ("3", 1),
    ]
    assert whole[:4] == ledger.attempts(key("1"))
    found, place = whole[:0], None
    while page := ledger.attempts_on(ALL, after=place, limit=2):
        found += page
        place = page[-1].run.key, page[-1].attempt_no
    assert found == whole
    assert ledger.attempts_on(StateFilter(query_names=frozenset({"ad_group_daily"}))) == whole[4:5]
    assert ledger.attempts_on(StateFilter(since=key(day=2).logical_date)) == whole[5:]
