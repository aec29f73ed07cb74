"""Prints the reports of `ads-pipeline doctor`: one line per check, then the findings with their next steps.

The checks are in `deployment_checks`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from ads_pipeline.domain.quoting import count_of
from ads_pipeline.operations.cli.command_line.output import CELL_PADDING, Fields, OutputConsole, cell, write_json
from ads_pipeline.operations.doctor.deployment_checks import CHECKS
from ads_pipeline.operations.doctor.examination import CheckReport, CheckStatus, run_checks
from ads_pipeline.operations.doctor.java_and_spark import MACHINE_CHECKS

MAX_FINDINGS: Final = 10  # findings of one check; --json lists all


def print_reports(environ: Mapping[str, str], *, quick: bool, as_json: bool) -> bool:
    """Print all reports. Return True when a check found something or could not run."""
    reports, console = list[CheckReport](), OutputConsole()
    for report in run_checks(environ, CHECKS, machine_checks=MACHINE_CHECKS, quick=quick):
        reports.append(report)
        if as_json:
            write_json(_fields(report))
        else:
            console.print(_line((7, 9), (report.status, report.name, _describe(report))))
    if not as_json:
        _write_findings(console, reports)
    return any(report.status not in {CheckStatus.OK, CheckStatus.SKIPPED} for report in reports)


def _describe(report: CheckReport) -> str:
    count = len(report.findings)
    found = [report.summary, count_of(count, "finding") if count else ""]
    text = report.reason or "; ".join(filter(None, found)) or report.condition
    return f"could not run: {text}" if report.status is CheckStatus.FAILED else text


def _write_findings(console: OutputConsole, reports: Sequence[CheckReport]) -> None:
    """Print the first findings of each check, each with its next step."""
    for report in reports:
        if report.findings:
            console.print(Text(""), cell(report.name, style="bold"), sep="\n")
        for finding in report.findings[:MAX_FINDINGS]:
            console.print(_line((7,), (finding.severity, f"{finding.location}: {finding.problem}")))
            console.print(_line((7,), (cell("next", style="dim"), finding.next_step)))
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


def _fields(report: CheckReport) -> list[Fields]:
    """One object per finding, and one per check that could not run."""
    rows: list[Fields] = [
        {"severity": each.severity, "location": each.location, "problem": each.problem, "next": each.next_step}
        for each in report.findings
    ]
    if report.status is CheckStatus.FAILED:
        rows = [{"severity": "failed", "location": None, "problem": report.reason, "next": None}]
    return [{"check": report.name, **row} for row in rows]


def _line(widths: Sequence[int], values: Sequence[object]) -> Table:
    """One line with columns of fixed width; the last column wraps."""
    table = Table(box=None, pad_edge=False, padding=CELL_PADDING, show_header=False)
    for width in widths:
        table.add_column(no_wrap=True, min_width=width)
    table.add_column(overflow="fold")
    table.add_row(*map(cell, values))
    return table
