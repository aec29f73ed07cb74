"""The registry of the checks for event stores, and what the checks share."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st

from ads_pipeline.domain.run_events import AppendResult, Event
from ads_pipeline.domain.run_snapshots import RunEventStore
from ads_pipeline.testing import event_strategies as builders

Check = Callable[..., None]  # called with a store
CHECKS: Final[list[Check]] = []
INVARIANTS: Final[dict[str, tuple[str, ...]]] = {}  # for each check, the codes of the rules that it tests
LARGEST_PAGE: Final = 10_000
LATER: Final = "2999-01-01T00:00:00-11:30"
PROPERTY: Final = settings(max_examples=20 * int(os.environ.get("SOAK", "1")), deadline=None)
histories = st.lists(builders.event_specs, min_size=1, max_size=12)


def read_events(store: RunEventStore, engine_run_id: str) -> list[Event]:
    return [each.event for each in store.fetch(engine_run_id, limit=LARGEST_PAGE)]


def append_all(store: RunEventStore, events: Sequence[Event]) -> list[AppendResult]:
    """Append one event with `append` and several with `append_many`."""
    return [store.append(events[0])] if len(events) == 1 else store.append_many(events)


def holds(*invariants: str) -> Callable[[Check], Check]:
    """Add the function to the suite."""

    def register(check: Check) -> Check:
        CHECKS.append(check)
        INVARIANTS[check.__name__] = invariants
        return check

    return register


@contextmanager
def raises(kind: type[Exception], pattern: str = "") -> Iterator[None]:
    try:
        yield
    except kind as error:
        if not re.search(pattern, str(error)):
            raise AssertionError(f"{error} does not match {pattern}") from error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
