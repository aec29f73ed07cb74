"""Finds the run that `state restore` publishes by default, or the demoted one that it publishes only by name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.reason import DEMOTED
from ads_pipeline.domain.transitions import Outcome, PartitionState, Status
from ads_pipeline.ledger.sql.ledger_values import Attempt
from ads_pipeline.ledger.state.run_history import RunHistory

NO_EARLIER_RUN: Final = "no earlier run was accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorableRun:
    """The run that can be restored. Without `run_id` there is none.

    `is_demoted`: an operator demoted it, so that only `--run` restores it. Then `is_only` says that no other run was
    ever accepted.
    """

    run_id: str | None = None
    is_demoted: bool = False
    is_only: bool = False

    def command(self, partition: str) -> str:
        """The command that restores it. `partition` names the partition in commands."""
        return restore_command(partition, self.run_id if self.is_demoted else None)

    def why_skipped(self, key: PartitionKey) -> str:
        """Say why a restore without `--run` skips the partition, and give the command that restores it, if any."""
        return f"{self.lead} {self.command(key.short_name)}" if self.is_demoted else NO_EARLIER_RUN

    @property
    def lead(self) -> str:
        """The sentence before the command of a demoted run."""
        if self.is_only:
            return f"The only accepted run, {self.run_id}, was demoted. To publish it again:"
        return f"Every accepted run was demoted, {self.run_id} as the last one. To publish it again:"


NO_RUN: Final = RestorableRun()


def restore_command(partition: str, run_id: str | None = None) -> str:
    """The command that restores this run, by default the newest accepted one before the current run."""
    return f"ads-pipeline state restore {partition} --reason TEXT" + (f" --run {run_id}" if run_id else "")


def find_restorable(runs: RunHistory, states: Iterable[PartitionState]) -> dict[PartitionKey, RestorableRun]:
    """The run of each partition that can be restored: the newest accepted one before the current run.

    Without a current run it is the newest accepted one. Only the last verdict on each run counts. Without such a run,
    it is the run that an operator demoted last.
    """
    given = list(states)
    judged = runs.verdicts_on_accepted(state.key for state in given)
    return {state.key: _choose(_before_current(state, judged.get(state.key, ()))) for state in given}


def _before_current(state: PartitionState, judged: Sequence[Attempt]) -> Sequence[Attempt]:
    run_ids = [each.verdict.run.run_id for each in judged]
    return judged[: run_ids.index(str(state.current_run_id))] if state.status is Status.SUCCESS else judged


def _choose(judged: Sequence[Attempt]) -> RestorableRun:
    """Choose among the last verdicts on runs that were ever accepted, oldest run first."""
    for each in reversed(judged):
        if each.verdict.outcome is Outcome.ACCEPTED:
            return RestorableRun(run_id=each.verdict.run.run_id)
    demoted = [each for each in judged if each.verdict.error_class == DEMOTED]
    if not demoted:
        return NO_RUN
    last = max(demoted, key=lambda each: each.attempt_no)
    return RestorableRun(run_id=last.verdict.run.run_id, is_demoted=True, is_only=len(judged) == 1)
