"""Reads what each surface says of each case at one moment."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ads_pipeline.domain.days.conditions import CONDITIONS
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.operations.notifications.finding import FactFinder
from ads_pipeline.operations.notifications.outbox import Outbox
from ads_pipeline.operations.report.content import LETTERS
from ads_pipeline.operations.report.writing import ReportWriter
from ads_pipeline.orchestration.asset_checks import check_keys
from ads_pipeline.orchestration.complete_check import COMPLETE
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline.pipeline.days.next_steps import name_days
from ads_pipeline_tests.conditions.cases import Home
from ads_pipeline_tests.orchestration.builders import WAREHOUSE, Location
from ads_pipeline_tests.pipeline.builders import QUERY

MANY = ("--limit", "10000")
LISTED = tuple(word for name, entry in CONDITIONS.items() if not entry.is_fine for word in ("--condition", name))
ROWS_OF_DAYS = f"SELECT customer_id, logical_date::VARCHAR AS day, count(*) AS rows FROM {QUERY} GROUP BY ALL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The last result of a check."""

    passed: bool
    severity: str
    description: str
    next_command: str = ""

    @property
    def colour(self) -> str:
        return "passed" if self.passed else "warning" if self.severity == "WARN" else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surfaces:
    """What all surfaces say at one moment. Days are partitions; a surface that does not list a day lacks it."""

    why: Mapping[PartitionKey, dict[str, Any]]
    recorded: Mapping[PartitionKey, dict[str, Any]]  # `state inspect --json`
    listed: Mapping[PartitionKey, dict[str, Any]]  # the same with each condition
    gaps: Mapping[PartitionKey, dict[str, Any]]
    rows: Mapping[PartitionKey, int]  # `warehouse query`
    report: Mapping[PartitionKey, str]
    report_counts: Mapping[str, int]
    report_commands: Mapping[PartitionKey, str]
    valid: Mapping[PartitionKey, Result]
    readable: Mapping[PartitionKey, Result]
    complete: Result
    loads: Mapping[PartitionKey, str]  # the rows of the last materialization
    metrics: Mapping[str, int]
    doctor: Sequence[Mapping[str, Any]]
    doctor_days: str
    notices: Mapping[PartitionKey, Sequence[Mapping[str, Any]]]
    other_notices: Sequence[Mapping[str, Any]]

    def commands(self) -> Iterator[tuple[str, str]]:
        """Each next command with the surface that prints it."""
        lists = {"why": self.why, "inspect": self.recorded, "inspect --condition": self.listed, "gaps": self.gaps}
        notices = [*self.other_notices, *(each for found in self.notices.values() for each in found)]
        found = {surface: [day["next_command"] or "" for day in days.values()] for surface, days in lists.items()}
        found |= {
            "why, a step": [_find_command(step) for day in self.why.values() for step in day["next"]],
            "report": list(self.report_commands.values()),
            "checks": [result.next_command for result in (*self.readable.values(), self.complete)],
            "doctor": [_find_command(f": {finding.get('next')}") for finding in self.doctor],
            "notification": [str(notice["next_command"]) for notice in notices],
        }
        for surface, commands in found.items():
            yield from ((surface, command) for command in commands if command)


def _find_command(text: str) -> str:
    """The command in the text of a step, which follows a colon."""
    found = re.search(r": (ads-pipeline [^;]*?)(?:, or .*)?$", text.partition("; ads-pipeline")[0])
    return found[1] if found else ""


def read_surfaces(home: Home, keys: Sequence[PartitionKey], outbox: Outbox) -> Surfaces:
    cli, now = home.cli, datetime.now(UTC)
    settings, ledger = home.location.settings, home.deployment.ledger
    doctor = cli.run("doctor", "--json").objects
    content = ReportWriter.of_deployment(settings, ledger).write(settings.home / "report.html", now=now)
    (query,) = content.queries
    conditions = {letter: condition for condition, letter in LETTERS.items()}
    report, commands = {}, {}
    for number, (customer, *_more) in enumerate(content.customers):
        for position, letter in enumerate(query.cells[number]):
            day = content.first_day + timedelta(days=position)
            key = PartitionKey(source=keys[0].source, customer_id=customer, query_name=QUERY, logical_date=day)
            report[key] = str(conditions[letter])
            if (note := query.notes.get(f"{number},{position}")) is not None:
                text = content.texts[note.command]
                commands[key] = name_days(text, newest=key.short_name, selection=key.short_name)
    notices, others = _read_notices(finder_of(home), outbox, now, keys)
    evaluations = _read_checks(home.location)
    valid, readable = (str(check) for check in check_keys(Names(), QUERY))
    return Surfaces(
        why={key: cli.run("state", "why", key.short_name, "--json").objects[0] for key in keys},
        recorded=_by_key(cli.run("state", "inspect", "--json", *MANY).objects),
        listed=_by_key(cli.run("state", "inspect", "--json", *LISTED, *MANY).objects),
        gaps=_by_key(cli.run("warehouse", "gaps", "--json").objects),
        rows=_read_rows(cli.run("warehouse", "query", ROWS_OF_DAYS, "--json").objects, keys[0]),
        report=report,
        report_counts={str(name): number for name, number in content.counts.items()},
        report_commands=commands,
        valid=_of_check(evaluations, valid, keys),
        readable=_of_check(evaluations, readable, keys),
        complete=evaluations[str(dg.AssetCheckKey(WAREHOUSE, COMPLETE)), ""],
        loads=_read_loads(home.location, keys),
        metrics=_read_metrics(cli.run("metrics").out),
        doctor=doctor,
        doctor_days=next(line for line in cli.run("doctor", "--quick").out.split("\n") if " days" in line[:20]),
        notices=notices,
        other_notices=others,
    )


def finder_of(home: Home) -> FactFinder:
    """As the sensor `notifications` makes it."""
    settings, apis = home.location.settings, home.location.settings.google_apis
    return FactFinder(
        ledger=home.deployment.ledger,
        source=apis.source,
        policy=settings.retry_policy,
        read_rules=lambda now: DayRules.read(home.deployment.ledger, settings, now=now),
    )


def _by_key(rows: Sequence[dict[str, Any]]) -> dict[PartitionKey, dict[str, Any]]:
    return {_key_of(row): row for row in rows}


def _key_of(row: Mapping[str, Any]) -> PartitionKey:
    day = datetime.fromisoformat(row["logical_date"]).date()
    return PartitionKey(
        source=row["source"], customer_id=row["customer_id"], query_name=row["query_name"], logical_date=day
    )


def _read_rows(rows: Sequence[Mapping[str, Any]], like: PartitionKey) -> dict[PartitionKey, int]:
    return {
        _key_of(
            {
                "source": like.source,
                "customer_id": row["customer_id"],
                "query_name": QUERY,
                "logical_date": row["day"],
            }
        ): row["rows"]
        for row in rows
    }


def _read_metrics(text: str) -> dict[str, int]:
    counted = Counter[str]()
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        if family.name == "ads_pipeline_days":
            for sample in family.samples:
                counted[sample.labels["condition"]] += int(sample.value)
    return dict(counted)


def _read_checks(location: Location) -> dict[tuple[str, str], Result]:
    """The last result of each check and partition; without one for `complete`."""
    found = dict[tuple[str, str], Result]()
    complete = dg.AssetCheckKey(WAREHOUSE, COMPLETE)
    for check in (*check_keys(Names(), QUERY), complete):
        history = location.instance.event_log_storage.get_asset_check_execution_history(check, limit=10_000)
        for record in reversed(history):
            result: Any = record.evaluation
            if isinstance(result, dg.AssetCheckEvaluation):
                command = result.metadata.get("next_command")
                found[str(check), str(result.partition or "")] = Result(
                    passed=result.passed,
                    severity=result.severity.value,
                    description=result.description or "",
                    next_command=str(command.value) if command else "",
                )
    return found


def _of_check(
    found: Mapping[tuple[str, str], Result], check: str, keys: Sequence[PartitionKey]
) -> dict[PartitionKey, Result]:
    return {key: found[check, key.dagster_key] for key in keys if (check, key.dagster_key) in found}


def _read_loads(location: Location, keys: Sequence[PartitionKey]) -> dict[PartitionKey, str]:
    found = dict[PartitionKey, str]()
    records = location.instance.fetch_materializations(WAREHOUSE, limit=1000, ascending=True).records
    names = {key.dagster_key: key for key in keys}
    for record in records:
        event = record.asset_materialization
        if event is not None and event.partition in names:
            found[names[event.partition]] = str(event.metadata["rows"].value)
    return found


def _read_notices(
    finder: FactFinder, outbox: Outbox, now: datetime, keys: Sequence[PartitionKey]
) -> tuple[dict[PartitionKey, list[Mapping[str, Any]]], list[Mapping[str, Any]]]:
    composed, number = outbox.compose(finder, workspace="tests", now=now)
    assert number
    assert composed.pending is not None
    by_key, others = dict[PartitionKey, list[Mapping[str, Any]]](), list[Mapping[str, Any]]()
    for notice in json.loads(composed.pending.body)["facts"]:
        about = [
            key
            for key in keys
            if key.customer_id in notice.get("customer_ids", ())
            and notice["first_day"] <= str(key.logical_date) <= notice["last_day"]
        ]
        for key in about:
            by_key.setdefault(key, []).append(notice)
        if not about:
            others.append(notice)
    return by_key, others
