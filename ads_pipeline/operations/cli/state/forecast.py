"""Shows when a partition needs its next run, and what prevents it. The rule is in `retry_forecast`."""

from collections.abc import Iterable, Mapping

from ads_pipeline.domain.fetching.retry_forecast import RetryForecast
from ads_pipeline.domain.fetching.retry_policy import Parked
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.operations.cli.command_line.output import format_instant, iso_instant


def describe_forecast(forecast: RetryForecast) -> dict[str, str]:
    """Labelled texts for people. Labels without content are absent."""
    texts = {} if forecast.holder is None else {"claim": str(forecast.holder)}
    if request := forecast.request:
        texts["requested"] = f"{request.kind} at {format_instant(request.requested_at)}, action {request.action_id}"
    if forecast.parkings:
        texts["parked"] = "; ".join(map(str, forecast.parkings))
    if forecast.holds:
        texts["on hold"] = "; ".join(map(str, forecast.holds))
    next_retry = _describe_next_retry(forecast)
    return texts | {"next retry": next_retry} if next_retry else texts


def describe_forecasts(forecasts: Mapping[PartitionKey, RetryForecast]) -> Iterable[tuple[PartitionKey, str]]:
    """One line per partition that has anything to describe."""
    for key, forecast in forecasts.items():
        line = "; ".join(f"{label}: {text}" for label, text in describe_forecast(forecast).items())
        if line:
            yield key, line


def forecast_fields(forecast: RetryForecast) -> dict[str, object]:
    """The JSON fields of a forecast."""
    request, terminal, given_up = forecast.request, forecast.terminal, forecast.given_up
    ended = terminal or given_up
    return {
        "next_retry_at": iso_instant(forecast.next_at),
        "next_retry_reason": None if forecast.decision is None else forecast.decision.explanation,
        "terminal": terminal and terminal.reason.value,
        "marked_terminal": forecast.marked,
        "given_up": given_up is not None,
        "terminal_because": ended and ended.explanation,
        "on_hold_until": iso_instant(max((hold.until for hold in forecast.holds), default=None)),
        "requested": request and request.kind,
        "requested_at": iso_instant(request.requested_at if request else None),
        "requested_by_action": request and request.action_id,
        "held_by_run": forecast.holder and forecast.holder.engine_run_id,
        "parked": [f"{parking.scope} {parking.name}" for parking in forecast.parkings],
    }


def _describe_next_retry(forecast: RetryForecast) -> str | None:
    if forecast.terminal:
        return f"none, terminal: {forecast.terminal.explanation}"
    if forecast.marked:
        return "none, marked as terminal"
    if forecast.given_up:
        return f"none, given up: {forecast.given_up.explanation}"
    if isinstance(forecast.decision, Parked):
        return f"none: {forecast.decision.explanation}"
    if forecast.next_at is None:
        return None
    explanation = f" ({forecast.decision.explanation})" if forecast.decision else ""
    return f"{'due since ' if forecast.is_due else ''}{format_instant(forecast.next_at)}{explanation}"
