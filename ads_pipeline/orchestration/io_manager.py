"""The one door between Dagster and the ledger: what landed is registered, and only successes are handed on.

Dagster's colours are a view. Whether a partition may be loaded is asked of the ledger, whatever they say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import dagster as dg

# It has no public name in this release; `test_assets` fails should it change its meaning.
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION as TELL_NOTHING

from ads_pipeline.orchestration.keys import dimension_tags, parsed
from ads_pipeline.orchestration.rooms import Rooms
from ads_pipeline.partition import PartitionKey, Run
from ads_pipeline.reading import gap_of
from ads_pipeline.registration import register

SHOWN: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The partitions a step has something for, with what there is to tell of each."""

    told: Mapping[PartitionKey, Mapping[str, Any]]
    code_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed(Done):
    """Sealed runs to register, by a raw asset."""

    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Done):
    """The partitions that readers were given, by a warehouse asset."""


_T = TypeVar("_T", bound=Done)


def told_already(done: _T) -> dg.Output[_T]:
    """An output whose partitions the IO manager tells Dagster of, one by one.

    Dagster would tell it of every partition of the run's range, also of those there is nothing for; and metadata that
    is added for each partition beforehand takes time with the square of their number.
    """
    return dg.Output(done, metadata={TELL_NOTHING: True})


class PartitionStateIOManager(dg.IOManager):
    """Takes `Landed` and `Published`; a warehouse asset gets the partitions that may be loaded."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def handle_output(self, context: dg.OutputContext, obj: Landed | Published) -> None:
        """Tell Dagster of what is done; then fail the step for what was to be published and is not."""
        if isinstance(obj, Landed):
            register(obj.runs, raw=self._rooms.raw, ledger=self._rooms.ledger)
        for key, metadata in obj.told.items():
            context.log_event(_materialization(context.asset_key, key, metadata, obj.code_version))
        asked = self._parsed(context.asset_partition_keys, context.asset_key)
        refused = [key for key in asked if key not in obj.told]
        if refused and isinstance(obj, Published):
            raise self._failure(refused, of=len(asked))

    def load_input(self, context: dg.InputContext) -> list[PartitionKey]:
        """Those of the run's partitions that are a success."""
        asked = self._parsed(context.asset_partition_keys, context.asset_key)
        states = self._rooms.ledger.states(asked)
        return [key for key in asked if states[key].status == "success"]

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


def _materialization(
    asset: dg.AssetKey, key: PartitionKey, metadata: Mapping[str, Any], code_version: str
) -> dg.AssetMaterialization:
    tags = dimension_tags(key) | {"dagster/code_version": code_version}
    return dg.AssetMaterialization(asset_key=asset, partition=key.dagster_key, metadata=metadata, tags=tags)
