"""Tests `state why`: the report of one partition as text and as JSON."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import date

import pytest

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.transitions import Action
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import PAYLOAD
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.builders import ROWS, seal_facts, sealed_run, write_sealed_run
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    action_request,
    key,
    publish_runs,
    record_verdict,
    rejection,
    run,
)
from ads_pipeline_tests.operations.cli.running import CommandLine, CommandResult, DemoCommandLine

HOSTILE = "\x1b[31m[red]\nforged :smile:"
K = key()
INSTANT = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ"


@pytest.fixture
def ledger(empty_cli: CommandLine) -> Iterator[Ledger]:
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as opened:
        yield opened


def seal_run(cli: CommandLine, partition: PartitionKey = K, run_id: str = "r1") -> Run:
    """A sealed run that is not registered."""
    RawRuns(cli.home / "raw").land(run(partition, run_id), ROWS, seal_facts())
    return run(partition, run_id)


def land_run(cli: CommandLine, ledger: Ledger, run_id: str = "r1") -> Run:
    """A sealed run that is registered."""
    sealed = seal_run(cli, K, run_id)
    ledger.registrations.register([sealed_run(sealed, 3)])
    return sealed


def explain(cli: CommandLine, partition: PartitionKey | str = K) -> CommandResult:
    result = cli.run("state", "why", str(partition))
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.lines)) <= 80
    return result


def text_of(result: CommandResult, heading: str) -> str:
    """The text below a heading or beside a label of the summary, on one line."""
    lines = [" ".join(line.split()) for line in result.lines]
    if heading in lines:
        start = lines.index(heading) + 1
        return " ".join(lines[start : lines.index("", start) if "" in lines[start:] else None])
    return " ".join(_label_lines(result, heading))


def _label_lines(result: CommandResult, name: str) -> Iterator[str]:
    """The lines of one label: its own, and the indented ones that continue it."""
    is_inside = False
    for line in result.lines[2 : result.lines.index("", 2)]:
        is_inside = line.startswith(name) or (is_inside and line.startswith(" "))
        if is_inside:
            yield line.removeprefix(name).strip()


def test_restated_partition_shows_both_runs_with_verdicts(demo_cli: DemoCommandLine) -> None:
    """A restated day is served from its second run; both runs are listed, and no step is needed."""
    original, restated = demo_cli.demo.original, demo_cli.demo.restated
    result = explain(demo_cli, original.key)
    assert result.lines[0] == str(original.key)
    assert text_of(result, "safe to read") == f"yes, from run {restated.run_id} with 3 rows"
    assert text_of(result, "readers see").startswith(f"run {restated.run_id} since 20")
    assert text_of(result, "status").endswith(", 2 attempts")
    assert text_of(result, "raw asset").startswith(f"current; {restated.run_id} was accepted at ")
    runs = text_of(result, "runs")
    assert runs.index(f"1 {original.run_id}, 3 rows, registered") < runs.index("accepted, promoted at")
    assert runs.index("accepted, promoted at") < runs.index(f"2 {restated.run_id}, 3 rows, registered")
    assert text_of(result, "events").count("VerdictAccepted") == 2
    assert text_of(result, "events").endswith("table_version=1")
    assert text_of(result, "next") == "nothing: readers see the newest run"
    assert "control actions" not in result.out


def test_source_may_be_omitted(demo_cli: DemoCommandLine) -> None:
    """The query file has one source, so a partition may omit it."""
    whole = str(demo_cli.demo.original.key)
    assert explain(demo_cli, whole.removeprefix("google_ads/")).out == explain(demo_cli, whole).out


def test_failed_partition_shows_message_and_next_step(demo_cli: DemoCommandLine) -> None:
    """The validator's message appears with the attempt and as the reason of the gap."""
    result = explain(demo_cli, demo_cli.demo.negative_cost.key)
    assert text_of(result, "safe to read") == "no"
    assert text_of(result, "readers see").startswith("nothing, because its run was rejected: ")
    assert "rejected, failed at 20" in text_of(result, "runs")
    assert ": contract: cost_micros must be at least 0 in 1 row" in text_of(result, "runs")
    assert text_of(result, "next").endswith("or seal a corrected run under a new run_id; no reset is needed")


def test_damage_after_the_verdict_is_shown(empty_cli: CommandLine, ledger: Ledger) -> None:
    """A payload truncated after its verdict is reported beside the registered run."""
    first = land_run(empty_cli, ledger)
    record_verdict(ledger, acceptance(first))
    payload = empty_cli.home / "raw" / first.path / PAYLOAD
    payload.chmod(0o644)
    payload.write_bytes(b"")
    assert "damaged: the payload has 0 bytes, the seal says" in text_of(explain(empty_cli), "runs")


def test_partition_without_row_is_not_recorded(demo_cli: DemoCommandLine) -> None:
    """A partition without a state row and without sealed runs is not an error."""
    result = explain(demo_cli, demo_cli.demo.late)
    assert text_of(result, "status") == "not recorded"
    assert text_of(result, "readers see") == "nothing, because no run arrived"
    assert text_of(result, "runs") == "no run is registered or sealed"
    assert text_of(result, "next").startswith(
        "seal a run under a new run_id, or request one: ads-pipeline state enqueue"
    )


def test_unregistered_sealed_runs_are_listed(empty_cli: CommandLine) -> None:
    """Sealed runs that are not registered are listed; a damaged one needs a new run."""
    seal_run(empty_cli)
    assert text_of(explain(empty_cli), "runs") == "- r1, sealed and not registered, 2 rows"
    assert text_of(explain(empty_cli), "next").startswith("to judge r1: ")
    write_sealed_run(empty_cli.home / "raw", run(key(day=2), "r1"), b"{}\n", payload_bytes=7)
    result = explain(empty_cli, key(day=2))
    assert "r1, sealed and not registered, damaged: the payload has 3 bytes, the seal says 7" in text_of(
        result, "runs"
    )
    assert text_of(result, "next").startswith("seal a run under a new run_id, or request one: ")


def test_missing_raw_root_is_not_an_empty_one(empty_cli: CommandLine) -> None:
    """Without the raw root on this machine, the report makes no claim about sealed runs."""
    text = text_of(explain(empty_cli), "runs").replace(" ", "")  # a long path is folded
    expected = f"sealed runs are unknown: {empty_cli.home}/raw is missing, empty or cannot be opened"
    assert text == expected.replace(" ", "")


def test_accepted_run_awaiting_load_is_shown(empty_cli: CommandLine, ledger: Ledger) -> None:
    """Readers keep the previous run, the warehouse is stale, and the next step is to load."""
    first = land_run(empty_cli, ledger)
    record_verdict(ledger, acceptance(first))
    assert text_of(explain(empty_cli), "readers see") == "nothing, because it is accepted and not loaded yet"
    publish_runs(ledger, first)
    record_verdict(ledger, acceptance(land_run(empty_cli, ledger, "r2")))
    result = explain(empty_cli)
    assert text_of(result, "safe to read") == "yes, from run r2 with 3 rows"
    assert text_of(result, "readers see").startswith("run r1 since 20")
    assert text_of(result, "readers see").endswith("; r2 is accepted and not loaded yet")
    assert text_of(result, "warehouse").startswith("stale; not loaded since 20")
    assert text_of(result, "next").startswith("to load it: materialize warehouse/campaign_daily in Dagster")


def test_unloadable_run_is_shown(empty_cli: CommandLine, ledger: Ledger) -> None:
    """A failed load with missing raw data is reported, and the advice is to replace the data."""
    first = land_run(empty_cli, ledger)
    record_verdict(ledger, acceptance(first))
    ledger.loads.record_failed({first: "no such run"})
    shutil.rmtree(empty_cli.home / "raw" / first.path)
    result = explain(empty_cli)
    assert "its raw data is missing" in text_of(result, "runs")
    assert "LoadFailed" in text_of(result, "events")
    assert text_of(result, "next").startswith("request another run: ads-pipeline state reprocess")


def test_rejected_rerun_keeps_success_and_is_shown(empty_cli: CommandLine, ledger: Ledger) -> None:
    """A success whose newer run was rejected stays safe to read; the advice is a corrected run."""
    first = land_run(empty_cli, ledger)
    record_verdict(ledger, acceptance(first))
    publish_runs(ledger, first)
    record_verdict(ledger, rejection(land_run(empty_cli, ledger, "r2")))
    result = explain(empty_cli)
    assert text_of(result, "safe to read") == "yes, from run r1 with 3 rows"
    shown = text_of(result, "raw asset")
    assert re.fullmatch(rf"r1 was accepted at {INSTANT}; r2 was rejected by the validator at {INSTANT}", shown)
    assert text_of(result, "next").endswith("/campaign_daily/2026-02-01 --reason TEXT readers see r1")


def test_demoted_run_is_named_once(empty_cli: CommandLine, ledger: Ledger) -> None:
    """The raw asset's line says when the run was accepted, and who rejected it when."""
    first = land_run(empty_cli, ledger)
    record_verdict(ledger, acceptance(first))
    reason = Reason.of_demotion(first.run_id, operator="ada", text="wrong currency")
    record_verdict(ledger, replace(rejection(first, validation_id="d"), reason=reason))
    shown = text_of(explain(empty_cli), "raw asset")
    assert re.fullmatch(rf"r1 was accepted at {INSTANT} and was rejected by ada at {INSTANT}", shown)


def test_unjudged_newer_run_is_next(empty_cli: CommandLine, ledger: Ledger) -> None:
    """Only an unjudged run that is newer than the current one needs a verdict."""
    _older, newer = land_run(empty_cli, ledger), land_run(empty_cli, ledger, "r2")
    record_verdict(ledger, acceptance(newer))
    publish_runs(ledger, newer)
    assert text_of(explain(empty_cli), "next") == "nothing: readers see the newest run"
    land_run(empty_cli, ledger, "r3")
    assert "no verdict yet" in text_of(explain(empty_cli), "runs")
    assert text_of(explain(empty_cli), "next").startswith("to judge r3: ")


def test_unfinished_demotion_is_not_safe_to_read(empty_cli: CommandLine, ledger: Ledger) -> None:
    """A partition is not safe to read from the start of its demotion."""
    first = land_run(empty_cli, ledger)
    record_verdict(ledger, acceptance(first))
    publish_runs(ledger, first)
    ledger.verdicts.begin_demotions([rejection(first, validation_id="again")])
    result = explain(empty_cli)
    assert text_of(result, "safe to read") == "no"
    assert text_of(result, "readers see") == "nothing, because its rows are being withdrawn: bad in 1 row"
    assert text_of(result, "next").startswith("finish the removal of its rows: ads-pipeline reconcile")


def test_control_actions_are_listed(empty_cli: CommandLine, ledger: Ledger) -> None:
    """Each action appears with time, operator, command and reason, and the last one explains the status."""
    first = land_run(empty_cli, ledger)
    record_verdict(ledger, acceptance(first))
    publish_runs(ledger, first)
    ledger.actions.execute(Action.WITHDRAW, [K], action_request(reason="wrong currency"))
    result = explain(empty_cli)
    assert text_of(result, "control actions").endswith("withdraw by ada (state retry), was success: wrong currency")
    assert text_of(result, "next").startswith("withdrawn by ada: wrong currency ")
    assert text_of(result, "events").endswith('PartitionWithdrawn operator=ada reason="wrong currency"')


def test_partition_without_asset_names_the_reason(empty_cli: CommandLine) -> None:
    """An undefined query, a day before the start date and another source have no asset."""
    undefined = key(query_name="campaign_dayly")
    seal_run(empty_cli, undefined)
    result = explain(empty_cli, undefined)
    assert "does not define campaign_dayly" in text_of(result, "in Dagster")
    assert text_of(result, "next").startswith("fix the query file; Dagster cannot judge r1: ")
    early = replace(key(), logical_date=date(1999, 1, 1))
    seal_run(empty_cli, early)
    assert " starts at " in text_of(explain(empty_cli, early), "in Dagster")
    other_source = replace(key(), source="bing")
    seal_run(empty_cli, other_source)
    assert "defines the source google_ads" in text_of(explain(empty_cli, other_source), "in Dagster")


def test_hostile_text_is_escaped(empty_cli: CommandLine, ledger: Ledger) -> None:
    """Text of rows and operators cannot colour or break a line, and is not parsed as markup."""
    record_verdict(ledger, rejection(land_run(empty_cli, ledger), HOSTILE))
    ledger.actions.execute(Action.REQUEUE, [K], action_request(reason=HOSTILE))
    result = explain(empty_cli)
    assert all(line.isprintable() for line in result.lines)
    assert r"\x1b[31m[red]\nforged :smile:" in " ".join(result.out.split())


def test_json_contains_the_whole_report(empty_cli: CommandLine, ledger: Ledger) -> None:
    """The JSON object contains the fields of `state inspect --json` and everything on the screen."""
    first = land_run(empty_cli, ledger)
    record_verdict(ledger, acceptance(first))
    publish_runs(ledger, first)
    record_verdict(ledger, rejection(land_run(empty_cli, ledger, "r2")))
    ledger.actions.execute(Action.WITHDRAW, [K], action_request())
    seal_run(empty_cli, K, "r3")
    (found,) = empty_cli.run("state", "why", str(K), "--json").objects
    (inspected,) = empty_cli.run("state", "inspect", "--json").objects
    assert {name: found[name] for name in inspected} == inspected
    assert (found["recorded"], found["safe"], found["readers_see"]) == (True, False, None)
    assert found["missing_because"] == "an operator withdrew it"
    assert [(each["run_id"], each["ordinal"]) for each in found["runs"]] == [("r1", 1), ("r2", 2)]
    assert all(each["registered_at"].startswith("20") for each in found["runs"])
    assert [(each["run_id"], each["outcome"], each["effect"], each["error_class"]) for each in found["attempts"]] == [
        ("r1", "accepted", "promoted", None),
        ("r2", "rejected", "set_aside", "row_contract"),
    ]
    assert found["not_registered"] == ["r3"]
    assert [(action["action"], action["operator"], action["status_before"]) for action in found["actions"]] == [
        ("withdraw", "ada", "success")
    ]
    assert found["events"][-1]["event_type"] == "PartitionWithdrawn"
    assert found["next"][0] == "withdrawn by ada: on request"


@pytest.mark.parametrize("word", ["q", "1/q/2026-02-30", "a/b/c/d/e", "google_ads/1/q/2026-2-1", "1-2/q/2026-02-01"])
def test_invalid_partition_is_refused(empty_cli: CommandLine, word: str) -> None:
    """An invalid partition ends with exit code 64 and the expected spelling."""
    result = empty_cli.run("state", "why", word)
    assert (result.code, result.out) == (64, "")
    assert "is refused" in result.err


def test_most_urgent_day_is_explained_without_an_argument(demo_cli: DemoCommandLine) -> None:
    """`state why` alone explains the newest day of the first line of `state inspect`."""
    first = next(line.split() for line in demo_cli.run("state", "inspect").lines if line[:1].isdigit())
    explained = demo_cli.run("state", "why")
    assert explained.code == 0
    assert first[0] in explained.lines[0]
    assert demo_cli.run("state", "why", explained.lines[0]).out == explained.out
    (fields,) = demo_cli.run("state", "why", "--json").objects
    assert fields["customer_id"] == first[0]


def test_nothing_needs_attention(empty_cli: CommandLine, ledger: Ledger) -> None:
    """Where no day needs attention, `state why` says so and what it takes."""
    result = empty_cli.run("state", "why")
    assert result.code == 0
    assert "no day needs attention" in result.out + result.err
