"""Decides what an operator does next about one partition. Plain values in, words out.

How the values are found, and everything else that is shown beside these words, is in `why`.
"""

from dataclasses import dataclass

from ads_pipeline.domain.freshness import StaleReason
from ads_pipeline.domain.transitions import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What there is to know before one can say what to do. A run goes by its run_id.

    `status` is None for a partition that nobody has heard of. `awaiting` is the newest run without a verdict, if one
    on it would count; `undecided` says that judging it was tried. `rejected` is the newest run, if that was its
    verdict. `act` tells the last act of an operator that still holds. `no_asset` says why Dagster cannot be asked for
    the partition, `too_old` that its sensors do not look at the day. `parked` is how its account or its query is
    named to `state release`, `held` says that its own data were taken back, `next_try` when it is tried again.
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
    outside_sensor_window: bool = False
    terminal: bool = False
    parked_option: str | None = None
    demoted: bool = False
    next_retry: str | None = None
    request_kind: str | None = None


def next_steps(facts: PartitionFacts) -> tuple[str, ...]:
    """What to do, in one line or two."""
    match facts.status:
        case Status.SUCCESS if facts.demoting:
            return (
                f"finish the demotion: ads-pipeline reconcile --query {facts.query_name}, or wait for the hourly one",
            )
        case Status.SUCCESS if facts.visible_run_id != facts.current_run_id:
            return (_load(facts),)
        case Status.SUCCESS:
            return _improve(facts)
        case Status.FAILED:
            return (_judge(facts),) if facts.unjudged_run_id else _try_again(facts)
    step = _judge(facts) if facts.unjudged_run_id else _produce(facts)
    return (step,) if facts.last_action is None else (facts.last_action, step)


def _try_again(found: PartitionFacts) -> tuple[str, ...]:
    """A failure is cured by another run, which comes by itself, by an order, or from whoever seals one."""
    seal = "seal a corrected run under a new run_id; nothing is to be reset"
    retry = f"ads-pipeline state retry {found.partition} --reason TEXT"
    if found.parked_option:
        return (_release(found),)
    if found.terminal:
        return (f"find the cause, then: {retry} --clear-terminal", f"or {seal}")
    if found.demoted:
        restore = f"ads-pipeline state restore {found.partition} --reason TEXT"
        return (f"give an earlier run back: {restore}", f"or have it fetched anew: {retry}")
    if found.next_retry:
        return (f"wait, it is tried again from {found.next_retry} on; or at once: {retry}", f"or {seal}")
    return (f"mend what is said of it above, then: {retry}", f"or {seal}")


def _release(found: PartitionFacts) -> str:
    return f"mend its account or query, then: ads-pipeline state release {found.parked_option} --reason TEXT"


def _produce(found: PartitionFacts) -> str:
    if found.parked_option:
        return _release(found)
    if found.terminal:
        clear = f"ads-pipeline state clear-terminal {found.partition} --reason TEXT"
        return f"it is marked as terminal; if it is wanted: {clear}"
    told = "seal a run of it under a new run_id"
    return f"{told}; {_asked_for(found)}" if found.request_kind else told


def _asked_for(found: PartitionFacts) -> str:
    return f"it was asked for ({found.request_kind}), see ads-pipeline state due"


def _judge(found: PartitionFacts) -> str:
    """Judging is Dagster's alone, so that a run is judged where its verdict is seen."""
    name = found.query_name
    if found.no_asset_reason is not None:
        return f"mend the query file, for Dagster cannot judge {found.unjudged_run_id}: {found.no_asset_reason}"
    by_hand = f"materialize raw/{name} with its check and warehouse/{name} in Dagster"
    if found.judging_failed:
        return f"see above why {found.unjudged_run_id} got no verdict, then {by_hand}"
    waiting = "; raw_arrivals does not look so far back" if found.outside_sensor_window else ", or wait for raw_arrivals"
    return f"have {found.unjudged_run_id} judged: {by_hand}{waiting}"


def _load(found: PartitionFacts) -> str:
    name = found.query_name
    if found.load_failed:
        return f"put the raw data of {found.current_run_id} back, or seal a run under a new run_id: it cannot be loaded"
    if found.no_asset_reason is not None:
        return f"mend the query file, for nobody loads {found.current_run_id}: {found.no_asset_reason}"
    waiting = "the hourly reconcile" if found.outside_sensor_window else "states_to_load"
    return f"load it: materialize warehouse/{name} in Dagster, or wait for {waiting}"


def _improve(found: PartitionFacts) -> tuple[str, ...]:
    """A success that readers have may still be told anew."""
    if found.unjudged_run_id:
        return (_judge(found), f"until then readers keep {found.visible_run_id}")
    if found.rejected_run_id:
        return (
            f"seal a corrected run under a new run_id, if what {found.rejected_run_id} was to bring is wanted",
            f"readers keep {found.visible_run_id}",
        )
    reprocess = f"ads-pipeline state reprocess {found.partition} --reason TEXT"
    if found.request_kind and found.stale_reasons:
        return (f"seal a run of it under a new run_id; {_asked_for(found)}", f"until then readers keep {found.visible_run_id}")
    if StaleReason.FRESHNESS_POLICY in found.stale_reasons:
        return (f"have the day reported again, for Google may have restated it: {reprocess}",)
    if StaleReason.CODE_CHANGED in found.stale_reasons:
        return (f"if it should follow the query's present definition: {reprocess}",)
    return ("nothing: readers have the newest run",)
