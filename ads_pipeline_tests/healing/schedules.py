"""Schedules of faults and acts in simulated time, made from a seed, and how a failing one is shortened."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One fault or one act of an operator: when it begins, how long it lasts, and numbers that choose its details.

    One without a duration happens at a moment.
    """

    at: int  # hours since the start
    kind: str
    hours: int = 0
    customer: int = 0
    choice: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of act: the least and the greatest duration in hours, both multiples of the grid."""

    hours: tuple[int, int] = (0, 0)


# A source that fails is away for up to a day, longer than all delays of the retry policy together.
GRID: Final = 3  # hours; acts begin and end at its multiples, because each moment is a step that is simulated
KINDS: Final[dict[str, Kind]] = {
    "source_away": Kind(hours=(3, 27)),
    "token_endpoint_away": Kind(hours=(3, 27)),
    "token_refused": Kind(hours=(3, 12)),
    "quota_exhausted": Kind(hours=(3, 21)),
    "account_disabled": Kind(hours=(3, 60)),
    "account_denied": Kind(hours=(3, 60)),
    "account_cancelled": Kind(hours=(21, 60)),
    "odd_rows": Kind(hours=(3, 27)),
    "undecodable_failure": Kind(hours=(3, 12)),
    "stream_breaks": Kind(hours=(3, 12)),
    "stream_times_out": Kind(hours=(3, 12)),
    "disk_full": Kind(hours=(3, 12)),
    "webhook_away": Kind(hours=(3, 42)),
    "webhook_drips": Kind(hours=(3, 3)),
    "webhook_hangs": Kind(hours=(3, 3)),
    "clock_ahead": Kind(hours=(3, 12)),
    "clock_behind": Kind(hours=(3, 12)),
    "killed_at_a_write": Kind(),
    "killed_between_steps": Kind(),
    "command_killed": Kind(),
    "rejected_run": Kind(),
    "run_without_contract": Kind(),
    "odd_seal": Kind(),
    "data_file_missing": Kind(),
    "data_file_cut": Kind(),
    "raw_changed": Kind(),
    "raw_missing": Kind(),
    "operator": Kind(),
}
HOURS_OF_QUIET: Final = 6  # before the first act, so that customers are known


def make_schedule(seed: int, *, kinds: Sequence[str], days: int, acts: int) -> tuple[Act, ...]:
    """The schedule of a seed. Each kind comes once before any comes twice."""
    chance = random.Random(seed)
    names = [name for _ in range(acts // len(kinds) + 1) for name in chance.sample(list(kinds), len(kinds))][:acts]
    made = [
        Act(
            at=chance.randrange(HOURS_OF_QUIET, days * 24, GRID),
            kind=name,
            hours=GRID * chance.randint(*(hours // GRID for hours in KINDS[name].hours)),
            customer=chance.randrange(3),
            choice=chance.randrange(1_000),
        )
        for name in names
    ]
    return tuple(sorted(made, key=lambda act: (act.at, act.kind)))


def shorten(schedule: tuple[Act, ...], fails: Callable[[tuple[Act, ...]], bool], *, tries: int) -> tuple[Act, ...]:
    """A shorter schedule that still fails, found in so many tries: drop halves, then quarters, then single acts."""
    size = max(len(schedule) // 2, 1)
    while tries and len(schedule) > 1:
        for start in range(0, len(schedule), size):
            candidate = schedule[:start] + schedule[start + size :]
            tries -= 1
            if candidate and fails(candidate):
                schedule = candidate
                break
            if not tries:
                return schedule
        else:
            if size == 1:
                return schedule
            size = max(size // 2, 1)
    return schedule


def hours(number: float) -> timedelta:
    return timedelta(hours=number)
