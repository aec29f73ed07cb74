"""When unanswered calls are an outage of the source, and how long the pauses between probes are."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.fetching.outages import PAUSES, EndedCall, is_source_away, pause_after

A, B, C, D = "1", "2", "3", "4"
OUTCOMES = ("ok", "transient", "source_unavailable", "permission_denied", "quota_exhausted", "interrupted")


def ended(*calls: tuple[str | None, str]) -> list[EndedCall]:
    return [EndedCall(customer_id=customer, outcome=outcome) for customer, outcome in calls]


@pytest.mark.invariant("L3")
@pytest.mark.parametrize(
    ("calls", "known", "is_away"),
    [
        ([(A, "source_unavailable")], 9, True),
        ([(A, "source_unavailable"), (B, "ok"), (A, "ok")], 9, True),
        ([(A, "source_unavailable"), (B, "ok"), (A, "transient"), (A, "source_unavailable")], 9, False),
        ([(A, "source_unavailable"), (A, "source_unavailable"), (A, "source_unavailable")], 9, True),
        ([(A, "transient"), (B, "transient"), (C, "transient"), (D, "ok")], 9, True),
        ([(A, "transient"), (B, "transient"), (D, "ok"), (C, "transient")], 9, False),
        ([(A, "transient"), (A, "transient"), (B, "transient")], 9, False),
        ([(A, "transient"), (A, "transient"), (B, "transient")], 2, True),
        ([(A, "transient"), (A, "transient"), (A, "transient")], 1, True),
        ([(A, "transient"), (A, "transient"), (A, "transient")], 0, False),
        ([(A, "transient"), (A, "transient")], 1, False),
        ([(A, "transient"), (B, "interrupted"), (B, "transient"), (C, "transient")], 9, True),
        ([(A, "timed_out"), (B, "timed_out"), (C, "timed_out")], 9, True),
        ([(A, "permission_denied"), (B, "transient"), (C, "transient"), (D, "transient")], 9, False),
        ([], 9, False),
    ],
)
def test_most_accounts_failing_alike_are_an_outage(
    calls: list[tuple[str | None, str]], known: int, is_away: bool
) -> None:
    """A fault of the connection is enough; others need three accounts, or all, and no answer since."""
    assert is_source_away(ended(*calls), known) is is_away


@given(
    st.lists(st.tuples(st.sampled_from([A, B, C, None]), st.sampled_from(OUTCOMES)), max_size=12), st.integers(0, 5)
)
def test_answered_call_is_never_an_outage(calls: list[tuple[str | None, str]], known: int) -> None:
    """Whatever came before it, a call that the source answered shows that it is there."""
    assert not is_source_away(ended((A, "ok"), *calls), known)


def test_pauses_grow_to_half_an_hour() -> None:
    """The longest pause repeats, so an outage of 8.5 hours costs 22 calls."""
    assert [pause_after(number) for number in range(1, 9)] == [*PAUSES, PAUSES[-1], PAUSES[-1]]
    assert list(PAUSES) == sorted(PAUSES)
    elapsed, calls = timedelta(0), 0
    while elapsed < timedelta(hours=8.5):
        calls += 1
        elapsed += pause_after(calls)
    assert calls == 21
