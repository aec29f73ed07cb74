"""Options that commands share: both spellings, one day, malformed names and dates, and what an empty result says."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer

from ads_pipeline.operations.cli.main import app
from ads_pipeline_tests.operations.cli.running import WEEK, CommandLine, DemoCommandLine

# Commands that select partitions, with their required options.
LISTINGS = (
    ("state", "inspect"),
    ("state", "due"),
    ("state", "inspect", "--list", "terminal"),
    ("state", "why", "--attempts"),
    ("raw", "list"),
    ("raw", "verify"),
    ("warehouse", "gaps"),
)
ACTIONS = (
    *("acknowledge", "retry", "enqueue", "terminal"),
    *("reprocess", "withdraw", "demote", "restore"),
)
SELECTING = (*LISTINGS, *(("state", action) for action in ACTIONS))
CUSTOMER, DAY = "1180250317", "2026-03-07"


def option_names(group: Any = None, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], set[str]]:
    """The options of each command, with their aliases."""
    names: dict[tuple[str, ...], set[str]] = {}
    top: Any = group or typer.main.get_command(app)
    for name in top.list_commands(None):
        found = top.get_command(None, name)
        if hasattr(found, "commands"):
            names |= option_names(found, (*path, name))
        else:
            names[*path, name] = {option for parameter in found.params for option in parameter.opts}
    return names


def test_every_command_has_both_spellings() -> None:
    """Where an option has the short name, the name of the partition's field is its alias, and a day is a window."""
    found = option_names()
    for short, long in (("--customer", "--customer-id"), ("--query", "--query-name")):
        assert [path for path, names in found.items() if (short in names) != (long in names)] == []
    windows = {path for path, names in found.items() if names >= {"--since", "--until"}}
    assert windows == {path for path, names in found.items() if "--logical-date" in names}
    assert windows >= {each[:2] for each in LISTINGS}


def test_help_shows_aliases(empty_cli: CommandLine) -> None:
    """The help shows the aliases of an option beside it."""
    output = " ".join(empty_cli.run("state", "why", "--attempts", "--help").out.split())
    for option in ("--customer, --customer-id ID", "--query, --query-name NAME", "--logical-date YYYY-MM-DD"):
        assert option in output


@pytest.mark.parametrize("arguments", LISTINGS, ids=" ".join)
def test_both_spellings_select_the_same(demo_cli: DemoCommandLine, arguments: tuple[str, ...]) -> None:
    """--logical-date is a window of one day, and the long names mean what the short ones do."""
    short = demo_cli.run(
        *arguments, "--customer", CUSTOMER, "--query", "campaign_daily", "--since", DAY, "--until", DAY, "--json"
    )
    long = demo_cli.run(
        *arguments, "--customer-id", CUSTOMER, "--query-name", "campaign_daily", "--logical-date", DAY, "--json"
    )
    assert (long.code, long.out) == (short.code, short.out)
    assert all(
        (each["customer_id"], each["query_name"], each["logical_date"]) == (CUSTOMER, "campaign_daily", DAY)
        for each in long.objects
    )


@pytest.mark.parametrize("arguments", SELECTING, ids=" ".join)
@pytest.mark.parametrize("window", [("--since", DAY), ("--until", DAY), ("--since", DAY, "--until", DAY)])
def test_one_day_and_a_window_conflict(
    empty_cli: CommandLine, arguments: tuple[str, ...], window: tuple[str, ...]
) -> None:
    """--logical-date together with --since or --until is refused with the reason."""
    reason = ("--reason", "x", "--dry-run") if arguments[1] in ACTIONS else ()
    result = empty_cli.run(*arguments, "--logical-date", DAY, *window, *reason)
    assert (result.code, result.out) == (64, "")
    assert "--logical-date selects one day, --since and --until a window" in result.err


@pytest.mark.parametrize("arguments", LISTINGS, ids=" ".join)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--query", "campaign_dayly"), "query_name: 'campaign_dayly' is refused: did you mean campaign_daily?"),
        (("--customer", "118 025 0317"), "without hyphens; did you mean 1180250317?"),
        (("--customer", "12a"), "'12a' is refused: 1 to 20 digits 0-9, without hyphens\n"),
        (("--since", "2026-3-7"), "a real day written YYYY-MM-DD; did you mean 2026-03-07?"),
        (("--until", "20260307"), "a real day written YYYY-MM-DD; did you mean 2026-03-07?"),
        (("--logical-date", "2026-02-30"), "'2026-02-30' is refused: a real day written YYYY-MM-DD\n"),
        (("--logical-date", "2999-01-01"), "2999-01-01 is in the future: no day after "),
        (("--since", "2999-01-01"), "2999-01-01 is in the future: no day after "),
    ],
)
def test_impossible_filter_is_refused(
    demo_cli: DemoCommandLine, arguments: tuple[str, ...], given: tuple[str, ...], message: str
) -> None:
    """A listing refuses names and days that cannot exist, with a suggestion where there is one."""
    days = {"--since": ("--until", "2999-01-02"), "--until": ("--since", "2026-03-01"), "--logical-date": ()}
    result = demo_cli.run(*arguments, *given, *days.get(given[0], WEEK))
    assert (result.code, result.out) == (64, "")
    assert message in result.err


def test_customer_may_have_the_hyphens_of_google(demo_cli: DemoCommandLine) -> None:
    """As an option and in a partition. Other groups of digits are refused."""
    assert demo_cli.run("warehouse", "gaps", "--customer", "204-661-9385", *WEEK).out == (
        demo_cli.run("warehouse", "gaps", "--customer", "2046619385", *WEEK).out
    )
    why = demo_cli.run("state", "why", "204-661-9385/campaign_daily/2026-03-07", "--json")
    assert [each["customer_id"] for each in why.objects] == ["2046619385"]
    assert demo_cli.run("state", "inspect", "--customer", "20-46619385").code == 64


def test_tomorrow_is_no_error(empty_cli: CommandLine) -> None:
    """Tomorrow has begun in time zones east of UTC, so its logical date may be given."""
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    assert empty_cli.run("state", "inspect", "--since", str(tomorrow)).code == 0
    assert empty_cli.run("state", "inspect", "--since", str(tomorrow + timedelta(days=1))).code == 64


def test_gaps_of_future_days_are_refused(demo_cli: DemoCommandLine) -> None:
    """A day that has not come is not missing."""
    result = demo_cli.run("warehouse", "gaps", "--since", DAY, "--until", "2999-01-01")
    assert (result.code, result.out) == (64, "")
    assert "--until 2999-01-01 is in the future" in result.err


@pytest.mark.parametrize("arguments", LISTINGS[:-1], ids=" ".join)
def test_empty_result_says_what_was_looked_for(demo_cli: DemoCommandLine, arguments: tuple[str, ...]) -> None:
    """Nothing found is no error, and the note repeats the filters."""
    given = ("--customer", CUSTOMER, "--query", "keyword_daily", "--since", "2026-03-01", "--until", "2026-03-02")
    for form in ((), ("--json",)):
        result = demo_cli.run(*arguments, *given, *form)
        assert result.code == 0
        assert " ".join(given) in " ".join((result.out + result.err).split())


def test_version_is_the_package_version(empty_cli: CommandLine) -> None:
    """--version prints the version of the installed package."""
    result = empty_cli.run("--version")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("ads-pipeline 0.")


def test_help_uses_a_wide_terminal(empty_cli: CommandLine) -> None:
    """Help text is as wide as the terminal, up to 120 columns."""
    for columns, least in (("80", 0), ("120", 80), ("200", 80)):
        result = empty_cli.process("state", "inspect", "--help", COLUMNS=columns)
        assert least < max(map(len, result.lines)) <= min(int(columns), 120)
