"""Tests the paged audit log: control actions, the partitions they changed, and verdicts."""

from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import LoggedAction, StateFilter
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    record_verdict,
    registered_runs,
    rejection,
)

ALL = StateFilter(source="google_ads")


def test_actions_are_listed_newest_first_in_pages(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Actions of the same time are ordered by id, so pages neither lose nor repeat one."""
    accepted_runs(timed_ledger, keys(2))
    for moment in range(3):
        clock.tick()
        for number in range(3):
            timed_ledger.actions.execute(Action.REPROCESS, keys(2), action_request(f"a-{moment}-{number}"))
    whole = timed_ledger.audit.page()
    assert [action.action_id for action in whole] == [
        f"a-{moment}-{number}" for moment in (2, 1, 0) for number in (2, 1, 0)
    ]
    assert (whole[-1].partitions_changed, whole[-1].operator, whole[-1].performed_at) == (
        2,
        "ada",
        whole[-2].performed_at,
    )
    for limit in (1, 2, 4, 9):
        found, last = list[LoggedAction](), None
        while page := timed_ledger.audit.page(after=last, limit=limit):
            found += page
            last = page[-1]
        assert found == whole


def test_action_is_found_with_its_parts(ledger: Ledger) -> None:
    """The id is not a pattern; each changed partition is listed once with its earlier status."""
    accepted_runs(ledger, keys(5))
    for action_id, some in (("a_1.1", keys(5)[:3]), ("a_1.2", keys(5)[3:]), ("ab1.1", keys(1)), ("a_10", keys(1))):
        ledger.actions.execute(Action.WITHDRAW, some, action_request(action_id))
    assert [part.action_id for part in ledger.audit.parts("a_1")] == ["a_1.1", "a_1.2"]
    assert [part.action_id for part in ledger.audit.parts("a_1.2")] == ["a_1.2"]
    assert ledger.audit.parts("nothing") == []
    ids = ["a_1.1", "a_1.2"]
    assert ledger.audit.page_of_partitions(ids) == [(each, Status.SUCCESS) for each in keys(5)]
    first = ledger.audit.page_of_partitions(ids, limit=2)
    assert first + ledger.audit.page_of_partitions(ids, after=first[-1][0]) == ledger.audit.page_of_partitions(ids)


def test_attempts_of_matching_partitions_are_paged(ledger: Ledger) -> None:
    """Verdicts come in key order and then by attempt number, after the given position."""
    accepted_runs(ledger, [key("1"), key("2", query_name="ad_group_daily"), key("3", day=2)])
    for number in range(2, 5):
        (newer,) = registered_runs(ledger, key("1"), f"r{number}")
        record_verdict(ledger, acceptance(newer) if number % 2 else rejection(newer))
    whole = ledger.runs.page_of_attempts(ALL)
    assert [(each.verdict.run.key.customer_id, each.attempt_no) for each in whole] == [
        ("1", 1),
        ("1", 2),
        ("1", 3),
        ("1", 4),
        ("2", 1),
        ("3", 1),
    ]
    assert whole[:4] == ledger.runs.attempts(key("1"))
    found, last_attempt = whole[:0], None
    while page := ledger.runs.page_of_attempts(ALL, after=last_attempt, limit=2):
        found += page
        last_attempt = page[-1].verdict.run.key, page[-1].attempt_no
    assert found == whole
    assert ledger.runs.page_of_attempts(StateFilter(query_names=frozenset({"ad_group_daily"}))) == whole[4:5]
    assert ledger.runs.page_of_attempts(StateFilter(since=key(day=2).logical_date)) == whole[5:]
