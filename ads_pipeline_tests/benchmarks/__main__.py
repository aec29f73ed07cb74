"""Run every benchmark and print its ratios; fail when a bound is missed."""

import sys

from ads_pipeline_tests.benchmarks import ledger, validator


def main() -> int:
    missed = 0
    for suite in (ledger, validator):
        for ratio in suite.measure():
            print(ratio, flush=True)
            missed += not ratio.holds
    print(f"{missed} bounds missed")
    return 1 if missed else 0


sys.exit(main())
