"""Words of operators' commands that mean nothing: refused with what was meant to be there, and nothing is changed."""

import pytest

from ads_pipeline_tests.cli.actions.builders import BECAUSE, FAILED, GOOD, digest, stock
from ads_pipeline_tests.cli.running import CommandLine

DAY = ("--since", "2026-02-01")
PARTITION = str(GOOD[0])
ACTS = ("retry", "mark-terminal", "clear-terminal", "reprocess", "withdraw", "demote", "restore")
NOWHERE = {"ADS_PIPELINE_SPARK": "spark://127.0.0.1:1"}

# words behind the verb -> what is said; for every act
EACH = {
    "nothing named": ((), "--all if every one is meant"),
    "both named and narrowed": ((PARTITION, *DAY), "and not both"),
    "all and narrowed": (("--all", *DAY), "--all means every partition"),
    "all and named": (("--all", PARTITION), "and not both"),
    "no partition": (("campaign_daily",), "it is written source/customer_id/query_name/YYYY-MM-DD"),
    "no real day": (("1/campaign_daily/2026-02-30",), "a real day written YYYY-MM-DD"),
    "unknown partition": (("999/campaign_daily/2026-02-01",), 'the ledger holds no such one; "ads-pipeline state'),
    "another source": (("bing/1/campaign_daily/2026-02-01",), "is for the source google_ads"),
    "one good, one unknown": ((PARTITION, "999/campaign_daily/2026-02-01"), "the ledger holds no such one"),
    "hyphens": (("--customer", "123-456"), "1 to 20 digits 0-9, without hyphens"),
    "unknown customer": (("--customer", "1011"), "did you mean 101?"),
    "unlike any customer": (("--customer", "98765"), "known are 101, 102, 103, 104, 110 and 2 more"),
    "misspelt query": (("--query", "campaign_dayly"), "did you mean campaign_daily?"),
    "odd query": (("--query", "Campaign"), "query_name: 'Campaign' is refused"),
    "wrong spelling of a day": (("--since", "2026-2-1"), "a real day written YYYY-MM-DD"),
    "days the wrong way round": (("--since", "2026-02-02", "--until", "2026-02-01"), "exchange them"),
}
# whole commands -> what is said
ONCE = {
    "a class nobody has": (("state", "retry", "--error-class", "contrct", *BECAUSE), "did you mean contract?"),
    "a class of odd letters": (("state", "retry", "--error-class", "No!", *BECAUSE), "error_class: 'No!' is refused"),
    "a run of several": (("state", "restore", *map(str, GOOD), "--run", "r1", *BECAUSE), "name that partition"),
    "a run of a filter": (("state", "restore", "--all", "--run", "r1", *BECAUSE), "name that partition"),
    "unknown run": (("state", "restore", PARTITION, "--run", "r9", *BECAUSE), "has no such run; known are r1"),
    "a run of odd letters": (("state", "restore", PARTITION, "--run", "../x", *BECAUSE), "run_id: '../x' is refused"),
    "park nothing": (("state", "park", *BECAUSE), "name either an account"),
    "park both": (("state", "park", "--customer", "101", "--query", "campaign_daily", *BECAUSE), "and not both"),
    "park an unknown query": (
        ("state", "park", "--query", "campaign_dayly", *BECAUSE),
        "did you mean campaign_daily?",
    ),
    "park an unknown account": (("state", "park", "--customer", "1011", *BECAUSE), "did you mean 101?"),
    "park without a reason": (("state", "park", "--customer", "101", "--reason", " "), "--reason is empty"),
    "release an unknown query": (("state", "release", "--query", "campaign_dayly", *BECAUSE), "did you mean"),
    "release an unknown account": (("state", "release", "--customer", "1011", *BECAUSE), "did you mean 101?"),
    "due of an unknown query": (("state", "due", "--query", "campaign_dayly"), "did you mean campaign_daily?"),
    "an act nobody did": (("audit", "acts", "--act", "nothing"), '"ads-pipeline audit acts" lists them'),
    "behind an act nobody did": (("audit", "acts", "--after", "nothing"), '"ads-pipeline audit acts" lists them'),
    "an act of odd letters": (("audit", "acts", "--act", "a b"), "act_id: 'a b' is refused"),
    "behind no partition": (("audit", "terminal", "--after", "x"), "it is written source/"),
    "behind no attempt": (("audit", "attempts", "--after", PARTITION), "YYYY-MM-DD/number"),
}
# what Typer itself refuses
SPELT = {
    "no reason": ("state", "retry", "--all"),
    "unknown status": ("state", "inspect", "--status", "good"),
    "no such option": ("state", "retry", "--all", "--status", "failed", *BECAUSE),
    "a class for another act": ("state", "withdraw", "--error-class", "contract", *BECAUSE),
    "a run for another act": ("state", "demote", PARTITION, "--run", "r1", *BECAUSE),
    "two accounts at once": ("state", "park", "101", *BECAUSE),
    "no such verb": ("state", "retri", "--all", *BECAUSE),
    "no such list": ("audit", "act"),
    "too many": ("audit", "acts", "--limit", "10001"),
}


@pytest.fixture
def cli(empty_cli: CommandLine) -> CommandLine:
    stock(empty_cli)
    return CommandLine(home=empty_cli.home, more=NOWHERE)


def refused(cli: CommandLine, words: tuple[str, ...], said: str) -> None:
    before = digest(cli)
    ended = cli.run(*words)
    assert (ended.code, ended.out) == (64, "")
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1
    assert digest(cli) == before


@pytest.mark.invariant("S15")
@pytest.mark.parametrize("case", EACH)
@pytest.mark.parametrize("verb", ACTS)
def test_a_word_that_means_nothing_stops_every_act(cli: CommandLine, verb: str, case: str) -> None:
    """One line says what is meant to be there, the code is 64, and every row of every table is as it was."""
    words, said = EACH[case]
    refused(cli, ("state", verb, *words, *BECAUSE, "--yes"), said)


@pytest.mark.parametrize("verb", ACTS)
@pytest.mark.parametrize(("option", "word"), [("--reason", ""), ("--reason", " \t"), ("--operator", "")])
def test_an_act_has_a_reason_and_somebody_who_orders_it(cli: CommandLine, verb: str, option: str, word: str) -> None:
    """An empty word is none."""
    words = ("--reason", word) if option == "--reason" else (*BECAUSE, option, word)
    refused(cli, ("state", verb, PARTITION, *words, "--yes"), f"{option} is empty")


@pytest.mark.parametrize("case", ONCE)
def test_a_word_that_means_nothing_is_told_with_what_is_meant(cli: CommandLine, case: str) -> None:
    """The same for what only one command takes."""
    refused(cli, *ONCE[case])


@pytest.mark.parametrize("case", SPELT)
def test_what_typer_refuses_changes_nothing(cli: CommandLine, case: str) -> None:
    """What is missing or unknown is told with the way to the help, and the code is 2."""
    before = digest(cli)
    ended = cli.run(*SPELT[case])
    assert (ended.code, ended.out) == (2, "")
    assert "--help" in ended.err
    assert digest(cli) == before


def test_nobody_by_name_has_to_say_who(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the login has no name the operator says it, and until then nothing is done."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nameless)
    refused(cli, ("state", "retry", str(FAILED[0]), *BECAUSE), "say who you are by --operator")
    assert cli.run("state", "retry", str(FAILED[0]), *BECAUSE, "--operator", "ada").code == 0
