"""Tells on one screen all there is to know of one partition, and what to do about it.

It loads neither Spark nor DuckDB. What to do is decided by `advice`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from ads_pipeline.cli.events import event_to_json, format_event_data, shorten_names
from ads_pipeline.cli.explain.advice import PartitionFacts, next_steps
from ads_pipeline.cli.explain.forecast import RetryForecast, forecast_retries
from ads_pipeline.cli.output import (
    CELL_PADDING,
    OutputConsole,
    cell,
    count_of,
    format_instant,
    iso_instant,
    write_json,
)
from ads_pipeline.cli.parsing import open_event_reader, open_ledger, parse_partition
from ads_pipeline.cli.states import COLOURS, DATA_LABELS, STALE_LABELS, state_fields
from ads_pipeline.domain.freshness import AttemptOutcome, DisplayStatus
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import ErrorPolicy, Parked
from ads_pipeline.domain.run_events import LoggedEvent
from ads_pipeline.domain.transitions import Outcome, PartitionState, RegisteredRun, Status
from ads_pipeline.ledger.values import Attempt, PartitionAction, Pointer, PublicationStatus
from ads_pipeline.pipeline.gaps import Gap, find_gap
from ads_pipeline.pipeline.staleness import AssetStatus, PartitionStaleness, StalenessCalculator
from ads_pipeline.raw.discovery import DamagedRun
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal
from ads_pipeline.settings import Settings

EVENTS_SHOWN: Final = 12
SENSOR_WINDOW: Final = timedelta(days=92)  # by Dagster's sensors
ACTION_PARTICIPLES: Final = {"withdraw": "withdrawn", "requeue": "requeued", "enqueue": "enqueued"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """One partition as ledger, raw and log know it. `sealed` is None where raw cannot be seen from here."""

    key: PartitionKey
    publication: PublicationStatus | None
    registered: Sequence[tuple[RegisteredRun, datetime]]
    attempts: Sequence[Attempt]
    actions: Sequence[PartitionAction]
    staleness: PartitionStaleness
    forecast: RetryForecast
    events: Sequence[LoggedEvent]
    sealed: Mapping[str, Seal | DamagedRun] | None
    no_asset_reason: str | None
    now: datetime

    @property
    def state(self) -> PartitionState:
        return self.publication.state if self.publication else PartitionState.absent(self.key)

    @property
    def gap(self) -> Gap | None:
        """Why readers do not see it; None when they do."""
        return find_gap(self.key, self.publication)

    @property
    def pointer(self) -> Pointer | None:
        """Where readers are pointed at, if they are."""
        return self.publication.pointer if self.publication and self.publication.pointed else None

    @property
    def is_safe(self) -> bool:
        return self.publication is not None and self.publication.publishable

    @property
    def unregistered(self) -> dict[str, Seal | DamagedRun]:
        """What raw holds and the ledger was never told of."""
        known = {each.run.run_id for each, _at in self.registered}
        return {run_id: found for run_id, found in (self.sealed or {}).items() if run_id not in known}

    @property
    def facts(self) -> PartitionFacts:
        state, standing = self.state, self.publication
        awaiting, newest = _awaiting(self), _newest(self)
        prospect = self.forecast
        return PartitionFacts(
            query_name=self.key.query_name,
            partition=str(self.key).removeprefix(f"{self.key.source}/"),
            status=state.status if standing else None,
            current_run_id=state.current_run_id,
            visible_run_id=self.pointer.run.run_id if self.pointer else None,
            demoting=standing is not None and standing.demoting,
            unjudged_run_id=awaiting,
            judging_failed=awaiting is not None and _tried_since(self.staleness.raw, awaiting),
            rejected_run_id=newest if newest and _last_outcomes(self.attempts).get(newest) is Outcome.REJECTED else None,
            load_failed=_failed(self.staleness.warehouse, state.current_run_id),
            stale_reasons=self.staleness.raw.reasons,
            last_action=_act_that_holds(self),
            terminal=prospect.terminal is not None or prospect.marked,
            parked_option=next((f"--{each.scope} {each.name}" for each in prospect.parkings), None),
            demoted=isinstance(prospect.decision, Parked) and prospect.decision.scope is ErrorPolicy.HOLD,
            next_retry=format_instant(prospect.next_at) if prospect.next_at else None,
            request_kind=prospect.request.kind if prospect.request else None,
            no_asset_reason=self.no_asset_reason,
            outside_sensor_window=self.key.logical_date < self.now.date() - SENSOR_WINDOW,
        )


def print_report(settings: Settings, word: str, *, as_json: bool) -> None:
    """Write what there is to know of a partition; of one that nobody has heard of, too."""
    case = _case(settings, parse_partition(word, settings))
    if as_json:
        write_json([_fields(case)])
    else:
        _write(OutputConsole(), case, settings)


def _case(settings: Settings, key: PartitionKey) -> PartitionReport:
    now = datetime.now(UTC)
    with open_ledger(settings) as ledger, open_event_reader(settings) as log:
        current = StalenessCalculator(settings.freshness_policies, ledger.code_versions(key.source)).calculate(ledger, [key], now=now)
        standing = ledger.publication_status(key)
        state = standing.state if standing else PartitionState.absent(key)
        return PartitionReport(
            key=key,
            publication=standing,
            registered=ledger.registrations(key),
            attempts=ledger.attempts(key),
            actions=ledger.partition_actions(key),
            staleness=current[key],
            forecast=forecast_retries(ledger, [state], settings.retry_policy, now=now)[key],
            events=log.find_step_events(str(key), EVENTS_SHOWN),
            sealed=_sealed(settings, key),
            no_asset_reason=_no_asset(settings, key),
            now=now,
        )


def _sealed(settings: Settings, key: PartitionKey) -> dict[str, Seal | DamagedRun] | None:
    """What raw holds of the partition, by run_id; what has no run's name, by the name that it has."""
    if not settings.raw_root.is_dir():
        return None
    found = RawRuns(settings.raw_root).list_runs(key)
    return {_name_of(each): each for each in found}


def _name_of(found: Seal | DamagedRun) -> str:
    path = found.path if isinstance(found, DamagedRun) else found.run.path
    return path.rpartition("/")[2] if found.run is None else found.run.run_id


def _no_asset(settings: Settings, key: PartitionKey) -> str | None:
    """Why Dagster knows no such partition; None when it does."""
    apis, file = settings.google_apis, settings.queries_file
    if key.source != apis.source:
        return f"{file} is for the source {apis.source}"
    if key.query_name not in apis.queries:
        return f"{key.query_name} is no query of {file}"
    return f"{file} begins with {apis.start_date}" if key.logical_date < apis.start_date else None


def _last_outcomes(attempts: Iterable[Attempt]) -> dict[str, Outcome]:
    return {each.run.run_id: each.outcome for each in attempts}


def _newest(case: PartitionReport) -> str | None:
    return case.registered[-1][0].run.run_id if case.registered else None


def _awaiting(case: PartitionReport) -> str | None:
    """The newest run that awaits its first verdict; of a success only one that could take the authority."""
    unheard = [found for found in case.unregistered.values() if isinstance(found, Seal)]
    if unheard:
        return max(unheard, key=lambda seal: (seal.facts.extracted_at, seal.run.run_id)).run.run_id
    judged = _last_outcomes(case.attempts)
    for registered, _at in reversed(case.registered):
        run_id = registered.run.run_id
        if run_id not in judged:
            return run_id
        if case.state.status is Status.SUCCESS and run_id == case.state.current_run_id:
            return None
    return None


def _tried_since(look: AssetStatus, run_id: str) -> bool:
    """Whether the last attempt at the raw asset was to judge this run; it has no verdict, so it ended otherwise."""
    return look.status is not None and look.status.last_attempt_run_id == run_id


def _failed(look: AssetStatus, run_id: str | None) -> bool:
    status = look.status
    return status is not None and (status.last_attempt_run_id, look.last_attempt) == (run_id, AttemptOutcome.FAILED)


def _act_that_holds(case: PartitionReport) -> str | None:
    """A verdict ends pending, and only verdicts and acts change a status: the last act is what made it pending."""
    if case.state.status is not Status.PENDING or not case.actions:
        return None
    act = case.actions[-1]
    return f"it was {ACTION_PARTICIPLES.get(act.action, act.action)} by {act.operator}: {act.reason}"


def _write(paper: OutputConsole, case: PartitionReport, settings: Settings) -> None:
    paper.print(cell(case.key, style="bold"), Text(""), _answers(case), sep="\n")
    _section(paper, "runs", _runs(case, settings))
    if case.actions:
        _section(paper, "acts of operators", map(_act_words, case.actions))
    _section(paper, "events", _events(case.events))
    _section(paper, "next", [("", step) for step in next_steps(case.facts)])


def _answers(case: PartitionReport) -> Table:
    state = case.state
    heard = f"since {format_instant(state.updated_at)}, " if state.updated_at else ""
    status = f"{state.status} {heard}{count_of(state.attempt_count, 'attempt')}"
    rows = "" if state.record_count is None else f" with {count_of(state.record_count, 'row')}"
    safe = f"yes, from run {state.current_run_id}{rows}" if case.is_safe else "no"
    table = new_grid("dim")
    for name, told in {
        "safe to read": cell(safe, style="green" if case.is_safe else "red"),
        "readers see": cell(_shown(case)),
        "status": cell(status, style=COLOURS[state.status]) if case.publication else cell("nobody has heard of it"),
        "raw asset": cell(_look(case.staleness.raw)),
        "warehouse": cell(_look(case.staleness.warehouse)),
        "in Dagster": cell(case.no_asset_reason and f"not there: {case.no_asset_reason}"),
        **{name: cell(words) for name, words in case.forecast.describe(case.now).items()},
    }.items():
        if told:
            table.add_row(name, told)
    return table


def _shown(case: PartitionReport) -> str:
    gap, pointer = case.gap, case.pointer
    if gap is not None or pointer is None:
        said = (gap.detail or "").removeprefix(f"{case.key}/") if gap else ""
        return f"nothing, because {gap.reason if gap else 'there is no pointer'}" + (f": {said}" if said else "")
    run_id, newest = pointer.run.run_id, case.state.current_run_id
    behind = "" if run_id == newest else f"; {newest} is accepted and not loaded yet"
    return f"run {run_id} since {format_instant(pointer.changed_at)}, table version {pointer.table_version}{behind}"


def _look(look: AssetStatus) -> str:
    """How current the asset is, with every reason why it is not, what it was made of and what was last tried."""
    told = [DATA_LABELS[look.display]]
    if look.stale:
        first, *others = (STALE_LABELS[reason] for reason in look.reasons)
        also = f" (and {', '.join(others)})" if others else ""
        told.append(f"{first} since {format_instant(look.stale.since)}{also}")
    status = look.status
    if status and status.last_materialization_at:
        told.append(f"made from {status.last_materialization_run_id} at {format_instant(status.last_materialization_at)}")
    if status and status.last_attempt_at and look.display is not DisplayStatus.MATERIALIZED:
        tried = f"{look.last_attempt} for {status.last_attempt_run_id}"
        told.append(f"last tried at {format_instant(status.last_attempt_at)}: {tried}")
    return "; ".join(told)


def _runs(case: PartitionReport, settings: Settings) -> Iterator[tuple[str, str]]:
    """Every run in its order, with each verdict on it; then what only raw knows of."""
    attempts: dict[str, list[Attempt]] = {}
    for attempt in case.attempts:
        attempts.setdefault(attempt.run.run_id, []).append(attempt)
    for registered, at in case.registered:
        run_id = registered.run.run_id
        yield (
            f"{registered.ordinal}",
            f"{run_id}, {_size(registered)}, registered {format_instant(at)}{_in_raw(case, run_id)}",
        )
        for attempt in attempts.get(run_id, ()):
            yield "", describe_verdict(attempt)
        if run_id not in attempts:
            yield "", "awaits its verdict"
    for run_id, found in case.unregistered.items():
        told = (
            f"damaged: {found.problem}" if isinstance(found, DamagedRun) else f"{count_of(found.record_count, 'row')}"
        )
        yield "-", f"{run_id}, sealed and not registered, {told}"
    if case.sealed is None:
        yield "", f"raw runs cannot be seen from here: there is no folder {settings.raw_root}"
    elif not case.registered and not case.sealed:
        yield "", "none is registered, and nothing is sealed"


def _size(registered: RegisteredRun) -> str:
    return "damaged" if registered.record_count is None else count_of(registered.record_count, "row")


def _in_raw(case: PartitionReport, run_id: str) -> str:
    """What is wrong with it now; registered runs are never deleted by us."""
    if case.sealed is None:
        return ""
    found = case.sealed.get(run_id)
    if found is None:
        return "; its raw data is gone"
    return f"; damaged: {found.problem}" if isinstance(found, DamagedRun) else ""


def describe_verdict(attempt: Attempt) -> str:
    """The verdict, what it did, when, and why; a message need not name its run here."""
    did = attempt.effect.replace("_", " ")
    effect = "" if str(attempt.effect) == str(attempt.outcome) else f", {did}"
    again = f" ({attempt.validation_id})" if attempt.validation_id else ""
    why = (attempt.error_message or "").removeprefix(f"{attempt.run}: ")
    said = f": {attempt.error_class}: {why}" if attempt.error_class else ""
    return f"{attempt.outcome}{effect}{again} at {format_instant(attempt.judged_at)}{said}"


def _act_words(act: PartitionAction) -> tuple[str, str]:
    return format_instant(act.performed_at), f"{act.action} by {act.operator} ({act.command}), was {act.status_before}: {act.reason}"


def _events(events: Sequence[LoggedEvent]) -> Iterator[tuple[str, str]]:
    names = shorten_names(list(dict.fromkeys(logged.event.run_id for logged in events)))
    for logged in events:
        words = f"{names[logged.event.run_id]}  {logged.event.event_type}  {format_event_data(logged.event.event_data)}"
        yield format_instant(logged.persisted_at), words.rstrip()
    if not events:
        yield "", "none is kept"


def _section(paper: OutputConsole, heading: str, lines: Iterable[tuple[str, str]]) -> None:
    table = new_grid("")
    for place, words in lines:
        table.add_row(cell(place), cell(words))
    paper.print(Text(""), Text(heading, style="bold"), table, sep="\n")


def new_grid(style: str) -> Table:
    table = Table.grid(padding=CELL_PADDING)
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _fields(case: PartitionReport) -> dict[str, Any]:
    """What `state inspect` says of it, and all the rest."""
    gap, pointer = case.gap, case.pointer
    return (
        state_fields(case.state, case.staleness)
        | case.forecast.json_fields()
        | {
            "recorded": case.publication is not None,
            "safe": case.is_safe,
            "readers_see": None if gap or pointer is None else _of_run(pointer),
            "missing_because": gap and gap.reason.value,
            "runs": [_of_run(registered) | {"registered_at": iso_instant(at)} for registered, at in case.registered],
            "attempts": [_of_run(attempt) for attempt in case.attempts],
            "not_registered": None if case.sealed is None else list(case.unregistered),
            "acts": [_plain(asdict(act)) for act in case.actions],
            "events": [event_to_json(logged) for logged in case.events],
            "next": list(next_steps(case.facts)),
        }
    )


def _of_run(value: Pointer | RegisteredRun | Attempt) -> dict[str, Any]:
    own = {name: field for name, field in asdict(value).items() if name != "run"}
    return {"run_id": value.run.run_id} | _plain(own)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: iso_instant(value) if isinstance(value, datetime) else value for name, value in fields.items()}
