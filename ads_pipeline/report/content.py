"""Collects the facts of the report: the condition of each customer's days in each query, with reasons and figures.

`document` writes them as a page. The conditions are defined in `domain.readability`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

from ads_pipeline.domain.partition import PartitionKey, days_between
from ads_pipeline.domain.readability import (
    CONDITIONS,
    READABLE_CONDITIONS,
    Condition,
    DayFacts,
    Expectation,
    ParkedSource,
    describe_day,
    find_condition,
)
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.state.day_facts import read_day_facts, read_first_days
from ads_pipeline.ledger.state.restatements import read_restatements
from ads_pipeline.pipeline.day_conditions import find_parked

MICROS: Final = 1_000_000
LETTERS: Final[Mapping[Condition, str]] = {condition: chr(ord("a") + n) for n, condition in enumerate(CONDITIONS)}
_READABLE_LETTERS: Final = frozenset(LETTERS[condition] for condition in READABLE_CONDITIONS)
# Sums a column per visible partition: (customer, day) -> sum. Empty when the query has no such column.
SumPerDay = Callable[[str, str, date, date], Mapping[tuple[str, date], int]]
CurrencyOf = Callable[[PartitionKey], str]  # from the seal of a readable partition


class Note(NamedTuple):
    """Why one day needs an operator: since when (in seconds), the number of the reason, the attempts, and by whom."""

    since: int
    reason: int
    attempts: int
    operator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryContent:
    """The days of one query. Each list has one entry per customer, in the order of `ReportContent.customers`.

    `cells` has a letter a day. `rows` and `cost` have the difference from the day before that has a number, or None.
    """

    name: str
    cells: list[str]
    notes: dict[str, Note]
    rows: list[list[int | None]]
    cost: list[list[int | None]] | None
    restatements: list[tuple[int, int, int, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContent:
    """All facts of the report."""

    source: str
    generated_at: datetime
    first_day: date
    days: int
    customers: list[tuple[str, str]]  # id and currency
    queries: list[QueryContent]
    reasons: list[str]
    counts: dict[Condition, int]


@dataclass(slots=True)
class _Reasons:
    """Numbers equal texts alike, because thousands of days share a reason."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReader:
    """Reads the report's facts. The sums and currencies come from the warehouse and the seals."""

    ledger: LedgerReader
    source: str
    sum_per_day: SumPerDay
    currency_of: CurrencyOf

    def read(self, query_names: Sequence[str], *, since: date, until: date, now: datetime) -> ReportContent:
        """Read the days up to `until`, from `since` or the first sealed day, of all customers with a sealed run."""
        first_days = read_first_days(self.ledger.engine, self.source)
        customers = sorted(first_days)
        since = min(max(since, min(first_days.values(), default=since)), until)
        parkings = self.ledger.retry_queue.list_parkings(self.source)
        days = list(days_between(since, until))
        expectations = [Expectation(first_day=first_days[each]) for each in customers]
        reasons, counts = _Reasons(), dict.fromkeys(Condition, 0)
        queries = []
        for name in query_names:
            facts = self._read_facts(name, since, until)
            parked = find_parked(parkings, name, customers)
            builder = _QueryBuilder(days=days, parkings=parked, reasons=reasons, counts=counts, now=now)
            cells = [
                builder.add_customer(number, facts.get(customer, {}), expectations[number], customer)
                for number, customer in enumerate(customers)
            ]
            queries.append(self._build_query(name, cells, builder, facts, customers, days))
        return ReportContent(
            source=self.source,
            generated_at=now,
            first_day=since,
            days=len(days),
            customers=[
                (customer, self._find_currency(number, customer, queries, since))
                for number, customer in enumerate(customers)
            ],
            queries=queries,
            reasons=list(reasons.numbers),
            counts=counts,
        )

    def _read_facts(self, name: str, since: date, until: date) -> dict[str, dict[date, DayFacts]]:
        facts: dict[str, dict[date, DayFacts]] = {}
        rows = read_day_facts(self.ledger.engine, source=self.source, query_name=name, since=since, until=until)
        for row in rows:
            facts.setdefault(row.customer_id, {})[row.logical_date] = row
        return facts

    def _find_currency(self, number: int, customer: str, queries: Iterable[QueryContent], first: date) -> str:
        """The currency of the customer's newest readable day; empty when there is none."""
        for query in queries:
            position = max(query.cells[number].rfind(letter) for letter in _READABLE_LETTERS)
            if position >= 0:
                day = first + timedelta(days=position)
                key = PartitionKey(source=self.source, customer_id=customer, query_name=query.name, logical_date=day)
                return self.currency_of(key)
        return ""

    def _build_query(
        self,
        name: str,
        cells: list[str],
        builder: "_QueryBuilder",
        facts: Mapping[str, Mapping[date, DayFacts]],
        customers: Sequence[str],
        days: Sequence[date],
    ) -> QueryContent:
        rows = [
            _differences(
                facts[customer][day].record_count if cell in _READABLE_LETTERS else None
                for day, cell in zip(days, cells[number], strict=True)
            )
            for number, customer in enumerate(customers)
        ]
        sums = self.sum_per_day(name, "cost_micros", days[0], days[-1])
        cost = [_differences(_in_units(sums.get((customer, day))) for day in days) for customer in customers]
        numbers = {customer: number for number, customer in enumerate(customers)}
        restated = read_restatements(
            self.ledger.engine, source=self.source, query_name=name, since=days[0], until=days[-1]
        )
        restatements = [
            (
                numbers[each.customer_id],
                (each.logical_date - days[0]).days,
                int(each.loaded_at.timestamp()),
                each.rows_before,
                each.rows_after,
            )
            for each in restated
            if each.customer_id in numbers
        ]
        return QueryContent(
            name=name,
            cells=cells,
            notes=builder.notes,
            rows=rows,
            cost=cost if sums else None,
            restatements=restatements,
        )


@dataclass(slots=True, kw_only=True)
class _QueryBuilder:
    """Finds the condition of each day of a query, and notes the days that need an operator."""

    days: Sequence[date]
    parkings: Mapping[str, ParkedSource]
    reasons: _Reasons
    counts: dict[Condition, int]
    now: datetime
    notes: dict[str, Note] = field(default_factory=dict)

    def add_customer(
        self, number: int, facts: Mapping[date, DayFacts], expectation: Expectation, customer: str
    ) -> str:
        """Return one letter a day."""
        letters = []
        parked = self.parkings.get(customer)
        for position, day in enumerate(self.days):
            recorded = facts.get(day)
            condition = find_condition(recorded, day, expectation, is_parked=parked is not None, now=self.now)
            letters.append(LETTERS[condition])
            self.counts[condition] += 1
            if CONDITIONS[condition].needs_operator:
                found = describe_day(recorded, day, expectation, parked=parked, now=self.now)
                note = int(found.since.timestamp()), self.reasons.number(found.reason), found.attempts, found.operator
                self.notes[f"{number},{position}"] = Note._make(note)
        return "".join(letters)


def _differences(values: Iterable[int | None]) -> list[int | None]:
    last, differences = 0, list[int | None]()
    for value in values:
        differences.append(None if value is None else value - last)
        last = last if value is None else value
    return differences


def _in_units(micros: int | None) -> int | None:
    return None if micros is None else round(micros / MICROS)
