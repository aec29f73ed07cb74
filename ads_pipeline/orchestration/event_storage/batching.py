"""`batched_events`: collects the events of assets and checks, to be stored together by `event_storage`."""

from contextlib import AbstractContextManager, nullcontext
from typing import Final

import dagster as dg

from ads_pipeline.orchestration.event_storage import dagster_private

MAX_BATCH: Final = 1_000  # events in one transaction: about 0.3 s, in which other writers of the database wait


def batched_events(instance: dg.DagsterInstance) -> AbstractContextManager[None]:
    """Collect the events of this thread in the block, if the storage of the instance can do so."""
    if not dagster_private.has_batched_events():
        return nullcontext()
    # With it come Dagster's storages and Alembic, which the definitions do not need.
    from ads_pipeline.orchestration.event_storage.event_batches import EventBatches  # noqa: PLC0415

    storage = instance.event_log_storage
    return storage.batch() if isinstance(storage, EventBatches) else nullcontext()
