"""Tells what an examination of the whole house found: a line a check, then what is wrong and what mends it.

What is looked at is for `symptoms` to say.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from ads_pipeline.cli.output import GAP, Paper, cell, counted, write_json
from ads_pipeline.doctor.checks import CHECKS
from ads_pipeline.doctor.examination import CheckReport, CheckStatus, Finding, examine

SHOWN: Final = 10  # findings of a check; the others are for --json
COLOURS: Final = {
    CheckStatus.OK: "green",
    CheckStatus.LOOK: "yellow",
    CheckStatus.BAD: "red",
    CheckStatus.FAILED: "red",
}


def doctor(environ: Mapping[str, str], *, quick: bool, as_json: bool) -> bool:
    """Write what was found, check by check; say whether anything is wrong or could not be looked at."""
    done = []
    paper = Paper()
    for each in examine(environ, CHECKS, quick=quick):
        done.append(each)
        if as_json:
            write_json(_fields(each))
        else:
            paper.print(_line(each))
    if not as_json:
        _write_findings(paper, done)
    return any(each.answer not in {CheckStatus.OK, CheckStatus.SKIPPED} for each in done)


def _line(examined: CheckReport) -> Table:
    table = _grid(answer=4, check=9)
    told = examined.why or (_count(examined.findings) if examined.findings else examined.promise)
    prefix = "could not look: " if examined.answer is CheckStatus.FAILED else ""
    answer = cell(examined.answer, style=COLOURS.get(examined.answer, "dim"))
    table.add_row(answer, cell(examined.name), cell(prefix + told))
    return table


def _count(findings: Sequence[Finding]) -> str:
    return counted(len(findings), "finding")


def _write_findings(paper: Paper, done: Sequence[CheckReport]) -> None:
    """The findings of each check, each with what mends it; of very many the first, because the rest is alike."""
    for examined in done:
        if not examined.findings:
            continue
        paper.print(Text(""), cell(examined.name, style="bold"), sep="\n")
        for finding in examined.findings[:SHOWN]:
            table = _grid(weight=4)
            style = COLOURS[CheckStatus(finding.weight)]
            table.add_row(cell(finding.weight, style=style), cell(f"{finding.where}: {finding.problem}"))
            table.add_row(cell("next", style="dim"), cell(finding.step))
            paper.print(table)
        if len(examined.findings) > SHOWN:
            paper.print(cell(f"and {len(examined.findings) - SHOWN:,} more; --json lists all"))
    paper.print(Text(""), cell(_summed(done)), sep="\n")


def _summed(done: Sequence[CheckReport]) -> str:
    findings = sum(len(each.findings) for each in done)
    failed = sum(each.answer is CheckStatus.FAILED for each in done)
    skipped = sum(each.answer is CheckStatus.SKIPPED for each in done)
    parts = [counted(findings, "finding") if findings else "nothing is wrong"]
    parts += [f"{counted(failed, 'check')} could not look"] if failed else []
    parts += [f"{counted(skipped, 'check')} left out"] if skipped else []
    return "; ".join(parts)


def _fields(examined: CheckReport) -> list[dict[str, object]]:
    """One object a finding; a check that could not look is one as well, or it would look as if all were well."""
    if examined.answer is CheckStatus.FAILED:
        return [{"check": examined.name, "weight": "fail", "where": None, "problem": examined.why, "next": None}]
    return [
        {
            "check": examined.name,
            "weight": finding.weight,
            "where": finding.where,
            "problem": finding.problem,
            "next": finding.step,
        }
        for finding in examined.findings
    ]


def _grid(**widths: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=GAP, show_header=False)
    for width in widths.values():
        table.add_column(no_wrap=True, min_width=width)
    table.add_column(overflow="fold")
    return table
