"""What to do next about a partition, case by case, from nothing but what is known of it."""

from datetime import timedelta
from typing import Any

import pytest

from ads_pipeline.cli.explain.advice import PartitionFacts, next_steps
from ads_pipeline.cli.explain.partition_report import SENSOR_WINDOW
from ads_pipeline.domain.freshness import StaleReason
from ads_pipeline.domain.transitions import Status
from ads_pipeline.orchestration.sensors import LOOKBACK

PENDING, SUCCESS, FAILED = Status.PENDING, Status.SUCCESS, Status.FAILED
READ = {"status": SUCCESS, "current": "r1", "shown": "r1"}
UNLOADED = {"status": SUCCESS, "current": "r2", "shown": "r1"}
JUDGE = "materialize raw/q with its check and warehouse/q in Dagster"
WITHDRAWN = "it was withdrawn by ada: wrong currency"
SEAL = "seal a corrected run under a new run_id; nothing is to be reset"
RETRY = "ads-pipeline state retry 7/q/2026-02-01 --reason TEXT"
CLEAR = "ads-pipeline state clear-terminal 7/q/2026-02-01 --reason TEXT"
REPROCESS = "ads-pipeline state reprocess 7/q/2026-02-01 --reason TEXT"
RELEASE = "ads-pipeline state release --customer 7 --reason TEXT"
NEITHER = "q is no query of file"
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "nobody heard of it": ({"status": None}, ("seal a run of it under a new run_id",)),
    "sealed and not heard of": (
        {"status": None, "awaiting": "r1"},
        (f"have r1 judged: {JUDGE}, or wait for raw_arrivals",),
    ),
    "sealed long ago": (
        {"status": None, "awaiting": "r1", "too_old": True},
        (f"have r1 judged: {JUDGE}; raw_arrivals does not look so far back",),
    ),
    "sealed for a query that is gone": (
        {"status": None, "awaiting": "r1", "no_asset": NEITHER},
        (f"mend the query file, for Dagster cannot judge r1: {NEITHER}",),
    ),
    "pending with nothing": ({"status": PENDING}, ("seal a run of it under a new run_id",)),
    "pending a verdict": (
        {"status": PENDING, "awaiting": "r1"},
        (f"have r1 judged: {JUDGE}, or wait for raw_arrivals",),
    ),
    "judging ended without a verdict": (
        {"status": PENDING, "awaiting": "r1", "undecided": True},
        (f"see above why r1 got no verdict, then {JUDGE}",),
    ),
    "withdrawn": (
        {"status": PENDING, "current": "r1", "act": WITHDRAWN},
        (WITHDRAWN, "seal a run of it under a new run_id"),
    ),
    "withdrawn and landed anew": (
        {"status": PENDING, "current": "r1", "act": WITHDRAWN, "awaiting": "r2"},
        (WITHDRAWN, f"have r2 judged: {JUDGE}, or wait for raw_arrivals"),
    ),
    "failed, and nothing is planned": (
        {"status": FAILED, "rejected": "r1"},
        (f"mend what is said of it above, then: {RETRY}", f"or {SEAL}"),
    ),
    "failed, and tried again": (
        {"status": FAILED, "rejected": "r1", "next_try": "noon"},
        (f"wait, it is tried again from noon on; or at once: {RETRY}", f"or {SEAL}"),
    ),
    "failed and terminal": (
        {"status": FAILED, "rejected": "r1", "terminal": True},
        (f"find the cause, then: {RETRY} --clear-terminal", f"or {SEAL}"),
    ),
    "failed, its account parked": (
        {"status": FAILED, "terminal": True, "parked": "--customer 7"},
        (f"mend its account or query, then: {RELEASE}",),
    ),
    "taken back": (
        {"status": FAILED, "held": True},
        (
            "give an earlier run back: ads-pipeline state restore 7/q/2026-02-01 --reason TEXT",
            f"or have it fetched anew: {RETRY}",
        ),
    ),
    "pending, its account parked": (
        {"status": PENDING, "parked": "--customer 7"},
        (f"mend its account or query, then: {RELEASE}",),
    ),
    "pending and marked": (
        {"status": PENDING, "terminal": True},
        (f"it is marked as terminal; if it is wanted: {CLEAR}",),
    ),
    "pending and asked for": (
        {"status": PENDING, "requested": "retry"},
        ("seal a run of it under a new run_id; it was asked for (retry), see ads-pipeline state due",),
    ),
    "failed and landed anew": (
        {"status": FAILED, "awaiting": "r2"},
        (f"have r2 judged: {JUDGE}, or wait for raw_arrivals",),
    ),
    "being demoted": (
        READ | {"demoting": True},
        ("finish the demotion: ads-pipeline reconcile --query q, or wait for the hourly one",),
    ),
    "never loaded": (
        READ | {"shown": None},
        ("load it: materialize warehouse/q in Dagster, or wait for states_to_load",),
    ),
    "a newer one not loaded": (
        UNLOADED,
        ("load it: materialize warehouse/q in Dagster, or wait for states_to_load",),
    ),
    "an old day not loaded": (
        UNLOADED | {"too_old": True},
        ("load it: materialize warehouse/q in Dagster, or wait for the hourly reconcile",),
    ),
    "not loaded, its query gone": (
        UNLOADED | {"no_asset": NEITHER},
        (f"mend the query file, for nobody loads r2: {NEITHER}",),
    ),
    "accepted and unreadable": (
        UNLOADED | {"unloadable": True},
        ("put the raw data of r2 back, or seal a run under a new run_id: it cannot be loaded",),
    ),
    "read, and a newer one awaits its verdict": (
        READ | {"awaiting": "r2"},
        (f"have r2 judged: {JUDGE}, or wait for raw_arrivals", "until then readers keep r1"),
    ),
    "read, and a newer one was rejected": (
        READ | {"rejected": "r2"},
        ("seal a corrected run under a new run_id, if what r2 was to bring is wanted", "readers keep r1"),
    ),
    "read, and due to be reported again": (
        READ | {"stale": (StaleReason.FRESHNESS_POLICY, StaleReason.CODE_CHANGED)},
        (f"have the day reported again, for Google may have restated it: {REPROCESS}",),
    ),
    "read, by an earlier definition": (
        READ | {"stale": (StaleReason.CODE_CHANGED,)},
        (f"if it should follow the query's present definition: {REPROCESS}",),
    ),
    "read, and asked for again": (
        READ | {"stale": (StaleReason.FRESHNESS_POLICY,), "requested": "reprocess"},
        (
            "seal a run of it under a new run_id; it was asked for (reprocess), see ads-pipeline state due",
            "until then readers keep r1",
        ),
    ),
    "read and current": (READ, ("nothing: readers have the newest run",)),
}


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_next_step(case: str) -> None:
    """One line or two, that name the run, the asset or the command."""
    known, told = CASES[case]
    assert next_steps(PartitionFacts(query_name="q", partition="7/q/2026-02-01", **known)) == told


def test_every_status_is_a_case() -> None:
    """No partition is left without advice: the cases above cover every status, and none."""
    assert {known["status"] for known, _told in CASES.values()} == {None, *Status}


def test_the_sensors_look_as_far_back_as_is_said() -> None:
    """What is called too old for them to find is what they do not look at."""
    assert SENSOR_WINDOW == LOOKBACK
    assert timedelta(days=92) == LOOKBACK
