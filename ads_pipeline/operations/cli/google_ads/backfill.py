"""The command `backfill`: the cost of fetching a range of days, before anything is fetched."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from rich.console import RenderableType

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.fetching.retry_policy import Lane
from ads_pipeline.domain.partition import PartitionKey, days_between
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.operations.cli.command_line.options import AsJson, Filters
from ads_pipeline.operations.cli.command_line.output import grid_of, write_results
from ads_pipeline.operations.cli.command_line.parsing import open_ledger, parse_customers, parse_queries
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.extraction.fetch_plan import FetchPlan, plan_fetches
from ads_pipeline.settings.environment import Settings

MAX_PARTITIONS: Final = 5_000_000


def plan_backfill(settings: Settings, filters: Filters, *, again: bool, as_json: AsJson) -> None:
    """Print the plan of a backfill."""
    now = datetime.now(UTC)
    with open_ledger(settings) as ledger:
        accounts = ledger.accounts.by_id(settings.google_apis.source)
        days = AccountDays(apis=settings.google_apis, accounts=accounts, now=now)
        plan = plan_fetches(ledger, days, _keys(settings, filters, ledger, now.date()), again=again)
    write_results([_json_fields(plan)], _blocks(plan), _notes(plan), as_json=as_json)


def _keys(settings: Settings, filters: Filters, ledger: LedgerReader, today: date) -> Iterator[PartitionKey]:
    source, window = settings.google_apis.source, filters.days
    since = max(window.since or settings.google_apis.start_date, settings.google_apis.start_date)
    until = min(window.until or today, today - timedelta(days=1))
    names = parse_queries(filters.query, settings)
    customers = parse_customers(filters.customer) or _find_customers(ledger, source)
    if not customers:
        raise BadCommand('no customer is known: give --customer, or run "ads-pipeline accounts discover"')
    if until < since:
        raise BadCommand(f"no day from {since} to {until} can be fetched; days end with yesterday")
    dates = list(days_between(since, until))
    if (number := len(dates) * len(names) * len(customers)) > MAX_PARTITIONS:
        raise BadCommand(f"{number:,} partitions are more than {MAX_PARTITIONS:,}; give --since or --customer")
    return (
        PartitionKey(source=source, customer_id=customer, query_name=name, logical_date=day)
        for customer in customers
        for name in names
        for day in dates
    )


def _find_customers(ledger: LedgerReader, source: str) -> list[str]:
    """The customers that discovery found; without any, those with partitions."""
    accounts = ledger.accounts.list_all(source)
    found = [each.customer_id for each in accounts if not each.is_manager and each.gone_at is None]
    return found or sorted(ledger.states.customers(source))


def _blocks(plan: FetchPlan) -> Iterator[RenderableType]:
    usage, operations = plan.usage, plan.operations
    limit = usage.limits.daily_operations
    yield grid_of(
        [
            ("partitions", f"{plan.partitions:,} to fetch"),
            ("operations", f"{len(plan.ranges):,} ({operations[Lane.FRESH]:,} for fresh days)"),
            ("used", f"{usage.used:,} operations in the last 24 hours"),
            ("left now", _describe_left(plan)),
            ("reserved", usage.reserved and f"{usage.reserved:,} of {limit:,} a day, for fresh days only"),
            (
                "each day",
                f"about {sum(plan.daily_operations.values()):,} operations for yesterday, rereads and discovery",
            ),
            ("finished", _describe_end(plan)),
            *(("skipped", f"{count:,}: {reason}") for reason, count in plan.skipped.items()),
            *(("on hold", f"until {hold.until:%Y-%m-%d %H:%M} UTC: {hold.why}") for hold in usage.holds),
        ],
        style="dim",
    )


def _describe_left(plan: FetchPlan) -> str:
    backfill, fresh = plan.usage.left(Lane.BACKFILL), plan.usage.left(Lane.FRESH)
    if backfill is None or fresh is None:
        return "no limit is set"
    return f"{backfill:,} for backfills, {fresh:,} for fresh days"


def _describe_end(plan: FetchPlan) -> str:
    days = plan.days_to_finish
    if days is None:
        return "never: the daily need uses up the budget; raise daily_operations or fetch fewer queries"
    return f"in about {count_of(days, 'day')}" if days else "today"


def _notes(plan: FetchPlan) -> Iterator[str]:
    if plan.partitions:
        yield "request the days with: ads-pipeline state enqueue, or start a backfill in Dagster's UI"


def _json_fields(plan: FetchPlan) -> dict[str, Any]:
    usage = plan.usage
    return {
        "partitions": plan.partitions,
        "operations": len(plan.ranges),
        "fresh_operations": plan.operations[Lane.FRESH],
        "used": usage.used,
        "daily_limit": usage.limits.daily_operations,
        "left_for_backfills": usage.left(Lane.BACKFILL),
        "left_for_fresh": usage.left(Lane.FRESH),
        "reserved_for_fresh": usage.reserved,
        "daily_need": sum(plan.daily_operations.values()),
        "days_to_finish": plan.days_to_finish,
        "skipped": dict(plan.skipped),
    }
