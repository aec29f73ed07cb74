"""Makes one day for each condition, in one home and by real runs and commands. Each case has its own customer."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from ads_pipeline.domain.days.conditions import Condition, GapReason
from ads_pipeline.domain.days.readability import IN_PROGRESS_LIMIT
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.runs.due_partitions import build_run_config
from ads_pipeline.pipeline.actions.row_actions import demote
from ads_pipeline.pipeline.hidden_rows import HiddenRows
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE, narrow_query_file
from ads_pipeline_tests.ledger.builders import FakeClock, action_request
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.orchestration.builders import Location
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    SOURCE,
    LocalDeployment,
    corrupt_payload,
    seal_invalid_run,
    seal_run,
    seal_unknown_version,
)

REASON: Final = ("--reason", "tested")
LATER: Final = IN_PROGRESS_LIMIT + timedelta(hours=1)
OLDER: Final = 5  # days before the newest day that is due; a day without a run is missing by then


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The home of all cases. The newest day that is due was due 12 hours ago, whatever the time of day is."""

    location: Location
    cli: CommandLine
    patch: pytest.MonkeyPatch
    day: date
    past: FakeClock = field(default_factory=FakeClock)

    @property
    def deployment(self) -> LocalDeployment:
        return self.location.deployment

    def run(self, *arguments: str) -> None:
        """Run a command that must succeed."""
        result = self.cli.run(*arguments)
        assert result.code == 0, (arguments, result.out, result.err)

    def materialize(self, keys: Sequence[PartitionKey]) -> None:
        """Execute a Dagster run per day, for exactly these partitions."""
        by_day = defaultdict[date, list[PartitionKey]](list)
        for key in sorted(keys):
            by_day[key.logical_date].append(key)
        for found in by_day.values():
            config = build_run_config(Names(), dict.fromkeys(found, "tested"))
            assert self.location.run([found[0], found[-1]], run_config=config).success

    def hours_ago(self, do: Callable[[LocalDeployment], Any]) -> None:
        """Do something with a ledger whose clock is behind."""
        self.past.now = datetime.now(UTC) - LATER
        with Ledger.opened(self.location.settings.database_url, clock=self.past) as ledger:
            do(replace(self.deployment, ledger=ledger))


def choose_day(now: datetime) -> tuple[date, int]:
    """The newest day that is due, and after how many hours days are due, so that no other deadline is near."""
    due_after = (now.hour + 12) % 24
    return (now - timedelta(hours=due_after)).date() - timedelta(days=1), due_after


def write_query_file(home: Path, start: date, due_after: int) -> None:
    document = yaml.safe_load(narrow_query_file(start, [QUERY]))
    document["queries"][QUERY]["due_after_hours"] = due_after
    home.mkdir(parents=True)
    (home / DEFAULT_QUERIES_FILE.name).write_text(yaml.safe_dump(document, sort_keys=False))


Step = Callable[[Home, PartitionKey], Any]


def nothing(_home: Home, _key: PartitionKey) -> None:
    """The case needs no such step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A day: how it was made in words, its condition, and why readers do not see it.

    `first` and `second` seal what two Dagster runs judge and load. `then` comes afterwards.
    """

    made_by: str
    condition: Condition
    gap: GapReason | None = None
    first: Step | None = None
    second: Step | None = None
    then: Step = nothing
    back: int = 0  # days before the newest day that is due
    first_day: int = 0  # how many days before that the customer's first run is


def good(home: Home, key: PartitionKey) -> None:
    seal_run(home.deployment, key)


def other(home: Home, key: PartitionKey) -> None:
    seal_run(home.deployment, key, "r2", count=3)


def bad(home: Home, key: PartitionKey) -> None:
    seal_invalid_run(home.deployment, key)


def bad_again(home: Home, key: PartitionKey) -> None:
    seal_invalid_run(home.deployment, key, "r2")


def act(verb: str, *more: str) -> Step:
    return lambda home, key: home.run("state", verb, key.short_name, *REASON, *more)


def demote_and_restore(home: Home, key: PartitionKey) -> None:
    act("demote")(home, key)
    act("restore")(home, key)


def demote_and_retry(home: Home, key: PartitionKey) -> None:
    act("demote")(home, key)
    act("retry")(home, key)


def report_failures(error_class: str, number: int = 1, *more: str) -> Step:
    def report(home: Home, key: PartitionKey) -> None:
        for attempt in range(number):
            at = datetime.now(UTC) - timedelta(minutes=number - attempt)
            words = ("--error-class", error_class, "--message", "it did not work", "--at", at.isoformat())
            home.run("raw", "report-failure", str(key), *words, *more)

    return report


def park_customer(home: Home, key: PartitionKey) -> None:
    home.run("state", "park", "--customer", key.customer_id, *REASON)


def register(deployment: LocalDeployment, key: PartitionKey, run_id: str = "r1") -> None:
    deployment.pipeline.validation.seals.get_or_register([seal_run(deployment, key, run_id)])


def judge(deployment: LocalDeployment, key: PartitionKey, run_id: str = "r1") -> None:
    deployment.pipeline.validation.judge([seal_run(deployment, key, run_id)])


def judge_and_change(deployment: LocalDeployment, key: PartitionKey) -> None:
    """The accepted run no longer matches its seal when it is loaded."""
    run = seal_run(deployment, key, "r2")
    deployment.pipeline.validation.judge([run])
    corrupt_payload(deployment, run)
    deployment.pipeline.loader.load([key])


def register_unknown_version(deployment: LocalDeployment, key: PartitionKey) -> None:
    deployment.pipeline.judge_and_load([seal_unknown_version(deployment, key)])


def now(do: Callable[[LocalDeployment, PartitionKey], Any]) -> Step:
    return lambda home, key: do(home.deployment, key)


def hours_ago(do: Callable[[LocalDeployment, PartitionKey], Any]) -> Step:
    return lambda home, key: home.hours_ago(lambda deployment: do(deployment, key))


def begin_demotion(home: Home, deployment: LocalDeployment, key: PartitionKey) -> None:
    """Die between the two steps of a demotion."""
    run = seal_run(deployment, key)
    deployment.pipeline.judge_and_load([run])
    with home.patch.context() as context:
        context.setattr(HiddenRows, "remove", _die)
        with pytest.raises(RuntimeError):
            demote(deployment.pipeline, [run], action_request(f"demotion-{key.customer_id}"))


def _die(*_: Any, **__: Any) -> None:
    raise RuntimeError("died")


def begin_demotion_now(home: Home, key: PartitionKey) -> None:
    begin_demotion(home, home.deployment, key)


def begin_demotion_hours_ago(home: Home, key: PartitionKey) -> None:
    home.hours_ago(lambda deployment: begin_demotion(home, deployment, key))


CASES: Final = {
    "readable": Case(made_by="an accepted run", condition=Condition.READABLE, first=good),
    "restated": Case(made_by="a second accepted run", condition=Condition.RESTATED, first=good, second=other),
    "restored": Case(
        made_by="a demotion of the second run, and `state restore`",
        condition=Condition.RESTATED,
        first=good,
        second=other,
        then=demote_and_restore,
    ),
    "rejected": Case(
        made_by="a run with a negative cost", condition=Condition.REJECTED, gap=GapReason.REJECTED, first=bad
    ),
    "retried": Case(
        made_by="the same, and `state retry`",
        condition=Condition.REJECTED,
        gap=GapReason.WAITING,
        first=bad,
        then=act("retry"),
    ),
    "terminal": Case(
        made_by="the same, and `state terminal`",
        condition=Condition.ACKNOWLEDGED,
        gap=GapReason.REJECTED,
        first=bad,
        then=act("terminal"),
    ),
    "acknowledged": Case(
        made_by="the same, and `state acknowledge`",
        condition=Condition.ACKNOWLEDGED,
        gap=GapReason.REJECTED,
        first=bad,
        then=act("acknowledge"),
    ),
    "rejected rerun": Case(
        made_by="a rejected run after an accepted one",
        condition=Condition.REJECTED_RERUN,
        first=good,
        second=bad_again,
    ),
    "acknowledged rerun": Case(
        made_by="the same, and `state acknowledge`",
        condition=Condition.ACKNOWLEDGED_RERUN,
        first=good,
        second=bad_again,
        then=act("acknowledge"),
    ),
    "demoted": Case(
        made_by="`state demote`", condition=Condition.HIDDEN, gap=GapReason.DEMOTED, first=good, then=act("demote")
    ),
    "demoted, retried": Case(
        made_by="`state demote` and `state retry`",
        condition=Condition.LATE,
        gap=GapReason.WAITING,
        first=good,
        then=demote_and_retry,
    ),
    "withdrawn": Case(
        made_by="`state withdraw`",
        condition=Condition.HIDDEN,
        gap=GapReason.WITHDRAWN,
        first=good,
        then=act("withdraw"),
    ),
    "being demoted": Case(
        made_by="a demotion that died a moment ago",
        condition=Condition.HIDDEN,
        gap=GapReason.DEMOTING,
        then=begin_demotion_now,
    ),
    "not demoted": Case(
        made_by="a demotion that died 7 hours ago",
        condition=Condition.BLOCKED,
        gap=GapReason.DEMOTING,
        then=begin_demotion_hours_ago,
    ),
    "being judged": Case(
        made_by="a run that was registered a moment ago",
        condition=Condition.IN_PROGRESS,
        gap=GapReason.UNJUDGED,
        then=now(register),
    ),
    "not judged": Case(
        made_by="a run that was registered 7 hours ago",
        condition=Condition.BLOCKED,
        gap=GapReason.UNJUDGED,
        then=hours_ago(register),
    ),
    "being loaded": Case(
        made_by="a run that was accepted a moment ago",
        condition=Condition.IN_PROGRESS,
        gap=GapReason.UNLOADED,
        then=now(judge),
    ),
    "not loaded": Case(
        made_by="a run that was accepted 7 hours ago",
        condition=Condition.BLOCKED,
        gap=GapReason.UNLOADED,
        then=hours_ago(judge),
    ),
    "no contract": Case(
        made_by="a run of an unknown schema version",
        condition=Condition.BLOCKED,
        gap=GapReason.NO_CONTRACT,
        then=now(register_unknown_version),
    ),
    "no contract, rerun": Case(
        made_by="the same after an accepted run",
        condition=Condition.BLOCKED_RERUN,
        first=good,
        then=now(register_unknown_version),
    ),
    "changed": Case(
        made_by="an accepted run whose file changed before its load",
        condition=Condition.BLOCKED,
        gap=GapReason.UNLOADABLE,
        then=now(judge_and_change),
    ),
    "changed, rerun": Case(
        made_by="the same after an accepted run",
        condition=Condition.BLOCKED_RERUN,
        first=good,
        then=now(judge_and_change),
    ),
    "late": Case(
        made_by="no run, a day after an earlier one",
        condition=Condition.LATE,
        gap=GapReason.NOTHING_SEALED,
        first=good,
        first_day=1,
    ),
    "missing": Case(
        made_by="the same, days later",
        condition=Condition.MISSING,
        gap=GapReason.NOTHING_SEALED,
        first=good,
        back=OLDER,
        first_day=1,
    ),
    "fetch failed": Case(
        made_by="`raw report-failure`, of a time-out",
        condition=Condition.LATE,
        gap=GapReason.FETCH_FAILED,
        then=report_failures("timed_out"),
    ),
    "used up": Case(
        made_by="the same six times",
        condition=Condition.LATE,
        gap=GapReason.FETCH_FAILED,
        then=report_failures("timed_out", 6),
    ),
    "quota": Case(
        made_by="`raw report-failure`, of a used-up quota",
        condition=Condition.IN_PROGRESS,
        gap=GapReason.QUOTA,
        then=report_failures("quota_exhausted"),
    ),
    "access lost": Case(
        made_by="`raw report-failure`, of a closed account",
        condition=Condition.PARKED,
        gap=GapReason.PARKED,
        then=report_failures("customer_not_enabled"),
    ),
    "parked": Case(
        made_by="`state park` and no run, a day after an earlier one",
        condition=Condition.PARKED,
        gap=GapReason.PARKED,
        first=good,
        first_day=1,
        then=park_customer,
    ),
    "out of reach": Case(
        made_by="`raw report-failure`, of a day that the source no longer serves",
        condition=Condition.UNRECOVERABLE,
        gap=GapReason.OUT_OF_REACH,
        then=report_failures("out_of_reach"),
    ),
    "not expected": Case(
        made_by="a day before the customer's first one",
        condition=Condition.NOT_EXPECTED,
        gap=GapReason.NOTHING_SEALED,
        first=good,
        first_day=-1,
        back=1,
    ),
}


def key_of(name: str, home_day: date) -> PartitionKey:
    """The partition of a case."""
    number = 101 + list(CASES).index(name)
    day = home_day - timedelta(days=CASES[name].back)
    return PartitionKey(source=SOURCE, customer_id=str(number), query_name=QUERY, logical_date=day)


def make_all(home: Home) -> dict[str, PartitionKey]:
    """Make the day of each case, and return their partitions."""
    keys = {name: key_of(name, home.day) for name in CASES}
    home.location.add_customers(*(int(key.customer_id) for key in keys.values()))
    for number in (1, 2):
        sealed = list[PartitionKey]()
        for name, key in keys.items():
            case = CASES[name]
            if (seal := case.first if number == 1 else case.second) is not None:
                sealed.append(replace(key, logical_date=key.logical_date - timedelta(days=case.first_day)))
                seal(home, sealed[-1])
        home.materialize(sealed)
    for name, key in keys.items():
        CASES[name].then(home, key)
    return keys
