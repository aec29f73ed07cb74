"""Checks the arguments of a control action: the request, the selected partitions, customers and queries.

Every mistake is reported before anything changes. `confirmation` shows and confirms what the action will change.
"""

import difflib
import getpass
import shlex
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ads_pipeline.cli import options
from ads_pipeline.cli.parsing import parse_customers, parse_filter, parse_partition, parse_queries, parse_window
from ads_pipeline.domain.partition import PartitionKey, validate_name
from ads_pipeline.errors import BadCommand, BadName
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import ActionRequest, StateFilter
from ads_pipeline.settings import Settings

SUGGESTIONS_SHOWN: Final = 5  # known names, listed when none is similar to the given one
PARTITIONS_AND_OPTIONS: Final = "give either partitions or the options that select them, not both"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionArguments:
    """The arguments and options of the action commands, in the order of their help.

    `command_line` is the command exactly as typed, for the log. Only retry takes `error_class`, `clear_terminal` and
    `force`, and only restore takes `run_id`.
    """

    command_line: str
    partitions: options.Partitions = None
    reason: options.Reason
    run_id: options.RunId = None
    customer: options.Customers = None
    query: options.Queries = None
    since: options.Since = None
    until: options.Until = None
    error_class: options.ErrorClass = None
    all_partitions: options.AllPartitions = False
    clear_terminal: options.ClearTerminal = False
    force: options.Force = False
    dry_run: options.DryRun = False
    yes: options.Yes = False
    operator: options.Operator = None
    as_json: options.AsJson = False

    @property
    def filters(self) -> str:
        """The filtering options, quoted for a shell."""
        pairs = [("--customer", value) for value in self.customer or ()]
        pairs += [("--query", value) for value in self.query or ()]
        single = ("--since", self.since), ("--until", self.until), ("--error-class", self.error_class)
        pairs += [(option, value) for option, value in single if value is not None]
        return shlex.join(word for pair in pairs for word in pair)


def build_request(arguments: ActionArguments) -> ActionRequest:
    """Build the request with a new id. Raises BadCommand when the reason or the operator is empty."""
    if not arguments.reason.strip():
        raise BadCommand("--reason is empty: give the reason; it is logged with the action")
    return ActionRequest(
        action_id=str(uuid.uuid4()),
        operator=_operator_name(arguments.operator),
        command=arguments.command_line,
        reason=arguments.reason,
        filters=arguments.filters,
    )


def select_partitions(
    arguments: ActionArguments, settings: Settings, ledger: LedgerReader
) -> StateFilter | list[PartitionKey]:
    """The given partitions, or the filter that selects them. Raises BadCommand unless exactly one way is used."""
    has_filters = bool(arguments.filters)
    if arguments.partitions and (has_filters or arguments.all_partitions):
        raise BadCommand(PARTITIONS_AND_OPTIONS)
    if arguments.all_partitions and has_filters:
        raise BadCommand("--all selects every partition: give either --all or filters, not both")
    if arguments.partitions:
        return find_recorded_partitions(arguments.partitions, settings, ledger)
    if not has_filters and not arguments.all_partitions:
        raise BadCommand(
            "no partition is selected: give partitions, or --customer, --query, --since or --until, or --all"
        )
    return build_filter(
        settings,
        ledger,
        customer=arguments.customer,
        query=arguments.query,
        since=arguments.since,
        until=arguments.until,
    )


def list_partitions_to_enqueue(
    arguments: ActionArguments, settings: Settings, ledger: LedgerReader
) -> list[PartitionKey]:
    """The given partitions, or each day of each selected query and customer. They need not be recorded."""
    if arguments.partitions:
        if arguments.filters or arguments.all_partitions:
            raise BadCommand(PARTITIONS_AND_OPTIONS)
        return [_parse_partition_of_source(word, settings) for word in dict.fromkeys(arguments.partitions)]
    days = parse_window(arguments.since, arguments.until)
    if days.since is None or days.until is None:
        raise BadCommand("the days are missing: give --since and --until")
    if days.until > datetime.now(UTC).date():
        raise BadCommand(f"--until {days.until} is in the future: there is no data for that day yet")
    apis, source = settings.google_apis, settings.google_apis.source
    first = max(days.since, apis.start_date)
    return [
        PartitionKey(source=source, customer_id=customer, query_name=name, logical_date=first + timedelta(days=day))
        for customer in parse_customers(arguments.customer) or ledger.states.customers(source)
        for name in parse_queries(arguments.query, settings)
        for day in range((days.until - first).days + 1)
    ]


def find_recorded_partitions(given: Iterable[str], settings: Settings, ledger: LedgerReader) -> list[PartitionKey]:
    """Parse partitions, each once. Raises BadName for one of another source or without a state row."""
    keys = [_parse_partition_of_source(word, settings) for word in dict.fromkeys(given)]
    for key, state in ledger.states.get_many(keys).items():
        if state.recorded_status is None:
            raise BadName(
                "partition", str(key), 'the ledger does not record it; "ads-pipeline state inspect" lists partitions'
            )
    return list(dict.fromkeys(keys))


def build_filter(
    settings: Settings,
    ledger: LedgerReader,
    *,
    customer: Sequence[str] | None,
    query: Sequence[str] | None,
    since: str | None,
    until: str | None,
) -> StateFilter:
    """Build the filter. Raises BadName for a customer without partitions or a query that is not defined."""
    for name in query or ():
        settings.query(name)
    selection = parse_filter(settings, customer=customer, query=query, since=since, until=until)
    if selection.customer_ids:
        check_customers(sorted(selection.customer_ids), settings, ledger)
    return selection


def check_customers(given: Iterable[str], settings: Settings, ledger: LedgerReader) -> None:
    """Raise BadName for a customer without any partition, so that a mistyped id does not silently match nothing."""
    known = ledger.states.customers(settings.google_apis.source)
    for customer in given:
        validate_name("customer_id", customer)
        if customer not in known:
            raise BadName(
                "customer_id", customer, f"the ledger records no partition of it; {suggest(customer, known)}"
            )


def suggest(word: str, known: Sequence[str]) -> str:
    """The most similar known name, or else the first few."""
    similar = difflib.get_close_matches(word, known, n=1)
    if similar:
        return f"did you mean {similar[0]}?"
    more = f" and {len(known) - SUGGESTIONS_SHOWN:,} more" if len(known) > SUGGESTIONS_SHOWN else ""
    return f"known are {', '.join(known[:SUGGESTIONS_SHOWN])}{more}" if known else "none is known"


def _parse_partition_of_source(word: str, settings: Settings) -> PartitionKey:
    key, source = parse_partition(word, settings), settings.google_apis.source
    if key.source != source:
        raise BadName("partition", word, f"{settings.queries_file} defines the source {source}")
    return key


def _operator_name(given: str | None) -> str:
    if given is not None:
        if not given.strip():
            raise BadCommand("--operator is empty: give the name of the person who requests the action")
        return given
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:  # a container may run under a user id without a name
        raise BadCommand("the login name is unknown: give your name by --operator") from error
