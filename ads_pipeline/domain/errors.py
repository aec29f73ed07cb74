"""The exceptions of the package. Callers may retry the ones with `is_transient`.

Any other exception that leaves the package is a defect. Each module translates its library's exceptions into these
and defines no exception classes of its own.
"""

import copyreg
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from ads_pipeline.domain.quoting import printable, quoted


class AdsPipelineError(Exception):
    """The root. `is_transient`: the same call may succeed later with nothing else changed."""

    is_transient: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the constructor, which takes other arguments. Exceptions return from worker processes."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class BadName(AdsPipelineError, ValueError):
    """A part of a name breaks its rule. Nothing was written."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{field}: {quoted(value)} is refused: {rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One mistake in the settings, and its location."""

    location: str
    problem: str

    def __str__(self) -> str:
        return f"{self.location}: {self.problem}"


class BadSettings(AdsPipelineError, ValueError):
    """The settings are wrong. Lists every mistake."""

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        self.mistakes = mistakes
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        listed = "".join(f"\n  {mistake}" for mistake in mistakes)
        super().__init__(f"the settings have {count}; correct and start again:{listed}")


class LedgerMissing(AdsPipelineError):
    """There is no ledger below the home: nothing has run there yet, or the ledger was lost. Nothing was written."""

    def __init__(self, home: str, *, has_runs: bool) -> None:
        self.home, self.has_runs = home, has_runs
        super().__init__(
            f"There is no ledger below {printable(home)}, although there are sealed runs. Restore it from a backup, "
            "or start with an empty one: ads-pipeline dev"
            if has_runs
            else f"There is no data below {printable(home)} yet. Start with: ads-pipeline dev. "
            "For another home, set ADS_PIPELINE_HOME"
        )


class HomeReadOnly(AdsPipelineError):
    """The home cannot be written: it is mounted read-only, or belongs to another user. Nothing was written."""

    def __init__(self, path: str, problem: str = "it is mounted read-only or belongs to another user") -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"{printable(path)} cannot be written: {problem}. Commands that only read work; "
            "run this one where the directory can be written"
        )


class EngineRunFailed(AdsPipelineError):
    """A run of Dagster failed. `log` is the file with its output. The run can be repeated when the cause is gone."""

    is_transient = True

    def __init__(self, subject: str, cause: str, log: str) -> None:
        super().__init__(f"{subject} failed: {printable(cause, limit=600)}. The log: {printable(log)}")


class ReportNotWritten(AdsPipelineError):
    """The last run that was to write the report failed. Another run is requested later."""

    is_transient = True

    def __init__(self, engine_run_id: str, cause: str, next_at: datetime) -> None:
        why = f": {printable(cause, limit=600)}" if cause else ""
        super().__init__(
            f"run {engine_run_id[:8]} could not write the report{why}. The page shows the time before it. "
            f"The next run starts at {next_at:%H:%M} UTC; to write it now: ads-pipeline report"
        )


class BadCommand(AdsPipelineError, ValueError):
    """A command is wrong. The message names the argument and what to write instead."""


class BadJson(AdsPipelineError, ValueError):
    """A text that is not one strict JSON object, with the position and the field, if known, but without the text."""

    def __init__(self, problem: str, *, position: str | None = None, field: str | None = None) -> None:
        self.problem, self.position, self.field = problem, position, field
        subject = "" if field is None else f"{printable(field, limit=80)} "
        super().__init__(f"{subject}{problem}" + ("" if position is None else f" ({position})"))


class BadEvent(AdsPipelineError, ValueError):
    """A field of an event breaks its rule. Nothing was appended."""

    def __init__(self, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(f"event: {field}: {problem}")


class RawError(AdsPipelineError):
    """A failure of one run's directory. `path` is relative to the raw root."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{printable(path)}: {problem}")


class BadRow(RawError):
    """A row cannot be written as strict JSON. Nothing was sealed."""


class UnsafePath(RawError):
    """The path contains something else than directories. Nothing was read or written through it."""


class RunExists(RawError):
    """The run_id is taken. A new attempt needs a new run_id."""


class RunNotSealed(RawError):
    """The run was never finished, or never existed. Land it again under a new run_id."""


class RunDamaged(RawError):
    """The run's files do not match its seal. The run is never read; land a new one."""


class RawUnavailable(RawError):
    """The storage failed. The run may be sound; nothing was sealed, as far as the writer knows."""

    is_transient = True


class FieldRefused(AdsPipelineError):
    """A query selects a field that the API version does not have, or that is not one value. Nothing was requested."""

    def __init__(self, field: str, api_version: str) -> None:
        super().__init__(f"{printable(field, limit=200)}: {api_version} has no such field, or it is not one value")


class StreamRefused(AdsPipelineError):
    """An answer of the API has rows that were not requested, or that cannot be written. Nothing was sealed."""


class ContractMissing(AdsPipelineError):
    """No contract is declared for this query and schema version, so its rows cannot be judged."""

    def __init__(self, query_name: str, schema_version: str, known: tuple[str, ...]) -> None:
        declared = ", ".join(known) or "none"
        problem = f"no contract for schema_version {quoted(schema_version)}; declared are {declared}"
        advice = "Add one in contracts, or correct the schema_version in the query file"
        super().__init__(f"{query_name}: {problem}. {advice}")


class JudgingFailed(AdsPipelineError):
    """The cluster or the disk failed, so the runs have no verdict. Judge them again."""

    is_transient = True


class WarehouseError(AdsPipelineError):
    """A failure of one table, named by source and query."""

    def __init__(self, table: str, problem: str) -> None:
        self.table, self.problem = table, problem
        super().__init__(f"{table}: {problem}")


class SchemaConflict(WarehouseError):
    """An existing column would change its type. Nothing was written."""

    def __init__(self, table: str, column: str, current: str, offered: str) -> None:
        super().__init__(table, f"column {column} is {current}, new rows have {offered}; use a new column name")


class StagingDamaged(WarehouseError):
    """Staged files do not hold the expected rows. Nothing was published."""


class FilesDamaged(WarehouseError):
    """Data files are missing, cut or unreadable. `reconcile` loads the rows of `damaged` again from raw."""

    def __init__(self, table: str, problem: str, damaged: tuple[Any, ...]) -> None:
        self.damaged = damaged
        super().__init__(table, problem)


class LogDamaged(WarehouseError):
    """A file of a table's log is missing or damaged, so the table cannot be opened. `advice` repairs it."""

    def __init__(self, table: str, path: str, problem: str, advice: str) -> None:
        self.path, self.advice, self.damage = path, advice, problem
        super().__init__(table, f"its log file {path} {problem}; {advice}")


class TableContended(WarehouseError):
    """Other loaders kept committing first. This loader published nothing."""

    is_transient = True


class WarehouseUnavailable(WarehouseError):
    """The table's storage or the cluster failed. Earlier commits stay."""

    is_transient = True


class StatusFileUnavailable(AdsPipelineError):
    """partition_status.parquet could not be written. The previous file stays."""

    is_transient = True


class LedgerError(AdsPipelineError):
    """A failure of the ledger. Its transaction was rolled back."""


class PartitionRefused(LedgerError):
    """A write to one partition was refused. `partition` is the partition or the run, and `problem` the rest."""

    def __init__(self, partition: str, problem: str) -> None:
        self.partition, self.problem = partition, problem
        super().__init__(f"{partition}: {problem}")


class IllegalTransition(PartitionRefused):
    """The transition table does not allow this action in this status."""

    def __init__(self, partition: str, state: str, action: str, advice: str) -> None:
        self.state, self.action = state, action
        super().__init__(partition, f"cannot {action} while the partition is {state}: {advice}")


class VerdictConflict(PartitionRefused):
    """A second, different verdict on a run under the same validation_id."""

    def __init__(self, run: str, recorded: str, offered: str) -> None:
        self.run, self.recorded, self.offered = run, recorded, offered
        advice = "Runs never change; if the contract changed, judge the run again under a new validation_id"
        super().__init__(run, f"the recorded verdict is {recorded}, the new one {offered}. {advice}")


class VerdictsRefused(LedgerError):
    """Some of many verdicts were refused, by run. The others, in `recorded`, are committed."""

    def __init__(self, recorded: tuple[Any, ...], refusals: Mapping[Any, PartitionRefused]) -> None:
        self.recorded, self.refusals = recorded, refusals
        limit = 10
        listed = "".join(f"\n  {refusal}" for refusal in list(refusals.values())[:limit])
        more = f"\n  and {len(refusals) - limit} more" if len(refusals) > limit else ""
        super().__init__(f"{len(recorded)} verdicts are recorded, {len(refusals)} were refused:{listed}{more}")


class RunChanged(LedgerError):
    """The seals of registered runs have changed."""

    def __init__(self, runs: tuple[str, ...]) -> None:
        self.runs = runs
        others = f" (and {len(runs) - 1} others)" if len(runs) > 1 else ""
        advice = "Sealed runs must not change: find out what changed it, and land a new run"
        super().__init__(f"{runs[0]}{others}: its seal is not the one that was registered. {advice}")


class StateChanged(PartitionRefused):
    """The partition changed between the preview and the action. The action was not carried out."""

    def __init__(self, partition: str, previewed: str, current: str) -> None:
        super().__init__(partition, f"it was {previewed} in the preview and is {current} now; preview again")


class MarkedTerminal(PartitionRefused):
    """An operator marked the partition as terminal."""

    def __init__(self, partition: str) -> None:
        super().__init__(partition, "it is marked as terminal; clear the mark to retry it")


class LeaseLost(LedgerError):
    """The run's lease ended, or another run claimed the partition. Nothing was written."""

    def __init__(self, engine_run_id: str, reason: str, partition: str | None = None) -> None:
        self.engine_run_id, self.partition = engine_run_id, partition
        subject = (
            f"{partition}: run {engine_run_id} may not write to it"
            if partition
            else f"run {engine_run_id} may not write"
        )
        super().__init__(f"{subject}: {reason}; start a new run")


class ActionIdReused(LedgerError):
    """The action id is recorded for a different action."""

    def __init__(self, action_id: str) -> None:
        super().__init__(f"{action_id}: this id is recorded for another action; give each action its own id")


class UnknownRun(PartitionRefused):
    """The run is not registered."""

    def __init__(self, run: str) -> None:
        super().__init__(run, "the run is not registered; register sealed runs before judging them")


class EventsNotFound(LedgerError):
    """The run has no events, or they were retired."""

    def __init__(self, engine_run_id: str, reason: str) -> None:
        super().__init__(f"run {engine_run_id}: {reason}")


class RunClosed(LedgerError):
    """The run does not accept this event. Nothing in the call was appended."""

    def __init__(self, engine_run_id: str, reason: str) -> None:
        self.engine_run_id = engine_run_id
        super().__init__(f"run {engine_run_id}: {reason}; a new execution needs its own engine_run_id")


class RunOpen(LedgerError):
    """Events are retired only when their run has ended, and only all of them."""

    def __init__(self, engine_run_id: str, status: str) -> None:
        super().__init__(f"run {engine_run_id}: its events cannot be retired while the run is {status}")


class UnsoundAcceptance(PartitionRefused):
    """The accepted run's seal is damaged or has another row count."""

    def __init__(self, run: str, problem: str) -> None:
        super().__init__(run, f"cannot be accepted: {problem}; reject it and land a new run")


class LogContradicted(PartitionRefused):
    """The logs of a partition contradict the rules: rows were lost or written by other means."""


class TargetNotEmpty(LedgerError):
    """A ledger is copied only into an empty database. Nothing was written."""

    def __init__(self, table: str) -> None:
        super().__init__(f"the target database has rows in table {table}: copy the ledger into an empty database")


class CopyDiffers(LedgerError):
    """A copied table does not have the digest of its source. The copy was rolled back."""

    def __init__(self, table: str, *, rows: int, expected: int) -> None:
        super().__init__(
            f"table {table}: the copy ({rows} rows) differs from the source ({expected} rows); rolled back"
        )


class LedgerRefused(LedgerError):
    """A constraint or trigger of the database stopped a write. This is a defect in the code above."""


class LedgerOutdated(LedgerError):
    """The database's schema revision is not the one that this release needs."""

    def __init__(self, found: str | None, expected: str) -> None:
        self.found, self.expected = found, expected
        super().__init__(
            f"the ledger is at revision {found}, this release needs {expected}: "
            "migrate it with ads-pipeline migrate, or run the release that wrote it"
            if found
            else "There is no ledger in the database yet. Start with: ads-pipeline dev"
        )


class LedgerUnavailable(LedgerError):
    """The database is busy or unreachable. The write may or may not be recorded, and can be repeated."""

    is_transient = True
