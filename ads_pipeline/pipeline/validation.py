"""Registers sealed runs, has the validator judge them and stage their rows, and records the verdicts."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ads_pipeline.domain.batches import group_by, split_batches
from ads_pipeline.domain.errors import (
    AdsPipelineError,
    ContractMissing,
    PartitionRefused,
    VerdictsRefused,
    WarehouseError,
)
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.reason import Problem, Reason
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import Outcome, Verdict
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.lake.warehouse.staging import StartSpark
from ads_pipeline.ledger.sql.ledger_values import VerdictCause, VerdictResult
from ads_pipeline.ledger.state.verdicts import Verdicts
from ads_pipeline.pipeline.hidden_rows import HiddenRows, describe_left_rows
from ads_pipeline.pipeline.progress import ProgressReporter, no_progress
from ads_pipeline.pipeline.registered_seals import SealRegister
from ads_pipeline.pipeline.staged_runs import StagedRuns, sink_into
from ads_pipeline.validation.contract_registry import Contracts
from ads_pipeline.validation.judgement import Judgement
from ads_pipeline.validation.payload_task import NoSink
from ads_pipeline.validation.spark_job import judge_and_write

_LOG: Final = logging.getLogger(__name__)

RUNS_PER_BATCH: Final = 10_000  # bounds memory, and the work that a crash repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingResult:
    """The result for each run. `unjudged` holds the runs without a verdict, with the reason."""

    judgements: tuple[Judgement, ...]
    unjudged: dict[Run, AdsPipelineError]
    recorded: tuple[VerdictResult, ...] = ()
    refusals: Mapping[Run, PartitionRefused] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Judges sealed runs and records what the validator decided."""

    start_spark: StartSpark
    raw: RawRuns
    seals: SealRegister
    verdicts: Verdicts
    contracts: Contracts
    hidden_rows: HiddenRows
    warehouse: Warehouse
    staged: StagedRuns
    show_text: bool = False  # whether reasons quote texts of payloads
    report_progress: ProgressReporter = no_progress

    def judge(self, runs: Sequence[Run], *, validation_id: str = "") -> JudgingResult:
        """Judge every sealed run and record its verdict.

        Raises JudgingFailed when the cluster failed; verdicts that were recorded before remain.
        """
        judgements: list[Judgement] = []
        recorded: list[VerdictResult] = []
        refusals: dict[Run, PartitionRefused] = {}
        unjudged: dict[Run, AdsPipelineError] = {}
        with self.report_progress("judging", len(runs)) as advance:
            for batch in split_batches(runs, RUNS_PER_BATCH):
                for judged in self._judge_batch(batch, unjudged, validation_id, stage=True):
                    judgements += judged
                    results, refused = self.record([judgement.verdict for judgement in judged])
                    recorded += results
                    refusals |= refused
                advance(len(batch))
        if unjudged:
            log_event(_LOG, LogEvent.RUNS_UNJUDGED, runs=len(unjudged), first=min(unjudged))
        return JudgingResult(
            judgements=tuple(judgements), unjudged=unjudged, recorded=tuple(recorded), refusals=refusals
        )

    def evaluate(self, runs: Sequence[Run], *, validation_id: str) -> JudgingResult:
        """Judge sealed runs by today's contracts without recording a verdict."""
        unjudged: dict[Run, AdsPipelineError] = {}
        judgements = [
            each for judged in self._judge_batch(runs, unjudged, validation_id, stage=False) for each in judged
        ]
        return JudgingResult(judgements=tuple(judgements), unjudged=unjudged)

    def record(
        self, verdicts: Sequence[Verdict], *, cause: VerdictCause | None = None
    ) -> tuple[Sequence[VerdictResult], Mapping[Run, PartitionRefused]]:
        """Record verdicts; return the recorded ones and the refusals.

        When a verdict rejects the run that readers see, its rows are hidden and removed before it is recorded. If
        they cannot be removed, because a file is damaged, the verdict is refused for now and `reconcile` records it.
        """
        waiting = dict[PartitionKey, WarehouseError]()
        rejections = [verdict for verdict in verdicts if verdict.outcome is Outcome.REJECTED]
        if rejections:
            demotions = self.verdicts.begin_demotions(rejections, cause=cause)
            waiting = self.hidden_rows.remove(verdict.run.key for verdict in demotions)
        refusals = {
            each.run: PartitionRefused(str(each.run), describe_left_rows(waiting[each.run.key]))
            for each in verdicts
            if each.run.key in waiting
        }
        try:
            recorded = self.verdicts.record([each for each in verdicts if each.run not in refusals], cause=cause)
        except VerdictsRefused as error:
            recorded = list(error.recorded)
            refusals |= error.refusals
        rejected = [each.verdict.run for each in recorded if each.verdict.outcome is Outcome.REJECTED]
        log_event(
            _LOG,
            LogEvent.VERDICTS_RECORDED,
            accepted=len(recorded) - len(rejected),
            rejected=len(rejected),
            refused=len(refusals),
            first_rejected=min(rejected, default=None),
        )
        return recorded, refusals

    def _judge_batch(
        self, runs: Sequence[Run], unjudged: dict[Run, AdsPipelineError], validation_id: str, *, stage: bool
    ) -> Iterator[list[Judgement]]:
        """Yield the judgements of damaged runs first, then one list per contract; add the others to `unjudged`."""
        registered, unsealed = self.seals.get_or_register(runs)
        unjudged |= unsealed
        damaged = {run: each.problem for run, each in registered.items() if isinstance(each, DamagedRun)}
        if damaged:
            yield [_reject_damaged(run, problem, validation_id) for run, problem in damaged.items()]
        sealed = (each for each in registered.values() if isinstance(each, SealedRun))
        for contract, group in group_by(sealed, lambda each: each.contract).items():
            try:
                rules = self.contracts.rules(*contract)
            except ContractMissing as error:
                unjudged.update((each.run, error) for each in group)
                continue
            table = self.warehouse.table(group[0].run.key.source, contract[0])
            judgements, written = judge_and_write(
                self.start_spark(),
                self.raw.location,
                group,
                rules,
                open_sink=sink_into(table, contract[1]) if stage else NoSink,
                validation_id=validation_id,
                show_text=self.show_text,
            )
            self.staged.add(table, written)
            yield judgements


def _reject_damaged(run: Run, problem: str, validation_id: str) -> Judgement:
    verdict = Verdict(
        run=run,
        outcome=Outcome.REJECTED,
        validation_id=validation_id,
        reason=Reason(run_id=run.run_id, problems=(Problem(error_class="damaged", rule=problem),)),
    )
    return Judgement(verdict=verdict, unknown_columns=())
