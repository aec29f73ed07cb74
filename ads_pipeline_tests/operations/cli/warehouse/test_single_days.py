"""A late run of last year: the days after it are not missing, every surface says so, and a command requests them."""

import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta

import pytest

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.orchestration.complete_check import evaluate_complete
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.builders import sealed_run
from ads_pipeline_tests.ledger.builders import ROWS, key, run
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import open_ledger

NOW = datetime.now(UTC)
START = NOW.date() - timedelta(days=4)
LATE_RUN = START - timedelta(days=400)
QUERY = "campaign_daily"


def on(day: date) -> PartitionKey:
    return replace(key("1180250317"), logical_date=day)


def register(ledger: Ledger, day: date, at: datetime) -> None:
    run_of_day = run(on(day), "r1")
    ledger.registrations.register([sealed_run(run_of_day, ROWS, extracted_at=at)])


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    """Two days that were fetched in time, a missing one between them, and a run of last year, sealed today."""
    with open_ledger(empty_cli) as ledger:
        for day in (START, START + timedelta(days=2)):
            register(ledger, day, datetime.combine(day + timedelta(days=1), time(5), UTC))
        register(ledger, LATE_RUN, NOW)
    return empty_cli


@pytest.mark.invariant("L7", "L8")
def test_days_after_a_late_run_are_not_missing_and_a_line_says_so(cli: CommandLine) -> None:
    """The day that is missing among the regular ones is. `state why` says the same of a day in the hole."""
    since = str(LATE_RUN - timedelta(days=5))
    result = cli.run("warehouse", "gaps", "--query", QUERY, "--since", since, "--json")
    found = {each["logical_date"]: each["condition"] for each in result.objects}
    assert found.keys() <= {str(LATE_RUN), *(str(START + timedelta(days=number)) for number in range(5))}
    assert found[str(START + timedelta(days=1))] in {"late", "missing"}
    line = f"1180250317 {QUERY}: {LATE_RUN} is a single day before the regular ones, which began at {START}"
    assert line in result.err
    assert line in " ".join(cli.run("state", "inspect").out.split())
    hole = f"1180250317/{QUERY}/{LATE_RUN + timedelta(days=100)}"
    (why,) = cli.run("state", "why", hole, "--json").objects
    assert why["condition"] == "not_expected"
    assert f"{LATE_RUN} is a single day before the regular ones" in json.dumps(why)
    assert cli.run("report").code == 0
    assert line in (cli.home / "report.html").read_text()
    with open_ledger(cli) as ledger:
        settings = read_settings({"ADS_PIPELINE_HOME": str(cli.home)})
        rules = DayRules.read(ledger, settings, now=NOW)
        complete = evaluate_complete(Names(), ledger, settings, QUERY, rules=rules)
    assert line in str(complete.metadata["not_expected"].value)


@pytest.mark.invariant("L7")
def test_printed_command_makes_the_days_expected(cli: CommandLine) -> None:
    """They are missing then, until they are fetched. The line is gone when there is no hole any more."""
    result = cli.run("warehouse", "gaps", "--query", QUERY)
    command = re.search(r"To request them: ads-pipeline (.*)", " ".join(result.out.split()))
    assert command
    words = re.match(r"(state enqueue .* --reason) TEXT", command[1])
    assert words
    done = cli.run(*words[1].split(), "they are needed", "--yes")
    assert done.code == 0, done.err
    found = cli.run("warehouse", "gaps", "--query", QUERY, "--json").objects
    days = {each["logical_date"] for each in found if each["condition"] == "missing"}
    assert {str(LATE_RUN + timedelta(days=number)) for number in range(1, 400)} <= days
