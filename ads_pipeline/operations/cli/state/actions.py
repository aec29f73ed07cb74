"""The `state` commands that change partitions, accounts and queries. They all run in one way.

`selection` has the options that select, `confirmation` the plan, the question and the report.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from ads_pipeline.domain.errors import AdsPipelineError
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import ActionRequest
from ads_pipeline.operations.cli.command_line import options
from ads_pipeline.operations.cli.command_line.logged_commands import build_request
from ads_pipeline.operations.cli.command_line.output import terminal_progress
from ads_pipeline.operations.cli.command_line.parsing import open_ledger, open_ledger_for_writing
from ads_pipeline.operations.cli.state import confirmation
from ads_pipeline.operations.cli.state.selection import (
    AccountOrQuery,
    DaysToAcknowledge,
    FailuresToRetry,
    PartitionsToEnqueue,
    RunsToRestore,
    SelectedPartitions,
)
from ads_pipeline.pipeline.actions import operator_actions as actions
from ads_pipeline.pipeline.actions.action_preview import Preview
from ads_pipeline.pipeline.actions.operator_actions import OperatorAction, Perform, execute, performer
from ads_pipeline.settings.environment import Settings

Clear = Annotated[bool, typer.Option("--clear", help="Remove the marks.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOptions:
    """The options of every action."""

    reason: options.Reason
    dry_run: options.DryRun = False
    yes: options.Yes = False
    operator: options.Operator = None
    as_json: options.AsJson = False


def run_action(settings: Settings, action: OperatorAction, selected: SelectedPartitions, given: ActionOptions) -> int:
    """Preview, confirm and execute an action on the selected targets. Returns the exit code."""
    request = build_request(reason=given.reason, operator=given.operator, filters=str(selected))
    open_it = open_ledger if given.dry_run else open_ledger_for_writing
    with open_it(settings) as ledger:
        targets = selected.find(settings, ledger)
        preview = Preview(ledger=ledger, policy=settings.retry_policy, action=action, **targets.preview_options)
        plan = preview.plan(targets.selection)
        options = {"dry_run": given.dry_run, "yes": given.yes, "as_json": given.as_json}
        is_confirmed = confirmation.confirm(plan, selected, warnings=targets.warnings, **options)
        if not is_confirmed or not isinstance(ledger, Ledger):
            return 0 if plan.changes else confirmation.NOTHING_EXIT_CODE
        with _open_performer(settings, ledger, action, request) as perform:
            report = execute(plan, request, perform, report_progress=terminal_progress())
    return confirmation.write_report(plan, report, as_json=given.as_json)


@contextmanager
def _open_performer(
    settings: Settings, ledger: Ledger, action: OperatorAction, request: ActionRequest
) -> Iterator[Perform]:
    if not action.changes_rows:
        yield performer(action, ledger.actions)
        return
    from ads_pipeline.operations.cli.command_line.spark_pipeline import open_pipeline  # noqa: PLC0415 - they load Spark's client
    from ads_pipeline.pipeline.actions.row_actions import row_performer  # noqa: PLC0415 - see above

    with open_pipeline(settings, ledger) as pipeline:
        try:
            yield row_performer(action, pipeline, ledger.states)
            pipeline.tables.publish_or_log()
        except AdsPipelineError:
            what = (
                f"action {request.action_id} was interrupted: what it has hidden may stay in plain Delta until "
                '"ads-pipeline reconcile", which finishes it'
            )
            print(what, file=sys.stderr)  # noqa: T201 - for people
            raise


def terminal(settings: Settings, selected: SelectedPartitions, given: ActionOptions, *, clear: Clear = False) -> int:
    """Mark failed partitions as terminal, so that they are not retried, or with --clear remove the marks.

    New sealed runs are judged as usual. After --clear, the retry policy decides by age and number of failures
    whether a failed partition is retried.
    """
    return run_action(settings, actions.CLEAR if clear else actions.MARK, selected, given)


def _declare(action: OperatorAction, selection: type, description: str) -> Callable[..., int]:
    """The command of an action, with the options of `selection` and this help."""

    def run(settings: Settings, selected: SelectedPartitions, given: ActionOptions) -> int:
        return run_action(settings, action, selected, given)

    run.__annotations__["selected"] = selection
    run.__doc__ = description
    return run


acknowledge = _declare(
    actions.ACKNOWLEDGE,
    DaysToAcknowledge,
    """Record that the problem of these days is known, so that they need nobody.

    They leave "state inspect", the count of doctor and the notifications until something else happens to them: a
    run is registered, judged or loaded, a fetch fails in another way, or an operator acts. Readers still do not
    see them, and "warehouse gaps" still lists them. Automatic retries go on. Filters and --all select the days
    that need you, also those without a run.
    """,
)
retry = _declare(
    actions.RETRY,
    FailuresToRetry,
    """Requeue failed partitions, so that they are fetched and judged again.

    Skips terminal partitions and partitions without a raw run; see --clear-terminal and --force. The attempt
    count stays.
    """,
)
enqueue = _declare(
    actions.ENQUEUE,
    PartitionsToEnqueue,
    """Request runs of partitions that are not recorded yet, as for a backfill.

    Selects each day from --since to --until, for the given queries and customers. The default is all queries of
    the query file and all customers in the ledger. Recorded partitions are skipped. A customer without any
    partition in the ledger needs a confirmation or --yes, because the id may be misspelt.
    """,
)
reprocess = _declare(
    actions.REPROCESS,
    SelectedPartitions,
    """Request new runs of successful partitions.

    They stay safe to read in the meantime, and also when the new run is rejected.
    """,
)
withdraw = _declare(
    actions.WITHDRAW,
    SelectedPartitions,
    """Remove the rows of successful partitions for every reader, and set the partitions to pending.

    The verdict on the run stays: "state restore" publishes it again, and "state demote" rejects it.
    """,
)
demote = _declare(
    actions.DEMOTE,
    SelectedPartitions,
    """Reject the runs that readers see, as if the validator had rejected them.

    The rows disappear for every reader before the status becomes failed. "state restore" publishes an earlier
    run again.
    """,
)
restore = _declare(
    actions.RESTORE,
    RunsToRestore,
    """Publish an earlier run again: the newest accepted run before the current one.

    The validator judges that run again first. If it rejects the run now, the partition stays unchanged.
    Otherwise the current run is rejected. Without a current run, the newest accepted run is published. Starts
    Spark.
    """,
)
rejudge = _declare(
    actions.REJUDGE,
    SelectedPartitions,
    """Judge runs again by the contracts of today: the current runs, and runs that have no verdict yet.

    A current run that the validator rejects now is hidden from readers, as by "state demote". One that it accepts
    again stays. Of a failed partition, the newest rejected run is judged again, unless an operator demoted it.
    Each verdict counts as an attempt. Starts Spark.
    """,
)
park = _declare(
    actions.PARK,
    AccountOrQuery,
    """Stop fetching an account, a query or the source until it is released.

    Sealed runs are judged as usual. Errors of an account, a query or the source park it automatically.
    """,
)
release = _declare(
    actions.RELEASE,
    AccountOrQuery,
    """Resume fetching a parked account, query or source.

    Fetches that failed because of it are due again.
    """,
)
