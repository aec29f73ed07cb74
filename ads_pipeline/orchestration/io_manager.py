"""The one door between Dagster and the ledger: what landed is registered, and only successes are handed on.

Dagster's colours are a view. Whether a partition may be loaded is asked of the ledger, whatever they say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import dagster as dg

# It has no public name in this release; `test_assets` fails should it change its meaning.
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION as TELL_NOTHING

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.values import LeaseHolder
from ads_pipeline.orchestration import metadata
from ads_pipeline.orchestration.partitions import dimension_tags, parsed
from ads_pipeline.orchestration.resources import RunResources
from ads_pipeline.pipeline.gaps import Gap, gap_of
from ads_pipeline.pipeline.registration import register

SHOWN: Final = 50
Told = Mapping[PartitionKey, Mapping[str, Any]]
Held = Mapping[PartitionKey, LeaseHolder]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPartitions:
    """Sealed runs to register, by a raw asset; and which partitions are other runs' work."""

    runs: tuple[Run, ...]
    held: Held
    code_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPartitions:
    """The partitions that readers were given, by a warehouse asset, with what there is to tell of each.

    Of the others, those that are other runs' work.
    """

    told: Told
    held: Held
    code_version: str


_T = TypeVar("_T", SealedPartitions, LoadedPartitions)


def told_already(done: _T) -> dg.Output[_T]:
    """An output whose partitions the IO manager tells Dagster of, one by one.

    Dagster would tell it of every partition of the run's range, also of those there is nothing for; and metadata that
    is added for each partition beforehand takes time with the square of their number.
    """
    return dg.Output(done, metadata={TELL_NOTHING: True})


class PartitionStateIOManager(dg.IOManager):
    """Takes `Landed` and `Published`; a warehouse asset gets the partitions that may be loaded."""

    def __init__(self, rooms: RunResources) -> None:
        self._rooms = rooms

    def handle_output(self, context: dg.OutputContext, obj: SealedPartitions | LoadedPartitions) -> None:
        """Tell Dagster of what is done; then fail the step for what was to be published and is not."""
        asked = self._parsed(context.asset_partition_keys, context.asset_key)
        own = [key for key in asked if key not in obj.held]
        told = self._registered(obj, own) if isinstance(obj, SealedPartitions) else obj.told
        for key, entry in told.items():
            context.log_event(_materialization(context.asset_key, key, entry, obj.code_version))
        if isinstance(obj, LoadedPartitions):
            lacking = [key for key in asked if key not in told]
            if lacking:
                raise self._failure(lacking, obj.held, of=len(asked))
        elif unsealed := [key for key in own if key not in told]:
            context.log.warning("nothing is sealed for %d of %d: first %s", len(unsealed), len(asked), unsealed[0])

    def _registered(self, landed: SealedPartitions, asked: list[PartitionKey]) -> Told:
        """What the ledger knows of each partition that has a run, once it knows these."""
        register(landed.runs, raw=self._rooms.raw, ledger=self._rooms.ledger)
        newest = self._rooms.ledger.newest(asked)
        return {key: metadata.of_run(known) for key, (known, _outcome) in newest.items()}

    def load_input(self, context: dg.InputContext) -> list[PartitionKey]:
        """Those of the run's partitions that are a success."""
        asked = self._parsed(context.asset_partition_keys, context.asset_key)
        states = self._rooms.ledger.states(asked)
        return [key for key in asked if states[key].status is Status.SUCCESS]

    def _failure(self, refused: list[PartitionKey], held: Held, *, of: int) -> dg.Failure:
        """How a run ends that could not do all it was asked for; trying again by itself would not help."""
        reasons = self._reasons(refused[:SHOWN]) | {key: str(held[key]) for key in refused[:SHOWN] if key in held}
        first, why = next(iter(reasons.items()))
        return dg.Failure(
            description=f"{len(refused)} of {of} partitions are not in the warehouse; the others are. {first}: {why}",
            metadata={
                "refused": dg.MetadataValue.int(len(refused)),
                "reasons": dg.MetadataValue.json({str(key): reason for key, reason in reasons.items()}),
            },
            allow_retries=False,
        )

    def _reasons(self, keys: list[PartitionKey]) -> dict[PartitionKey, str]:
        """Why readers do not see these partitions of one query; a day is asked for once."""
        source, query_name = keys[0].source, keys[0].query_name
        standings = {
            standing.state.key: standing
            for day in sorted({key.logical_date for key in keys})
            for standing in self._rooms.ledger.standings(source=source, query_name=query_name, since=day, until=day)
        }
        return {key: _reason(gap_of(key, standings.get(key))) for key in keys}

    def _parsed(self, names: Any, asset: dg.AssetKey) -> list[PartitionKey]:
        return parsed(names, source=self._rooms.source_name, query_name=asset.path[-1])


def _reason(gap: Gap | None) -> str:
    return "it could not be loaded" if gap is None else str(gap).removeprefix(f"{gap.key}: ")


def _materialization(
    asset: dg.AssetKey, key: PartitionKey, metadata: Mapping[str, Any], code_version: str
) -> dg.AssetMaterialization:
    tags = dimension_tags(key) | {"dagster/code_version": code_version}
    return dg.AssetMaterialization(asset_key=asset, partition=key.dagster_key, metadata=metadata, tags=tags)
