"""Prints the reports of `ads-pipeline doctor`: one line per check, then the findings with their next steps.

The checks are in `doctor.checks`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from ads_pipeline.cli.output import CELL_PADDING, OutputConsole, cell, count_of, write_json
from ads_pipeline.doctor.checks import CHECKS
from ads_pipeline.doctor.examination import CheckReport, CheckStatus, run_checks

MAX_FINDINGS: Final = 10  # findings of one check; --json lists all
COLOURS: Final = {
    CheckStatus.OK: "green",
    CheckStatus.WARNING: "yellow",
    CheckStatus.ERROR: "red",
    CheckStatus.FAILED: "red",
}


def print_reports(environ: Mapping[str, str], *, quick: bool, as_json: bool) -> bool:
    """Print all reports. Return True when a check found something or could not run."""
    reports = []
    console = OutputConsole()
    for report in run_checks(environ, CHECKS, quick=quick):
        reports.append(report)
        if as_json:
            write_json(_fields(report))
        else:
            console.print(_line(report))
    if not as_json:
        _write_findings(console, reports)
    return any(report.status not in {CheckStatus.OK, CheckStatus.SKIPPED} for report in reports)


def _line(report: CheckReport) -> Table:
    count = len(report.findings)
    text = report.reason or (count_of(count, "finding") if count else report.condition)
    prefix = "could not run: " if report.status is CheckStatus.FAILED else ""
    table = _grid(status=7, check=9)
    status = cell(report.status, style=COLOURS.get(report.status, "dim"))
    table.add_row(status, cell(report.name), cell(prefix + text))
    return table


def _write_findings(console: OutputConsole, reports: Sequence[CheckReport]) -> None:
    """Print the first findings of each check, each with its next step."""
    for report in reports:
        if not report.findings:
            continue
        console.print(Text(""), cell(report.name, style="bold"), sep="\n")
        for finding in report.findings[:MAX_FINDINGS]:
            table = _grid(severity=7)
            style = COLOURS[CheckStatus(finding.severity)]
            table.add_row(cell(finding.severity, style=style), cell(f"{finding.location}: {finding.problem}"))
            table.add_row(cell("next", style="dim"), cell(finding.next_step))
            console.print(table)
        if len(report.findings) > MAX_FINDINGS:
            console.print(cell(f"and {len(report.findings) - MAX_FINDINGS:,} more; --json lists all"))
    console.print(Text(""), cell(_summarize(reports)), sep="\n")


def _summarize(reports: Sequence[CheckReport]) -> str:
    findings = sum(len(report.findings) for report in reports)
    failed = sum(report.status is CheckStatus.FAILED for report in reports)
    skipped = sum(report.status is CheckStatus.SKIPPED for report in reports)
    parts = [count_of(findings, "finding") if findings else "no findings"]
    parts += [f"{count_of(failed, 'check')} could not run"] if failed else []
    parts += [f"{count_of(skipped, 'check')} skipped"] if skipped else []
    return "; ".join(parts)


def _fields(report: CheckReport) -> list[dict[str, object]]:
    """One object per finding, and one per check that could not run."""
    found: list[tuple[object, ...]] = [
        (each.severity, each.location, each.problem, each.next_step) for each in report.findings
    ]
    if report.status is CheckStatus.FAILED:
        found = [("failed", None, report.reason, None)]
    names = ("check", "severity", "location", "problem", "next")
    return [dict(zip(names, (report.name, *values), strict=True)) for values in found]


def _grid(**widths: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=CELL_PADDING, show_header=False)
    for width in widths.values():
        table.add_column(no_wrap=True, min_width=width)
    table.add_column(overflow="fold")
    return table
