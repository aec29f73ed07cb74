"""Builds a deployment inside a user's own Dagster project, from arguments. No ADS_PIPELINE_… variable is read."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import dagster as dg

from ads_pipeline.orchestration.catalog import Labels
from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.runs.due_partitions import digest_of
from ads_pipeline.settings.arguments import mistakes_by_argument, read_arguments
from ads_pipeline.settings.environment import Settings

ONE_EACH: Final = "each_deployment_needs_a_home_or_database_url_of_its_own"


def build_definitions(
    *,
    home: str | Path,
    key_prefix: str | Sequence[str] = (),
    queries: str | Path | None = None,
    query_names: Sequence[str] | None = None,
    google_ads: str | Path = "off",
    lake: str | None = None,
    database_url: str | None = None,
    spark: str = "local[*]",
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    executor: dg.ExecutorDefinition | None = None,
    arrival_seconds: int | None = None,
    lease_seconds: int | None = None,
    step_wait_seconds: int | None = None,
    sample_text: bool = False,
    webhook: str | None = None,
    tenant: str | None = None,
    workspace: str | None = None,
) -> dg.Definitions:
    """Build the definitions of one deployment, to be merged with those of your own project.

    The arguments are the settings of docs/settings.md without ADS_PIPELINE_. `home` must be absolute; `queries` and
    `google_ads` may be relative to the current directory. `query_names` selects queries of the query file; by default
    all are built. All names in Dagster stand below `key_prefix`. Owners and tags are those of the assets. Without an
    `executor`, that of your definitions runs the steps.

    The environment is not read, except by the client of Google Ads with `google_ads="env"`, and nothing else in the
    process changes. Raises BadSettings, which lists every mistake by its argument, and BadName for a refused prefix
    or query name.
    """
    arguments = {
        "home": home,
        "lake": lake,
        "database_url": database_url,
        "queries": queries,
        "google_ads": google_ads,
        "spark": spark,
        "arrival_seconds": arrival_seconds,
        "lease_seconds": lease_seconds,
        "step_wait_seconds": step_wait_seconds,
        "sample_text": sample_text,
        "webhook": webhook,
        "tenant": tenant,
        "workspace": workspace,
    }
    names = Names.below(key_prefix)
    settings = read_arguments(arguments, query_names)
    labels = Labels(owners=owners, tags=tags or {})
    with mistakes_by_argument():
        location = build_location(settings, names=names, labels=labels, executor=executor)
    return dg.Definitions.merge(location, _reserve_ledger(settings))


def _reserve_ledger(settings: Settings) -> dg.Definitions:
    """A resource whose key names the ledger. Dagster refuses to merge two deployments on one ledger by this key."""
    url = re.sub(r"//[^@]*@", "//", settings.database_url)
    digest = digest_of((url, settings.google_apis.source))
    description = "Prevents that two deployments of one code location use one ledger."
    resource = dg.ResourceDefinition.none_resource(description=description)
    return dg.Definitions(resources={f"{ONE_EACH}_{digest}": resource})
