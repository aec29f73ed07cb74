"""Collects the facts of the report: the condition of each customer's days in each query, with reasons and figures.

`document` writes them as a page. The conditions are defined in `conditions`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

from ads_pipeline.domain.days.conditions import CONDITIONS, READABLE_CONDITIONS, Condition
from ads_pipeline.domain.days.day_facts import Acknowledgement, DayFacts
from ads_pipeline.domain.days.expectation import Expectation
from ads_pipeline.domain.days.readability import DayCondition, ParkedSource, describe_day, find_condition, find_report
from ads_pipeline.domain.days.settlement import ReportState
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey, days_between
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.pipeline.days.day_conditions import NONE_EXPECTED, DayRules, find_parked
from ads_pipeline.pipeline.days.next_steps import DAYS, find_next_commands

MICROS: Final = 1_000_000
LETTERS: Final[Mapping[Condition, str]] = {condition: chr(ord("a") + n) for n, condition in enumerate(CONDITIONS)}
REPORT_LETTERS: Final = {None: " ", ReportState.PROVISIONAL: "p", ReportState.SETTLED: "s"}
_READABLE_LETTERS: Final = frozenset(LETTERS[condition] for condition in READABLE_CONDITIONS)
# Sums a column per visible partition: (customer, day) -> sum. Empty when the query has no such column.
SumPerDay = Callable[[str, str, date, date], Mapping[tuple[str, date], int]]
CurrencyOf = Callable[[PartitionKey], str]  # from the seal of a readable partition


class Note(NamedTuple):
    """A day that needs an operator or is not readable: its time in seconds, reason, attempts, operator and command.

    The reason and the command are numbers of texts in `ReportContent.texts`.
    """

    since: int
    reason: int
    attempts: int
    operator: str
    command: int


class CustomerContent(NamedTuple):
    """A customer: its number, and its currency and name as far as the ledger or a seal knows them."""

    id: str
    currency: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryContent:
    """The days of one query. Each list has one entry per customer, in the order of `ReportContent.customers`.

    `cells` has a letter a day, and so has `reports`: "p" for a provisional report, "s" for a settled one. `rows` and
    `cost` have the difference from the day before that has a number, or None. A restatement has customer, day and
    time, then rows, cost and conversions, each before and after.
    """

    name: str
    cells: list[str]
    reports: list[str]
    notes: dict[str, Note]
    rows: list[list[int | None]]
    cost: list[list[int | None]] | None
    restatements: list[tuple[int | float | None, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContent:
    """All facts of the report."""

    source: str
    generated_at: datetime
    first_day: date
    days: int
    customers: list[CustomerContent]
    queries: list[QueryContent]
    texts: list[str]
    counts: dict[Condition, int]
    single: list[str] = field(
        default_factory=list
    )  # which days are not expected, beside single days that were fetched


@dataclass(slots=True)
class _Texts:
    """Numbers equal texts alike, because thousands of days share a reason or a command."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReader:
    """Reads the report's facts. The sums and currencies come from the warehouse and the seals.

    `rules` are as of the time of the report, and have its queries.
    """

    ledger: LedgerReader
    source: str
    rules: DayRules
    retry_policy: RetryPolicy
    sum_per_day: SumPerDay
    currency_of: CurrencyOf
    command: Callable[[str], str] = str  # as it works in any shell

    def read(self, *, since: date, until: date) -> ReportContent:
        """Read the days up to `until`, from `since` or the first fetched day, of all customers with one."""
        first_days = self.ledger.days.first_days(self.source)
        customers = first_days.customers
        since = min(max(since, first_days.earliest or since), until)
        parkings = self.ledger.retry_queue.list_parkings(self.source)
        days = list(days_between(since, until))
        texts, counts = _Texts(), dict.fromkeys(Condition, 0)
        queries = []
        for name in self.rules.due_after:
            window = DayWindow(source=self.source, query_name=name, since=since, until=until)
            facts = self._read_facts(window)
            starts = first_days.of_query(name)
            parked = find_parked(parkings, name, customers)
            builder = _QueryBuilder(
                window=window,
                days=days,
                texts=texts,
                counts=counts,
                now=self.rules.now,
                acknowledged=self.ledger.days.acknowledged(window),
            )
            cells = [
                builder.add_customer(
                    customer,
                    facts.get(customer, {}),
                    self.rules.expect(customer, name, starts.get(customer, NONE_EXPECTED)),
                    parked.get(customer),
                )
                for customer in customers
            ]
            found = find_next_commands(self.ledger, builder.described, self.retry_policy, name=lambda _: DAYS)
            commands = {key: self.command(text) for key, text in found.items()}
            notes = builder.notes(commands, {customer: number for number, customer in enumerate(customers)})
            queries.append(self._build_query(window, builder, cells, notes, facts, customers))
        return ReportContent(
            source=self.source,
            generated_at=self.rules.now,
            first_day=since,
            days=len(days),
            customers=[
                self._describe_customer(number, customer, queries, since) for number, customer in enumerate(customers)
            ],
            queries=queries,
            texts=list(texts.numbers),
            counts=counts,
            single=first_days.describe_single(self.rules.due_after, since),
        )

    def _read_facts(self, window: DayWindow) -> dict[str, dict[date, DayFacts]]:
        facts: dict[str, dict[date, DayFacts]] = {}
        for row in self.ledger.days.facts(window):
            facts.setdefault(row.customer_id, {})[row.logical_date] = row
        return facts

    def _describe_customer(
        self, number: int, customer: str, queries: Iterable[QueryContent], first: date
    ) -> CustomerContent:
        account = self.rules.accounts.accounts.get(customer) if self.rules.accounts else None
        currency = account and account.currency_code
        return CustomerContent(
            id=customer,
            currency=currency or self._find_currency(number, customer, queries, first),
            name=(account and account.name) or "",
        )

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
        window: DayWindow,
        builder: "_QueryBuilder",
        cells: list[str],
        notes: dict[str, Note],
        facts: Mapping[str, Mapping[date, DayFacts]],
        customers: Sequence[str],
    ) -> QueryContent:
        days = builder.days
        rows = [
            _differences(
                facts[customer][day].record_count if cell in _READABLE_LETTERS else None
                for day, cell in zip(days, cells[number], strict=True)
            )
            for number, customer in enumerate(customers)
        ]
        sums = self.sum_per_day(window.query_name, "cost_micros", window.since, window.until)
        cost = [_differences(_in_units(sums.get((customer, day))) for day in days) for customer in customers]
        numbers = {customer: number for number, customer in enumerate(customers)}
        restatements = [
            (
                numbers[each.key.customer_id],
                (each.key.logical_date - window.since).days,
                int(each.judged_at.timestamp()),
                *(each.before.rows, each.after.rows),
                *(_in_cents(figures.measures.cost_micros) for figures in (each.before, each.after)),
                *(_rounded(figures.measures.conversions) for figures in (each.before, each.after)),
            )
            for each in self.ledger.restatements.find(window)
            if each.key.customer_id in numbers
        ]
        return QueryContent(
            name=window.query_name,
            cells=cells,
            reports=builder.reports,
            notes=notes,
            rows=rows,
            cost=cost if sums else None,
            restatements=restatements,
        )


@dataclass(slots=True, kw_only=True)
class _QueryBuilder:
    """Finds the condition of each day of a query, and describes the days that need an operator."""

    window: DayWindow
    days: Sequence[date]
    texts: _Texts
    counts: dict[Condition, int]
    now: datetime
    acknowledged: Mapping[tuple[str, date], Acknowledgement]
    described: dict[PartitionKey, DayCondition] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)

    def add_customer(
        self,
        customer: str,
        facts: Mapping[date, DayFacts],
        expectation: Expectation,
        parked: ParkedSource | None,
    ) -> str:
        """Return one letter a day, and keep one for the state of each report."""
        letters, reports = [], []
        for day in self.days:
            recorded, acknowledged = facts.get(day), self.acknowledged.get((customer, day))
            condition = find_condition(
                recorded,
                day,
                expectation,
                is_parked=parked is not None,
                now=self.now,
                is_acknowledged=acknowledged is not None,
            )
            letters.append(LETTERS[condition])
            reports.append(REPORT_LETTERS[find_report(recorded, day, condition, expectation)])
            self.counts[condition] += 1
            if not CONDITIONS[condition].is_fine:
                key = PartitionKey(
                    source=self.window.source,
                    customer_id=customer,
                    query_name=self.window.query_name,
                    logical_date=day,
                )
                self.described[key] = describe_day(
                    recorded, day, expectation, parked=parked, now=self.now, acknowledged=acknowledged
                )
        self.reports.append("".join(reports).rstrip())
        return "".join(letters)

    def notes(self, commands: Mapping[PartitionKey, str], numbers: Mapping[str, int]) -> dict[str, Note]:
        """The note of each described day, by the number of its customer and the number of the day."""
        return {
            f"{numbers[key.customer_id]},{(key.logical_date - self.window.since).days}": Note(
                since=int(day.since.timestamp()),
                reason=self.texts.number(day.reason),
                attempts=day.attempts,
                operator=day.operator,
                command=self.texts.number(commands[key]),
            )
            for key, day in self.described.items()
        }


def _differences(values: Iterable[int | None]) -> list[int | None]:
    last, differences = 0, list[int | None]()
    for value in values:
        differences.append(None if value is None else value - last)
        last = last if value is None else value
    return differences


def _in_cents(micros: int | None) -> float | None:
    """A cost in units of the currency, to the cent: restatements are small."""
    return None if micros is None else round(micros / MICROS, 2)


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 2)


def _in_units(micros: int | None) -> int | None:
    return None if micros is None else round(micros / MICROS)
