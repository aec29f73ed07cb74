"""Every state that is not final: who ends it, within which time, what follows if nobody does, and who is told.

The table in docs/concepts.md is generated from here. Its test reads the enums and the ledger's tables, and fails
when one of their values is neither here nor final.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ads_pipeline.domain.freshness import AttemptOutcome, DisplayStatus, StaleReason
from ads_pipeline.domain.readability import Condition, GapReason, ReportState
from ads_pipeline.domain.retry import ErrorPolicy, TerminalReason
from ads_pipeline.domain.run_snapshots import RunStatus, StepStatus
from ads_pipeline.domain.transitions import Status


class StateKind(StrEnum):
    """What has a state."""

    STATUS = "status"
    CONDITION = "condition"
    GAP = "reason of a gap"
    POLICY = "failed fetch or run"
    TERMINAL = "terminal partition"
    PARKING = "parking"
    REQUEST = "request"
    REPORT = "figures"
    DISPLAY = "display status"
    STALE = "stale because"
    ATTEMPT = "attempt"
    POINTER = "pointer"
    RUN = "run in the event log"
    STEP = "step in the event log"
    TABLE = "rows in the ledger"
    FILE = "files"
    ENGINE = "Dagster"
    PROCESS = "processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenState:
    """A state that something has to end.

    `names` are values of an enum, names of tables, or plain words for what the code does not enumerate.
    """

    kind: StateKind
    names: tuple[str, ...]
    ended_by: str
    within: str
    otherwise: str
    told: str


_NEEDS_OPERATOR: Final = "webhook, report, `doctor`, `state inspect`, check `readable`"
NO_LIMIT: Final = "no limit: a person decides"
DECIDED: Final = "no limit: an operator has decided"
_DECIDED: Final = "report, `warehouse gaps`, `state inspect --condition`"
_STAYS: Final = "it stays, and needs an operator"
_LISTED: Final = "`warehouse gaps`, `state why`"


def _of(kind: StateKind, *names: str, ended_by: str, within: str, otherwise: str, told: str) -> OpenState:
    return OpenState(kind=kind, names=names, ended_by=ended_by, within=within, otherwise=otherwise, told=told)


_PARTITION_STATES: Final = (
    _of(
        StateKind.STATUS,
        Status.PENDING,
        ended_by="the next verdict",
        within="the deadline of the day",
        otherwise="the day is late, then missing",
        told=_NEEDS_OPERATOR,
    ),
    _of(
        StateKind.STATUS,
        Status.FAILED,
        ended_by="`retries_due` requeues it; without a source that fetches, a corrected run is sealed",
        within="the delays of the retry policy",
        otherwise="it is terminal",
        told=_NEEDS_OPERATOR,
    ),
    _of(
        StateKind.CONDITION,
        Condition.LATE,
        ended_by="`days_due` or `retries_due`, or an extractor that seals a run",
        within="3 days after the day",
        otherwise="the day is missing",
        told=_NEEDS_OPERATOR,
    ),
    _of(
        StateKind.CONDITION,
        Condition.REJECTED,
        ended_by="a corrected run, which the retry policy or an operator requests",
        within="the delays of the retry policy",
        otherwise=_STAYS,
        told=_NEEDS_OPERATOR,
    ),
    _of(
        StateKind.CONDITION,
        Condition.MISSING,
        Condition.PARKED,
        ended_by="an operator, by the command that is printed",
        within=NO_LIMIT,
        otherwise=_STAYS,
        told=_NEEDS_OPERATOR,
    ),
    _of(
        StateKind.CONDITION,
        Condition.REJECTED_RERUN,
        ended_by="the next accepted run; an operator may request one",
        within=NO_LIMIT,
        otherwise="readers keep the earlier accepted run",
        told=_NEEDS_OPERATOR,
    ),
    _of(
        StateKind.CONDITION,
        Condition.IN_PROGRESS,
        ended_by="`raw_arrivals` for a run without a verdict, `states_to_load` and `reconcile` for one that is "
        "not loaded, `retries_due` for a fetch that waits for a quota",
        within="6 hours; for a quota, 6 hours after its end",
        otherwise="the day is blocked; without a run it is late",
        told="`state inspect`, `warehouse gaps`",
    ),
    _of(
        StateKind.CONDITION,
        Condition.ACKNOWLEDGED,
        Condition.ACKNOWLEDGED_RERUN,
        ended_by="the next event of the day: a run is registered, judged or loaded, a fetch fails in another way, or "
        "an operator acts",
        within=DECIDED,
        otherwise="it stays, and needs nobody",
        told=_DECIDED,
    ),
    _of(
        StateKind.CONDITION,
        Condition.HIDDEN,
        ended_by="an operator, by `state restore` or `state retry`; a newly sealed run",
        within=DECIDED,
        otherwise="it stays, and needs nobody",
        told=_DECIDED,
    ),
    _of(
        StateKind.CONDITION,
        Condition.BLOCKED,
        Condition.BLOCKED_RERUN,
        ended_by="an operator, by the command that is printed; `raw_arrivals` once a contract is declared",
        within=NO_LIMIT,
        otherwise=_STAYS,
        told=_NEEDS_OPERATOR,
    ),
    _of(
        StateKind.GAP,
        GapReason.NOTHING_SEALED,
        GapReason.WAITING,
        GapReason.FETCH_FAILED,
        ended_by="the next fetch: `days_due` searches every 30 minutes, `retries_due` every minute",
        within="3 days after the day",
        otherwise="the day is missing",
        told=_LISTED,
    ),
    _of(
        StateKind.GAP,
        GapReason.QUOTA,
        ended_by="the fetch that `retries_due` or `days_due` requests once the quota is there again",
        within="6 hours after the end of the wait",
        otherwise="the day is late",
        told=_LISTED,
    ),
    _of(
        StateKind.GAP,
        GapReason.UNJUDGED,
        ended_by="the run that `raw_arrivals` requests",
        within="6 hours",
        otherwise="the day is blocked; it is requested again, each time after a longer wait of up to an hour",
        told=_LISTED,
    ),
    _of(
        StateKind.GAP,
        GapReason.UNLOADED,
        GapReason.DEMOTING,
        ended_by="`states_to_load`, or the hourly `reconcile`",
        within="6 hours",
        otherwise="the day is blocked; `doctor` names the difference, and the next pass tries again",
        told=_LISTED + ", `doctor`",
    ),
    _of(
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
    _of(
        StateKind.REPORT,
        ReportState.PROVISIONAL,
        ended_by="the rereads that `days_due` requests",
        within="the account's conversion window after the day",
        otherwise="the day stays provisional",
        told="report, check `readable`, `state inspect`",
    ),
    _of(
        StateKind.DISPLAY,
        DisplayStatus.NEVER_MATERIALIZED,
        DisplayStatus.LAST_ATTEMPT_FAILED,
        DisplayStatus.STALE,
        ended_by="the next accepted run and its load",
        within="as the condition of the day says",
        otherwise="the condition of the day says who acts",
        told="asset pages, `partition_status.parquet`",
    ),
    _of(
        StateKind.STALE,
        StaleReason.FRESHNESS_POLICY,
        StaleReason.UPSTREAM_CHANGED,
        ended_by="the reread that `days_due` requests; `states_to_load` for a run that is not loaded",
        within="30 minutes after it is due",
        otherwise="the day stays stale",
        told="asset pages, `state why`, `partition_status.parquet`",
    ),
    _of(
        StateKind.STALE,
        StaleReason.CODE_CHANGED,
        ended_by="an operator, by `state reprocess`",
        within=NO_LIMIT,
        otherwise="the rows keep the earlier definition of the query",
        told="asset pages, `state why`, `partition_status.parquet`",
    ),
    _of(
        StateKind.POINTER,
        "unavailable",
        ended_by="the next load of an accepted run",
        within="as the condition of the day says",
        otherwise="readers see no rows of the day",
        told=_LISTED,
    ),
)

_FETCH_STATES: Final = (
    _of(
        StateKind.POLICY,
        ErrorPolicy.RETRY,
        ended_by="`retries_due`, after the delay of the policy",
        within="the delays of the retry policy, at most 6 failures in a row",
        otherwise="the partition is terminal",
        told="`state why`, `state due`; webhook once it is terminal",
    ),
    _of(
        StateKind.POLICY,
        ErrorPolicy.WAIT,
        ended_by="`retries_due`, when the hold is lifted or the time that the source named has passed",
        within="a pause of at most 30 minutes after the source answers again; at most 25 hours for a quota",
        otherwise="the day is late",
        told="`state why`, `state due`",
    ),
    _of(
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
    _of(
        StateKind.TERMINAL,
        TerminalReason.MARKED,
        TerminalReason.TOO_MANY_ATTEMPTS,
        TerminalReason.TOO_OLD,
        ended_by="an operator, by `state clear-terminal` or `state retry --clear-terminal`; a newly sealed run",
        within=NO_LIMIT,
        otherwise=_STAYS,
        told="webhook, report, `audit terminal`",
    ),
    _of(
        StateKind.PARKING,
        "customer",
        "query",
        "source",
        ended_by="an operator, by `state release`; the daily discovery releases accounts that are enabled again",
        within=NO_LIMIT,
        otherwise="nothing of it is fetched",
        told="webhook, report, `audit parked`, `accounts list`",
    ),
    _of(
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

_LEDGER_STATES: Final = (
    _of(
        StateKind.RUN,
        RunStatus.PENDING,
        RunStatus.RUNNING,
        RunStatus.PAUSED,
        ended_by="the run's last event; `run_completion` when Dagster reports it as finished, its lease expired, or "
        "its command was killed",
        within="20 seconds after that; 2 hours after the newest event of a command",
        otherwise="the run is shown as open",
        told="webhook, `doctor`, `events runs`",
    ),
    _of(
        StateKind.STEP,
        StepStatus.RUNNING,
        ended_by="the end of its run",
        within="as its run",
        otherwise="the step is shown as running",
        told="`events runs`",
    ),
    _of(
        StateKind.TABLE,
        "leases",
        "claims",
        ended_by="the end of the run; the database's clock when it is not renewed",
        within="ADS_PIPELINE_LEASE_SECONDS (120)",
        otherwise="other runs take the partitions, and refuse what the run still writes",
        told="`doctor`, webhook",
    ),
    _of(
        StateKind.TABLE,
        "demotions",
        ended_by="the run that demotes; the hourly `reconcile` after a crash",
        within="an hour",
        otherwise="the rows stay hidden",
        told="`doctor`, `warehouse gaps`",
    ),
    _of(
        StateKind.TABLE,
        "retry_schedule",
        ended_by="the next failure or accepted run",
        within="the time in `due_at`",
        otherwise="the day is late",
        told="`state due`, `state why`",
    ),
    _of(
        StateKind.TABLE,
        "requests",
        "terminal_marks",
        "parkings",
        ended_by="as requests, terminal partitions and parkings above",
        within="as above",
        otherwise="as above",
        told="as above",
    ),
    _of(
        StateKind.TABLE,
        "api_holds",
        ended_by="the first answered call after `held_until`; `state release` at any time",
        within="25 hours for a wait that the source asked for; pauses of at most 30 minutes while it is away",
        otherwise="one call at a time tries, and is replaced after 10 minutes without an outcome",
        told="`state why`, `accounts list`, `doctor`; webhook",
    ),
    _of(
        StateKind.TABLE,
        "api_operations",
        ended_by="the row with the outcome; a call without one is over when the lease of its run is",
        within="ADS_PIPELINE_LEASE_SECONDS (120)",
        otherwise="the operation counts as spent",
        told="metrics",
    ),
    _of(
        StateKind.TABLE,
        "run_head",
        "run_snapshots",
        "run_steps",
        ended_by="the projection in every run, and `run_completion`",
        within="20 seconds",
        otherwise="`events runs` marks the run as behind",
        told="`doctor`, metrics",
    ),
    _of(
        StateKind.TABLE,
        "accounts",
        ended_by="the daily discovery, which reads status, zone and conversion window again",
        within="a day",
        otherwise="the account keeps what the last discovery found",
        told="`accounts list`, the log of the run",
    ),
)

_OUTSIDE_STATES: Final = (
    _of(
        StateKind.FILE,
        "run directory without a seal",
        ended_by="the extractor that seals or discards it; the daily `maintenance` after a crash, on a disk",
        within="7 days; `doctor` names it after a day",
        otherwise="it stays and is never read",
        told="`doctor`",
    ),
    _of(
        StateKind.FILE,
        "staged files of a load that died",
        ended_by="the daily `maintenance`",
        within="7 days",
        otherwise="they stay and are never read",
        told="the log of `maintenance`",
    ),
    _of(
        StateKind.FILE,
        "spooled rows and status file being written",
        ended_by="the process that writes them; the system removes files without a name when it dies",
        within="the life of the process",
        otherwise="nothing stays",
        told="nobody needs to know",
    ),
    _of(
        StateKind.FILE,
        "temporary directory of an engine or of a Spark",
        ended_by="its process; after a kill the next start of either, or the daily `maintenance`",
        within="a day",
        otherwise="it stays below TMPDIR, and only its user may enter it",
        told="nobody needs to know",
    ),
    _of(
        StateKind.ENGINE,
        "queued run",
        "run that is starting",
        ended_by="Dagster's daemon, which starts it or reports it as failed",
        within="the limits of run monitoring in dagster.yaml",
        otherwise="its partitions are requested again",
        told="Dagster's page of runs, `doctor`",
    ),
    _of(
        StateKind.ENGINE,
        "created run that was not queued",
        ended_by="`run_completion`, which reports it as failed",
        within="15 minutes",
        otherwise="its partitions are requested again",
        told="Dagster's page of runs",
    ),
    _of(
        StateKind.ENGINE,
        "started run whose process died",
        ended_by="`run_completion`, when the lease has expired",
        within="ADS_PIPELINE_LEASE_SECONDS (120) and 20 seconds",
        otherwise="its partitions are requested again",
        told="webhook, `doctor`",
    ),
    _of(
        StateKind.ENGINE,
        "failed request of a sensor",
        ended_by="the sensor, which requests it again",
        within="2 minutes after the first failure, later an hour",
        otherwise="the condition of its days says who acts",
        told="Dagster's page of runs",
    ),
    _of(
        StateKind.ENGINE,
        "discovery that read no account",
        ended_by="the next discovery that reads one: the job `discover_accounts`, or `accounts discover`",
        within="a day, once the cause is gone",
        otherwise="it stays; known accounts are fetched, and new ones stay unknown",
        told="webhook (the first one), `doctor`, the failed run in Dagster",
    ),
    _of(
        StateKind.ENGINE,
        "notification that the webhook did not take",
        ended_by="the sensor `notifications`, which sends the same message again",
        within="30 seconds after the first failure, later 10 minutes",
        otherwise="it stays, and later findings wait behind it",
        told="the log event `notification_failed`",
    ),
    _of(
        StateKind.PROCESS,
        "discovery of accounts",
        ended_by="the daily schedule",
        within="a day",
        otherwise="accounts keep what the last discovery found",
        told="the log of the run",
    ),
    _of(
        StateKind.PROCESS,
        "Spark engine",
        "standby process",
        ended_by="the process that started it",
        within="its own end",
        otherwise="the next run starts Spark itself",
        told="the log of the code server",
    ),
)

OPEN_STATES: Final[tuple[OpenState, ...]] = (*_PARTITION_STATES, *_FETCH_STATES, *_LEDGER_STATES, *_OUTSIDE_STATES)

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
            "failed_fetches",
            "finished_attempts",
            "load_records",
            "partition_state",
            "partition_status",
            "quota_head",
            "retry_resets",
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
