"""Takes an act as it was typed: which partitions are meant, who orders it, why, and in which words.

A word that means nothing is refused here, with what was meant to be there, before anything is changed. What the act
does is `acts`' and `overrule`'s.
"""

import difflib
import getpass
import shlex
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ads_pipeline.cli.parsing import parse_customers, parse_partition, parse_queries, parse_window
from ads_pipeline.domain.partition import PartitionKey, validate_name
from ads_pipeline.errors import BadCommand, BadName
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import ActionRequest, StateFilter
from ads_pipeline.settings import Settings

SUGGESTIONS_SHOWN: Final = 5  # of what is known, where nothing known is near a wrong word


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionArguments:
    """An act as it was typed. `words` are the verb and what stood behind it, to the letter."""

    command_line: str
    reason: str
    operator: str | None = None
    partitions: Sequence[str] = ()
    customer: Sequence[str] = ()
    query: Sequence[str] = ()
    since: str | None = None
    until: str | None = None
    error_class: str | None = None
    all_partitions: bool = False
    yes: bool = False
    dry_run: bool = False
    as_json: bool = False

    @property
    def filters(self) -> str:
        """The options that narrow, as a shell takes them."""
        typed = [("--customer", each) for each in self.customer] + [("--query", each) for each in self.query]
        ends = ("--since", self.since), ("--until", self.until), ("--error-class", self.error_class)
        typed += [(option, value) for option, value in ends if value is not None]
        return shlex.join(word for pair in typed for word in pair)


def build_request(asked: ActionArguments) -> ActionRequest:
    """The order under an id of its own; BadCommand where nobody orders it or nothing is given as the reason."""
    if not asked.reason.strip():
        raise BadCommand("--reason is empty: say why, for whoever reads the log of acts")
    return ActionRequest(
        action_id=str(uuid.uuid4()),
        operator=_operator(asked.operator),
        command=asked.command_line,
        reason=asked.reason,
        filters=asked.filters,
    )


def select_partitions(asked: ActionArguments, settings: Settings, ledger: LedgerReader) -> StateFilter | list[PartitionKey]:
    """The partitions that are named, or the filter that says which; an act on every one is said by --all."""
    narrows = bool(asked.filters)
    if asked.partitions and (narrows or asked.all_partitions):
        raise BadCommand("name partitions, or say by options which are meant, and not both")
    if asked.all_partitions and narrows:
        raise BadCommand("--all means every partition: leave it out, or the options that narrow")
    if asked.partitions:
        return find_recorded_partitions(asked.partitions, settings, ledger)
    if not narrows and not asked.all_partitions:
        raise BadCommand(
            "name partitions, or narrow by --customer, --query, --since or --until; --all if every one is meant"
        )
    return build_filter(
        settings, ledger, customer=asked.customer, query=asked.query, since=asked.since, until=asked.until
    )


def list_partitions_to_enqueue(asked: ActionArguments, settings: Settings, ledger: LedgerReader) -> list[PartitionKey]:
    """The partitions that are named, or every day of every query and customer that is meant, recorded or not."""
    if asked.partitions:
        if asked.filters or asked.all_partitions:
            raise BadCommand("name partitions, or say by options which are meant, and not both")
        return [_of_source(word, settings) for word in dict.fromkeys(asked.partitions)]
    days = parse_window(asked.since, asked.until)
    if days.since is None or days.until is None:
        raise BadCommand("say which days are meant, by --since and --until")
    if days.until > datetime.now(UTC).date():
        raise BadCommand(f"--until {days.until} has not begun yet: there is nothing to report of it")
    apis, source = settings.google_apis, settings.google_apis.source
    first = max(days.since, apis.start_date)
    return [
        PartitionKey(source=source, customer_id=customer, query_name=name, logical_date=first + timedelta(days=day))
        for customer in parse_customers(asked.customer) or ledger.customers(source)
        for name in parse_queries(asked.query, settings)
        for day in range((days.until - first).days + 1)
    ]


def find_recorded_partitions(given: Iterable[str], settings: Settings, ledger: LedgerReader) -> list[PartitionKey]:
    """The partitions of these names, each once; BadName for one that is another source's or not recorded."""
    found = [_of_source(word, settings) for word in dict.fromkeys(given)]
    for key, state in ledger.states(found).items():
        if state.recorded_status is None:
            raise BadName(
                "partition", str(key), 'the ledger holds no such one; "ads-pipeline state inspect" lists them'
            )
    return list(dict.fromkeys(found))


def build_filter(
    settings: Settings,
    ledger: LedgerReader,
    *,
    customer: Sequence[str] | None,
    query: Sequence[str] | None,
    since: str | None,
    until: str | None,
) -> StateFilter:
    """The filter; BadName for a customer of whom nothing is recorded, or a query that the query file lacks."""
    days = parse_window(since, until)
    named_customers = parse_customers(customer)
    for each in query or ():
        settings.query(each)
    if named_customers:
        check_customers(named_customers, settings, ledger)
    return StateFilter(
        source=settings.google_apis.source,
        customer_ids=frozenset(named_customers) if named_customers else None,
        query_names=frozenset(query) if query else None,
        since=days.since,
        until=days.until,
    )


def check_customers(given: Iterable[str], settings: Settings, ledger: LedgerReader) -> None:
    """BadName for a customer of whom nothing is recorded: an act on it would do nothing without a word."""
    known = ledger.customers(settings.google_apis.source)
    for each in given:
        validate_name("customer_id", each)
        if each not in known:
            raise BadName("customer_id", each, f"the ledger holds no partition of it; {suggest(each, known)}")


def suggest(word: str, known: Sequence[str]) -> str:
    """What may have been meant."""
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    more = f" and {len(known) - SUGGESTIONS_SHOWN:,} more" if len(known) > SUGGESTIONS_SHOWN else ""
    return f"known are {', '.join(known[:SUGGESTIONS_SHOWN])}{more}" if known else "none is known"


def _of_source(word: str, settings: Settings) -> PartitionKey:
    """The partition of that name; BadName for one that is another source's."""
    key, source = parse_partition(word, settings), settings.google_apis.source
    if key.source != source:
        raise BadName("partition", word, f"{settings.queries_file} is for the source {source}")
    return key


def _operator(given: str | None) -> str:
    if given is not None:
        if not given.strip():
            raise BadCommand("--operator is empty: say who orders the act")
        return given
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:  # a container may run under a number that has no name
        raise BadCommand("nobody is logged in here by name: say who you are by --operator") from error
