"""Draws the tree of deliberate failures and says which of them waiting can cure.

Whatever else escapes from the product is a defect in it. A room translates its library's exceptions into this
tree once, at its own edge; it does not invent classes of its own elsewhere.

    AdsPipelineError
    ├── BadName                 a part of a partition's name breaks its rule
    ├── BadSettings             the environment or the query file is wrong; every mistake is listed
    ├── BadCommand              words of the command line, or its SQL, ask for what cannot be done
    ├── BadJson                 a text from outside is not one strict JSON object
    ├── BadEvent                a field of a run's event breaks its rule
    ├── RawError                about one run's directory
    │   ├── BadRow              a row cannot be written as one line of strict JSON
    │   ├── UnsafePath          a symbolic link or a non-directory stands where a directory must
    │   ├── RunExists           the name is taken; runs are never replaced
    │   ├── RunNotSealed        there is no seal, so there is no run
    │   ├── RunDamaged          there is a seal, and it does not tell the truth
    │   └── RawUnavailable      the disk is full, slow or out of reach                (waiting cures it)
    ├── ContractMissing         no contract is declared for a query and schema version
    ├── JudgingFailed           the cluster or the disk failed, so there is no verdict        (waiting cures it)
    ├── WarehouseError          about a table
    │   ├── SchemaConflict      a column would change its type; nothing was written
    │   ├── StagingDamaged      staged files do not hold what was counted; nothing was published
    │   ├── TableContended      other loaders kept committing first                       (waiting cures it)
    │   └── WarehouseUnavailable  the table's storage or the cluster failed                 (waiting cures it)
    ├── StatusFileUnavailable   partition_status.parquet cannot be written                (waiting cures it)
    └── LedgerError             about the record of what is safe
        ├── IllegalMove         the transition table has no such move
        ├── VerdictConflict     the same run was judged twice, differently
        ├── VerdictsRefused     some of many verdicts were refused; the others are recorded
        ├── RunChanged          a run is registered again with another seal: raw data was tampered with
        ├── SeenOtherwise       a partition is no longer as whoever ordered an act saw it
        ├── MarkedTerminal      a partition is to be requeued that is marked as terminal
        ├── LeaseLost           a run writes of a partition that is not, or no longer, its own
        ├── ActRepeated         an act_id is used again for another act
        ├── UnknownRun          a verdict or a pointer names a run that was never registered
        ├── NoSuchEvents        a run's events are asked for, and there are none or no longer any
        ├── RunClosed           an event for a run whose events were retired, or of another plan
        ├── RunOpen             events of a run that has not ended are to be retired
        ├── UnsoundAcceptance   an acceptance that the run's own seal contradicts
        ├── LogContradicted     what is logged of a partition cannot have come about by the rules
        ├── TargetNotEmpty      the target database of a copy of the ledger has rows
        ├── CopyDiffers         a copied table does not have the digest of its source
        ├── LedgerRefused       the database's own rules stopped a write: a defect, never retried
        ├── LedgerOutdated      the schema is not the one this release writes
        └── LedgerUnavailable   busy or out of reach                                  (waiting cures it)
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final


class AdsPipelineError(Exception):
    """The root. `is_transient` says whether the same call may succeed later with nothing else changed."""

    is_transient: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as it is, because it comes home from worker processes; its constructor takes other words."""
        return _revived, (type(self), self.args, vars(self))


def _revived(kind: type[AdsPipelineError], args: tuple[Any, ...], attributes: dict[str, Any]) -> AdsPipelineError:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(attributes)
    return error


class BadName(AdsPipelineError, ValueError):
    """A part of a name was refused. Nothing was written."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{field}: {quoted(value)} is refused: {rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing wrong in the settings, and where."""

    location: str
    problem: str

    def __str__(self) -> str:
        return f"{self.location}: {self.problem}"


class BadSettings(AdsPipelineError, ValueError):
    """The settings were refused. Carries every mistake that was found, not the first."""

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        self.mistakes = mistakes
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        listed = "".join(f"\n  {mistake}" for mistake in mistakes)
        super().__init__(f"the settings hold {count}; mend and start again:{listed}")


class BadCommand(AdsPipelineError, ValueError):
    """What was asked on the command line was refused. The message names the word and what to write instead."""


class BadJson(AdsPipelineError, ValueError):
    """Not one strict JSON object. The message is the reason, without a word of the text itself."""


class BadEvent(AdsPipelineError, ValueError):
    """An event was refused. Nothing was appended."""

    def __init__(self, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(f"event: {field}: {problem}")


class RawError(AdsPipelineError):
    """A failure of one run's directory; `path` is relative to the raw root."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{printable(path)}: {problem}")


class BadRow(RawError):
    """A row that strict JSON cannot say. Nothing was sealed."""


class UnsafePath(RawError):
    """Something other than a plain directory or file stands on the way. Nothing was read or written through it."""


class RunExists(RawError):
    """The run's name is taken. A new attempt needs a new run_id."""


class RunNotSealed(RawError):
    """No seal: the run was never finished, or never existed. Land it again under a new run_id."""


class RunDamaged(RawError):
    """The seal and the directory contradict each other. The run is never read; land a new one."""


class RawUnavailable(RawError):
    """The file system failed. It says nothing about the run; nothing was sealed."""

    is_transient = True


class ContractMissing(AdsPipelineError):
    """Rows of this query and schema version cannot be judged: nobody has said what they must be."""

    def __init__(self, query_name: str, schema_version: str, known: tuple[str, ...]) -> None:
        self.query_name, self.schema_version = query_name, schema_version
        versions = ", ".join(known) or "none"
        super().__init__(
            f"{query_name}: no contract for schema_version {quoted(schema_version)}; declared are {versions}. "
            "Add one in contracts, or mend the schema_version in the query file"
        )


class JudgingFailed(AdsPipelineError):
    """The cluster or the disk failed during judging. It says nothing about the runs: judge them again."""

    is_transient = True


class WarehouseError(AdsPipelineError):
    """A failure of one table, named by its source and query."""

    def __init__(self, table: str, problem: str) -> None:
        self.table, self.problem = table, problem
        super().__init__(f"{table}: {problem}")


class SchemaConflict(WarehouseError):
    """A column that readers know would change its type. Nothing was written."""

    def __init__(self, table: str, column: str, held: str, offered: str) -> None:
        self.column, self.held, self.offered = column, held, offered
        super().__init__(
            table, f"column {column} holds {held}, the new rows bring {offered}; give the changed column a new name"
        )


class StagingDamaged(WarehouseError):
    """What was staged is not what was counted. Nothing was published; the table is as it was."""


class TableContended(WarehouseError):
    """Other loaders committed first, again and again. Nothing was published by this one."""

    is_transient = True


class WarehouseUnavailable(WarehouseError):
    """The table's storage or the cluster failed. What was published before stays published."""

    is_transient = True


class StatusFileUnavailable(AdsPipelineError):
    """The file of the partitions' status could not be written. What stood there stands there still."""

    is_transient = True

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")


class LedgerError(AdsPipelineError):
    """A failure of the ledger. The transaction it came from has left no trace."""


class IllegalTransition(LedgerError):
    """The transition table has no move for this act in this state."""

    def __init__(self, partition: str, state: str, action: str, next_move: str) -> None:
        self.partition, self.state, self.act = partition, state, action
        super().__init__(f"{partition}: cannot {action} while the partition is {state}: {next_move}")


class VerdictConflict(LedgerError):
    """A second, different verdict on the same run under the same validation_id."""

    def __init__(self, run: str, recorded: str, offered: str) -> None:
        self.run, self.recorded, self.offered = run, recorded, offered
        super().__init__(
            f"{run}: already {recorded}, now said to be {offered}. A run does not change; if the rules did, "
            "judge it again under a validation_id of its own"
        )


class VerdictsRefused(LedgerError):
    """Some of many verdicts were refused. `recorded` holds what was recorded of the others, which stands."""

    def __init__(self, recorded: tuple[object, ...], refusals: tuple[LedgerError, ...]) -> None:
        self.recorded, self.refusals = recorded, refusals
        shown = 10
        listed = "".join(f"\n  {refusal}" for refusal in refusals[:shown])
        more = f"\n  and {len(refusals) - shown} more" if len(refusals) > shown else ""
        super().__init__(f"{len(recorded)} verdicts are recorded, {len(refusals)} were refused:{listed}{more}")


class RunChanged(LedgerError):
    """Sealed runs are registered again with other facts than the first time."""

    def __init__(self, runs: tuple[str, ...]) -> None:
        self.runs = runs
        others = f" (and {len(runs) - 1} others)" if len(runs) > 1 else ""
        super().__init__(
            f"{runs[0]}{others}: its seal is not the one that was registered. Sealed runs never change: "
            "find out what changed it, and land a new run"
        )


class StateChanged(LedgerError):
    """Between looking and acting somebody else was there. The partition is left as it is."""

    def __init__(self, partition: str, seen: str, found: str) -> None:
        self.partition = partition
        super().__init__(f"{partition}: it was {seen} when it was looked at and is {found} now; look again")


class MarkedTerminal(LedgerError):
    """An operator said that there shall be no more attempts."""

    def __init__(self, partition: str) -> None:
        self.partition = partition
        super().__init__(f"{partition}: it is marked as terminal; clear the mark to have it tried again")


class LeaseLost(LedgerError):
    """A run was silent for so long that its partitions were given free. What it comes to write is refused."""

    def __init__(self, run_id: str, why: str, partition: str | None = None) -> None:
        self.run_id, self.partition = run_id, partition
        told = f"{partition}: run {run_id} may not write of it" if partition else f"run {run_id} may write of nothing"
        super().__init__(f"{told}: {why}; start a new run")


class ActionIdReused(LedgerError):
    """The act_id names an act that was recorded with other words."""

    def __init__(self, act_id: str) -> None:
        self.act_id = act_id
        super().__init__(f"{act_id}: this act_id is recorded for another act; give each act an id of its own")


class UnknownRun(LedgerError):
    """The ledger was never told of this run."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"{run}: the run is not registered; register what was sealed before judging it")


class EventsNotFound(LedgerError):
    """The events of a run are not here."""

    def __init__(self, run_id: str, why: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id}: {why}")


class RunClosed(LedgerError):
    """The run takes no such event any more. Nothing was appended, also of the others in the call."""

    def __init__(self, run_id: str, why: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id}: {why}; a new execution appends under a run_id of its own")


class RunOpen(LedgerError):
    """Only the events of a run that has ended may be retired, and only all of them."""

    def __init__(self, run_id: str, status: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id}: its events stay while the run is {status}")


class UnsoundAcceptance(LedgerError):
    """Acceptance of a run whose seal is damaged or counts other rows than were read."""

    def __init__(self, run: str, problem: str) -> None:
        self.run, self.problem = run, problem
        super().__init__(f"{run}: cannot be accepted: {problem}; reject it and land a new run")


class LogContradicted(LedgerError):
    """The logs of a partition do not lead to one another by the rules. Somebody wrote past them, or lost a part."""

    def __init__(self, partition: str, problem: str) -> None:
        self.partition, self.problem = partition, problem
        super().__init__(f"{partition}: {problem}")


class TargetNotEmpty(LedgerError):
    """A ledger is copied only into an empty database. Nothing was written."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"the target database has rows in table {table}: copy the ledger into an empty database, or into a new one"
        )


class CopyDiffers(LedgerError):
    """A copied table does not have the digest of its source. The copy was rolled back."""

    def __init__(self, table: str, *, rows: int, expected: int) -> None:
        self.table = table
        super().__init__(
            f"table {table}: the copy ({rows} rows) differs from the source ({expected} rows); it was rolled back, "
            "and the target is still empty"
        )


class LedgerRefused(LedgerError):
    """A constraint or trigger of the database stopped a write that the code above should not have tried."""


class LedgerOutdated(LedgerError):
    """The database's schema revision is not the one this release was written for."""

    def __init__(self, found: str | None, wanted: str) -> None:
        self.found, self.wanted = found, wanted
        super().__init__(
            f"the ledger is at revision {found or 'none'}, this release needs {wanted}: "
            "migrate it with ads-pipeline migrate, or run the release that wrote it"
        )


class LedgerUnavailable(LedgerError):
    """Locked by others for too long, or out of reach. Nothing was recorded, or it was and may be sent again."""

    is_transient = True


def printable(text: str, *, limit: int = 2000) -> str:
    """Outside text made safe for a log line, a terminal and both databases: one line, no control characters.

    What cannot be printed is written as a backslash escape; what exceeds the limit is cut and marked.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quoted(value: object, *, limit: int = 80) -> str:
    """An outside value as it may stand in a message: its type is visible, its length bounded."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python spells
        text = f"a very long {type(value).__name__}"
    return printable(text, limit=limit)


# A stack's frames, and what Spark appends to a worker's last line.
_FRAMES: Final = ("at ", "... ", "SQLSTATE: ", "Driver stacktrace:")
# gRPC's own words for a lost server, and Spark's for a lost Python: told in the middle of a story.
_TELLING: Final = re.compile(r'^details = "(.+)"$|(Python worker exited unexpectedly.*?)(?: Consider .*)?$')


def root_cause(error: BaseException, *, limit: int = 500) -> str:
    """The line of a cluster's long story that tells: the innermost cause, or the end of the Python side's."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(_FRAMES)] or [type(error).__name__]
    told = [found[1] or found[2] for line in lines if (found := _TELLING.search(line))]
    causes = [line for line in lines if line.startswith("Caused by: ") and "Exception: " in line]
    innermost = causes[-1].partition("Exception: ")[2] if causes else lines[-1]
    return printable(told[0] if told else innermost, limit=limit)
