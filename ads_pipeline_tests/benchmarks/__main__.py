"""Runs all benchmark suites or the named ones and prints the results. Exits with 1 if a requirement is missed."""

import sys
from collections.abc import Callable, Iterable, Mapping

from ads_pipeline_tests.benchmarks import (
    arrival,
    arrivals,
    dagster_runs,
    events,
    extraction,
    ledger,
    one_pass,
    orchestration,
    quota,
    report,
    scale,
    starts,
    validator,
    warehouse,
)
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio

SUITES: Mapping[str, Callable[[], Iterable[Ratio | Figure]]] = {
    "arrival": arrival.measure,
    "ledger": ledger.measure,
    "events": events.measure,
    "validator": validator.measure,
    "warehouse": warehouse.measure,
    "one_pass": one_pass.measure,
    "arrivals": arrivals.measure,
    "extraction": extraction.measure,
    "quota": quota.measure,
    "orchestration": orchestration.measure,
    "dagster_runs": dagster_runs.measure,
    "starts": starts.measure,
    "report": report.measure,
    "scale": scale.measure,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        print(f"unknown suites: {', '.join(unknown)}; available: {', '.join(SUITES)}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or SUITES:
        for result in SUITES[name]():
            print(result, flush=True)
            missed += not result.is_met
    print(f"{missed} requirements missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
