"""Each condition, made by real runs: all surfaces say the same at one moment, and every printed command succeeds."""

import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.days.conditions import CONDITIONS, READABLE_CONDITIONS, UNREADABLE_CONDITIONS, Condition
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.operations.notifications.notices import Incident
from ads_pipeline.operations.notifications.outbox import Outbox
from ads_pipeline_tests.conditions.cases import (
    CASES,
    OLDER,
    Home,
    bad,
    bad_again,
    choose_day,
    make_all,
    write_query_file,
)
from ads_pipeline_tests.conditions.surfaces import Surfaces, finder_of, read_surfaces
from ads_pipeline_tests.conditions.table import condition_table
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.orchestration.builders import open_location
from ads_pipeline_tests.orchestration.sensors.test_readable_changes import SENSOR, execute_checks
from ads_pipeline_tests.orchestration.sensors.ticks import tick
from ads_pipeline_tests.pipeline.builders import QUERY
from ads_pipeline_tests.test_docs import marked_section

SELF_MADE: Final = frozenset({"being demoted"})  # the person whose command died knows it; later the day is blocked
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The home, the partition of each case, and what the surfaces say of it."""

    home: Path
    keys: dict[str, PartitionKey]
    said: Surfaces

    def condition(self, name: str) -> Condition:
        return Condition(self.said.why[self.keys[name]]["condition"])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Told]:
    home, now = tmp_path_factory.mktemp("conditions") / "home", datetime.now(UTC)
    day, due_after = choose_day(now)
    write_query_file(home, day - timedelta(days=OLDER + 3), due_after)
    with open_location(home, spark) as location, pytest.MonkeyPatch.context() as patch:
        made = Home(location=location, cli=CommandLine(home=home), patch=patch, day=day)
        outbox = Outbox.opened(finder_of(made), now - timedelta(days=OLDER + 3))
        keys = make_all(made)
        execute_checks(location, tick(location, SENSOR))
        yield Told(home=home, keys=keys, said=read_surfaces(made, list(keys.values()), outbox))


@pytest.mark.invariant("L8")
@pytest.mark.parametrize("name", CASES)
def test_no_two_surfaces_contradict(told: Told, name: str) -> None:
    """The day is in the lists, counts, rows and checks where its condition says, and nowhere else."""
    case, key, said = CASES[name], told.keys[name], told.said
    why = said.why[key]
    assert (why["condition"], why["reason"]) == (case.condition, case.gap and case.gap.name.lower())
    fields = ("condition", "reason", "because", "detail", "operator", "since", "next_command")
    for surface in (said.recorded, said.listed, said.gaps):
        if key in surface:
            assert {each: surface[key][each] for each in fields} == {each: why[each] for each in fields}
    is_readable, is_unreadable = case.condition in READABLE_CONDITIONS, case.condition in UNREADABLE_CONDITIONS
    needs_operator = CONDITIONS[case.condition].needs_operator
    assert (key in said.gaps) == is_unreadable
    assert (key in said.rows) == is_readable
    assert said.report.get(key, Condition.NOT_EXPECTED) == case.condition
    assert said.report_commands.get(key, "") == (why["next_command"] if key in said.report_commands else "")
    assert (key in said.report_commands) >= needs_operator
    _compare_checks(told, name)
    _compare_notices(told, name)


def _compare_checks(told: Told, name: str) -> None:
    case, key, said = CASES[name], told.keys[name], told.said
    is_readable = case.condition in READABLE_CONDITIONS
    if case.condition is Condition.NOT_EXPECTED:
        assert key not in said.readable
    else:
        assert key in said.readable or name == "missing", "only a day before the first tick has no result"
    if (result := said.readable.get(key)) is not None:
        assert result.description.startswith(f"{CONDITIONS[case.condition].label}: ")
        assert result.passed == (case.condition in {Condition.READABLE, Condition.RESTATED})
        assert result.next_command == (said.why[key]["next_command"] or "")
    if key in said.valid:
        is_rejected = case.first is bad or case.second is bad_again or "demoted" in name
        assert said.valid[key].passed != is_rejected
    if is_readable:
        assert said.loads[key] == str(said.rows[key])
    elif case.condition is not Condition.IN_PROGRESS:
        assert said.loads.get(key, "0") == "0"


def _compare_notices(told: Told, name: str) -> None:
    case, key, said = CASES[name], told.keys[name], told.said
    found = [str(notice["kind"]) for notice in said.notices.get(key, ())]
    may_be_terminal = {Condition.ACKNOWLEDGED, Condition.LATE, Condition.MISSING, Condition.UNRECOVERABLE}
    allowed = {case.condition, *([Incident.TERMINAL] if case.condition in may_be_terminal else [])}
    assert set(found) <= allowed
    parked = {target for notice in said.other_notices if notice["kind"] == "parked" for target in notice["names"]}
    is_told = bool(found) or any(key.customer_id in target for target in parked)
    assert is_told or not CONDITIONS[case.condition].needs_operator or name in SELF_MADE


@pytest.mark.invariant("L8", "L9")
def test_counts_are_equal(told: Told) -> None:
    """Report, metrics, `complete` and `doctor` count the same days as `state inspect`, also those of no case."""
    said = told.said
    counts = Counter(str(fields["condition"]) for fields in said.listed.values())
    for condition, number in said.metrics.items():
        assert counts[condition] == number, condition
    shown = {name for name in said.report_counts if name in counts}
    assert {name: said.report_counts[name] for name in shown} == dict(counts)
    needed = sum(number for name, number in counts.items() if CONDITIONS[Condition(name)].needs_operator)
    assert said.complete.description.startswith(f"{needed} of ")
    assert f"{needed} days need you" in said.doctor_days
    assert len(said.gaps) == sum(
        number for name, number in counts.items() if Condition(name) in UNREADABLE_CONDITIONS
    )


@pytest.mark.invariant("L7")
def test_every_printed_command_succeeds(told: Told, tmp_path: Path) -> None:
    """In a copy of the home, split as a shell does. A list of days names each day that the notice is about."""
    commands = dict[str, str]()
    for surface, command in told.said.commands():
        if command and not command.startswith("ads-pipeline dev"):
            commands.setdefault(command, surface)
    failed = []
    for number, (command, surface) in enumerate(commands.items()):
        copy = CommandLine(home=tmp_path / str(number))
        shutil.copytree(told.home, copy.home)
        words = ["tested" if word == "TEXT" else word for word in shlex.split(command)]
        result = copy.run(*words[1:])
        problem = (result.out + result.err)[-500:] if result.code else ""
        if words[1] == "reconcile":  # 1: a difference remains, here of the days with changed files
            problem = "" if result.code in {0, 1} else problem
            problem += "".join(find_unchanged(told, copy, command))
        if problem:
            failed.append((surface, command, result.code, problem))
        shutil.rmtree(copy.home)
    assert failed == []


def find_unchanged(told: Told, copy: CommandLine, command: str) -> Iterator[str]:
    """The days for which the command was printed, and which it left as they were."""
    for key, day in told.said.why.items():
        if day["next_command"] == command:
            (after,) = copy.run("state", "why", key.short_name, "--json").objects
            if (after["condition"], after["reason"]) == (day["condition"], day["reason"]):
                yield f"{key} is still {day['condition']}, {day['because']}"


def test_table_in_the_documentation_is_what_the_surfaces_say(told: Told) -> None:
    """The table in docs/conditions.md is written by this test's surfaces."""
    assert marked_section("docs/conditions.md", "conditions") == condition_table(told.keys, told.said)


@pytest.mark.invariant("L8")
def test_customer_that_nobody_knows_is_unknown(told: Told) -> None:
    """No list invents days of it, and none says that its days are complete."""
    cli = CommandLine(home=told.home)
    for command, code in ((("state", "inspect"), 0), (("warehouse", "gaps"), 1)):
        result = cli.run(*command, "--customer", "999")
        assert result.code == code
        assert "customer 999 is not known" in result.out
    result = cli.run("state", "why", f"999/{QUERY}/{next(iter(told.keys.values())).logical_date}")
    assert "the ledger records no partition of customer 999" in " ".join(result.out.split())


@pytest.mark.invariant("L7", "L8")
def test_list_that_a_notification_names_has_its_days(told: Told) -> None:
    """The command of a notice about several days lists the customer of each of them."""
    cli, missing = CommandLine(home=told.home), []
    for key, notices in told.said.notices.items():
        for notice in notices:
            result = cli.run(*shlex.split(str(notice["next_command"]))[1:])
            if key.customer_id not in result.out:
                missing.append((notice["kind"], key, notice["next_command"]))
    assert missing == []
