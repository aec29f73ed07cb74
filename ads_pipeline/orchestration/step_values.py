"""The values that the assets of a run return and take. `PartitionStateIOManager` stores them in the ledger."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from ads_pipeline.domain.fetching.retry_forecast import LeaseHolder
from ads_pipeline.domain.measures import Measures
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import PartitionState, RegisteredRun, Status
from ads_pipeline.lake.raw.run_source import Landed
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import JudgedRun, Pointer

if TYPE_CHECKING:  # it loads Spark
    from ads_pipeline.pipeline.loading import LoadResult

Holders = Mapping[PartitionKey, LeaseHolder]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPartitions:
    """The output of a raw asset: what its source landed. `held` are partitions that other runs have claimed."""

    landed: Landed
    held: Holders


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadablePartitions:
    """The input of a warehouse asset: the successes among the partitions that the run has claimed.

    The facts about them are read once, as of one moment: the judged current runs, the pointers before the load, the
    newest registered runs, and the sums of the accepted runs.
    """

    states: Mapping[PartitionKey, PartitionState]
    held: Holders
    judged: Mapping[Run, JudgedRun]
    pointers: Mapping[PartitionKey, Pointer]
    newest: Mapping[PartitionKey, RegisteredRun]
    measures: Mapping[Run, Measures]

    @classmethod
    def read(cls, ledger: LedgerReader, keys: Iterable[PartitionKey], held: Holders) -> Self:
        states = {key: state for key, state in ledger.states.get_many(keys).items() if state.status is Status.SUCCESS}
        return cls(
            states=states,
            held=held,
            judged=ledger.runs.judged_runs(
                Run(key=key, run_id=str(each.current_run_id)) for key, each in states.items()
            ),
            pointers=ledger.publications.pointers(states),
            newest={key: registered for key, (registered, _outcome) in ledger.runs.newest(states).items()},
            measures=find_measures(ledger, states),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartitions:
    """The output of a warehouse asset: the commits to its table. The IO manager moves the pointers."""

    loadable: LoadablePartitions
    committed: "LoadResult"


def find_measures(ledger: LedgerReader, keys: Iterable[PartitionKey]) -> dict[Run, Measures]:
    """The sums of each run of these partitions that was ever accepted, as its last verdict has them."""
    accepted = ledger.runs.verdicts_on_accepted(keys)
    return {each.verdict.run: each.verdict.measures for attempts in accepted.values() for each in attempts}
