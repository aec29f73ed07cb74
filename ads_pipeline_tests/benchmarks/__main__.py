"""Run every benchmark and print its ratios; fail when a bound is missed."""

import sys

from ads_pipeline_tests.benchmarks import ledger


def main() -> int:
    missed = 0
    for ratio in ledger.measure():
        print(ratio, flush=True)
        missed += not ratio.holds
    print(f"{missed} bounds missed")
    return 1 if missed else 0


sys.exit(main())
