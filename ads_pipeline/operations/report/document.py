"""Writes the report as one HTML file that needs no other file and no network.

The facts are gzip of JSON in base64, which the page unpacks. So 800,000 days fit in a few megabytes, and no text of
the data can end the script element. The scripts draw on a canvas and in SVG: they need two shapes, which take fewer
lines than a charting library's options.
"""

import base64
import gzip
import html
import json
from collections.abc import Mapping
from dataclasses import fields
from importlib.resources import files
from typing import Any, Final

from ads_pipeline.domain.days.conditions import CONDITIONS, READABLE_CONDITIONS, Condition
from ads_pipeline.domain.days.settlement import ReportState
from ads_pipeline.operations.report.content import REPORT_LETTERS, ReportContent

# The color of each condition on light and on dark pages; they differ in brightness too.
COLORS: Final[Mapping[Condition, tuple[str, str]]] = {
    Condition.REJECTED: ("#c8402e", "#e5604d"),
    Condition.BLOCKED: ("#b5651d", "#cf8240"),
    Condition.MISSING: ("#f4a3a0", "#8f3b3a"),
    Condition.LATE: ("#f7cf7a", "#8a6d1f"),
    Condition.PARKED: ("#7a7f87", "#8d939c"),
    Condition.REJECTED_RERUN: ("#e0a100", "#e3b341"),
    Condition.BLOCKED_RERUN: ("#a8c45a", "#8aa83a"),
    Condition.IN_PROGRESS: ("#9ecae1", "#1f4f6b"),
    Condition.ACKNOWLEDGED: ("#c9b3dd", "#5b4a70"),
    Condition.ACKNOWLEDGED_RERUN: ("#7fb59a", "#5f9c80"),
    Condition.HIDDEN: ("#8250a8", "#a371d6"),
    Condition.UNRECOVERABLE: ("#b9a58c", "#5c5140"),
    Condition.READABLE: ("#4c9f70", "#3d8b60"),
    Condition.RESTATED: ("#2f7fb8", "#3a86c8"),
    Condition.NOT_EXPECTED: ("#eceef0", "#26292d"),
}
# In the order in which the page needs them: the last one starts it.
MAX_SINGLE: Final = 3
SCRIPTS: Final = ("page.js", "work.js", "changes.js", "maps.js", "details.js")


def render(content: ReportContent) -> str:
    """Return the page."""
    packed = gzip.compress(json.dumps(_encode(content), separators=(",", ":")).encode(), mtime=0)
    parts = {
        "/*STYLE*/": _read("page.css"),
        "/*SUMMARY*/": html.escape(summarize(content)),
        "/*CONTENT*/": base64.b64encode(packed).decode(),
        "/*SCRIPT*/": "".join(map(_read, SCRIPTS)),
    }
    page = _read("page.html")
    for placeholder, text in parts.items():
        page = page.replace(placeholder, text, 1)
    return page


def summarize(content: ReportContent) -> str:
    """One sentence: how many days need an operator, of how many."""
    needed = sum(number for condition, number in content.counts.items() if CONDITIONS[condition].needs_operator)
    readable = sum(content.counts[condition] for condition in READABLE_CONDITIONS)
    expected = sum(content.counts.values()) - content.counts[Condition.NOT_EXPECTED]
    need = f"{needed:,} {'day needs' if needed == 1 else 'days need'} you. " if needed else "No day needs you. "
    letter = REPORT_LETTERS[ReportState.PROVISIONAL]
    provisional = sum(reports.count(letter) for query in content.queries for reports in query.reports)
    source = f"{content.source}, {provisional:,} of them provisional" if provisional else content.source
    at = f"{content.generated_at:%Y-%m-%d %H:%M} UTC"
    return (
        f"{need}Readers see {readable:,} of {expected:,} expected days of {source}, as of {at}."
        + _describe_single(content)
    )


def _describe_single(content: ReportContent) -> str:
    """The first customers and queries that have single days long before the regular ones."""
    more = len(content.single) - MAX_SINGLE
    shown = [*content.single[:MAX_SINGLE], *([f"{more:,} more: ads-pipeline warehouse gaps"] if more > 0 else [])]
    return "".join(f" {each}." for each in shown)


def _encode(content: ReportContent) -> dict[str, Any]:
    return {
        "source": content.source,
        "generated_at": int(content.generated_at.timestamp()),
        "first_day": content.first_day.isoformat(),
        "days": content.days,
        "conditions": [
            {
                "name": condition,
                "label": text.label,
                "meaning": text.meaning,
                "needs_you": text.needs_operator,
                "readable": condition in READABLE_CONDITIONS,
                "rank": rank,
                "light": COLORS[condition][0],
                "dark": COLORS[condition][1],
            }
            for rank, (condition, text) in enumerate(CONDITIONS.items())
        ],
        "customers": [each._asdict() for each in content.customers],
        "texts": content.texts,
        "queries": [{each.name: getattr(query, each.name) for each in fields(query)} for query in content.queries],
    }


def _read(name: str) -> str:
    return files("ads_pipeline.operations.report").joinpath(name).read_text(encoding="utf-8")
