"""Finds the verdict that decides what readers may get of each partition: what the check `valid` shows."""

from collections.abc import Sequence
from dataclasses import dataclass

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.reason import DEMOTED, Reason
from ads_pipeline.domain.transitions import Outcome, Status, Verdict
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidingVerdict:
    """A verdict, and the demotion of a newer run that makes it the deciding one, if there was one."""

    verdict: Verdict
    demotion: Reason | None = None

    def __str__(self) -> str:
        if self.verdict.outcome is Outcome.REJECTED:
            return str(self.verdict.reason)
        newer = "" if self.demotion is None else f"; the newest run was {self.demotion.text}"
        return f"{self.verdict.run.run_id}: accepted{newer}"


def find_deciding_verdicts(ledger: LedgerReader, keys: Sequence[PartitionKey]) -> dict[PartitionKey, DecidingVerdict]:
    """The last verdict on the newest judged run of each partition that has one. The partitions are of one query.

    When an operator demoted that run and an earlier one is current again, it is the verdict on the current run. A
    demotion that has begun decides, too.
    """
    if not keys:
        return {}
    newest = ledger.runs.newest_verdicts(keys)
    demoted = [key for key, verdict in newest.items() if verdict.error_class == DEMOTED]
    current = {
        key: str(state.current_run_id)
        for key, state in ledger.states.get_many(demoted).items()
        if state.status is Status.SUCCESS
    }
    found = {key: DecidingVerdict(verdict=verdict) for key, verdict in newest.items()}
    for key, judged in ledger.runs.verdicts_on_accepted(current).items():
        for each in judged:
            if each.verdict.run.run_id == current[key]:
                found[key] = DecidingVerdict(verdict=each.verdict, demotion=newest[key].reason)
    days, first = [key.logical_date for key in keys], keys[0]
    window = DayWindow(source=first.source, query_name=first.query_name, since=min(days), until=max(days))
    demoting = {
        verdict.run.key: DecidingVerdict(verdict=verdict) for verdict in ledger.publications.open_demotions(window)
    }
    return found | {key: demoting[key] for key in found.keys() & demoting.keys()}
