"""Schedules of simulated faults: a seed always makes the same one, and one that fails is shortened."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline_tests.healing.schedules import GRID, KINDS, Act, make_schedule, shorten

ENOUGH = 200  # tries, for schedules of this length


@given(seed=st.integers(0, 2**32))
def test_seed_makes_one_schedule(seed: int) -> None:
    """The same seed makes the same schedule, with every kind once before any comes twice, in the order of time."""
    schedule = make_schedule(seed, kinds=tuple(KINDS), days=5, acts=len(KINDS))
    assert schedule == make_schedule(seed, kinds=tuple(KINDS), days=5, acts=len(KINDS))
    assert sorted(act.kind for act in schedule) == sorted(KINDS)
    assert [act.at for act in schedule] == sorted(act.at for act in schedule)
    assert all(act.at % GRID == act.hours % GRID == 0 for act in schedule)
    assert all(KINDS[act.kind].hours[0] <= act.hours <= KINDS[act.kind].hours[1] for act in schedule)


@given(data=st.data(), length=st.integers(1, 12))
def test_shortened_schedule_has_only_what_fails(data: st.DataObject, length: int) -> None:
    """Shortening keeps exactly the acts without which the failure is gone."""
    acts = tuple(Act(at=number, kind="operator") for number in range(length))
    needed = set(data.draw(st.lists(st.sampled_from(acts), min_size=1, max_size=3)))

    def fails(schedule: Sequence[Act]) -> bool:
        return needed <= set(schedule)

    assert set(shorten(acts, fails, tries=ENOUGH)) == needed


@given(tries=st.integers(0, 6), length=st.integers(1, 12))
def test_shortening_ends_after_its_tries(tries: int, length: int) -> None:
    """Each try is a whole simulation, so no more than the stated number is made."""
    acts, made = tuple(Act(at=number, kind="operator") for number in range(length)), list[int]()

    def fails(schedule: Sequence[Act]) -> bool:
        made.append(len(schedule))
        return acts[-1] in schedule

    assert acts[-1] in shorten(acts, fails, tries=tries)
    assert len(made) <= tries
