"""The component of Dagster: a deployment as a folder with a `defs.yaml`, which `dg scaffold` writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import dagster as dg

from ads_pipeline.settings.arguments import PATHS, WORDS

TEMPLATE: Final = {"home": "{{ project_root }}/.ads", "google_ads": "off"}


class AdsPipelineScaffolder(dg.Scaffolder[Any]):
    """Writes a defs.yaml that loads as it is: a home below the project, and no fetching."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        dg.scaffold_component(request, TEMPLATE)


def _describe(text: str, *examples: object) -> dg.Resolver:
    resolver: dg.Resolver = dg.Resolver.default(description=text, examples=list(examples))
    return resolver


@dg.scaffold_with(AdsPipelineScaffolder)
class AdsPipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """Turns Google Ads reports into Delta tables that hold only days which passed their contract."""

    home: Annotated[
        str, _describe("Absolute path of the folder of the ledger, and by default of the data.", "/var/lib/ads")
    ]
    key_prefix: Annotated[
        Sequence[str],
        _describe("Stands before every name in Dagster; deployments in one instance need different ones."),
    ] = ()
    queries: Annotated[
        str | None, _describe("The query file, relative to this folder. By default that of the home or the package.")
    ] = None
    query_names: Annotated[
        Sequence[str] | None, _describe("The queries to build; by default all of the query file.")
    ] = None
    google_ads: Annotated[
        str, _describe("off, env (the client reads GOOGLE_ADS_…), or a google-ads.yaml relative to this folder.")
    ] = "off"
    lake: Annotated[
        str | None, _describe("Where raw runs and tables are, if not in the home.", "s3://bucket/ads")
    ] = None
    database_url: Annotated[
        str | None, _describe("The ledger in Postgres. By default it is in SQLite.", "{{ env.ADS_DATABASE_URL }}")
    ] = None
    spark: Annotated[str, _describe("A master, sc://… for Spark Connect, or module:function.")] = "local[*]"
    owners: Annotated[Sequence[str], _describe("The owners of all assets.", ["team:growth"])] = ()
    tags: Annotated[Mapping[str, str] | None, _describe("Tags of all assets.")] = None
    webhook: Annotated[
        str | None, _describe("Where the sensor notifications sends messages.", "{{ env.ADS_WEBHOOK }}")
    ] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        from ads_pipeline.orchestration.location.own_project import build_definitions  # noqa: PLC0415 - `dg` imports this module for each command

        arguments = {name: getattr(self, name) for name in type(self).model_fields}
        for name in PATHS:
            if arguments[name] is not None and arguments[name] not in WORDS:
                arguments[name] = context.path / Path(arguments[name]).expanduser()
        return build_definitions(**arguments)
