"""Decides an operator's next steps for one partition: plain values in, text out.

`partition_report` gathers the values. `why` prints the steps below everything else.
"""

from dataclasses import dataclass

from ads_pipeline.domain.freshness import StaleReason
from ads_pipeline.domain.transitions import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """The facts about a partition on which the advice depends.

    `status` is None for a partition without a state row. `unjudged_run_id` is the newest run without a verdict, if
    its verdict would still count. `rejected_run_id` is the newest run, if it was rejected. `last_action` describes
    the control action that set the status. `retry_due`: the next retry is due now. `parked_option` is the option
    that names the parked account or query to `state release`. `new_customer` is a note on a customer without any
    partition. `no_asset_reason` is why Dagster has no asset partition
    for it.
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
    load_failed: bool = False
    stale_reasons: tuple[StaleReason, ...] = ()
    last_action: str | None = None
    no_asset_reason: str | None = None
    new_customer: str | None = None
    outside_sensor_window: bool = False
    terminal: bool = False
    parked_option: str | None = None
    demoted: bool = False
    next_retry: str | None = None
    retry_due: bool = False
    request_kind: str | None = None


def next_steps(facts: PartitionFacts) -> tuple[str, ...]:
    """The next steps, in one or two lines."""
    match facts.status:
        case Status.SUCCESS if facts.demoting:
            command = f"ads-pipeline reconcile --query {facts.query_name}"
            return (f"finish the demotion: {command}, or wait for the hourly reconcile",)
        case Status.SUCCESS if facts.visible_run_id != facts.current_run_id:
            return (_advise_loading(facts),)
        case Status.SUCCESS:
            return _advise_on_success(facts)
        case Status.FAILED:
            return (_advise_judging(facts),) if facts.unjudged_run_id else _advise_on_failure(facts)
    step = _advise_judging(facts) if facts.unjudged_run_id else _advise_on_pending(facts)
    return tuple(line for line in (facts.last_action, facts.new_customer, step) if line)


def _advise_on_failure(facts: PartitionFacts) -> tuple[str, ...]:
    seal = "seal a corrected run under a new run_id; no reset is needed"
    retry = f"ads-pipeline state retry {facts.partition} --reason TEXT"
    if facts.parked_option:
        return (_advise_release(facts),)
    if facts.terminal:
        return (f"find the cause, then: {retry} --clear-terminal", f"or {seal}")
    if facts.demoted:
        restore = f"ads-pipeline state restore {facts.partition} --reason TEXT"
        return (f"restore an earlier run: {restore}", f"or fetch it again: {retry}")
    if facts.next_retry and facts.retry_due:
        due = f"its retry is due since {facts.next_retry}: fetch the day"
        return (f"{due} and seal a run under a new run_id; ads-pipeline state due lists it",)
    if facts.next_retry:
        later = f"from {facts.next_retry} on, ads-pipeline state due lists it for extractors"
        return (f"{later}; to retry now: {retry}", f"or {seal}")
    return (f"fix the cause shown above, then: {retry}", f"or {seal}")


def _advise_release(facts: PartitionFacts) -> str:
    return f"fix the account or query, then: ads-pipeline state release {facts.parked_option} --reason TEXT"


def _advise_on_pending(facts: PartitionFacts) -> str:
    if facts.parked_option:
        return _advise_release(facts)
    if facts.terminal:
        clear = f"ads-pipeline state clear-terminal {facts.partition} --reason TEXT"
        return f"it is marked as terminal; to produce it anyway: {clear}"
    return _advise_sealing(facts) if facts.request_kind else "seal a run under a new run_id"


def _advise_sealing(facts: PartitionFacts) -> str:
    is_later = facts.next_retry and not facts.retry_due
    when = f"its next fetch is due at {facts.next_retry}" if is_later else "ads-pipeline state due lists it"
    return f"seal a run under a new run_id; it is requested ({facts.request_kind}), {when}"


def _advise_judging(facts: PartitionFacts) -> str:
    """Only Dagster judges runs, so that every verdict is visible in its UI."""
    name, run_id = facts.query_name, facts.unjudged_run_id
    if facts.no_asset_reason is not None:
        return f"fix the query file; Dagster cannot judge {run_id}: {facts.no_asset_reason}"
    materialize = f"materialize raw/{name} with its check and warehouse/{name} in Dagster"
    if facts.judging_failed:
        return f"see above why {run_id} has no verdict, then {materialize}"
    pace = ", which searches a month of older days a minute" if facts.outside_sensor_window else ""
    return f"to judge {run_id}: {materialize}, or wait for raw_arrivals{pace}"


def _advise_loading(facts: PartitionFacts) -> str:
    name, run_id = facts.query_name, facts.current_run_id
    if facts.load_failed:
        return f"put the raw data of {run_id} back, or seal a run under a new run_id: {run_id} cannot be loaded"
    if facts.no_asset_reason is not None:
        return f"fix the query file; Dagster cannot load {run_id}: {facts.no_asset_reason}"
    loader = "the hourly reconcile" if facts.outside_sensor_window else "states_to_load"
    return f"to load it: materialize warehouse/{name} in Dagster, or wait for {loader}"


def _advise_on_success(facts: PartitionFacts) -> tuple[str, ...]:
    """Steps for a success that readers see: a newer run may exist or be needed."""
    visible = f"readers see {facts.visible_run_id}"
    if facts.unjudged_run_id:
        return (_advise_judging(facts), f"until then {visible}")
    if facts.rejected_run_id:
        return (
            f"if the data of {facts.rejected_run_id} are needed, seal a corrected run under a new run_id",
            visible,
        )
    if facts.request_kind and facts.stale_reasons:
        return (_advise_sealing(facts), f"until then {visible}")
    reprocess = f"ads-pipeline state reprocess {facts.partition} --reason TEXT"
    if StaleReason.FRESHNESS_POLICY in facts.stale_reasons:
        return (f"fetch the day again, because Google may have restated it: {reprocess}",)
    if StaleReason.CODE_CHANGED in facts.stale_reasons:
        return (f"to apply the current definition of the query: {reprocess}",)
    return ("nothing: readers see the newest run",)
