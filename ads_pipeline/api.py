"""The public Python interface: everything that may be imported from outside the package. The rest is internal.

Importing this module loads nothing. A name that it lists is loaded when it is first used.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ads_pipeline.domain.errors import AdsPipelineError
    from ads_pipeline.domain.partition import PartitionKey, Run
    from ads_pipeline.domain.run_snapshots import RunEventStore
    from ads_pipeline.domain.sealed_run import SealedRun
    from ads_pipeline.orchestration.location.changed_days import on_changed_days
    from ads_pipeline.orchestration.location.component import AdsPipelineComponent
    from ads_pipeline.orchestration.location.own_project import build_definitions
    from ads_pipeline.pipeline.readers import Readers
    from ads_pipeline.settings.environment import Settings, read_settings
    from ads_pipeline.validation.contract_models import Row
    from ads_pipeline.validation.contract_rules import ENUM

__all__ = [
    "ENUM",
    "AdsPipelineComponent",
    "AdsPipelineError",
    "PartitionKey",
    "Readers",
    "Row",
    "Run",
    "RunEventStore",
    "SealedRun",
    "Settings",
    "build_definitions",
    "land",
    "on_changed_days",
    "open_readers",
    "read_settings",
    "report_failure",
]

_MODULES: Final = {
    "ENUM": "validation.contract_rules",
    "AdsPipelineComponent": "orchestration.location.component",
    "AdsPipelineError": "domain.errors",
    "PartitionKey": "domain.partition",
    "Readers": "pipeline.readers",
    "Row": "validation.contract_models",
    "Run": "domain.partition",
    "RunEventStore": "domain.run_snapshots",
    "SealedRun": "domain.sealed_run",
    "Settings": "settings.environment",
    "build_definitions": "orchestration.location.own_project",
    "on_changed_days": "orchestration.location.changed_days",
    "read_settings": "settings.environment",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ads_pipeline.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """The loaded names, and the component. `dg` loads every name that it sees here, with each of its commands."""
    return sorted({*globals(), "AdsPipelineComponent"})


def land(
    partition: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    run_id: str,
    extracted_at: datetime | None = None,
    schema_version: str | None = None,
    time_zone: str | None = None,
    currency_code: str | None = None,
    settings: Settings | None = None,
) -> SealedRun:
    """Write the rows of a partition, `customer/query/YYYY-MM-DD`, in the order given, and seal the run.

    After any failure, also of the rows' iterator, nothing is sealed. Raises RunExists when the run_id is taken. The
    time is that of the extraction, by default now; the schema version is by default that of the query file.
    """
    from ads_pipeline.domain.partition import Run
    from ads_pipeline.domain.sealed_run import SealFacts
    from ads_pipeline.lake.raw.landing import RawRuns
    from ads_pipeline.lake.raw.seal import hash_gaql

    known = settings or _read_settings()
    key = _parse_partition(partition, known)
    query = known.query(key.query_name)
    facts = SealFacts(
        extracted_at=extracted_at or datetime.now(UTC),
        schema_version=schema_version or query.schema_version,
        api_version=known.google_apis.api_version,
        query_hash=hash_gaql(query.gaql),
        time_zone=time_zone,
        currency_code=currency_code,
    )
    return RawRuns(known.raw_location).land(Run(key=key, run_id=run_id), rows, facts)


def report_failure(
    partition: str,
    *,
    error_class: str,
    message: str,
    failure_id: str,
    failed_at: datetime | None = None,
    wait_until: datetime | None = None,
    settings: Settings | None = None,
) -> bool:
    """Report a fetch that failed before a run was sealed. False when this `failure_id` was reported before.

    The failure counts for the retry policy. It is no attempt at a verdict, and the state does not change.
    """
    from ads_pipeline.domain.fetching.fetch_results import FailedFetch
    from ads_pipeline.ledger.ledger import Ledger

    known = settings or _read_settings()
    failure = FailedFetch(
        key=_parse_partition(partition, known),
        error_class=error_class,
        error_message=message,
        failure_id=failure_id,
        failed_at=failed_at,
        wait_until=wait_until,
    )
    with Ledger.opened(known.database_url, tenancy=known.tenancy) as ledger:
        return failure.key in ledger.failed_fetches.record([failure], known.retry_policy)


@contextmanager
def open_readers(settings: Settings | None = None) -> Iterator[Readers]:
    """Read access to the warehouse: `connect(queries)` opens a DuckDB session, `read_rows(spark, query)` a DataFrame.

    Only rows that the validator accepted and that no later verdict or action hides are visible.
    """
    from ads_pipeline.ledger.ledger import LedgerReader
    from ads_pipeline.pipeline.readers import Readers

    known = settings or _read_settings()
    with LedgerReader.opened(known.database_url, tenancy=known.tenancy) as ledger:
        yield Readers.of_deployment(ledger, known)


def _read_settings() -> Settings:
    from ads_pipeline.settings.environment import read_settings

    return read_settings(os.environ)


def _parse_partition(text: str, settings: Settings) -> PartitionKey:
    from ads_pipeline.domain.partition import parse_key

    return parse_key(f"{settings.google_apis.source}/{text}")
