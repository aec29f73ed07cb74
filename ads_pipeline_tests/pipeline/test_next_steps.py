"""Tests the next steps for a partition, case by case."""

from dataclasses import replace
from typing import Any

import pytest

from ads_pipeline.domain.days.conditions import GapReason
from ads_pipeline.domain.days.materialization_status import StaleReason
from ads_pipeline.domain.transitions import Status
from ads_pipeline.pipeline.days.next_steps import PartitionFacts, next_command, next_steps
from ads_pipeline.pipeline.days.restorable_runs import RestorableRun

PENDING, SUCCESS, FAILED = Status.PENDING, Status.SUCCESS, Status.FAILED
VISIBLE = {"status": SUCCESS, "current_run_id": "r1", "visible_run_id": "r1"}
NOT_LOADED = {"status": SUCCESS, "current_run_id": "r2", "visible_run_id": "r1"}
MATERIALIZE = "materialize raw/q with its check and warehouse/q in Dagster"
WITHDRAWN = "withdrawn by ada: wrong currency"
SEAL = "seal a corrected run under a new run_id; no reset is needed"
SEAL_NEW = "seal a run under a new run_id"
RETRY = "ads-pipeline state retry 7/q/2026-02-01 --reason TEXT"
CLEAR = "ads-pipeline state terminal 7/q/2026-02-01 --reason TEXT --clear"
REPROCESS = "ads-pipeline state reprocess 7/q/2026-02-01 --reason TEXT"
ENQUEUE = "ads-pipeline state enqueue 7/q/2026-02-01 --reason TEXT"
RESTORE = "ads-pipeline state restore 7/q/2026-02-01 --reason TEXT"
RELEASE = "ads-pipeline state release --customer 7 --reason TEXT"
RECONCILE = "ads-pipeline reconcile --query q"
REJUDGE = "ads-pipeline state rejudge 7/q/2026-02-01 --reason TEXT"
DECLARE = "declare a contract for its schema_version beside the query file, and raw_arrivals has it judged"
DOCTOR = "ads-pipeline doctor says why nothing did"
EARLIER, DEMOTED = RestorableRun(run_id="r1"), RestorableRun(run_id="r1", is_demoted=True)
NO_ASSET = "file does not define q"
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "not recorded": ({"status": None}, (f"{SEAL_NEW}, or request one: {ENQUEUE}",)),
    "customer not recorded": ({"status": None, "new_customer": "did you mean 8?"}, ("did you mean 8?", SEAL_NEW)),
    "sealed, not registered": (
        {"status": None, "unjudged_run_id": "r1"},
        (f"to judge r1: {MATERIALIZE}, or wait for raw_arrivals",),
    ),
    "sealed, outside the sensor window": (
        {"status": None, "unjudged_run_id": "r1", "outside_sensor_window": True},
        (f"to judge r1: {MATERIALIZE}, or wait for raw_arrivals, which searches a month of older days a minute",),
    ),
    "sealed for an undefined query": (
        {"status": None, "unjudged_run_id": "r1", "no_asset_reason": NO_ASSET},
        (f"fix the query file; Dagster cannot judge r1: {NO_ASSET}",),
    ),
    "pending without a run": ({"status": PENDING}, (SEAL_NEW,)),
    "pending a verdict": (
        {"status": PENDING, "unjudged_run_id": "r1"},
        (f"to judge r1: {MATERIALIZE}, or wait for raw_arrivals",),
    ),
    "judging ended without a verdict": (
        {"status": PENDING, "unjudged_run_id": "r1", "judging_failed": True},
        (f"see above why r1 has no verdict, then {MATERIALIZE}",),
    ),
    "withdrawn": (
        {
            "status": PENDING,
            "current_run_id": "r1",
            "last_action": WITHDRAWN,
            "withdrawn": True,
            "restorable": EARLIER,
        },
        (WITHDRAWN, f"publish the withdrawn run again: {RESTORE}", f"or {SEAL_NEW}"),
    ),
    "withdrawn, with a new sealed run": (
        {"status": PENDING, "current_run_id": "r1", "last_action": WITHDRAWN, "unjudged_run_id": "r2"},
        (WITHDRAWN, f"to judge r2: {MATERIALIZE}, or wait for raw_arrivals"),
    ),
    "failed, no retry scheduled": (
        {"status": FAILED, "rejected_run_id": "r1"},
        (f"fix the cause shown above, then: {RETRY}", f"or {SEAL}"),
    ),
    "failed, retry scheduled": (
        {"status": FAILED, "rejected_run_id": "r1", "next_retry": "noon"},
        (f"from noon on, ads-pipeline state due lists it for extractors; to retry now: {RETRY}", f"or {SEAL}"),
    ),
    "failed, retry due": (
        {"status": FAILED, "rejected_run_id": "r1", "next_retry": "noon", "retry_due": True},
        (f"its retry is due since noon: fetch the day and {SEAL_NEW}; ads-pipeline state due lists it",),
    ),
    "failed and terminal": (
        {"status": FAILED, "rejected_run_id": "r1", "terminal": True},
        (f"find the cause, then: {RETRY} --clear-terminal", f"or {SEAL}"),
    ),
    "failed, account parked": (
        {"status": FAILED, "terminal": True, "parked_option": "--customer 7"},
        (f"fix the account or query, then: {RELEASE}",),
    ),
    "demoted, the only accepted run": (
        {"status": FAILED, "demoted": True, "restorable": replace(DEMOTED, is_only=True)},
        (
            f"The only accepted run, r1, was demoted. To publish it again: {RESTORE} --run r1",
            f"or fetch it again: {RETRY}",
        ),
    ),
    "demoted, as all accepted runs": (
        {"status": FAILED, "demoted": True, "restorable": DEMOTED},
        (
            f"Every accepted run was demoted, r1 as the last one. To publish it again: {RESTORE} --run r1",
            f"or fetch it again: {RETRY}",
        ),
    ),
    "demoted": (
        {"status": FAILED, "demoted": True, "restorable": EARLIER},
        (
            f"restore an earlier run: {RESTORE}",
            f"or fetch it again: {RETRY}",
        ),
    ),
    "demoted, and too old for retries": (
        {"status": FAILED, "demoted": True, "terminal": True, "restorable": EARLIER},
        (f"restore an earlier run: {RESTORE}", f"or fetch it again: {RETRY} --clear-terminal"),
    ),
    "pending, account parked": (
        {"status": PENDING, "parked_option": "--customer 7"},
        (f"fix the account or query, then: {RELEASE}",),
    ),
    "pending and marked": (
        {"status": PENDING, "terminal": True},
        (f"it is marked as terminal; to produce it anyway: {CLEAR}",),
    ),
    "pending and requested": (
        {"status": PENDING, "request_kind": "retry"},
        (f"{SEAL_NEW}; it is requested (retry), ads-pipeline state due lists it",),
    ),
    "failed, with a new sealed run": (
        {"status": FAILED, "unjudged_run_id": "r2"},
        (f"to judge r2: {MATERIALIZE}, or wait for raw_arrivals",),
    ),
    "demotion unfinished": (
        VISIBLE | {"demoting": True},
        ("finish the removal of its rows: ads-pipeline reconcile --query q, or wait for the hourly reconcile",),
    ),
    "never loaded": (
        VISIBLE | {"visible_run_id": None},
        ("to load it: materialize warehouse/q in Dagster, or wait for states_to_load",),
    ),
    "newer run not loaded": (
        NOT_LOADED,
        ("to load it: materialize warehouse/q in Dagster, or wait for states_to_load",),
    ),
    "not loaded, outside the sensor window": (
        NOT_LOADED | {"outside_sensor_window": True},
        ("to load it: materialize warehouse/q in Dagster, or wait for the hourly reconcile",),
    ),
    "not loaded, query undefined": (
        NOT_LOADED | {"no_asset_reason": NO_ASSET},
        (f"fix the query file; Dagster cannot load r2: {NO_ASSET}",),
    ),
    "visible, newer run unjudged": (
        VISIBLE | {"unjudged_run_id": "r2"},
        (f"to judge r2: {MATERIALIZE}, or wait for raw_arrivals", "until then readers see r1"),
    ),
    "visible, newer run rejected": (
        VISIBLE | {"rejected_run_id": "r2"},
        (
            f"if the data of r2 are needed, seal a corrected run under a new run_id, or request one: {REPROCESS}",
            "readers see r1",
        ),
    ),
    "visible, newer run rejected, another requested": (
        VISIBLE | {"rejected_run_id": "r2", "request_kind": "reprocess"},
        ("if the data of r2 are needed, seal a corrected run under a new run_id", "readers see r1"),
    ),
    "visible, freshness policy due": (
        VISIBLE | {"stale_reasons": (StaleReason.FRESHNESS_POLICY, StaleReason.CODE_CHANGED)},
        (f"fetch the day again, because Google may have restated it: {REPROCESS}",),
    ),
    "visible, query definition changed": (
        VISIBLE | {"stale_reasons": (StaleReason.CODE_CHANGED,)},
        (f"to apply the current definition of the query: {REPROCESS}",),
    ),
    "visible, reprocessing requested": (
        VISIBLE | {"stale_reasons": (StaleReason.FRESHNESS_POLICY,), "request_kind": "reprocess"},
        (
            f"{SEAL_NEW}; it is requested (reprocess), ads-pipeline state due lists it",
            "until then readers see r1",
        ),
    ),
    "no contract, never accepted": (
        {"status": PENDING, "unjudged_run_id": "r1", "blocked_by": GapReason.NO_CONTRACT},
        (DECLARE, "or seal a run of a declared schema_version under a new run_id"),
    ),
    "no contract, behind a good run": (
        VISIBLE | {"unjudged_run_id": "r2", "blocked_by": GapReason.NO_CONTRACT},
        (DECLARE, f"request another run: {REPROCESS}"),
    ),
    "accepted run changed": (
        NOT_LOADED | {"blocked_by": GapReason.UNLOADABLE},
        (f"request another run: {REPROCESS}", f"or put its files back, then: {RECONCILE}"),
    ),
    "accepted run changed, another requested": (
        NOT_LOADED | {"request_kind": "reprocess", "blocked_by": GapReason.UNLOADABLE},
        (
            f"{SEAL_NEW}; it is requested (reprocess), ads-pipeline state due lists it",
            f"or put its files back, then: {RECONCILE}",
        ),
    ),
    "not judged for hours": (
        {"status": PENDING, "unjudged_run_id": "r1", "blocked_by": GapReason.UNJUDGED},
        (f"to judge it now: {REJUDGE}", DOCTOR),
    ),
    "not loaded for hours": (
        NOT_LOADED | {"blocked_by": GapReason.UNLOADED},
        (f"to finish it now: {RECONCILE}", DOCTOR),
    ),
    "demotion unfinished for hours": (
        VISIBLE | {"demoting": True, "blocked_by": GapReason.DEMOTING},
        (f"to finish it now: {RECONCILE}", DOCTOR),
    ),
    "visible and current": (VISIBLE, ("nothing: readers see the newest run",)),
}


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_next_steps(case: str) -> None:
    """The advice is one or two lines that name the run, the asset or the command."""
    facts, steps = CASES[case]
    found = next_steps(PartitionFacts(query_name="q", partition="7/q/2026-02-01", **facts))
    assert tuple(map(str, found)) == steps
    assert all(step.command in step.text for step in found)


def test_next_command_is_the_first_of_the_steps() -> None:
    """Without a command among the steps, it is the command that explains the partition."""
    retry = PartitionFacts(query_name="q", partition="7/q/2026-02-01", status=FAILED)
    assert next_command(retry) == RETRY
    unjudged = PartitionFacts(query_name="q", partition="7/q/2026-02-01", status=PENDING, unjudged_run_id="r1")
    assert next_command(unjudged) == "ads-pipeline state why 7/q/2026-02-01"


def test_cases_cover_every_status() -> None:
    """The cases above cover every status and an absent state row."""
    assert {facts["status"] for facts, _steps in CASES.values()} == {None, *Status}
