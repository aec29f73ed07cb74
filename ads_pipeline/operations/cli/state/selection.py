"""The options that select what an action changes, and the checks of partitions, customers and queries.

Every mistake is reported before anything changes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from typing import Any, Final

from ads_pipeline.domain.days.conditions import NEEDS_OPERATOR
from ads_pipeline.domain.days.day_ranges import expand
from ads_pipeline.domain.errors import BadCommand, BadName
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.partition import PartitionKey, days_between, validate_name
from ads_pipeline.domain.quoting import suggest
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline.operations.cli.command_line import options
from ads_pipeline.operations.cli.command_line.parsing import (
    parse_customer,
    parse_customers,
    parse_partition,
    parse_queries,
)
from ads_pipeline.operations.cli.state.attention import find_listed_ranges
from ads_pipeline.pipeline.actions.action_preview import Selection
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days
from ads_pipeline.settings.environment import Settings

_NAME_FIELDS: Final = {"query": "query_name", "source": "source"}
FILTERS_AND_ALL: Final = "--all selects every partition: give either --all or filters, not both"
NOTHING_SELECTED: Final = (
    "no partition is selected: give partitions, or --customer, --query, --since or --until, or --all"
)
PARTITIONS_AND_OPTIONS: Final = "give either partitions or the options that select them, not both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The targets of an action, the own options of its preview, and warnings that need a confirmation."""

    selection: Selection
    preview_options: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedPartitions:
    """Recorded partitions, given by name or by filters. The text is the filters as a shell reads them."""

    partitions: options.Partitions = None
    filters: options.Filters
    all_partitions: options.AllPartitions = False

    def __str__(self) -> str:
        return str(self.filters)

    def find(self, settings: Settings, ledger: LedgerReader) -> Targets:
        """The selected partitions. Raises BadCommand unless exactly one way is used, BadName for an unknown name."""
        self.require_one_way()
        if self.partitions:
            return Targets(selection=find_recorded_partitions(self.partitions, settings, ledger))
        return Targets(selection=select_known(self.filters, settings, ledger))

    def require_one_way(self) -> None:
        """Raise BadCommand unless exactly one of partitions, filters and --all is given."""
        if self.partitions and (str(self) or self.all_partitions):
            raise BadCommand(PARTITIONS_AND_OPTIONS)
        if self.all_partitions and str(self):
            raise BadCommand(FILTERS_AND_ALL)
        if not (self.partitions or str(self) or self.all_partitions):
            raise BadCommand(NOTHING_SELECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFilters(options.Filters):
    error_class: options.ErrorClass = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresToRetry(SelectedPartitions):
    """Failed partitions."""

    filters: FailureFilters
    clear_terminal: options.ClearTerminal = False
    force: options.Force = False

    def find(self, settings: Settings, ledger: LedgerReader) -> Targets:
        error_class = self.filters.error_class
        if error_class is not None:
            validate_name("error_class", error_class)
        raw = None if self.force else RawRuns(settings.raw_location, is_in_use=ledger.runs.exist)
        own = {"error_class": error_class, "clear_terminal": self.clear_terminal, "raw": raw}
        return replace(SelectedPartitions.find(self, settings, ledger), preview_options=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsToRestore(SelectedPartitions):
    """Partitions with an earlier run, or one partition and its run."""

    run_id: options.RunId = None

    def find(self, settings: Settings, ledger: LedgerReader) -> Targets:
        found = SelectedPartitions.find(self, settings, ledger)
        if self.run_id is None:
            return found
        if not isinstance(found.selection, list) or len(found.selection) != 1:
            raise BadCommand("--run needs exactly one partition: the one that the run belongs to")
        (key,) = found.selection
        known = [registered.run.run_id for registered in ledger.runs.registered(key)]
        if validate_name("run_id", self.run_id) not in known:
            raise BadName("run_id", self.run_id, f"{key} has no such run; {suggest(self.run_id, known)}")
        return replace(found, preview_options={"run_id": self.run_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsToEnqueue(SelectedPartitions):
    """Partitions that need not be recorded: the given ones, or each day of each selected query and customer."""

    def find(self, settings: Settings, ledger: LedgerReader) -> Targets:
        known = ledger.states.customers(settings.google_apis.source)
        if self.partitions:
            self.require_one_way()
            found: Iterable[PartitionKey] = [parse_own(word, settings) for word in dict.fromkeys(self.partitions)]
        else:
            found = self._list_days(settings, parse_customers(self.filters.customer) or known)
        rules = DayRules.read(ledger, settings, now=datetime.now(UTC))
        keys = [require_possible(key, settings, rules) for key in found]
        new = sorted({key.customer_id for key in keys} - set(known))
        problem = "the ledger records no partition of it"
        warnings = [f"customer {customer} is new: {problem}; {suggest(customer, known)}" for customer in new]
        return Targets(selection=keys, warnings=warnings)

    def _list_days(self, settings: Settings, customers: Sequence[str]) -> Iterator[PartitionKey]:
        """Each day of each selected query and of these customers. Stop at the first impossible one."""
        days, source = self.filters.days, settings.google_apis.source
        if days.since is None or days.until is None:
            raise BadCommand("the days are missing: give --since and --until")
        if not customers:
            raise BadCommand("the ledger has no customer yet: give --customer")
        for customer, name in product(customers, parse_queries(self.filters.query, settings)):
            for day in days_between(days.since, days.until):
                yield PartitionKey(source=source, customer_id=customer, query_name=name, logical_date=day)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaysToAcknowledge(SelectedPartitions):
    """Days that need an operator, also without a run: the given ones, or those that the filters select."""

    def find(self, settings: Settings, ledger: LedgerReader) -> Targets:
        self.require_one_way()
        if self.partitions:
            rules = DayRules.read(ledger, settings, now=datetime.now(UTC))
            words = dict.fromkeys(self.partitions)
            keys = [require_possible(parse_own(word, settings), settings, rules) for word in words]
            days = describe_days(ledger, keys, rules)
        else:
            selection = select_known(self.filters, settings, ledger)
            days = dict(expand(find_listed_ranges(settings, ledger, selection, NEEDS_OPERATOR)))
        return Targets(selection=list(days), preview_options={"days": days})


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountOrQuery:
    """One account, one query or the source to park or to release."""

    customer: options.OneCustomer = None
    query: options.OneQuery = None
    source: options.OneSource = None

    def __str__(self) -> str:
        return options.join_options(self)

    def find(self, settings: Settings, ledger: LedgerReader) -> Targets:
        """Raises BadCommand unless one is given, and BadName for one that is neither known nor parked."""
        options_given = {"customer": self.customer, "query": self.query, "source": self.source}
        given = [(scope, value) for scope, value in options_given.items() if value is not None]
        if len(given) != 1:
            raise BadCommand(
                "give one of them: an account by --customer, a query by --query, or the source by --source"
            )
        ((scope, value),) = given
        source = settings.google_apis.source
        name = parse_customer(value) if scope == "customer" else validate_name(_NAME_FIELDS[scope], value)
        parkings = ledger.retry_queue.list_parkings(source)
        stopped = {(each.scope, each.name) for each in parkings}
        stopped |= {(each.scope, each.name) for each in ledger.quota.list_holds(source)}
        if (scope, name) in stopped:
            pass  # a parked query may have been removed from the query file since
        elif scope == "customer":
            check_customers([name], settings, ledger)
        elif scope == "query":
            settings.query(name)
        elif name != source:
            raise BadName("source", name, f"{settings.queries_file} defines the source {source}")
        return Targets(selection=Parking(source=source, scope=scope, name=name))


def select_known(filters: options.Filters, settings: Settings, ledger: LedgerReader) -> StateFilter:
    """The filter. Raises BadName also for a customer without partitions, so that a misspelt id is not nothing."""
    selection = filters.select(settings)
    check_customers(sorted(selection.customer_ids or ()), settings, ledger)
    return selection


def find_recorded_partitions(given: Iterable[str], settings: Settings, ledger: LedgerReader) -> list[PartitionKey]:
    """Parse partitions, each once. Raises BadName for one of another source or without a state row."""
    keys = [parse_own(word, settings) for word in dict.fromkeys(given)]
    for key, state in ledger.states.get_many(keys).items():
        if state.recorded_status is None:
            raise BadName(
                "partition", str(key), 'the ledger does not record it; "ads-pipeline state inspect" lists partitions'
            )
    return list(dict.fromkeys(keys))


def require_possible(key: PartitionKey, settings: Settings, rules: DayRules) -> PartitionKey:
    """The key. Raises BadName for a partition that no run can have: its query is not defined, or not its day.

    A day ends in the zone of the account, and in UTC where the zone is not known.
    """
    if key.source != settings.google_apis.source:
        raise BadName(
            "partition", str(key), f"{settings.queries_file} defines the source {settings.google_apis.source}"
        )
    settings.query(key.query_name)
    day, first = key.logical_date, settings.google_apis.start_date
    if day < first:
        rule = f"{settings.queries_file} starts at {first}; give a later day, or change its start_date"
        raise BadName("logical_date", str(day), rule)
    last = rules.last_ended_day(key)
    if day > last:
        raise BadName("logical_date", str(day), f"the day has not ended; the last complete day is {last}")
    return key


def check_customers(given: Iterable[str], settings: Settings, ledger: LedgerReader) -> None:
    """Raise BadName for a customer without any partition, so that a mistyped id does not silently match nothing."""
    unchecked = list(given)
    known = ledger.states.customers(settings.google_apis.source) if unchecked else []
    for customer in unchecked:
        if customer not in known:
            raise BadName(
                "customer_id", customer, f"the ledger records no partition of it; {suggest(customer, known)}"
            )


def parse_own(word: str, settings: Settings) -> PartitionKey:
    """Parse a partition. Raises BadName for one of another source."""
    key, source = parse_partition(word, settings), settings.google_apis.source
    if key.source != source:
        raise BadName("partition", word, f"{settings.queries_file} defines the source {source}")
    return key
