"""Decides an operator's next steps for a partition: plain values in, text and commands out.

`state why` shows all steps. The report, lists and the check `readable` show the first command, from `next_command`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ads_pipeline.domain.days.conditions import Condition, GapReason
from ads_pipeline.domain.days.materialization_status import StaleReason
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.fetching.retry_forecast import RetryForecast
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.pipeline.days.restorable_runs import NO_RUN, RestorableRun, find_restorable

DAYS: Final = "{days}"  # in a command that is made before it is known which days it is for
_RESTORABLE: Final = frozenset({GapReason.DEMOTED, GapReason.WITHDRAWN})
SEAL_CORRECTED: Final = "seal a corrected run under a new run_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """The facts about a partition on which the advice depends.

    `partition` names it in commands. `status` is None for a partition without a state row. `unjudged_run_id` is the
    newest run without a verdict, if its verdict would still count. `rejected_run_id` is the newest run, if it was
    rejected. `last_action` describes the control action that set the status. `retry_due`: the next retry is due now.
    `parked_option` is the option that names the parked account or query to `state release`. `new_customer` is a note
    on a customer without any partition. `no_asset_reason` is why Dagster has no asset partition for it. `blocked_by`
    is why a run needs a person. `given_up` is why a pending day is not fetched again, `held` what its fetches wait
    for, and `release_hold` the command that ends this wait. `restorable` is known of hidden days.
    """

    query_name: str
    partition: str = ""
    status: Status | None
    current_run_id: str | None = None
    visible_run_id: str | None = None
    demoting: bool = False
    unjudged_run_id: str | None = None
    judging_failed: bool = False
    rejected_run_id: str | None = None
    stale_reasons: tuple[StaleReason, ...] = ()
    last_action: str | None = None
    withdrawn: bool = False
    no_asset_reason: str | None = None
    new_customer: str | None = None
    outside_sensor_window: bool = False
    unrecoverable: bool = False
    terminal: bool = False
    given_up: str | None = None
    held: str | None = None
    release_hold: str = ""
    parked_option: str | None = None
    blocked_by: GapReason | None = None
    demoted: bool = False
    restorable: RestorableRun = NO_RUN
    next_retry: str | None = None
    retry_due: bool = False
    request_kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One next step. `command` is part of the text, or empty."""

    text: str
    command: str = ""

    def __str__(self) -> str:
        return self.text


def next_steps(facts: PartitionFacts) -> tuple[Step, ...]:
    """The next steps, in one or two lines."""
    if facts.blocked_by is not None:
        return _advise_on_blocked(facts, facts.blocked_by)
    match facts.status:
        case Status.SUCCESS if facts.demoting:
            return (_step("finish the removal of its rows: {}, or wait for the hourly reconcile", _reconcile(facts)),)
        case Status.SUCCESS if facts.visible_run_id != facts.current_run_id:
            return (_advise_loading(facts),)
        case Status.SUCCESS:
            return _advise_on_success(facts)
        case Status.FAILED:
            return (_advise_judging(facts),) if facts.unjudged_run_id else _advise_on_failure(facts)
    if facts.unjudged_run_id:
        steps: tuple[Step, ...] = (_advise_judging(facts),)
    elif facts.unrecoverable:
        steps = (Step(text="nothing: the source no longer serves the day. A run of another extractor may be sealed"),)
    else:
        steps = _advise_on_pending(facts)
    return (*(Step(text=line) for line in (facts.last_action, facts.new_customer) if line), *steps)


def next_command(facts: PartitionFacts) -> str:
    """The command of the first step that has one; else the command that explains the partition."""
    commands = (step.command for step in next_steps(facts) if step.command)
    return next(commands, f"ads-pipeline state why {facts.partition}")


def find_next_commands(
    ledger: LedgerReader,
    days: Mapping[PartitionKey, DayCondition],
    policy: RetryPolicy,
    *,
    name: Callable[[PartitionKey], str] = lambda key: key.short_name,
) -> dict[PartitionKey, str]:
    """The next command of each described partition; empty for one that needs nothing. `name` names it in commands."""
    states = ledger.states.get_many(days)
    forecasts = ledger.retry_queue.forecast(list(states.values()), policy)
    restorable = find_restorable(ledger.runs, [states[key] for key, day in days.items() if day.gap in _RESTORABLE])
    commands = {}
    for key, day in days.items():
        run = restorable.get(key, NO_RUN)
        facts = find_facts(key, day, states[key].recorded_status, forecasts[key], name(key), run)
        commands[key] = "" if day.entry.is_fine else next_command(facts)
    return commands


def name_days(command: str, *, newest: str, selection: str) -> str:
    """The command for a range of days, given the newest partition and the arguments that select all of them.

    The command that explains a partition takes only one, and so does the one that restores a named run.
    """
    takes_one = " state why " in command or " --run " in command
    return command.replace(DAYS, newest if takes_one else selection)


def is_terminal(status: Status | None, forecast: RetryForecast) -> bool:
    """True if the partition gets no further run without an operator's action."""
    return forecast.marked or (forecast.terminal is not None and status is Status.FAILED)


def parked_option(forecast: RetryForecast) -> str | None:
    """The option that names what is parked to `state release`."""
    return next((f"--{parking.scope} {parking.name}" for parking in forecast.parkings), None)


def find_facts(
    key: PartitionKey,
    day: DayCondition,
    status: Status | None,
    forecast: RetryForecast,
    name: str,
    restorable: RestorableRun,
) -> PartitionFacts:
    """The facts that decide which command comes next. Runs are not named, because commands do not name them."""
    run = "the run"
    return PartitionFacts(
        query_name=key.query_name,
        partition=name,
        status=status,
        current_run_id=run,
        visible_run_id=None if day.gap is GapReason.UNLOADED else run,
        demoting=day.gap is GapReason.DEMOTING,
        unjudged_run_id=run if day.has_unjudged_run else None,
        rejected_run_id=run if day.is_rejected_rerun else None,
        withdrawn=day.gap is GapReason.WITHDRAWN,
        terminal=is_terminal(status, forecast),
        given_up=forecast.given_up.explanation if forecast.given_up else None,
        held="; ".join(map(str, forecast.holds)) or None,
        release_hold=next((hold.release_command for hold in forecast.holds), ""),
        parked_option=parked_option(forecast),
        blocked_by=day.blocked_by and day.blocked_by.reason,
        demoted=day.gap is GapReason.DEMOTED,
        restorable=restorable,
        unrecoverable=day.condition is Condition.UNRECOVERABLE,
        next_retry="later" if forecast.next_at else None,
        retry_due=forecast.is_due,
        request_kind=forecast.request.kind if forecast.request else None,
    )


def _step(text: str, command: str) -> Step:
    return Step(text=text.format(command), command=command)


def _action(name: str, facts: PartitionFacts, more: str = "") -> str:
    return f"ads-pipeline state {name} {facts.partition} --reason TEXT{more}"


def _reconcile(facts: PartitionFacts) -> str:
    return f"ads-pipeline reconcile --query {facts.query_name}"


def _advise_on_blocked(facts: PartitionFacts, blocked_by: GapReason) -> tuple[Step, ...]:
    """Steps for a run that cannot go on by itself."""
    match blocked_by:
        case GapReason.NO_CONTRACT:
            declare = Step(
                text="declare a contract for its schema_version beside the query file, and raw_arrivals has it judged"
            )
            return (declare, *_advise_another_run(facts))
        case GapReason.UNLOADABLE:
            return (*_advise_another_run(facts), Step(text=f"or put its files back, then: {_reconcile(facts)}"))
        case GapReason.UNJUDGED:
            rejudge = _action("rejudge", facts)
            return (
                _step("to judge it now: {}", rejudge),
                Step(text="ads-pipeline doctor says why nothing did"),
            )
    return (_step("to finish it now: {}", _reconcile(facts)), Step(text="ads-pipeline doctor says why nothing did"))


def _advise_another_run(facts: PartitionFacts) -> tuple[Step, ...]:
    if facts.status is not Status.SUCCESS:
        return (Step(text="or seal a run of a declared schema_version under a new run_id"),)
    if facts.request_kind:
        return (_advise_sealing(facts),)
    return (_step("request another run: {}", _action("reprocess", facts)),)


def _advise_on_failure(facts: PartitionFacts) -> tuple[Step, ...]:
    seal = Step(text=f"or {SEAL_CORRECTED}; no reset is needed")
    retry = _action("retry", facts, " --clear-terminal" if facts.terminal else "")
    if facts.parked_option:
        return (_advise_release(facts),)
    if facts.demoted:
        return (*_advise_restoring(facts, "restore an earlier run:"), _step("or fetch it again: {}", retry))
    if facts.terminal:
        return (_step("find the cause, then: {}", retry), seal)
    if facts.next_retry and facts.retry_due:
        due = f"its retry is due since {facts.next_retry}: fetch the day and seal a run under a new run_id"
        return (Step(text=f"{due}; ads-pipeline state due lists it"),)
    if facts.next_retry:
        later = f"from {facts.next_retry} on, ads-pipeline state due lists it for extractors; to retry now: "
        return (_step(later + "{}", retry), seal)
    return (_step("fix the cause shown above, then: {}", retry), seal)


def _advise_restoring(facts: PartitionFacts, lead: str) -> tuple[Step, ...]:
    """The step that publishes a run of a hidden day again. `lead` is for the run that a restore takes by default."""
    run = facts.restorable
    if run.run_id is None:
        return ()
    return (_step(f"{run.lead if run.is_demoted else lead} {{}}", run.command(facts.partition)),)


def _advise_release(facts: PartitionFacts) -> Step:
    command = f"ads-pipeline state release {facts.parked_option} --reason TEXT"
    is_source = (facts.parked_option or "").startswith("--source ")
    target = "credentials or the API version" if is_source else "account or query"
    return _step(f"fix the {target}, then: {{}}", command)


def _advise_on_obstacle(facts: PartitionFacts) -> Step | None:
    """The step that lets a pending day be fetched again, if something prevents that."""
    if facts.parked_option:
        return _advise_release(facts)
    if facts.terminal:
        return _step("it is marked as terminal; to produce it anyway: {}", _action("terminal", facts, " --clear"))
    if facts.given_up:
        text = f"its fetches were given up, {facts.given_up}; find the cause, then: "
        return _step(text + "{}", _action("retry", facts))
    if facts.held and not facts.withdrawn:
        return _step(f"wait: {facts.held}; to try now: " + "{}", facts.release_hold)
    return None


def _advise_on_pending(facts: PartitionFacts) -> tuple[Step, ...]:
    obstacle = _advise_on_obstacle(facts)
    if obstacle is not None:
        return (obstacle,)
    if facts.request_kind:
        return (_advise_sealing(facts),)
    if facts.withdrawn:
        restoring = _advise_restoring(facts, "publish the withdrawn run again:")
        return (*restoring, Step(text="or seal a run under a new run_id"))
    if facts.status is None and not facts.new_customer and not facts.no_asset_reason:
        return (_step("seal a run under a new run_id, or request one: {}", _action("enqueue", facts)),)
    is_later = facts.next_retry and not facts.retry_due
    wait = f"wait: it is due again at {facts.next_retry}; or " if is_later else ""
    return (Step(text=f"{wait}seal a run under a new run_id"),)


def _advise_sealing(facts: PartitionFacts) -> Step:
    """A run is requested: extractors find it in the list of due partitions."""
    is_later = facts.next_retry and not facts.retry_due
    when = f"its next fetch is due at {facts.next_retry}" if is_later else "ads-pipeline state due lists it"
    return Step(text=f"seal a run under a new run_id; it is requested ({facts.request_kind}), {when}")


def _advise_judging(facts: PartitionFacts) -> Step:
    """Only Dagster judges runs, so that every verdict is visible in its UI."""
    name, run_id = facts.query_name, facts.unjudged_run_id
    if facts.no_asset_reason is not None:
        return Step(text=f"fix the query file; Dagster cannot judge {run_id}: {facts.no_asset_reason}")
    materialize = f"materialize raw/{name} with its check and warehouse/{name} in Dagster"
    if facts.judging_failed:
        return Step(text=f"see above why {run_id} has no verdict, then {materialize}")
    pace = ", which searches a month of older days a minute" if facts.outside_sensor_window else ""
    return Step(text=f"to judge {run_id}: {materialize}, or wait for raw_arrivals{pace}")


def _advise_loading(facts: PartitionFacts) -> Step:
    name, run_id = facts.query_name, facts.current_run_id
    if facts.no_asset_reason is not None:
        return Step(text=f"fix the query file; Dagster cannot load {run_id}: {facts.no_asset_reason}")
    loader = "the hourly reconcile" if facts.outside_sensor_window else "states_to_load"
    return Step(text=f"to load it: materialize warehouse/{name} in Dagster, or wait for {loader}")


def _advise_on_success(facts: PartitionFacts) -> tuple[Step, ...]:
    """Steps for a success that readers see: a newer run may exist or be needed."""
    visible = f"readers see {facts.visible_run_id}"
    if facts.unjudged_run_id:
        return (_advise_judging(facts), Step(text=f"until then {visible}"))
    reprocess = _action("reprocess", facts)
    if facts.rejected_run_id:
        needed = f"if the data of {facts.rejected_run_id} are needed, {SEAL_CORRECTED}"
        step = Step(text=needed) if facts.request_kind else _step(needed + ", or request one: {}", reprocess)
        return (step, Step(text=visible))
    if facts.request_kind and facts.stale_reasons:
        return (_advise_sealing(facts), Step(text=f"until then {visible}"))
    if StaleReason.FRESHNESS_POLICY in facts.stale_reasons:
        return (_step("fetch the day again, because Google may have restated it: {}", reprocess),)
    if StaleReason.CODE_CHANGED in facts.stale_reasons:
        return (_step("to apply the current definition of the query: {}", reprocess),)
    return (Step(text="nothing: readers see the newest run"),)
