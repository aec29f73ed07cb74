"""Carries a set of partitions from raw to the warehouse; the only place that knows the order of the rooms.

Every step may be repeated, and what dies between two of them `reconciliation` finishes. What is due, and who asked
for it, is decided elsewhere.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Final, TypeVar

from pyspark.sql import DataFrame, SparkSession

from ads_pipeline.contracts.catalogue import rules_for
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Outcome, PartitionState, Status, Verdict
from ads_pipeline.errors import (
    AdsPipelineError,
    ContractMissing,
    LedgerError,
    RunNotSealed,
    VerdictsRefused,
    WarehouseUnavailable,
)
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import Publication, VerdictCause, VerdictResult
from ads_pipeline.pipeline.registration import DAMAGED, RegistrationResult, register
from ads_pipeline.progress import ProgressReporter, silence
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal
from ads_pipeline.validator.judging import Judgement, SealedPayload, judge, rows_of
from ads_pipeline.warehouse.publication import Warehouse
from ads_pipeline.warehouse.values import Load

AT_ONCE: Final = 10_000  # partitions in one Spark job and one commit: bounds memory, and what a crash leaves to do

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingResult:
    """What judging came to. A run without a verdict stands in `unjudged` with the reason."""

    judgements: tuple[Judgement, ...]
    recorded: tuple[VerdictResult, ...]
    refusals: tuple[LedgerError, ...]
    unjudged: Mapping[Run, AdsPipelineError]


@dataclass(slots=True, kw_only=True)
class LoadResult:
    """What loading came to, gathered as it goes. Nothing but what is `published` was given to readers."""

    published: list[Run] = field(default_factory=list)
    outdated: list[Run] = field(default_factory=list)  # lost their authority while they were being loaded
    refused: list[PartitionState] = field(default_factory=list)  # no success, so nothing to load
    damaged: dict[Run, AdsPipelineError] = field(default_factory=dict)  # accepted once, unreadable now


class Pipeline:
    """The rooms in their order, for one Spark session."""

    def __init__(
        self,
        *,
        spark: SparkSession,
        raw: RawRuns,
        ledger: Ledger,
        warehouse: Warehouse,
        tell: ProgressReporter = silence,
    ) -> None:
        self._spark, self._raw, self._ledger, self._warehouse = spark, raw, ledger, warehouse
        self._tell = tell

    def carry(self, runs: Sequence[Run]) -> tuple[JudgingResult, LoadResult]:
        """Judge sealed runs and give readers those that became their partition's authority."""
        judged = self.judge(runs)
        succeeded = [each.state.key for each in judged.recorded if each.state.status is Status.SUCCESS]
        return judged, self.load(succeeded)

    def judge(self, runs: Sequence[Run], *, validation_id: str = "") -> JudgingResult:
        """A recorded verdict for every sealed run. JudgingFailed when the cluster failed; what is recorded stands."""
        judgements: list[Judgement] = []
        recorded: list[VerdictResult] = []
        refusals: list[LedgerError] = []
        unjudged: dict[Run, AdsPipelineError] = {}
        with self._tell("judging", len(runs)) as done:
            for some in _portions(runs):
                registered = register(some, raw=self._raw, ledger=self._ledger)
                unjudged |= registered.unsealed
                for verdicts in self._opinions(registered, unjudged, validation_id):
                    judgements += verdicts
                    kept, refused = self.record([judgement.verdict for judgement in verdicts])
                    recorded += kept
                    refusals += refused
                done(len(some))
        return JudgingResult(
            judgements=tuple(judgements), recorded=tuple(recorded), refusals=tuple(refusals), unjudged=unjudged
        )

    def opinions(self, runs: Sequence[Run], *, validation_id: str) -> JudgingResult:
        """What the validator says of sealed runs today; nothing is recorded."""
        unjudged: dict[Run, AdsPipelineError] = {}
        registered = register(runs, raw=self._raw, ledger=self._ledger)
        unjudged |= registered.unsealed
        found = [each for some in self._opinions(registered, unjudged, validation_id) for each in some]
        return JudgingResult(judgements=tuple(found), recorded=(), refusals=(), unjudged=unjudged)

    def record(
        self, verdicts: Sequence[Verdict], *, overruling: VerdictCause | None = None
    ) -> tuple[Sequence[VerdictResult], Sequence[LedgerError]]:
        """Record verdicts and say which were refused. What they reject of readers' rows is hidden and gone before."""
        rejections = [verdict for verdict in verdicts if verdict.outcome is Outcome.REJECTED]
        if rejections:
            demoting = self._ledger.begin_demotions(rejections, overruling=overruling)
            self.take_out([verdict.run.key for verdict in demoting])
        try:
            return self._ledger.record_verdicts(verdicts, overruling=overruling), ()
        except VerdictsRefused as refused:
            return [each for each in refused.recorded if isinstance(each, VerdictResult)], refused.refusals

    def load(self, keys: Iterable[PartitionKey]) -> LoadResult:
        """Make the warehouse hold the current run of every success among these, and point readers at it."""
        loading, due = LoadResult(), list[PartitionState]()
        for state in self._ledger.states(keys).values():
            (due if state.status is Status.SUCCESS else loading.refused).append(state)
        with self._tell("loading", len(due)) as done:
            for of_table in _grouped(due, lambda state: (state.key.source, state.key.query_name)).values():
                for some in _portions(of_table):
                    self._load(some, loading)
                    done(len(some))
        if loading.damaged:
            self._ledger.record_failed_loads({run: str(error) for run, error in loading.damaged.items()})
        return loading

    def take_out(self, keys: Iterable[PartitionKey]) -> None:
        """Remove from the warehouse what readers may no longer read of these partitions."""
        for of_table in _grouped(keys, lambda key: (key.source, key.query_name)).values():
            self._warehouse.remove(self._spark, of_table, doomed=self._unreadable)

    def _opinions(
        self, registered: RegistrationResult, unjudged: dict[Run, AdsPipelineError], validation_id: str
    ) -> Iterator[list[Judgement]]:
        """Judgements as they come: of the damaged runs at once, of the others contract by contract."""
        if registered.damaged:
            yield [_damage(run, problem, validation_id) for run, problem in registered.damaged.items()]
        sealed = (SealedPayload(seal=seal, payload=self._raw.payload_path(seal.run)) for seal in registered.seals)
        for (query_name, version), some in _grouped(sealed, _contract_of).items():
            try:
                rules = rules_for(query_name, version)
            except ContractMissing as error:
                unjudged.update((each.seal.run, error) for each in some)
                continue
            yield judge(self._spark, some, rules, validation_id=validation_id)

    def _load(self, states: Sequence[PartitionState], loading: LoadResult) -> None:
        """Load partitions of one table. Only when the load fails is every payload read to find who spoiled it."""
        sealed = self._sealed(states, loading, self._raw.seal)
        try:
            self._publish(sealed, loading)
        except WarehouseUnavailable:
            sound = self._sealed([state for state in states if _run_of(state) in sealed], loading, self._raw.verify)
            if len(sound) == len(sealed):
                raise
            self._publish(sound, loading)

    def _sealed(
        self, states: Sequence[PartitionState], loading: LoadResult, look: Callable[[Run], Seal]
    ) -> dict[Run, SealedPayload]:
        sealed: dict[Run, SealedPayload] = {}
        for run in map(_run_of, states):
            try:
                sealed[run] = SealedPayload(seal=look(run), payload=self._raw.payload_path(run))
            except (RunNotSealed, *DAMAGED) as error:
                loading.damaged[run] = error
        return sealed

    def _publish(self, sealed: Mapping[Run, SealedPayload], loading: LoadResult) -> None:
        if not sealed:
            return
        loads = [_load_of(each) for each in sealed.values()]
        rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), self._frames(sealed.values()))
        loaded = self._warehouse.replace(self._spark, rows, loads, still=self._ledger.publishable)
        answer = self._ledger.publish(
            [Publication(run=load.run, table_version=loaded.table_version) for load in loaded.loads]
        )
        loading.published += answer.published
        loading.outdated += [*loaded.outdated, *answer.outdated]
        if answer.outdated:  # they lost their authority after the commit
            self.take_out([run.key for run in answer.outdated])

    def _frames(self, sealed: Iterable[SealedPayload]) -> Iterator[DataFrame]:
        for (query_name, version), some in _grouped(sealed, _contract_of).items():
            yield rows_of(self._spark, some, rules_for(query_name, version))

    def _unreadable(self, runs: Sequence[Run]) -> set[Run]:
        return set(runs) - self._ledger.readable(runs)


def _run_of(state: PartitionState) -> Run:
    return Run(key=state.key, run_id=str(state.current_run_id))


def _load_of(sealed: SealedPayload) -> Load:
    seal = sealed.seal
    return Load(run=seal.run, schema_version=seal.facts.schema_version, record_count=seal.record_count)


def _contract_of(sealed: SealedPayload) -> tuple[str, str]:
    return sealed.seal.run.key.query_name, sealed.seal.facts.schema_version


def _damage(run: Run, problem: str, validation_id: str) -> Judgement:
    verdict = Verdict(
        run=run,
        outcome=Outcome.REJECTED,
        validation_id=validation_id,
        error_class="damaged",
        error_message=f"{run}: {problem}",
    )
    return Judgement(verdict=verdict, findings=(), unknown_columns=())


def _portions(things: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (things[start : start + AT_ONCE] for start in range(0, len(things), AT_ONCE))


def _grouped(things: Iterable[_T], by: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    groups: defaultdict[_K, list[_T]] = defaultdict(list)
    for thing in things:
        groups[by(thing)].append(thing)
    return dict(groups)
