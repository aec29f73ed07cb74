"""Reads what each surface of a deployment says about each day, through the surface itself, and compares them."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
from deltalake import DeltaTable
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from typer.testing import CliRunner

from ads_pipeline.domain.days.conditions import (
    CONDITIONS,
    READABLE_CONDITIONS,
    UNREADABLE_CONDITIONS,
    Condition,
)
from ads_pipeline.lake.warehouse.table_values import WarehouseTable
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.cli.main import app
from ads_pipeline.operations.report.content import LETTERS
from ads_pipeline.operations.report.writing import ReportWriter
from ads_pipeline.pipeline.readers import Readers
from ads_pipeline.settings.environment import Settings

DAYS: Final = "logical_date::VARCHAR AS day, customer_id, run_id, count(*) AS number"
MANY: Final = ("--limit", "1000")  # more than a simulation has
LISTED: Final = tuple(
    argument for name, entry in CONDITIONS.items() if not entry.is_fine for argument in ("--condition", name)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What commands advise at one moment. A day is named "query customer day"."""

    recorded: Mapping[str, dict[str, Any]]  # `state inspect --json`
    listed: Mapping[str, dict[str, Any]]  # the same with each condition, also days without any run
    gaps: Mapping[str, dict[str, Any]]
    doctor: list[dict[str, Any]]

    @property
    def conditions(self) -> dict[str, Condition]:
        days = {name: Condition(fields["condition"]) for name, fields in {**self.recorded, **self.listed}.items()}
        return {name: condition for name, condition in days.items() if condition is not Condition.NOT_EXPECTED}

    def next_commands(self) -> list[str]:
        """Each printed command once, in the order of the surfaces."""
        days = [*self.listed.values(), *self.recorded.values(), *self.gaps.values()]
        commands = [str(each["next_command"]) for each in days if each["next_command"]]
        for finding in self.doctor:
            text = str(finding.get("next") or "")
            if text.startswith("ads-pipeline "):
                commands.append(re.split("[;,]", text)[0])
        return list(dict.fromkeys(commands))

    def who_needs_an_operator(self) -> dict[str, str]:
        """The days that need an operator, each with the printed command."""
        return {
            name: str((self.listed.get(name) or self.recorded[name])["next_command"] or "")
            for name, condition in self.conditions.items()
            if CONDITIONS[condition].needs_operator
        }

    def needing_since(self) -> dict[str, datetime]:
        """Since when each of these days is in its condition."""
        return {
            name: datetime.fromisoformat((self.listed.get(name) or self.recorded[name])["since"])
            for name in self.who_needs_an_operator()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Surfaces(Advice):
    """What all surfaces say at one moment."""

    views: Mapping[str, dict[str, int]]  # run -> rows
    delta: Mapping[str, dict[str, int]]
    metrics: Mapping[str, int]
    report: Mapping[str, str]
    status_file: Mapping[str, bool]  # whether the warehouse asset of the day was ever materialized

    def find_differences(self) -> Iterator[str]:
        """Each statement of a surface with which another one disagrees."""
        conditions = self.conditions
        readable = {each for each, condition in conditions.items() if condition in READABLE_CONDITIONS}
        filled = {each for each in readable if self.recorded[each]["record_count"]}
        unreadable = {each for each, condition in conditions.items() if condition in UNREADABLE_CONDITIONS}
        yield from self._compare_lists()
        yield from _compare("gaps", set(self.gaps), unreadable)
        yield from _compare("views", set(self.views), filled)
        yield from _compare("plain Delta", set(self.delta), filled)
        for name in sorted(filled & self.views.keys()):
            expected = {self.views[name].keys() == self.delta.get(name, {}).keys()}
            rows = {self.recorded[name]["record_count"], *_sums(self.views, name), *_sums(self.delta, name)}
            if len(rows) > 1 or not all(expected):
                yield f"{name}: rows of each run: views {self.views[name]}, plain Delta {self.delta.get(name)}"
        counted = Counter(conditions.values())
        for condition, number in self.metrics.items():
            if counted[Condition(condition)] != number:
                yield f"metrics count {number} days as {condition}, inspect {counted[Condition(condition)]}"
        for name in sorted(conditions):
            if self.report.get(name) != conditions[name]:
                yield f"{name}: the report says {self.report.get(name)}, inspect {conditions[name]}"
        for name in sorted(filled):
            if not self.status_file.get(name):
                yield f"{name}: partition_status.parquet has no materialization, and inspect says {conditions[name]}"

    def _compare_lists(self) -> Iterator[str]:
        """A day has the same fields in the list of partitions and in the list of its condition."""
        for name in sorted(self.recorded.keys() & self.listed.keys()):
            for field in ("condition", "because", "next_command"):
                pair = self.recorded[name][field], self.listed[name][field]
                if pair[0] != pair[1]:
                    yield f"{name}: inspect says {pair[0]}, inspect --condition says {pair[1]} ({field})"


def read_advice() -> Advice:
    return Advice(
        recorded=_read_days("state", "inspect", "--json", *MANY),
        listed=_read_days("state", "inspect", "--json", *LISTED, *MANY),
        gaps=_read_days("warehouse", "gaps", "--json"),
        doctor=_read_objects("doctor", "--json"),
    )


def read_surfaces(settings: Settings) -> Surfaces:
    with Ledger.opened(settings.database_url) as ledger:
        source, queries = settings.google_apis.source, sorted(settings.google_apis.queries)
        readers = Readers(
            publications=ledger.publications, warehouse_location=settings.warehouse_location, source=source
        )
        views, delta = dict[str, dict[str, int]](), dict[str, dict[str, int]]()
        for name in queries:
            with readers.connect([name]) as connection:
                if connection.execute("SELECT 1 FROM duckdb_views() WHERE view_name = ?", [name]).fetchone():
                    _add_rows(views, name, connection.execute(f"SELECT {DAYS} FROM {name} GROUP BY ALL").fetchall())
            table = WarehouseTable(location=settings.warehouse_location, source=source, query_name=name)
            if DeltaTable.is_deltatable(table.uri):
                rows = DeltaTable(table.uri).to_pyarrow_table()  # noqa: F841 - DuckDB finds it by name
                _add_rows(delta, name, duckdb.sql(f"SELECT {DAYS} FROM rows GROUP BY ALL").fetchall())
        report = ReportWriter.of_deployment(settings, ledger).write(
            settings.home / "report_of_test.html", now=datetime.now(UTC)
        )
    return Surfaces(
        **asdict(read_advice()),
        views=views,
        delta=delta,
        metrics=_read_metrics(),
        report={
            f"{query.name} {customer} {report.first_day + timedelta(days=number)}": _condition_of(letter)
            for query in report.queries
            for (customer, *_), cells in zip(report.customers, query.cells, strict=True)
            for number, letter in enumerate(cells)
        },
        status_file=_read_status_file(Path(settings.status_file)),
    )


def _compare(surface: str, one: set[str], other: set[str]) -> Iterator[str]:
    for name in sorted(one ^ other):
        yield f"{name}: {surface} {'has' if name in one else 'lacks'} it, inspect says otherwise"


def _sums(rows: Mapping[str, Mapping[str, int]], name: str) -> list[int]:
    return [sum(rows[name].values())] if name in rows else []


def _condition_of(letter: str) -> str:
    return next(condition for condition, each in LETTERS.items() if each == letter)


def _add_rows(found: dict[str, dict[str, int]], query: str, rows: Iterable[tuple[str, str, str, int]]) -> None:
    for day, customer, run_id, number in rows:
        found.setdefault(f"{query} {customer} {day}", {})[run_id] = number


def _read_objects(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in {0, 1}, (arguments, done.exit_code, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _read_days(*arguments: str) -> dict[str, dict[str, Any]]:
    rows = _read_objects(*arguments)
    return {f"{row['query_name']} {row['customer_id']} {row['logical_date']}": row for row in rows}


def _read_metrics() -> dict[str, int]:
    text = CliRunner().invoke(app, ["metrics"]).stdout
    counted: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        if family.name == "ads_pipeline_days":
            for sample in family.samples:
                counted[sample.labels["condition"]] += int(sample.value)
    return dict(counted)


def _read_status_file(path: Path) -> dict[str, bool]:
    if not path.exists():
        return {}
    rows = duckdb.sql(
        "SELECT asset_key, partition_key, last_materialization_at IS NOT NULL FROM read_parquet(?)",
        params=[str(path)],
    ).fetchall()
    found = {}
    for asset, partition, is_materialized in rows:
        kind, _, query = asset.partition("/")
        customer, _, day = partition.partition("|")
        if kind == "warehouse":
            found[f"{query} {customer} {day}"] = is_materialized
    return found
