"""The prose of RESULTS.md. Figures come from the run."""

from collections.abc import Iterator, Sequence
from typing import Final

from ads_pipeline_tests.benchmarks.breakdown import PARTS, Breakdown
from ads_pipeline_tests.benchmarks.comparisons import (
    BARE_LIMIT,
    LARGE,
    MANY,
    OURS,
    OURS_WITH_LEDGER,
    Measured,
    name_load,
)

INTRODUCTION: Final = """\
`make bench` writes this file; nobody edits it. Ratios compare two neighbouring measurements of one run. CPU seconds
are those of a process and all its children, so other load on the machine changes them little; wall times need a quiet
machine. Where several rounds were measured, a value is the median, with the lowest and the highest in brackets.
"Warm" is a process that has done the same work before."""

COMPARISONS: Final = """\
Each tool runs in its own process, most of them in their own environment, and reads the same sealed payloads of
`campaign_daily`: JSON, one object a line, 11 columns. It gets one batch and loads it in the fastest way that its
documentation describes; dlt is also given an Arrow table from a faster reader than its own. After each work, the rows
and the sum of clicks that readers see must be equal for all tools that replace. Memory is the highest sum of the
resident memory of all processes, in which shared pages count several times; the JVMs of "ours" and of Spark may use a
heap of 2 GiB. Only "ours" judges the values of rows and keeps a verdict for each partition."""

BREAKDOWN: Final = """\
Judging and publishing, warm. Each column is measured by a job that does a part more than the one before it, in CPU
seconds of all processes."""

_BOUNDS: Final = {
    PARTS[0]: "Spark's own work for a job: planning, starting tasks, and exchanging batches with Python workers. "
    "The next limit is the number of jobs: fewer and larger batches cost less each.",
    PARTS[1]: "Opening, reading and hashing payloads; each payload is a file of its own below six folders. "
    "The next limit is the file system: larger payloads, or fewer folders, would cost less.",
    PARTS[2]: "Parsing JSON and evaluating the contract with Arrow. "
    "The next limit is Arrow's JSON parser, which the bare limit needs too.",
    PARTS[3]: "Encoding and compressing Parquet. The next limit is the same encoding in the bare limit.",
    PARTS[4]: "Reading back what was written, merging it with what the day's file already holds, and the commit. "
    "The next limit is one Spark job and one read of the replaced files, which a file per partition would avoid.",
}

NEXT_LIMITS: Final = """\
### Other paths

* **One arrival** consists of the wait for a sensor's tick, the tick, Dagster's queue, the start of a run, judging and
  loading; the suite `arrival` prints the seconds of each. The next limit is the run that Dagster starts for it.
* **A range run** of many partitions is bound by Dagster's events: several rows for each partition and step (suite
  `dagster_runs`). The next limit is the number of events that Dagster itself writes.
* **Recording verdicts** is bound by the database: one transaction with several statements (suite `ledger`). The next
  limit is the upsert of the same rows, which is its baseline."""


def describe_bounds(breakdowns: Sequence[Breakdown], measured: Sequence[Measured]) -> Iterator[str]:
    """For each work, its largest part; then how far away the bare limit is."""
    for each in breakdowns:
        yield f"* **{each.work}**: {each.share(each.largest):.0%} is {each.largest}. {_BOUNDS[each.largest]}"
    found = {(each.work, each.competitor): each for each in measured}
    for shape in (LARGE, MANY):
        ours, bare, ledger = (
            found.get((name_load(shape), each.name)) for each in (OURS, BARE_LIMIT, OURS_WITH_LEDGER)
        )
        if ours and bare and ledger:
            yield (
                f"* **{shape}**: {ours.cpu / bare.cpu:.1f} times the CPU time of the bare limit. "
                f"The ledger adds {ledger.cpu - ours.cpu:.2f} s."
            )
    yield ""
