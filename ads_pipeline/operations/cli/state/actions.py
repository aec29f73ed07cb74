"""Declares the `state` commands that change partitions, accounts and queries, and runs them all in one way.

`selection` has the options that select, `confirmation` the plan, the question and the report.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import typer

from ads_pipeline.domain.errors import AdsPipelineError
from ads_pipeline.ledger.sql.ledger_values import ActionRequest
from ads_pipeline.operations.cli.command_line import options
from ads_pipeline.operations.cli.command_line.logged_commands import RecordedCommand, build_request
from ads_pipeline.operations.cli.command_line.output import terminal_progress
from ads_pipeline.operations.cli.command_line.parsing import open_ledger, open_ledger_for_writing
from ads_pipeline.operations.cli.state import confirmation
from ads_pipeline.operations.cli.state.due import list_due
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

# The options that select for each action, if it has its own, and its help.
COMMANDS: Final[Mapping[OperatorAction, tuple[type, str]]] = {
    actions.ACKNOWLEDGE: (
        DaysToAcknowledge,
        """Record that the problem of these days is known, so that they need nobody.

        They leave "state inspect", the count of doctor and the notifications until something else happens to them: a
        run is registered, judged or loaded, a fetch fails in another way, or an operator acts. Readers still do not
        see them, and "warehouse gaps" still lists them. Automatic retries go on. Filters and --all select the days
        that need you, also those without a run.
        """,
    ),
    actions.RETRY: (
        FailuresToRetry,
        """Requeue failed partitions, so that they are fetched and judged again.

        Skips terminal partitions and partitions without a raw run; see --clear-terminal and --force. The attempt
        count stays.
        """,
    ),
    actions.ENQUEUE: (
        PartitionsToEnqueue,
        """Request runs of partitions that are not recorded yet, as for a backfill.

        Selects each day from --since to --until, for the given queries and customers. The default is all queries of
        the query file and all customers in the ledger. Recorded partitions are skipped. A customer without any
        partition in the ledger needs a confirmation or --yes, because the id may be misspelt.
        """,
    ),
    actions.MARK: (
        SelectedPartitions,
        """Mark failed partitions as terminal, so that they are not retried.

        New sealed runs are judged as usual. "state clear-terminal" removes the marks.
        """,
    ),
    actions.CLEAR: (
        SelectedPartitions,
        """Remove terminal marks.

        The retry policy then decides by age and number of failures whether a failed partition is retried.
        """,
    ),
    actions.REPROCESS: (
        SelectedPartitions,
        """Request new runs of successful partitions.

        They stay safe to read in the meantime, and also when the new run is rejected.
        """,
    ),
    actions.WITHDRAW: (
        SelectedPartitions,
        """Hide successful partitions from readers at once, and set them to pending.

        The verdict on the run stays: "state restore" publishes it again, and "state demote" rejects it.
        """,
    ),
    actions.DEMOTE: (
        SelectedPartitions,
        """Reject the runs that readers see, as if the validator had rejected them.

        The rows disappear for every reader before the status becomes failed. "state restore" publishes an earlier
        run again. Starts Spark.
        """,
    ),
    actions.RESTORE: (
        RunsToRestore,
        """Publish an earlier run again: the newest accepted run before the current one.

        The validator judges that run again first. If it rejects the run now, the partition stays unchanged.
        Otherwise the current run is rejected. Without a current run, the newest accepted run is published. Starts
        Spark.
        """,
    ),
    actions.REJUDGE: (
        SelectedPartitions,
        """Judge runs again by the contracts of today: the current runs, and runs that have no verdict yet.

        A current run that the validator rejects now is hidden from readers, as by "state demote". One that it accepts
        again stays. Of a failed partition, the newest rejected run is judged again, unless an operator demoted it.
        Each verdict counts as an attempt. Starts Spark.
        """,
    ),
    actions.PARK: (
        AccountOrQuery,
        """Stop fetching an account, a query or the source until it is released.

        Sealed runs are judged as usual. Errors of an account, a query or the source park it automatically.
        """,
    ),
    actions.RELEASE: (
        AccountOrQuery,
        """Resume fetching a parked account, query or source.

        Fetches that failed because of it are due again.
        """,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOptions:
    """The options of every action."""

    reason: options.Reason
    dry_run: options.DryRun = False
    yes: options.Yes = False
    operator: options.Operator = None
    as_json: options.AsJson = False


def add_action_commands(state: typer.Typer) -> None:
    for action, (selection, description) in COMMANDS.items():
        _add_command(state, action, selection, description)
    options.command(state, "due")(list_due)


def _add_command(state: typer.Typer, action: OperatorAction, selection: type, description: str) -> None:
    def run(settings: Settings, selected: SelectedPartitions, given: ActionOptions) -> int:
        return run_action(settings, action, selected, given)

    run.__annotations__["selected"] = selection
    run.__doc__ = description
    options.command(state, action.name, cls=RecordedCommand)(run)


def run_action(settings: Settings, action: OperatorAction, selected: SelectedPartitions, given: ActionOptions) -> int:
    """Preview, confirm and execute an action on the selected targets. Returns the exit code."""
    request = build_request(reason=given.reason, operator=given.operator, filters=str(selected))
    with open_ledger(settings) as ledger:
        targets = selected.find(settings, ledger)
        preview = Preview(ledger=ledger, policy=settings.retry_policy, action=action, **targets.preview_options)
        plan = preview.plan(targets.selection)
    options = {"dry_run": given.dry_run, "yes": given.yes, "as_json": given.as_json}
    if not confirmation.confirm(plan, selected, warnings=targets.warnings, **options):
        return 0 if plan.changes else confirmation.NOTHING_EXIT_CODE
    with _open_performer(settings, action, request) as perform:
        report = execute(plan, request, perform, report_progress=terminal_progress())
    return confirmation.write_report(plan, report, as_json=given.as_json)


@contextmanager
def _open_performer(settings: Settings, action: OperatorAction, request: ActionRequest) -> Iterator[Perform]:
    with open_ledger_for_writing(settings) as ledger:
        if not action.needs_spark:
            yield performer(action, ledger.actions)
            return
        from ads_pipeline.operations.cli.command_line.spark_pipeline import open_pipeline  # noqa: PLC0415 - they load Spark's client
        from ads_pipeline.pipeline.actions.demote_and_restore import override_performer  # noqa: PLC0415 - see above

        with open_pipeline(settings, ledger) as pipeline:
            try:
                yield override_performer(action, pipeline, ledger.states)
            except AdsPipelineError:
                what = (
                    f'action {request.action_id} was interrupted; "ads-pipeline reconcile" finishes what it started'
                )
                print(what, file=sys.stderr)  # noqa: T201 - for people
                raise
