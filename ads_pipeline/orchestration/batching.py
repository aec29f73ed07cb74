"""`batched_events`: collects the events of assets and checks, to be stored together by `event_storage`."""

from contextlib import AbstractContextManager, nullcontext

import dagster as dg


def batched_events(instance: dg.DagsterInstance) -> AbstractContextManager[None]:
    """Collect the events of this thread in the block, if the storage of the instance can do so."""
    # With it come Dagster's storages and Alembic, which the definitions do not need.
    from ads_pipeline.orchestration.event_storage.event_batches import EventBatches  # noqa: PLC0415

    storage = instance.event_log_storage
    return storage.batch() if isinstance(storage, EventBatches) else nullcontext()
