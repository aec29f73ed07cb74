"""The rules about what readers see, as SQL: each rule once, for the statements of other modules.

A run is readable when its partition is a success, the run's own last verdict accepted it, and no demotion is open,
neither of the run nor of the current run. Readers see a readable run once the pointer of its partition is published.

The texts are conditions about a row of `partition_state`, and about the run that the table or alias `run` names by
its key and its `run_id`.
"""

from typing import Final

# A demotion of the current run has begun and is not recorded yet.
DEMOTION_PENDING: Final = """EXISTS (
    SELECT 1 FROM demotions
    WHERE (demotions.source, demotions.customer_id, demotions.query_name, demotions.logical_date, demotions.run_id) =
        (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date, current_run_id))"""
# The table should hold the current run.
IS_PUBLISHABLE: Final = f"(status = 'success' AND NOT {DEMOTION_PENDING})"
# Readers see the current run: the published pointer names it, with the facts that the state has.
POINTS_AT_CURRENT: Final = """COALESCE(
    availability = 'published' AND warehouse_pointer.run_id = current_run_id
    AND warehouse_pointer.schema_version = partition_state.schema_version
    AND warehouse_pointer.record_count = partition_state.record_count, FALSE)"""


def last_outcome(run: str) -> str:
    """The outcome of the last verdict on the run, or null."""
    return f"(SELECT outcome FROM attempts WHERE {_same_run('attempts', run)} ORDER BY attempt_no DESC LIMIT 1)"


def is_judged(run: str) -> str:
    return f"EXISTS (SELECT 1 FROM attempts WHERE {_same_run('attempts', run)})"


def is_current(run: str) -> str:
    """The condition that the run is the current run of a success."""
    return f"COALESCE(status = 'success' AND {run}.run_id = current_run_id, FALSE)"


def is_accepted(run: str) -> str:
    """The condition that the run's last verdict accepted it, and no rejection of it has begun."""
    is_demoting = f"EXISTS (SELECT 1 FROM demotions WHERE {_same_run('demotions', run)})"
    return f"({last_outcome(run)} = 'accepted' AND NOT {is_demoting})"


def _same_run(table: str, run: str) -> str:
    return " = ".join(
        f"({each}.source, {each}.customer_id, {each}.query_name, {each}.logical_date, {each}.run_id)"
        for each in (table, run)
    )


# A registered run has no verdict. For a success this is not computed: most partitions are one.
HAS_UNJUDGED_RUN: Final = f"""(status <> 'success' AND EXISTS (
    SELECT 1 FROM runs
    WHERE (runs.source, runs.customer_id, runs.query_name, runs.logical_date) =
        (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date)
        AND NOT {is_judged("runs")}))"""
