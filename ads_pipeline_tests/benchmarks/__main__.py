"""Run the benchmarks, all or those named, and print what they measure; fail when a bound is missed."""

import sys

from ads_pipeline_tests.benchmarks import events, ledger, orchestration, scale, validator, warehouse

SUITES = {
    "ledger": ledger.measure,
    "events": events.measure,
    "validator": validator.measure,
    "warehouse": warehouse.measure,
    "orchestration": orchestration.measure,
    "scale": scale.measure,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        print(f"no suite is named {', '.join(unknown)}; there are {', '.join(SUITES)}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or SUITES:
        for measured in SUITES[name]():
            print(measured, flush=True)
            missed += not measured.holds
    print(f"{missed} bounds missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
