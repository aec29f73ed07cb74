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
    current: str | None = None
    shown: str | None = None
    demoting: bool = False
    awaiting: str | None = None
    undecided: bool = False
    rejected: str | None = None
    unloadable: bool = False
    stale: tuple[StaleReason, ...] = ()
    act: str | None = None
    no_asset: str | None = None
    too_old: bool = False
    terminal: bool = False
    parked: str | None = None
    held: bool = False
    next_try: str | None = None
    requested: str | None = None


def next_step(found: PartitionFacts) -> tuple[str, ...]:
    """What to do, in one line or two."""
    match found.status:
        case Status.SUCCESS if found.demoting:
            return (
                f"finish the demotion: ads-pipeline reconcile --query {found.query_name}, or wait for the hourly one",
            )
        case Status.SUCCESS if found.shown != found.current:
            return (_load(found),)
        case Status.SUCCESS:
            return _improve(found)
        case Status.FAILED:
            return (_judge(found),) if found.awaiting else _try_again(found)
    step = _judge(found) if found.awaiting else _produce(found)
    return (step,) if found.act is None else (found.act, step)


def _try_again(found: PartitionFacts) -> tuple[str, ...]:
    """A failure is cured by another run, which comes by itself, by an order, or from whoever seals one."""
    seal = "seal a corrected run under a new run_id; nothing is to be reset"
    retry = f"ads-pipeline state retry {found.partition} --reason TEXT"
    if found.parked:
        return (_release(found),)
    if found.terminal:
        return (f"find the cause, then: {retry} --clear-terminal", f"or {seal}")
    if found.held:
        restore = f"ads-pipeline state restore {found.partition} --reason TEXT"
        return (f"give an earlier run back: {restore}", f"or have it fetched anew: {retry}")
    if found.next_try:
        return (f"wait, it is tried again from {found.next_try} on; or at once: {retry}", f"or {seal}")
    return (f"mend what is said of it above, then: {retry}", f"or {seal}")


def _release(found: PartitionFacts) -> str:
    return f"mend its account or query, then: ads-pipeline state release {found.parked} --reason TEXT"


def _produce(found: PartitionFacts) -> str:
    if found.parked:
        return _release(found)
    if found.terminal:
        clear = f"ads-pipeline state clear-terminal {found.partition} --reason TEXT"
        return f"it is marked as terminal; if it is wanted: {clear}"
    told = "seal a run of it under a new run_id"
    return f"{told}; {_asked_for(found)}" if found.requested else told


def _asked_for(found: PartitionFacts) -> str:
    return f"it was asked for ({found.requested}), see ads-pipeline state due"


def _judge(found: PartitionFacts) -> str:
    """Judging is Dagster's alone, so that a run is judged where its verdict is seen."""
    name = found.query_name
    if found.no_asset is not None:
        return f"mend the query file, for Dagster cannot judge {found.awaiting}: {found.no_asset}"
    by_hand = f"materialize raw/{name} with its check and warehouse/{name} in Dagster"
    if found.undecided:
        return f"see above why {found.awaiting} got no verdict, then {by_hand}"
    waiting = "; raw_arrivals does not look so far back" if found.too_old else ", or wait for raw_arrivals"
    return f"have {found.awaiting} judged: {by_hand}{waiting}"


def _load(found: PartitionFacts) -> str:
    name = found.query_name
    if found.unloadable:
        return f"put the raw data of {found.current} back, or seal a run under a new run_id: it cannot be loaded"
    if found.no_asset is not None:
        return f"mend the query file, for nobody loads {found.current}: {found.no_asset}"
    waiting = "the hourly reconcile" if found.too_old else "states_to_load"
    return f"load it: materialize warehouse/{name} in Dagster, or wait for {waiting}"


def _improve(found: PartitionFacts) -> tuple[str, ...]:
    """A success that readers have may still be told anew."""
    if found.awaiting:
        return (_judge(found), f"until then readers keep {found.shown}")
    if found.rejected:
        return (
            f"seal a corrected run under a new run_id, if what {found.rejected} was to bring is wanted",
            f"readers keep {found.shown}",
        )
    reprocess = f"ads-pipeline state reprocess {found.partition} --reason TEXT"
    if found.requested and found.stale:
        return (f"seal a run of it under a new run_id; {_asked_for(found)}", f"until then readers keep {found.shown}")
    if StaleReason.FRESHNESS_POLICY in found.stale:
        return (f"have the day reported again, for Google may have restated it: {reprocess}",)
    if StaleReason.CODE_CHANGED in found.stale:
        return (f"if it should follow the query's present definition: {reprocess}",)
    return ("nothing: readers have the newest run",)
