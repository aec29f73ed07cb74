"""The values that callers pass to the ledger and get from it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Final, NamedTuple

from ads_pipeline.domain.errors import PartitionRefused
from ads_pipeline.domain.fetching.retry_forecast import LeaseHolder
from ads_pipeline.domain.partition import PartitionKey, Run, validate_name
from ads_pipeline.domain.transitions import Effect, PartitionState, RegisteredRun, Status, Verdict

MAX_PAGE_SIZE: Final = 10_000  # entries of a list


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFilter:
    """The partitions to list. None means any; an empty set matches nothing."""

    source: str | None = None
    customer_ids: frozenset[str] | None = None
    query_names: frozenset[str] | None = None
    statuses: frozenset[Status] | None = None
    since: date | None = None
    until: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DayWindow:
    """Days of one query, both ends included; by default all. With `customers`, only theirs."""

    source: str
    query_name: str
    since: date = date.min
    until: date = date.max
    customers: Collection[str] | None = None


class DayChanges(NamedTuple):
    """The last change of a day's partitions, the sum of attempts, and the number of recorded partitions.

    The numbers show a change whose writer's clock was behind.
    """

    newest_at: datetime
    attempts: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One verdict as it was recorded."""

    verdict: Verdict
    attempt_no: int
    ordinal: int
    effect: Effect
    judged_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictResult:
    """The result of recording one verdict. `redelivered` means that it had been recorded before."""

    verdict: Verdict
    attempt_no: int
    effect: Effect
    redelivered: bool
    state: PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """The runs that readers see now, and those that lost their authority before they were published.

    `moved` are the published runs that readers did not see before.
    """

    published: tuple[Run, ...]
    superseded: tuple[Run, ...]
    moved: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The run that readers see of a partition. A pointer that is not published hides all its rows."""

    run: Run
    schema_version: str
    record_count: int
    table_version: int
    is_published: bool
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """The run that the pointer of a partition names, with what is recorded of it. `loaded_at` is its first load."""

    run: Run
    schema_version: str
    record_count: int
    extracted_at: datetime | None
    loaded_at: datetime | None
    cost_micros: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """The first load of a run. `is_shown`: readers see this run now, because the published pointer names it."""

    run: Run
    schema_version: str
    record_count: int
    table_version: int
    loaded_at: datetime
    is_shown: bool


class RecordedLoad(NamedTuple):
    """A row of the load records. A tuple, because there may be millions."""

    source: str
    customer_id: str
    query_name: str
    logical_date: date
    run_id: str
    schema_version: str
    record_count: int
    table_version: int
    loaded_at: datetime


class VisibleRun(NamedTuple):
    """A run that readers may see. `is_current`: no newer run is accepted. A tuple, because there may be millions."""

    customer_id: str
    logical_date: date
    run_id: str
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleRuns:
    """All runs of one query that readers may see, and the newest table version that published one of them."""

    runs: tuple[VisibleRun, ...]
    table_version: int


class ExpectedContent(NamedTuple):
    """The content that the Delta table should have of a partition: the current run if `is_publishable`, else nothing.

    `points_at_current`: the published pointer has the run, schema version and record count of the state. A tuple,
    because there may be millions.
    """

    customer_id: str
    logical_date: date
    run_id: str | None
    schema_version: str | None
    record_count: int | None
    status: str
    is_publishable: bool
    points_at_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationStatus:
    """The state of a partition and its pointer.

    `demotion_pending`: a demotion of the current run has begun and is not recorded yet. `is_publishable` and
    `points_at_current` are those of ExpectedContent. `has_unjudged_run`: a registered run has no verdict.
    """

    state: PartitionState
    pointer: Pointer | None
    demotion_pending: bool
    is_publishable: bool
    points_at_current: bool
    has_unjudged_run: bool

    @property
    def is_published(self) -> bool:
        """True when readers see any run of the partition."""
        return self.pointer is not None and self.pointer.is_published


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """The result of a claim: the fence of each granted partition, and the holder of each other one."""

    granted: Mapping[PartitionKey, int]
    held: Mapping[PartitionKey, LeaseHolder]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequest:
    """An operator's request for a control action. It is executed once per action_id, however often it is sent."""

    action_id: str
    operator: str
    command: str
    reason: str
    filters: str = ""

    def __post_init__(self) -> None:
        validate_name("action_id", self.action_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWithdrawal:
    """A withdrawal that has begun: the rows of the run are hidden, and the status is still success."""

    run: Run
    request: ActionRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """A registered run, and the SHA-256 of the payload that its last verdict is about; None without a verdict."""

    registered: RegisteredRun
    payload_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCause:
    """The operator's command that caused a verdict: "demote", "restore" or "rejudge"."""

    action: str
    request: ActionRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """The result of a control action. Refused partitions are unchanged; each error has the reason."""

    changed: tuple[PartitionState, ...] = ()
    unchanged: tuple[PartitionKey, ...] = ()
    refused: Mapping[PartitionKey, PartitionRefused] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAction:
    """A control action as it is logged for one partition."""

    action_id: str
    action: str
    operator: str
    command: str
    reason: str
    status_before: Status | None
    performed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAction:
    """A control action as it is logged. Large ones are logged in parts, whose ids end with a dot and a number."""

    action_id: str
    action: str
    operator: str
    command: str
    filters: str
    reason: str
    partitions_changed: int
    performed_at: datetime
