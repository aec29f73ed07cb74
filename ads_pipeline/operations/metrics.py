"""The state of a deployment as metrics, in OpenMetrics text.

All are gauges, so that tools which know only the older Prometheus text read the same file. No label names a customer:
`state inspect` and the report do.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from ads_pipeline.domain.days.conditions import NextActor, conditions_of
from ads_pipeline.domain.days.day_ranges import DayRange, count_conditions
from ads_pipeline.domain.days.expected_days import ExpectedDays
from ads_pipeline.domain.fetching.retry_policy import Lane
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow, StateFilter
from ads_pipeline.pipeline.days.day_conditions import DayRules, find_ranges
from ads_pipeline.settings.environment import Settings

PREFIX: Final = "ads_pipeline_"
NO_LIMIT: Final = 1_000_000_000
SCOPES: Final = ("customer", "query", "source")
COUNTED: Final = conditions_of(NextActor.OPERATOR, NextActor.PIPELINE, NextActor.DECIDED)
# Each metric with its meaning and its labels. All have the label `workspace`, which tells deployments apart.
METRICS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "partitions": ("partitions that the ledger has recorded", ("query_name", "status")),
    "days": ("days that need an operator, are in progress, acknowledged or hidden", ("query_name", "condition")),
    "overdue_since_timestamp_seconds": (
        "deadline of the oldest late, missing or blocked day, if there is one",
        ("query_name",),
    ),
    "last_load_timestamp_seconds": ("when a run was last loaded, if ever", ("query_name",)),
    "due_partitions": ("partitions that need a new run now", ("lane", "kind")),
    "partitions_in_progress": ("partitions that live runs have claimed", ("lane",)),
    "parked": ("accounts, queries and sources that are not fetched", ("scope",)),
    "event_log_position": ("events that the ledger has recorded", ()),
    "last_event_timestamp_seconds": ("when the ledger last recorded an event, if ever", ()),
    "event_lag_seconds": ("age of the oldest event that no run snapshot includes yet", ()),
    "build_info": ("always 1, with the version of the package", ("version",)),
}
Sample = tuple[tuple[str, ...], float]  # the values of the labels, and the number


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReader(Collector):
    """Reads the metrics of one deployment at one moment."""

    settings: Settings
    ledger: LedgerReader
    now: datetime

    @property
    def text(self) -> bytes:
        """The metrics as OpenMetrics text."""
        return bytes(generate_latest(self))  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        workspace = self.settings.tenancy.workspace_id or self._source
        for name, samples in self._read().items():
            meaning, labels = METRICS[name]
            family = GaugeMetricFamily(PREFIX + name, meaning, labels=("workspace", *labels))
            for values, number in samples:
                family.add_metric((workspace, *values), number)
            yield family

    @property
    def _source(self) -> str:
        return self.settings.google_apis.source

    @property
    def _queries(self) -> list[str]:
        return sorted(self.settings.google_apis.queries)

    def _read(self) -> dict[str, Iterable[Sample]]:
        first_days = self.ledger.days.first_days(self._source)
        rules = DayRules.read(self.ledger, self.settings, now=self.now)
        ranges = {name: self._find_ranges(name, first_days.of_query(name), rules) for name in self._queries}
        loads, newest = self.ledger.publications.last_loads(self._source), self.ledger.events.get_newest()
        claimed = self.ledger.retry_queue.count_claimed(self._source, self.now.date())
        parked = Counter(each.scope for each in self.ledger.retry_queue.list_parkings(self._source))
        samples: dict[str, Iterable[Sample]] = {
            "partitions": self._count_partitions(),
            "days": [
                ((name, condition), counts[condition])
                for name, found in ranges.items()
                for counts in [count_conditions(found)]
                for condition in COUNTED
            ],
            "overdue_since_timestamp_seconds": [
                ((name,), min(deadlines))
                for name, found in ranges.items()
                if (deadlines := self._list_passed_deadlines(found, rules))
            ],
            "last_load_timestamp_seconds": [
                ((name,), loads[name].timestamp()) for name in self._queries if name in loads
            ],
            "due_partitions": self._count_due(),
            "partitions_in_progress": [((lane,), claimed[lane]) for lane in Lane],
            "parked": [((scope,), parked[scope]) for scope in SCOPES],
            "event_log_position": [((), newest.position)],
            "last_event_timestamp_seconds": [((), newest.at.timestamp())] if newest.at else [],
            "event_lag_seconds": [((), self.ledger.events.get_lag().total_seconds())],
            "build_info": [((version("ads-pipeline"),), 1)],
        }
        return samples

    def _find_ranges(
        self, query_name: str, first_days: Mapping[str, ExpectedDays], rules: DayRules
    ) -> list[DayRange]:
        apis = self.settings.google_apis
        window = DayWindow(source=self._source, query_name=query_name, since=apis.start_date, until=self.now.date())
        return find_ranges(self.ledger, window, COUNTED, first_days=first_days, rules=rules)

    def _list_passed_deadlines(self, ranges: Iterable[DayRange], rules: DayRules) -> list[float]:
        """The deadline of each customer's first overdue day. A day may be blocked before its deadline."""
        overdue = sorted((each.first for each in ranges if each.entry.is_overdue), reverse=True)
        deadlines = (rules.deadline(key).timestamp() for key in {key.customer_id: key for key in overdue}.values())
        return [each for each in deadlines if each <= self.now.timestamp()]

    def _count_partitions(self) -> Iterator[Sample]:
        for name in self._queries:
            selection = StateFilter(source=self._source, query_names=frozenset({name}))
            counts = self.ledger.states.count_by_status(selection)
            yield from (((name, status), counts[status]) for status in Status)

    def _count_due(self) -> Iterator[Sample]:
        queue, policy, today = self.ledger.retry_queue, self.settings.retry_policy, self.now.date()
        for lane in Lane:
            retries = queue.find_due(policy, lane, source=self._source, today=today, limit=NO_LIMIT)
            requests = queue.find_due_requests(policy, lane, source=self._source, today=today, limit=NO_LIMIT)
            yield (lane, "retry"), len(retries)
            yield (lane, "request"), len(requests)
