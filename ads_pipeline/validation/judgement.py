"""`Judgement`: what the validator found out about a run. `spark_job` makes it."""

from dataclasses import dataclass

from ads_pipeline.domain.transitions import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, and the columns of the payload that the contract does not declare."""

    verdict: Verdict
    unknown_columns: tuple[str, ...]
