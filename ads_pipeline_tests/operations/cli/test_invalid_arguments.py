"""Invalid arguments of operators' commands: assert_refused with the valid spelling, and nothing changes."""

import pytest

from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import FAILED, REASON, SUCCESSFUL, fill_ledger, read_all_rows

DAY = ("--since", "2026-02-01")
PARTITION = str(SUCCESSFUL[0])
ACTIONS = ("retry", "terminal", "reprocess", "withdraw", "demote", "restore")
UNREACHABLE_SPARK = {"ADS_PIPELINE_SPARK": "spark://127.0.0.1:1"}

# arguments of every action command -> part of the error message
FOR_EVERY_ACTION = {
    "no partition and no filter": ((), "--since or --until, or --all"),
    "partition and filter": ((PARTITION, *DAY), "not both"),
    "all and filter": (("--all", *DAY), "--all selects every partition"),
    "all and partition": (("--all", PARTITION), "not both"),
    "not a partition": (("campaign_daily",), "it must be source/customer_id/query_name/YYYY-MM-DD"),
    "not a date": (("1/campaign_daily/2026-02-30",), "a real day written YYYY-MM-DD"),
    "unknown partition": (("999/campaign_daily/2026-02-01",), 'the ledger does not record it; "ads-pipeline state'),
    "another source": (("bing/1/campaign_daily/2026-02-01",), "defines the source google_ads"),
    "one known, one unknown": ((PARTITION, "999/campaign_daily/2026-02-01"), "the ledger does not record it"),
    "hyphens": (("--customer", "123-456"), "1 to 20 digits 0-9, without hyphens"),
    "unknown customer": (("--customer", "1011"), "did you mean 101?"),
    "dissimilar customer": (("--customer", "98765"), "known are 101, 102, 103, 104, 110 and 2 more"),
    "misspelt query": (("--query", "campaign_dayly"), "did you mean campaign_daily?"),
    "invalid query name": (("--query", "Campaign"), "query_name: 'Campaign' is refused"),
    "misspelt date": (("--since", "2026-2-1"), "a real day written YYYY-MM-DD"),
    "dates in the wrong order": (("--since", "2026-02-02", "--until", "2026-02-01"), "exchange them"),
}
# whole commands -> part of the error message
SINGLE_COMMANDS = {
    "unused error class": (("state", "retry", "--error-class", "contrct", *REASON), "did you mean contract?"),
    "invalid error class": (
        ("state", "retry", "--error-class", "No!", *REASON),
        "error_class: 'No!' is refused",
    ),
    "run for several partitions": (
        ("state", "restore", *map(str, SUCCESSFUL), "--run", "r1", *REASON),
        "--run needs exactly one partition",
    ),
    "run with a filter": (("state", "restore", "--all", "--run", "r1", *REASON), "--run needs exactly one partition"),
    "unknown run": (("state", "restore", PARTITION, "--run", "r9", *REASON), "has no such run; known are r1"),
    "invalid run id": (
        ("state", "restore", PARTITION, "--run", "../x", *REASON),
        "run_id: '../x' is refused",
    ),
    "park nothing": (("state", "park", *REASON), "give one of them: an account"),
    "park both": (("state", "park", "--customer", "101", "--query", "campaign_daily", *REASON), "give one of them"),
    "park an unknown query": (
        ("state", "park", "--query", "campaign_dayly", *REASON),
        "did you mean campaign_daily?",
    ),
    "park an unknown account": (("state", "park", "--customer", "1011", *REASON), "did you mean 101?"),
    "park without a reason": (("state", "park", "--customer", "101", "--reason", " "), "--reason is empty"),
    "release an unknown query": (("state", "release", "--query", "campaign_dayly", *REASON), "did you mean"),
    "release an unknown account": (("state", "release", "--customer", "1011", *REASON), "did you mean 101?"),
    "due with an unknown query": (("state", "due", "--query", "campaign_dayly"), "did you mean campaign_daily?"),
    "unknown action": (("audit", "--action", "nothing"), '"ads-pipeline audit" lists them'),
    "after an unknown action": (
        ("audit", "--after", "nothing"),
        '"ads-pipeline audit" lists them',
    ),
    "invalid action id": (("audit", "--action", "a b"), "action_id: 'a b' is refused"),
    "after an invalid partition": (("state", "inspect", "--list", "terminal", "--after", "x"), "it must be source/"),
    "after an invalid attempt": (("state", "why", "--attempts", "--after", PARTITION), "YYYY-MM-DD/number"),
}
# commands that Typer itself refuses
REFUSED_BY_TYPER = {
    "no reason": ("state", "retry", "--all"),
    "unknown status": ("state", "inspect", "--status", "good"),
    "no such option": ("state", "retry", "--all", "--status", "failed", *REASON),
    "error class for another command": ("state", "withdraw", "--error-class", "contract", *REASON),
    "run for another command": ("state", "demote", PARTITION, "--run", "r1", *REASON),
    "two accounts at once": ("state", "park", "101", *REASON),
    "no such command": ("state", "retri", "--all", *REASON),
    "no such list": ("state", "inspect", "--list", "act"),
    "too many": ("audit", "--limit", "10001"),
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """One ledger for all tests, because none may change it."""
    home = tmp_path_factory.mktemp("filled") / "home"
    fill_ledger(CommandLine(home=home))
    return CommandLine(home=home, more=UNREACHABLE_SPARK)


def assert_refused(cli: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    before = read_all_rows(cli)
    result = cli.run(*arguments)
    assert (result.code, result.out) == (64, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert read_all_rows(cli) == before


@pytest.mark.invariant("S15")
@pytest.mark.parametrize("case", FOR_EVERY_ACTION)
@pytest.mark.parametrize("verb", ACTIONS)
def test_invalid_argument_stops_every_action(cli: CommandLine, verb: str, case: str) -> None:
    """One line explains the error, the exit code is 64, and no row of any table changes."""
    arguments, message = FOR_EVERY_ACTION[case]
    assert_refused(cli, ("state", verb, *arguments, *REASON, "--yes"), message)


@pytest.mark.parametrize("verb", ACTIONS)
@pytest.mark.parametrize(("option", "word"), [("--reason", ""), ("--reason", " \t"), ("--operator", "")])
def test_action_needs_reason_and_operator(cli: CommandLine, verb: str, option: str, word: str) -> None:
    """An empty reason or operator is refused."""
    arguments = ("--reason", word) if option == "--reason" else (*REASON, option, word)
    assert_refused(cli, ("state", verb, PARTITION, *arguments, "--yes"), f"{option} is empty")


@pytest.mark.parametrize("case", SINGLE_COMMANDS)
def test_invalid_argument_of_one_command_is_explained(cli: CommandLine, case: str) -> None:
    """Arguments of single commands are assert_refused in the same way."""
    assert_refused(cli, *SINGLE_COMMANDS[case])


@pytest.mark.parametrize("case", REFUSED_BY_TYPER)
def test_typer_errors_change_nothing(cli: CommandLine, case: str) -> None:
    """A missing or unknown option exits with 2, points to --help, and changes nothing."""
    before = read_all_rows(cli)
    result = cli.run(*REFUSED_BY_TYPER[case])
    assert (result.code, result.out) == (2, "")
    assert "--help" in result.err
    assert read_all_rows(cli) == before


def test_missing_login_name_requires_operator(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a login name, --operator is required."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert_refused(cli, ("state", "retry", str(FAILED[0]), *REASON), "give your name by --operator")
    assert cli.run("state", "retry", str(FAILED[0]), *REASON, "--operator", "ada").code == 0
