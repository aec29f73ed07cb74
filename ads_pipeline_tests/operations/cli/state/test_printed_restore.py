"""Executes the commands that are printed for hidden days, in the states that print them."""

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.operations.report.content import ReportReader
from ads_pipeline.pipeline.actions.action_preview import DEMOTED_BY_OPERATOR
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline.pipeline.days.next_steps import name_days
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import REASON, open_ledger
from ads_pipeline_tests.pipeline.builders import LocalDeployment, key, open_deployment, seal_run, visible_runs

DAY = key(1)
NAME = DAY.short_name
PLAIN = f"ads-pipeline state restore {NAME} --reason TEXT"
BY_NAME = f"{PLAIN} --run r1"
ONLY_RUN = "The only accepted run, r1, was demoted. To publish it again:"
# The actions that hide the day, the number of its runs, the printed command, and the run that it publishes.
CASES = {
    "withdrawn": (("withdraw",), 1, PLAIN, "r1"),
    "demoted, the only run": (("demote",), 1, BY_NAME, "r1"),
    "demoted, with an earlier accepted run": (("demote",), 2, PLAIN, "r1"),
    "demoted twice": (("demote", "restore", "demote"), 2, BY_NAME, "r1"),
}


@pytest.fixture
def deployment(empty_cli: CommandLine, spark: SparkSession) -> Iterator[LocalDeployment]:
    with open_deployment(empty_cli.home, spark, f"sqlite:///{empty_cli.home / 'ledger.db'}") as opened:
        yield opened


def hide(cli: CommandLine, deployment: LocalDeployment, case: str) -> tuple[str, str]:
    """Hide the day, and return the command that must be printed and the run that it publishes."""
    actions, runs, command, run_id = CASES[case]
    for number in range(1, runs + 1):
        deployment.pipeline.judge_and_load([seal_run(deployment, DAY, f"r{number}", count=number)])
    for action in actions:
        assert cli.run("state", action, str(DAY), *REASON).code == 0
    return command, run_id


def from_why(cli: CommandLine) -> str:
    """The command of the first step of `state why` that has one."""
    (fields,) = cli.run("state", "why", NAME, "--json").objects
    steps = [str(step) for step in fields["next"] if ": ads-pipeline " in step]
    return "ads-pipeline " + steps[0].partition(": ads-pipeline ")[2]


def from_inspect(cli: CommandLine) -> str:
    lines = cli.run("state", "inspect", "--query", DAY.query_name, "--condition", "hidden").lines
    return str(lines[lines.index("next, for the first line:") + 1]).strip()


def from_json_of_inspect(cli: CommandLine) -> str:
    (fields,) = cli.run("state", "inspect", "--json").objects
    return str(fields["next_command"])


def from_gaps(cli: CommandLine) -> str:
    window = ("--since", str(DAY.logical_date), "--until", str(DAY.logical_date), "--query", DAY.query_name)
    (fields,) = cli.run("warehouse", "gaps", *window, "--json").objects
    return str(fields["next_command"])


def from_report(cli: CommandLine) -> str:
    settings, now = read_settings({"ADS_PIPELINE_HOME": str(cli.home)}), datetime.now(UTC)
    with open_ledger(cli) as ledger:
        reader = ReportReader(
            ledger=ledger,
            source=DAY.source,
            rules=DayRules.read(ledger, settings, now=now),
            retry_policy=settings.retry_policy,
            sum_per_day=lambda _query, _column, _since, _until: {},
            currency_of=lambda _key: "EUR",
        )
        content = reader.read(since=DAY.logical_date, until=DAY.logical_date)
    (note,) = next(query for query in content.queries if query.name == DAY.query_name).notes.values()
    return name_days(content.texts[note.command], newest=NAME, selection=NAME)


SURFACES = (from_why, from_inspect, from_json_of_inspect, from_gaps, from_report)


@pytest.mark.invariant("L7", "L8")
@pytest.mark.parametrize("case", CASES)
def test_printed_command_publishes_the_run_again(
    empty_cli: CommandLine, deployment: LocalDeployment, case: str
) -> None:
    """Every surface prints the same command, and it succeeds in the state that printed it."""
    command, run_id = hide(empty_cli, deployment, case)
    assert {surface.__name__: surface(empty_cli) for surface in SURFACES} == {
        surface.__name__: command for surface in SURFACES
    }
    words = ["checked again" if word == "TEXT" else word for word in shlex.split(command)[1:]]
    result = empty_cli.run(*words)
    assert (result.code, result.err) == (0, "")
    assert visible_runs(deployment) == {DAY: run_id}


@pytest.mark.invariant("L7")
def test_skipped_restore_names_the_command_that_succeeds(empty_cli: CommandLine, deployment: LocalDeployment) -> None:
    """Without `--run`, a restore skips the day whose only accepted run was demoted, and names the run."""
    hide(empty_cli, deployment, "demoted, the only run")
    for verb, lead in (("restore", ONLY_RUN), ("rejudge", DEMOTED_BY_OPERATOR)):
        result = empty_cli.run("state", verb, NAME, *REASON)
        assert (result.code, result.lines[0]) == (3, f"nothing to {verb}")
        assert f"{lead} {BY_NAME}" in " ".join(result.out.split())
    assert f"{ONLY_RUN} {BY_NAME}" in " ".join(empty_cli.run("state", "why", NAME).out.split())


def test_command_for_several_days_names_one_of_them(empty_cli: CommandLine, deployment: LocalDeployment) -> None:
    """`--run` takes one partition, so that the command of a line with two days is for the newest one."""
    days = [key(1), key(1, day=2)]
    deployment.pipeline.judge_and_load([seal_run(deployment, day, "r1") for day in days])
    assert empty_cli.run("state", "demote", *map(str, days), *REASON).code == 0
    command = from_inspect(empty_cli)
    assert command == f"ads-pipeline state restore {days[1].short_name} --reason TEXT --run r1"
    words = ["checked again" if word == "TEXT" else word for word in shlex.split(command)[1:]]
    assert empty_cli.run(*words).code == 0
