"""The one door between Dagster and the ledger: what landed is registered, and only successes are handed on.

Dagster's colours are a view. Whether a partition may be loaded is asked of the ledger, whatever they say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from ads_pipeline.orchestration.keys import dimension_tags, parsed
from ads_pipeline.orchestration.rooms import Rooms
from ads_pipeline.partition import PartitionKey, Run
from ads_pipeline.reading import gap_of
from ads_pipeline.registration import register

SHOWN: Final = 50
Told = Mapping[PartitionKey, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """Sealed runs to register, by a raw asset."""

    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The partitions that readers were given, by a warehouse asset, with what there is to tell of each."""

    told: Told


class PartitionStateIOManager(dg.IOManager):
    """Takes `Landed` and `Published`; a warehouse asset gets the partitions that may be loaded."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def handle_output(self, context: dg.OutputContext, obj: Landed | Published) -> None:
        if isinstance(obj, Landed):
            register(obj.runs, raw=self._rooms.raw, ledger=self._rooms.ledger)
        else:
            self._refuse_the_others(context, obj)

    def load_input(self, context: dg.InputContext) -> list[PartitionKey]:
        """Those of the run's partitions that are a success."""
        asked = self._parsed(context.asset_partition_keys, context.asset_key)
        states = self._rooms.ledger.states(asked)
        return [key for key in asked if states[key].status == "success"]

    def _refuse_the_others(self, context: dg.OutputContext, published: Published) -> None:
        """Fail the step for what was asked and not published.

        An output materializes every partition of its range, and a failed step none. So the good ones are told one by
        one before the step fails; they stay.
        """
        asked = self._parsed(context.asset_partition_keys, context.asset_key)
        refused = [key for key in asked if key not in published.told]
        if not refused:
            return
        for key, metadata in published.told.items():
            context.log_event(materialization(context.asset_key, key, metadata))
        raise self._failure(refused, of=len(asked))

    def _failure(self, refused: list[PartitionKey], *, of: int) -> dg.Failure:
        """How a run ends that could not do all it was asked for; trying again by itself would not help."""
        reasons = {key: self._reason(key) for key in refused[:SHOWN]}
        first, why = next(iter(reasons.items()))
        return dg.Failure(
            description=f"{len(refused)} of {of} partitions are not in the warehouse; the others are. {first}: {why}",
            metadata={
                "refused": dg.MetadataValue.int(len(refused)),
                "reasons": dg.MetadataValue.json({str(key): reason for key, reason in reasons.items()}),
            },
            allow_retries=False,
        )

    def _reason(self, key: PartitionKey) -> str:
        day = key.logical_date
        standings = self._rooms.ledger.standings(source=key.source, query_name=key.query_name, since=day, until=day)
        found = {standing.state.key: standing for standing in standings}
        gap = gap_of(key, found.get(key))
        return "it could not be loaded" if gap is None else str(gap).removeprefix(f"{key}: ")

    def _parsed(self, names: Any, asset: dg.AssetKey) -> list[PartitionKey]:
        return parsed(names, source=self._rooms.source_name, query_name=asset.path[-1])


def materialization(asset: dg.AssetKey, key: PartitionKey, metadata: Mapping[str, Any]) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        asset_key=asset, partition=key.dagster_key, metadata=metadata, tags=dimension_tags(key)
    )
