"""Samples of rejected rows: which values of a payload they show."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.reason import Problem, Reason
from ads_pipeline.validation.contract_checks import check_rows
from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline.validation.payload_rows import read_rows
from ads_pipeline_tests.validation.builders import CUSTOMER, DAY, make_payload, row

RULES = SHIPPED.rules("search_term_daily", "1")
NAMES = ("customer_id", "search_term_view_status", "search_term_match_type")  # columns without free text
FREE_TEXT = ("search_term_view_search_term", "date", "clicks", "impressions", "note")
_NAME = re.compile(r"[A-Z][A-Z0-9_]*|[0-9]+")
# Letters that no rule and no message has side by side.
texts = st.text(alphabet="qzjxkQZJXK\u00e9_ 7", min_size=4, max_size=60)


def search_term_row(**changes: Any) -> dict[str, Any]:
    more = {"ad_group_id": 5, "search_term_view_search_term": "shoes", "search_term_view_status": "ADDED"}
    wanted = {column.name for column in RULES.columns}
    base = {name: value for name, value in row().items() if name in wanted}
    return base | more | {"search_term_match_type": "BROAD"} | changes


def find_problems(*rows: dict[str, Any], show_text: bool = False) -> tuple[Problem, ...]:
    read = read_rows(make_payload(*rows), RULES)
    if read.table is None:
        return read.problems
    return check_rows(read.table, RULES, customer_id=CUSTOMER, logical_date=DAY, show_text=show_text)


def parts_of(text: str, length: int = 4) -> set[str]:
    return {text[start : start + length] for start in range(len(text) - length + 1)}


@pytest.mark.invariant("X1")
@given(st.dictionaries(st.sampled_from([*NAMES, *FREE_TEXT]), texts, min_size=1))
def test_no_part_of_a_free_text_reaches_the_reason(changes: dict[str, str]) -> None:
    """Whatever strings a payload holds, a reason has no four characters in a row of a free text.

    A name in capitals may stay in a column of names, and so may the digits of a customer.
    """
    problems = find_problems(search_term_row(**changes), search_term_row(**changes))
    assert problems, "both rows have one natural key"
    stored = Reason(run_id="r1", problems=problems).json
    shown = {column: text for column, text in changes.items() if column in NAMES and _NAME.fullmatch(text)}
    may_stay = {part for text in shown.values() for part in parts_of(text)}
    for column, text in changes.items():
        assert column in shown or not [part for part in parts_of(text) - may_stay if part in stored], (column, stored)


def test_samples_show_numbers_dates_and_names() -> None:
    """Numbers, dates, names in capitals and customers make a reason useful. A text becomes its length."""
    duplicates = [search_term_row(search_term_view_search_term="ida johnson shoes size 7")] * 2
    (problem,) = find_problems(*duplicates)
    assert problem.samples[0].values == ("5", "text of 24 characters", "'BROAD'")
    changes = {"clicks": -1, "date": "2026-02-04", "customer_id": "2046619385", "search_term_view_status": "By Ida"}
    shown = {each.fields[0]: each.samples[0].values for each in find_problems(search_term_row(**changes))}
    assert shown == {
        "clicks": ("-1",),
        "date": ("'2026-02-04'",),
        "customer_id": ("'2046619385'",),
        "search_term_view_status": ("text of 6 characters",),
    }


def test_setting_shows_the_start_of_texts() -> None:
    """With the setting, a text is shown, cut at 40 characters."""
    duplicates = [search_term_row(search_term_view_search_term="ida johnson " * 9)] * 2
    (problem,) = find_problems(*duplicates, show_text=True)
    shown = problem.samples[0].values[1]
    assert shown.startswith("'ida johnson ida")
    assert len(shown) == 40


@given(texts)
def test_wrong_types_show_no_values(text: str) -> None:
    """A value of the wrong type is described by its type alone."""
    for column in ("clicks", "conversions", "date"):
        (problem,) = find_problems(search_term_row(**{column: f"q{text}"}))
        assert problem.error_class == "wrong_type"
        assert [sample.values for sample in problem.samples] == [()]
        assert all(first + second not in str(problem) for first, second in pairwise("qzjxk"))
