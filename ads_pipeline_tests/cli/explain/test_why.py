"""`state why`: one screen that says of one partition what is known and what to do, to people and to programs."""

import shutil
from collections.abc import Iterator

import pytest

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import RunRegistration
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import PAYLOAD
from ads_pipeline_tests.builders import ROWS, facts, seal_by_hand
from ads_pipeline_tests.cli.running import CommandResult, CommandLine, DemoCommandLine
from ads_pipeline_tests.ledger.builders import acceptance, key, publish_runs, action_request, rejection, run

HOSTILE = "\x1b[31m[red]\nforged :smile:"
K = key()


@pytest.fixture
def ledger(empty_cli: CommandLine) -> Iterator[Ledger]:
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as opened:
        yield opened


def sealed(cli: CommandLine, partition: PartitionKey = K, run_id: str = "r1") -> Run:
    """A run in raw, of which the ledger knows nothing."""
    RawRuns(cli.home / "raw").land(run(partition, run_id), ROWS, facts())
    return run(partition, run_id)


def landed(cli: CommandLine, ledger: Ledger, run_id: str = "r1") -> Run:
    """A run in raw that is registered."""
    each = sealed(cli, K, run_id)
    ledger.register([RunRegistration(run=each, schema_version="1", record_count=3)])
    return each


def ask(cli: CommandLine, partition: PartitionKey | str = K) -> CommandResult:
    ended = cli.run("state", "why", str(partition))
    assert (ended.code, ended.err) == (0, "")
    assert max(map(len, ended.lines)) <= 80
    return ended


def told(ended: CommandResult, heading: str) -> str:
    """What stands below a heading, or beside a name in the first block, on one line."""
    words = [" ".join(line.split()) for line in ended.lines]
    if heading in words:
        start = words.index(heading) + 1
        return " ".join(words[start : words.index("", start) if "" in words[start:] else None])
    return " ".join(_block(ended, heading))


def _block(ended: CommandResult, name: str) -> Iterator[str]:
    """The lines of one fact: its own, and those below it that begin with spaces."""
    inside = False
    for line in ended.lines[2 : ended.lines.index("", 2)]:
        inside = line.startswith(name) or (inside and line.startswith(" "))
        if inside:
            yield line.removeprefix(name).strip()


def test_a_good_partition_is_told_with_its_history(demo_cli: DemoCommandLine) -> None:
    """A day that was restated is read from the second run; both stand there with their verdicts; nothing is to do."""
    first, again = demo_cli.demo.original, demo_cli.demo.restated
    ended = ask(demo_cli, first.key)
    assert ended.lines[0] == str(first.key)
    assert told(ended, "safe to read") == f"yes, from run {again.run_id} with 3 rows"
    assert told(ended, "readers see").startswith(f"run {again.run_id} since 20")
    assert told(ended, "status").endswith(", 2 attempts")
    assert told(ended, "raw asset").startswith("current; made from")
    runs = told(ended, "runs")
    assert runs.index(f"1 {first.run_id}, 3 rows, registered") < runs.index("accepted, promoted at")
    assert runs.index("accepted, promoted at") < runs.index(f"2 {again.run_id}, 3 rows, registered")
    assert told(ended, "events").count("VerdictAccepted") == 2
    assert told(ended, "events").endswith("table_version=1")
    assert told(ended, "next") == "nothing: readers have the newest run"
    assert "acts of operators" not in ended.out


def test_the_source_may_be_left_out(demo_cli: DemoCommandLine) -> None:
    """The query file has one source, so its name need not be written."""
    whole = str(demo_cli.demo.original.key)
    assert ask(demo_cli, whole.removeprefix("google_ads/")).out == ask(demo_cli, whole).out


def test_a_failed_partition_tells_why_and_what_to_do(demo_cli: DemoCommandLine) -> None:
    """The validator's words stand with the attempt, and with what readers do not see."""
    ended = ask(demo_cli, demo_cli.demo.negative_cost.key)
    assert told(ended, "safe to read") == "no"
    assert told(ended, "readers see").startswith("nothing, because its run was rejected: ")
    assert "rejected, failed at 20" in told(ended, "runs")
    assert ": contract: cost_micros must be at least 0 in 1 row" in told(ended, "runs")
    assert told(ended, "next").endswith("or seal a corrected run under a new run_id; nothing is to be reset")


def test_a_run_that_is_damaged_now_is_marked(empty_cli: CommandLine, ledger: Ledger) -> None:
    """Its payload was cut after it had been judged; what is wrong stands beside what was registered."""
    first = landed(empty_cli, ledger)
    ledger.record_verdict(acceptance(first))
    payload = empty_cli.home / "raw" / first.path / PAYLOAD
    payload.chmod(0o644)
    payload.write_bytes(b"")
    assert "damaged: the payload has 0 bytes, the seal says" in told(ask(empty_cli), "runs")


def test_what_nobody_heard_of_is_said(demo_cli: DemoCommandLine) -> None:
    """A partition without a row, of which raw holds nothing either, is no error."""
    ended = ask(demo_cli, demo_cli.demo.late)
    assert told(ended, "status") == "nobody has heard of it"
    assert told(ended, "readers see") == "nothing, because no run was registered"
    assert told(ended, "runs") == "none is registered, and nothing is sealed"
    assert told(ended, "next") == "seal a run of it under a new run_id"


def test_what_is_sealed_and_not_registered_is_told(empty_cli: CommandLine) -> None:
    """Raw may hold what the ledger never heard of; a damaged one is told as such, and another one is asked for."""
    sealed(empty_cli)
    assert told(ask(empty_cli), "runs") == "- r1, sealed and not registered, 2 rows"
    assert told(ask(empty_cli), "next").startswith("have r1 judged: ")
    seal_by_hand(empty_cli.home / "raw", run(key(day=2), "r1"), b"{}\n", payload_bytes=7)
    ended = ask(empty_cli, key(day=2))
    assert "r1, sealed and not registered, damaged: the payload has 3 bytes, the seal says 7" in told(ended, "runs")
    assert told(ended, "next") == "seal a run of it under a new run_id"


def test_a_folder_that_cannot_be_seen_is_no_empty_one(empty_cli: CommandLine) -> None:
    """Where raw lies on another machine nothing is claimed of it."""
    said = told(ask(empty_cli), "runs").replace(" ", "")  # a long path is folded
    assert said == f"raw runs cannot be seen from here: there is no folder {empty_cli.home}/raw".replace(" ", "")


def test_an_accepted_run_that_is_not_loaded_is_told(empty_cli: CommandLine, ledger: Ledger) -> None:
    """Readers keep the run before, the warehouse is stale since then, and the newer run is to be loaded."""
    first = landed(empty_cli, ledger)
    ledger.record_verdict(acceptance(first))
    assert told(ask(empty_cli), "readers see") == "nothing, because it is accepted and not loaded yet"
    publish_runs(ledger, first)
    ledger.record_verdict(acceptance(landed(empty_cli, ledger, "r2")))
    ended = ask(empty_cli)
    assert told(ended, "safe to read") == "yes, from run r2 with 3 rows"
    assert told(ended, "readers see").startswith("run r1 since 20")
    assert told(ended, "readers see").endswith("; r2 is accepted and not loaded yet")
    assert told(ended, "warehouse").startswith("stale; not loaded since 20")
    assert told(ended, "next").startswith("load it: materialize warehouse/campaign_daily in Dagster")


def test_a_run_that_cannot_be_loaded_is_told(empty_cli: CommandLine, ledger: Ledger) -> None:
    """Its raw data is gone: that is seen beside the run, and the failed load is why waiting does not help."""
    first = landed(empty_cli, ledger)
    ledger.record_verdict(acceptance(first))
    ledger.record_failed_loads({first: "no such run"})
    shutil.rmtree(empty_cli.home / "raw" / first.path)
    ended = ask(empty_cli)
    assert "its raw data is gone" in told(ended, "runs")
    assert "LoadFailed" in told(ended, "events")
    assert told(ended, "next").startswith("put the raw data of r1 back")


def test_a_bad_rerun_leaves_the_good_one_and_is_told(empty_cli: CommandLine, ledger: Ledger) -> None:
    """A success whose newer run was rejected is safe to read, and a corrected one is asked for."""
    first = landed(empty_cli, ledger)
    ledger.record_verdict(acceptance(first))
    publish_runs(ledger, first)
    ledger.record_verdict(rejection(landed(empty_cli, ledger, "r2")))
    ended = ask(empty_cli)
    assert told(ended, "safe to read") == "yes, from run r1 with 3 rows"
    assert told(ended, "raw asset").startswith("bad rerun; made from r1 at ")
    assert told(ended, "raw asset").endswith(": FAILED for r2")
    assert told(ended, "next").endswith("if what r2 was to bring is wanted readers keep r1")


def test_a_newer_run_without_a_verdict_is_waited_for(empty_cli: CommandLine, ledger: Ledger) -> None:
    """Only one that could take the authority: an older run that was never judged changes nothing."""
    _older, newer = landed(empty_cli, ledger), landed(empty_cli, ledger, "r2")
    ledger.record_verdict(acceptance(newer))
    publish_runs(ledger, newer)
    assert told(ask(empty_cli), "next") == "nothing: readers have the newest run"
    landed(empty_cli, ledger, "r3")
    assert "awaits its verdict" in told(ask(empty_cli), "runs")
    assert told(ask(empty_cli), "next").startswith("have r3 judged: ")


def test_a_demotion_under_way_is_told(empty_cli: CommandLine, ledger: Ledger) -> None:
    """What was found bad is not safe to read, though the failure is not recorded yet."""
    first = landed(empty_cli, ledger)
    ledger.record_verdict(acceptance(first))
    publish_runs(ledger, first)
    ledger.begin_demotions([rejection(first, validation_id="again")])
    ended = ask(empty_cli)
    assert told(ended, "safe to read") == "no"
    assert told(ended, "readers see") == "nothing, because its rows are being withdrawn"
    assert told(ended, "next").startswith("finish the demotion: ads-pipeline reconcile")


def test_what_operators_did_is_told(empty_cli: CommandLine, ledger: Ledger) -> None:
    """Who, when, what, by which command and why; it is also why there is something to do."""
    first = landed(empty_cli, ledger)
    ledger.record_verdict(acceptance(first))
    publish_runs(ledger, first)
    ledger.execute(Action.WITHDRAW, [K], action_request(reason="wrong currency"))
    ended = ask(empty_cli)
    assert told(ended, "acts of operators").endswith("withdraw by ada (state retry), was success: wrong currency")
    assert told(ended, "next").startswith("it was withdrawn by ada: wrong currency ")
    assert told(ended, "events").endswith('PartitionWithdrawn operator=ada reason="wrong currency"')


def test_a_query_that_is_gone_is_told(empty_cli: CommandLine) -> None:
    """What Dagster has no asset for nobody judges, whatever is sealed; so does a day before the first one."""
    odd = key(query_name="campaign_dayly")
    sealed(empty_cli, odd)
    ended = ask(empty_cli, odd)
    assert "campaign_dayly is no query of" in told(ended, "in Dagster")
    assert told(ended, "next").startswith("mend the query file, for Dagster cannot judge r1: ")
    assert " begins with " in told(ask(empty_cli, "1234567890/campaign_daily/1999-01-01"), "in Dagster")
    foreign = ask(empty_cli, "bing/1234567890/campaign_daily/2026-02-01")
    assert "is for the source google_ads" in told(foreign, "in Dagster")


def test_hostile_text_reaches_no_terminal(empty_cli: CommandLine, ledger: Ledger) -> None:
    """What rows and operators said can neither colour, nor break the line, nor be taken for markup."""
    ledger.record_verdict(rejection(landed(empty_cli, ledger), HOSTILE))
    ledger.execute(Action.REQUEUE, [K], action_request(reason=HOSTILE))
    ended = ask(empty_cli)
    assert all(line.isprintable() for line in ended.lines)
    assert r"\x1b[31m[red]\nforged :smile:" in " ".join(ended.out.split())


def test_a_program_gets_all_of_it(empty_cli: CommandLine, ledger: Ledger) -> None:
    """One object with what `state inspect --json` says, and all that the screen shows besides."""
    first = landed(empty_cli, ledger)
    ledger.record_verdict(acceptance(first))
    publish_runs(ledger, first)
    ledger.record_verdict(rejection(landed(empty_cli, ledger, "r2")))
    ledger.execute(Action.WITHDRAW, [K], action_request())
    sealed(empty_cli, K, "r3")
    (found,) = empty_cli.run("state", "why", str(K), "--json").objects
    (inspected,) = empty_cli.run("state", "inspect", "--json").objects
    assert {name: found[name] for name in inspected} == inspected
    assert (found["recorded"], found["safe"], found["readers_see"]) == (True, False, None)
    assert found["missing_because"] == "it waits for another run"
    assert [(each["run_id"], each["ordinal"]) for each in found["runs"]] == [("r1", 1), ("r2", 2)]
    assert all(each["registered_at"].startswith("20") for each in found["runs"])
    assert [(each["run_id"], each["outcome"], each["effect"], each["error_class"]) for each in found["attempts"]] == [
        ("r1", "accepted", "promoted", None),
        ("r2", "rejected", "set_aside", "row_contract"),
    ]
    assert found["not_registered"] == ["r3"]
    assert [(act["action"], act["operator"], act["status_before"]) for act in found["acts"]] == [
        ("withdraw", "ada", "success")
    ]
    assert found["events"][-1]["event_type"] == "PartitionWithdrawn"
    assert found["next"][0] == "it was withdrawn by ada: on request"


@pytest.mark.parametrize("word", ["q", "1/q/2026-02-30", "a/b/c/d/e", "google_ads/1/q/2026-2-1", "1-2/q/2026-02-01"])
def test_what_names_no_partition_is_refused(empty_cli: CommandLine, word: str) -> None:
    """The code is 64 and one line says how it is spelt."""
    ended = empty_cli.run("state", "why", word)
    assert (ended.code, ended.out) == (64, "")
    assert "is refused" in ended.err
