"""Reasons of rejections: their text, their JSON, and their limits."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.reason import MAX_JSON_LENGTH, Problem, Reason, Sample
from ads_pipeline.domain.run_events import MAX_DATA_LENGTH

NEGATIVE = Problem(
    error_class="contract",
    rule="must be at least 0",
    fields=("clicks",),
    rows=7,
    samples=(Sample(line=2, values=("-1",)), Sample(line=9, values=("-3",))),
)
TWICE = Problem(error_class="contract", rule="not unique", fields=("campaign_id", "day"), rows=1)
UNREADABLE = Problem(error_class="unreadable_line", rule="not JSON", rows=1, samples=(Sample(line=4),))
SHORT = Problem(error_class="count_mismatch", rule="the payload has 2 rows, the seal says 3")

samples = st.builds(Sample, line=st.integers(1, 1 << 40), values=st.lists(st.text(max_size=9), max_size=3).map(tuple))
problems = st.builds(
    Problem,
    error_class=st.sampled_from(["contract", "damaged"]),
    rule=st.text(min_size=1, max_size=3000),
    fields=st.lists(st.text(max_size=200), max_size=3).map(tuple),
    rows=st.integers(0, 1 << 40),
    samples=st.lists(samples, max_size=5).map(tuple),
)
reasons = st.builds(
    Reason,
    run_id=st.just("r1"),
    problems=st.lists(problems, min_size=1, max_size=70).map(tuple),
    operator=st.none() | st.text(),
)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (NEGATIVE, "clicks must be at least 0 in 7 rows (line 2: -1; line 9: -3; …)"),
        (TWICE, "campaign_id and day not unique in 1 row"),
        (UNREADABLE, "not JSON in 1 row (line 4)"),
        (SHORT, "the payload has 2 rows, the seal says 3"),
    ],
)
def test_text_names_fields_rule_rows_and_samples(problem: Problem, text: str) -> None:
    """A text starts with the run. It has the fields, the rule, the number of rows and the lines of the samples."""
    assert str(Reason(run_id="r1", problems=(problem,))) == f"r1: {text}"


def test_text_lists_all_problems_and_first_class_counts() -> None:
    """Problems are separated by semicolons; the class is that of the first one, the rows those of the largest."""
    reason = Reason(run_id="r1", problems=(UNREADABLE, NEGATIVE))
    assert str(reason) == f"r1: {UNREADABLE}; {NEGATIVE}"
    assert (reason.error_class, reason.rows_failed) == ("unreadable_line", 7)


def test_demotion_names_operator() -> None:
    """The reason of a demotion has the class demoted, the operator and the operator's text."""
    reason = Reason.of_demotion("r1", operator="ada", text="wrong account")
    assert (reason.error_class, reason.operator, reason.rows_failed) == ("demoted", "ada", 0)
    assert str(reason) == "r1: demoted by ada: wrong account"


@pytest.mark.invariant("X2")
@given(reasons)
def test_json_is_canonical_and_keeps_everything(reason: Reason) -> None:
    """Decoding the JSON gives the same reason. Equal reasons have equal JSON, in sorted order without spaces."""
    assert Reason.from_json(reason.json) == reason
    document = json.loads(reason.json)
    assert reason.json == json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert str(reason).isprintable()
    assert len(str(reason)) <= 2000


@pytest.mark.invariant("X2")
@given(reasons)
def test_reason_fits_into_event(reason: Reason) -> None:
    """Problems that do not fit are left out, so that an event can hold the reason and its text."""
    assert len(reason.json) <= MAX_JSON_LENGTH or len(reason.problems) == 1
    assert len(reason.json) + len(json.dumps(str(reason), ensure_ascii=False)) < MAX_DATA_LENGTH - 1000


@pytest.mark.parametrize("problems", [(), (NEGATIVE,)])
def test_incomplete_reasons_are_refused(problems: tuple[Problem, ...]) -> None:
    """A reason needs a valid run and at least one problem, and a problem needs a rule."""
    with pytest.raises(ValueError, match=r"needs a problem|run_id"):
        Reason(run_id="r1" if not problems else "../r1", problems=problems)
    with pytest.raises(ValueError, match="needs a rule"):
        Problem(error_class="contract", rule="")
