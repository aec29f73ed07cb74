"""The values that are handed to the ledger and come back from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple

from ads_pipeline.domain.partition import PartitionKey, Run, validate_name
from ads_pipeline.domain.transitions import Effect, Outcome, PartitionState, Status, Verdict
from ads_pipeline.errors import LedgerError


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFilter:
    """Which partitions to list. What is left out does not narrow; an empty set matches nothing."""

    source: str | None = None
    customer_ids: frozenset[str] | None = None
    query_names: frozenset[str] | None = None
    statuses: frozenset[Status] | None = None
    since: date | None = None
    until: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRegistration:
    """A run to register, with what its seal says; nothing when the seal is damaged."""

    run: Run
    schema_version: str | None = None
    record_count: int | None = None
    payload_sha256: str | None = None

    def __post_init__(self) -> None:
        if self.schema_version is not None:
            validate_name("schema_version", self.schema_version)
        if (self.schema_version is None) != (self.record_count is None):
            raise ValueError(f"{self.run}: a sound seal gives both schema_version and record_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One verdict as it was recorded."""

    run: Run
    attempt_no: int
    validation_id: str
    ordinal: int
    outcome: Outcome
    effect: Effect
    error_class: str | None
    error_message: str | None
    rows_read: int | None
    rows_failed: int | None
    judged_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictResult:
    """What became of a verdict that was handed in. `redelivered` says that it was recorded before."""

    verdict: Verdict
    attempt_no: int
    effect: Effect
    redelivered: bool
    state: PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A run whose rows the warehouse now holds, and the table version that holds them."""

    run: Run
    table_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """Which runs readers may now be shown, and which lost their authority before they could be."""

    published: tuple[Run, ...]
    outdated: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """What the warehouse shows for a partition. An unavailable pointer shows nothing."""

    run: Run
    schema_version: str
    record_count: int
    table_version: int
    available: bool
    changed_at: datetime


class VisibleRun(NamedTuple):
    """A run whose rows readers may see; a tuple because there are very many. `current`: it is the newest accepted."""

    customer_id: str
    logical_date: date
    run_id: str
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleRuns:
    """Every run of one query that readers may see, and the table version by which all of them were published."""

    runs: tuple[VisibleRun, ...]
    table_version: int


class ExpectedContent(NamedTuple):
    """What the table should hold of a recorded partition, and whether readers are pointed at that.

    A tuple because there are very many; a `Standing` tells the rest.
    """

    customer_id: str
    logical_date: date
    run_id: str | None
    schema_version: str | None
    record_count: int | None
    publishable: bool
    pointed_at_current: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationStatus:
    """Where a recorded partition stands between its verdict and its readers.

    `demoting`: its current run was found bad, which is not yet recorded. `unjudged`: a registered run awaits its
    first verdict.
    """

    state: PartitionState
    pointer: Pointer | None
    demoting: bool
    unjudged: bool

    @property
    def publishable(self) -> bool:
        return self.state.status is Status.SUCCESS and not self.demoting

    @property
    def pointed(self) -> bool:
        """Whether readers are pointed at any run of it."""
        return self.pointer is not None and self.pointer.available

    @property
    def pointed_at_current(self) -> bool:
        return self.pointed and self.pointer is not None and self.pointer.run.run_id == self.state.current_run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """The run that a partition is claimed by. Its lease holds until then, and longer if more is heard of it.

    The fence grows each time the partition goes to another run.
    """

    run_id: str
    fence: int
    since: datetime
    until: datetime

    def __str__(self) -> str:
        return f"run {self.run_id} holds it, at least until {self.until:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """What became of a claim: the fence of each partition that was granted, and who holds the others."""

    granted: Mapping[PartitionKey, int]
    held: Mapping[PartitionKey, LeaseHolder]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequest:
    """Who acts, how and why. The action_id makes the act happen once however often it is sent."""

    action_id: str
    operator: str
    command: str
    reason: str
    filters: str = ""

    def __post_init__(self) -> None:
        validate_name("action_id", self.action_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCause:
    """By whose order verdicts are recorded that no validator came to by itself: "demote" or "restore"."""

    action: str
    request: ActionRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedFetch:
    """A fetch that brought no run: why, and the moment that the source named for the next try, if it did."""

    key: PartitionKey
    error_class: str
    error_message: str
    wait_until: datetime | None = None

    def __post_init__(self) -> None:
        validate_name("error_class", self.error_class)
        if not self.error_message:
            raise ValueError(f"{self.key}: a failed fetch says why")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """What an order did. The refused partitions are as they were, each with the reason."""

    changed: tuple[PartitionState, ...]
    unchanged: tuple[PartitionKey, ...]
    refused: tuple[LedgerError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAction:
    """An operator's act on one partition."""

    action_id: str
    action: str
    operator: str
    command: str
    reason: str
    status_before: Status | None
    performed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAction:
    """An operator's act as it was logged. One on very many partitions is in several, numbered behind a dot."""

    action_id: str
    action: str
    operator: str
    command: str
    filters: str
    reason: str
    partitions_changed: int
    performed_at: datetime
