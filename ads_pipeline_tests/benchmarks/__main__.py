"""Runs all suites and writes RESULTS.md, or runs the named suites and only prints their results.

With `--write`, the named suites write RESULTS.md, which says what ran. Exits with 1 if a requirement is missed.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ads_pipeline_tests.benchmarks import (
    arrival,
    arrivals,
    breakdown,
    cold,
    comparisons,
    completeness,
    dagster_runs,
    events,
    extraction,
    growth,
    ledger,
    orchestration,
    quota,
    report,
    scale,
    starts,
    table_growth,
    validator,
    warehouse,
)
from ads_pipeline_tests.benchmarks.results import PATH, Conditions, Result, SuiteRun, write_results

# Those of single goals first, because results are written after each suite.
SUITES: Mapping[str, Callable[[], Iterable[Result]]] = {
    "arrival": arrival.measure,
    "cold": cold.measure,
    "comparisons": comparisons.measure,
    "breakdown": breakdown.measure,
    "table_growth": table_growth.measure,
    "dagster_runs": dagster_runs.measure,
    "starts": starts.measure,
    "arrivals": arrivals.measure,
    "growth": growth.measure,
    "completeness": completeness.measure,
    "quota": quota.measure,
    "extraction": extraction.measure,
    "warehouse": warehouse.measure,
    "validator": validator.measure,
    "ledger": ledger.measure,
    "events": events.measure,
    "orchestration": orchestration.measure,
    "report": report.measure,
    "scale": scale.measure,
}

WRITE: Final = "--write"


def main(arguments: list[str]) -> int:
    names = [each for each in arguments if each != WRITE]
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        print(f"unknown suites: {', '.join(unknown)}; available: {', '.join(SUITES)}", file=sys.stderr)
        return 2
    began, runs = Conditions.now(), list[SuiteRun]()
    for name in names or SUITES:
        runs.append(_run(name))
        if not names or WRITE in arguments:
            write_results(began, runs)
            print(f"written: {PATH}")
    missed = sum(not result.is_met for run in runs for result in run.results)
    print(f"{missed} requirements missed")
    return 1 if missed else 0


def _run(name: str) -> SuiteRun:
    print(f"suite {name} …", flush=True)
    started, results = time.perf_counter(), list[Result]()
    for result in SUITES[name]():
        print(result, flush=True)
        results.append(result)
    return SuiteRun(name=name, seconds=time.perf_counter() - started, results=tuple(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
