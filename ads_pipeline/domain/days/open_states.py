"""Every state that is not final: who ends it, within which time, what follows if nobody does, and who is told.

Those of days and fetches are here, and the others in `technical_states`. The table in docs/concepts.md is generated
from both. Its test reads the enums and the ledger's tables, and fails when one of their values is neither listed nor
final.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from ads_pipeline.domain.days.conditions import Condition, GapReason, ReportState
from ads_pipeline.domain.days.materialization_status import AttemptOutcome, DisplayStatus, StaleReason
from ads_pipeline.domain.days.open_state import DECIDED, NO_LIMIT, OpenState, StateKind, open_state
from ads_pipeline.domain.days.technical_states import LEDGER_STATES, OUTSIDE_STATES
from ads_pipeline.domain.fetching.retry_policy import ErrorPolicy, TerminalReason
from ads_pipeline.domain.run_snapshots import RunStatus, StepStatus
from ads_pipeline.domain.transitions import Status

_NEEDS_OPERATOR: Final = "webhook, report, `doctor`, `state inspect`, check `readable`"
_DECIDED: Final = "report, `warehouse gaps`, `state inspect --condition`"
_STAYS: Final = "it stays, and needs an operator"
_LISTED: Final = "`warehouse gaps`, `state why`"

_PARTITION_STATES: Final = (
    open_state(
        StateKind.STATUS,
        Status.PENDING,
        ended_by="the next verdict",
        within="the deadline of the day",
        otherwise="the day is late, then missing",
        told=_NEEDS_OPERATOR,
    ),
    open_state(
        StateKind.STATUS,
        Status.FAILED,
        ended_by="`retries_due` requeues it; without a source that fetches, a corrected run is sealed",
        within="the delays of the retry policy",
        otherwise="it is terminal",
        told=_NEEDS_OPERATOR,
    ),
    open_state(
        StateKind.CONDITION,
        Condition.LATE,
        ended_by="`days_due` or `retries_due`, or an extractor that seals a run",
        within="3 days after the day",
        otherwise="the day is missing",
        told=_NEEDS_OPERATOR,
    ),
    open_state(
        StateKind.CONDITION,
        Condition.REJECTED,
        ended_by="a corrected run, which the retry policy or an operator requests",
        within="the delays of the retry policy",
        otherwise=_STAYS,
        told=_NEEDS_OPERATOR,
    ),
    open_state(
        StateKind.CONDITION,
        Condition.MISSING,
        Condition.PARKED,
        ended_by="an operator, by the command that is printed",
        within=NO_LIMIT,
        otherwise=_STAYS,
        told=_NEEDS_OPERATOR,
    ),
    open_state(
        StateKind.CONDITION,
        Condition.REJECTED_RERUN,
        ended_by="the next accepted run; an operator may request one",
        within=NO_LIMIT,
        otherwise="readers keep the earlier accepted run",
        told=_NEEDS_OPERATOR,
    ),
    open_state(
        StateKind.CONDITION,
        Condition.IN_PROGRESS,
        ended_by="`raw_arrivals` for a run without a verdict, `states_to_load` and `reconcile` for one that is "
        "not loaded, `retries_due` for a fetch that waits for a quota",
        within="6 hours; for a quota, 6 hours after its end",
        otherwise="the day is blocked; without a run it is late",
        told="`state inspect`, `warehouse gaps`",
    ),
    open_state(
        StateKind.CONDITION,
        Condition.ACKNOWLEDGED,
        Condition.ACKNOWLEDGED_RERUN,
        ended_by="the next event of the day: a run is registered, judged or loaded, a fetch fails in another way, or "
        "an operator acts",
        within=DECIDED,
        otherwise="it stays, and needs nobody",
        told=_DECIDED,
    ),
    open_state(
        StateKind.CONDITION,
        Condition.HIDDEN,
        ended_by="an operator, by `state restore` or `state retry`; a newly sealed run",
        within=DECIDED,
        otherwise="it stays, and needs nobody",
        told=_DECIDED,
    ),
    open_state(
        StateKind.CONDITION,
        Condition.BLOCKED,
        Condition.BLOCKED_RERUN,
        ended_by="an operator, by the command that is printed; `raw_arrivals` once a contract is declared",
        within=NO_LIMIT,
        otherwise=_STAYS,
        told=_NEEDS_OPERATOR,
    ),
    open_state(
        StateKind.GAP,
        GapReason.NOTHING_SEALED,
        GapReason.WAITING,
        GapReason.FETCH_FAILED,
        ended_by="the next fetch: `days_due` searches every 30 minutes, `retries_due` every minute",
        within="3 days after the day",
        otherwise="the day is missing",
        told=_LISTED,
    ),
    open_state(
        StateKind.GAP,
        GapReason.QUOTA,
        ended_by="the fetch that `retries_due` or `days_due` requests once the quota is there again",
        within="6 hours after the end of the wait",
        otherwise="the day is late",
        told=_LISTED,
    ),
    open_state(
        StateKind.GAP,
        GapReason.UNJUDGED,
        ended_by="the run that `raw_arrivals` requests",
        within="6 hours",
        otherwise="the day is blocked; it is requested again, each time after a longer wait of up to an hour",
        told=_LISTED,
    ),
    open_state(
        StateKind.GAP,
        GapReason.UNLOADED,
        GapReason.DEMOTING,
        ended_by="`states_to_load`, or the hourly `reconcile`",
        within="6 hours",
        otherwise="the day is blocked; `doctor` names the difference, and the next pass tries again",
        told=_LISTED + ", `doctor`",
    ),
    open_state(
        StateKind.GAP,
        GapReason.NO_CONTRACT,
        GapReason.UNLOADABLE,
        GapReason.REJECTED,
        GapReason.DEMOTED,
        GapReason.WITHDRAWN,
        GapReason.PARKED,
        ended_by="an operator, or a corrected run",
        within=NO_LIMIT,
        otherwise=_STAYS,
        told=_NEEDS_OPERATOR,
    ),
    open_state(
        StateKind.REPORT,
        ReportState.PROVISIONAL,
        ended_by="the rereads that `days_due` requests",
        within="the account's conversion window after the day",
        otherwise="the day stays provisional",
        told="report, check `readable`, `state inspect`",
    ),
    open_state(
        StateKind.DISPLAY,
        DisplayStatus.NEVER_MATERIALIZED,
        DisplayStatus.LAST_ATTEMPT_FAILED,
        DisplayStatus.STALE,
        ended_by="the next accepted run and its load",
        within="as the condition of the day says",
        otherwise="the condition of the day says who acts",
        told="asset pages, `partition_status.parquet`",
    ),
    open_state(
        StateKind.STALE,
        StaleReason.FRESHNESS_POLICY,
        StaleReason.UPSTREAM_CHANGED,
        ended_by="the reread that `days_due` requests; `states_to_load` for a run that is not loaded",
        within="30 minutes after it is due",
        otherwise="the day stays stale",
        told="asset pages, `state why`, `partition_status.parquet`",
    ),
    open_state(
        StateKind.STALE,
        StaleReason.CODE_CHANGED,
        ended_by="an operator, by `state reprocess`",
        within=NO_LIMIT,
        otherwise="the rows keep the earlier definition of the query",
        told="asset pages, `state why`, `partition_status.parquet`",
    ),
    open_state(
        StateKind.POINTER,
        "unavailable",
        ended_by="the next load of an accepted run",
        within="as the condition of the day says",
        otherwise="readers see no rows of the day",
        told=_LISTED,
    ),
)

_FETCH_STATES: Final = (
    open_state(
        StateKind.POLICY,
        ErrorPolicy.RETRY,
        ended_by="`retries_due`, after the delay of the policy",
        within="the delays of the retry policy, at most 6 failures in a row",
        otherwise="the partition is terminal",
        told="`state why`, `state due`; webhook once it is terminal",
    ),
    open_state(
        StateKind.POLICY,
        ErrorPolicy.WAIT,
        ended_by="`retries_due`, when the hold is lifted or the time that the source named has passed",
        within="a pause of at most 30 minutes after the source answers again; at most 25 hours for a quota",
        otherwise="the day is late",
        told="`state why`, `state due`",
    ),
    open_state(
        StateKind.POLICY,
        ErrorPolicy.PARK_CUSTOMER,
        ErrorPolicy.PARK_QUERY,
        ErrorPolicy.PARK_SOURCE,
        ErrorPolicy.HOLD,
        ended_by="an operator, by `state release`, `state restore` or `state retry`",
        within=NO_LIMIT,
        otherwise=_STAYS,
        told=_NEEDS_OPERATOR,
    ),
    open_state(
        StateKind.TERMINAL,
        TerminalReason.MARKED,
        TerminalReason.TOO_MANY_ATTEMPTS,
        TerminalReason.TOO_OLD,
        ended_by="an operator, by `state terminal --clear` or `state retry --clear-terminal`; a newly sealed run",
        within=NO_LIMIT,
        otherwise=_STAYS,
        told="webhook, report, `state inspect --list terminal`",
    ),
    open_state(
        StateKind.PARKING,
        "customer",
        "query",
        "source",
        ended_by="an operator, by `state release`; the daily discovery releases accounts that are enabled again",
        within=NO_LIMIT,
        otherwise="nothing of it is fetched",
        told="webhook, report, `state inspect --list parked`, `accounts list`",
    ),
    open_state(
        StateKind.REQUEST,
        "retry",
        "backfill",
        "reprocess",
        ended_by="the next verdict on the partition",
        within="a minute until `retries_due` requests its run",
        otherwise="it stays open, and is requested again after each failed run",
        told="`state due`, `state why`",
    ),
)

OPEN_STATES: Final[tuple[OpenState, ...]] = (*_PARTITION_STATES, *_FETCH_STATES, *LEDGER_STATES, *OUTSIDE_STATES)

# Values that nothing has to end, and tables of facts that only grow or that others replace as a whole.
FINAL_STATES: Final[Mapping[StateKind, frozenset[str]]] = {
    StateKind.STATUS: frozenset({Status.SUCCESS}),
    StateKind.CONDITION: frozenset(
        {Condition.READABLE, Condition.RESTATED, Condition.UNRECOVERABLE, Condition.NOT_EXPECTED}
    ),
    StateKind.GAP: frozenset({GapReason.OUT_OF_REACH}),
    StateKind.REPORT: frozenset({ReportState.SETTLED}),
    StateKind.DISPLAY: frozenset({DisplayStatus.MATERIALIZED}),
    StateKind.ATTEMPT: frozenset(AttemptOutcome),
    StateKind.POINTER: frozenset({"published"}),
    StateKind.RUN: frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED}),
    StateKind.STEP: frozenset({StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED}),
    StateKind.TABLE: frozenset(
        {
            "attempts",
            "code_versions",
            "control_action_partitions",
            "control_actions",
            "finished_attempts",
            "load_records",
            "partition_state",
            "partition_status",
            "run_events",
            "runs",
            "warehouse_pointer",
        }
    ),
}


def names_of(kind: StateKind) -> Iterator[str]:
    """The open and the final states of a kind."""
    for state in OPEN_STATES:
        if state.kind is kind:
            yield from state.names
    yield from sorted(FINAL_STATES.get(kind, ()))
