"""The table in docs/conditions.md: for each case, what each surface says at the same moment."""

from collections.abc import Iterator, Mapping

from ads_pipeline.domain.days.conditions import BLOCKED_CONDITIONS, CONDITIONS, Condition
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline_tests.conditions.cases import CASES, Case
from ads_pipeline_tests.conditions.surfaces import Result, Surfaces

COLUMNS = {
    "a day with": "made_by",
    "condition": "condition",
    "because": "because",
    "next command": "command",
    "SQL": "rows",
    "`warehouse gaps`": "gaps",
    "report": "report",
    "`valid`": "valid",
    "`readable`": "readable",
    "last materialization": "load",
    "metrics": "metrics",
    "`doctor`": "doctor",
    "webhook": "webhook",
}


def condition_table(keys: Mapping[str, PartitionKey], said: Surfaces) -> str:
    """The table as Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for name, case in CASES.items():
        fields = _describe(case, keys[name], said)
        lines.append(f"| {' | '.join(fields[each] for each in COLUMNS.values())} |".replace("|  |", "| |"))
    return "\n".join(lines).replace("|  |", "| |")


def _describe(case: Case, key: PartitionKey, said: Surfaces) -> dict[str, str]:
    day, label = said.why[key], CONDITIONS[case.condition].label
    needs_operator = case.condition in said.metrics and CONDITIONS[case.condition].needs_operator
    report = CONDITIONS[Condition(said.report.get(key, Condition.NOT_EXPECTED))]
    return {
        "made_by": case.made_by,
        "condition": label,
        "because": str(day["because"] or ""),
        "command": _shorten(str(day["next_command"] or ""), key),
        "rows": "its rows" if key in said.rows else "no row",
        "gaps": "listed" if key in said.gaps else "",
        "report": "the same" if report.label == label else report.label,
        "valid": _colour(said.valid.get(key)),
        "readable": _colour(said.readable.get(key)),
        "load": {None: "none", "0": "0 rows"}.get(said.loads.get(key), "its rows"),
        "metrics": "counted" if case.condition in said.metrics else "",
        "doctor": "finding" if case.condition in BLOCKED_CONDITIONS else "counted" if needs_operator else "",
        "webhook": ", ".join(f"`{kind}`" for kind in sorted(set(_kinds(key, said)))),
    }


def _kinds(key: PartitionKey, said: Surfaces) -> Iterator[str]:
    yield from (str(notice["kind"]) for notice in said.notices.get(key, ()))
    for notice in said.other_notices:
        if any(key.customer_id in name for name in notice.get("names", ())):
            yield str(notice["kind"])


def _shorten(command: str, key: PartitionKey) -> str:
    """The command without what is in every one, and with DAY and CUSTOMER."""
    text = command.removeprefix("ads-pipeline ").replace(key.short_name, "DAY").replace(key.customer_id, "CUSTOMER")
    return f"`{text}`" if text else ""


def _colour(result: Result | None) -> str:
    return "no result" if result is None else result.colour
