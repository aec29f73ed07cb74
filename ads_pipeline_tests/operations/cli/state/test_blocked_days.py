"""Every surface says the same of a day that needs a person, and its next command succeeds."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.days.conditions import CONDITIONS, Condition, GapReason
from ads_pipeline.domain.days.readability import IN_PROGRESS_LIMIT
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.actions.row_actions import demote
from ads_pipeline.pipeline.hidden_rows import HiddenRows
from ads_pipeline_tests.ledger.builders import FakeClock, action_request
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    LocalDeployment,
    corrupt_payload,
    key,
    seal_invalid_run,
    seal_run,
    seal_unknown_version,
)

DAY, NAME = key(1), key(1).short_name
LATER: Final = IN_PROGRESS_LIMIT + timedelta(hours=1)
Arrange = Callable[[LocalDeployment, pytest.MonkeyPatch], None]


@pytest.fixture
def deployment(empty_cli: CommandLine, spark: SparkSession) -> Iterator[LocalDeployment]:
    """A deployment in the command's home whose ledger was written hours ago."""
    clock = FakeClock()
    clock.now = datetime.now(UTC) - LATER
    url = f"sqlite:///{empty_cli.home / 'ledger.db'}"
    with Ledger.opened(url, clock=clock) as ledger:
        yield LocalDeployment(home=empty_cli.home, spark=spark, ledger=ledger)


def register_without_contract(deployment: LocalDeployment, _patch: pytest.MonkeyPatch) -> None:
    deployment.pipeline.judge_and_load([seal_unknown_version(deployment, DAY)])


def register_without_contract_behind(deployment: LocalDeployment, patch: pytest.MonkeyPatch) -> None:
    deployment.pipeline.judge_and_load([seal_run(deployment, DAY)])
    register_without_contract(deployment, patch)


def change_accepted_run(deployment: LocalDeployment, _patch: pytest.MonkeyPatch) -> None:
    run = seal_run(deployment, DAY, "r2")
    deployment.pipeline.validation.judge([run])
    corrupt_payload(deployment, run)
    deployment.pipeline.loader.load([DAY])


def change_accepted_run_behind(deployment: LocalDeployment, patch: pytest.MonkeyPatch) -> None:
    deployment.pipeline.judge_and_load([seal_run(deployment, DAY)])
    change_accepted_run(deployment, patch)


def leave_unjudged(deployment: LocalDeployment, _patch: pytest.MonkeyPatch) -> None:
    deployment.pipeline.validation.seals.get_or_register([seal_run(deployment, DAY)])


def leave_unloaded(deployment: LocalDeployment, _patch: pytest.MonkeyPatch) -> None:
    deployment.pipeline.validation.judge([seal_run(deployment, DAY)])


def leave_demoting(deployment: LocalDeployment, patch: pytest.MonkeyPatch) -> None:
    run = seal_run(deployment, DAY)
    deployment.pipeline.judge_and_load([run])
    with patch.context() as context:
        context.setattr(HiddenRows, "remove", _die)
        with pytest.raises(RuntimeError):
            demote(deployment.pipeline, [run], action_request())


def reject_and_retry(deployment: LocalDeployment, _patch: pytest.MonkeyPatch) -> None:
    deployment.pipeline.judge_and_load([seal_invalid_run(deployment, DAY)])
    deployment.ledger.actions.execute(Action.REQUEUE, [DAY], action_request())


def _die(*_: Any, **__: Any) -> None:
    raise RuntimeError("died")


CASES: Final[Mapping[str, tuple[Arrange, Condition, GapReason | None, str]]] = {
    "no contract": (register_without_contract, Condition.BLOCKED, GapReason.NO_CONTRACT, "state why"),
    "no contract behind": (register_without_contract_behind, Condition.BLOCKED_RERUN, None, "state reprocess"),
    "changed": (change_accepted_run, Condition.BLOCKED, GapReason.UNLOADABLE, "state reprocess"),
    "changed behind": (change_accepted_run_behind, Condition.BLOCKED_RERUN, None, "state reprocess"),
    "not judged": (leave_unjudged, Condition.BLOCKED, GapReason.UNJUDGED, "state rejudge"),
    "not loaded": (leave_unloaded, Condition.BLOCKED, GapReason.UNLOADED, "reconcile"),
    "being demoted": (leave_demoting, Condition.BLOCKED, GapReason.DEMOTING, "reconcile"),
    "retried": (reject_and_retry, Condition.REJECTED, GapReason.WAITING, "state why"),
}


@pytest.mark.invariant("L2", "L7", "L8", "L9")
@pytest.mark.parametrize("case", CASES)
def test_surfaces_agree_and_the_next_command_succeeds(
    empty_cli: CommandLine, deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Condition, reason and command are equal in each list, and report, metrics and doctor count the day."""
    arrange, condition, gap, command = CASES[case]
    arrange(deployment, monkeypatch)
    (why,) = empty_cli.run("state", "why", NAME, "--json").objects
    assert (why["condition"], why["reason"]) == (condition, gap and gap.name.lower())
    assert why["next_command"].startswith(f"ads-pipeline {command}")
    listed = empty_cli.run("state", "inspect", "--condition", condition, "--json").objects
    fields = ("condition", "reason", "because", "detail", "since", "next_command")
    assert [[each[name] for name in fields] for each in listed] == [[why[name] for name in fields]]
    gaps = empty_cli.run("warehouse", "gaps", "--customer", "1", "--until", str(DAY.logical_date), "--json").objects
    of_query = [[each[name] for name in fields] for each in gaps if each["query_name"] == QUERY]
    assert of_query == ([] if gap is None else [[why[name] for name in fields]])
    assert f'condition="{condition}",query_name="{QUERY}"' in _sorted_labels(empty_cli.run("metrics").out, condition)
    label = CONDITIONS[condition].label
    assert f"1 day {label.lower()}" in " ".join(empty_cli.run("report").out.split())
    found = [each["location"] for each in empty_cli.run("doctor", "--json").objects if each["check"] == "days"]
    assert found == ([label] if "blocked" in condition else [])
    assert found or "need you: ads-pipeline state inspect lists them" in " ".join(empty_cli.run("doctor").out.split())
    arguments = shlex.split(why["next_command"])[1:]
    result = empty_cli.run(*arguments)
    assert result.code == 0, result.err


def _sorted_labels(metrics: str, condition: Condition) -> str:
    """The label sets of the days with this condition that are counted once."""
    lines = re.findall(r"^ads_pipeline_days\{(.*)\} 1\.0$", metrics, re.MULTILINE)
    return "\n".join(",".join(sorted(line.split(","))[:2]) for line in lines if f'"{condition}"' in line)


@pytest.mark.invariant("L7", "L12")
def test_changed_run_is_named_by_verify_and_explained_by_reconcile(
    empty_cli: CommandLine, deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when payload and seal were rewritten together, so that they agree with each other."""
    change_accepted_run(deployment, monkeypatch)
    reseal(deployment)
    window = ("--since", "2026-01-01", "--until", "2026-01-31")
    verified = empty_cli.run("raw", "verify", *window)
    assert (verified.code, verified.lines[-1]) == (1, "1 of 1 sealed run damaged")
    repaired = empty_cli.run("reconcile")
    reprocess = f"ads-pipeline state reprocess {NAME} --reason TEXT"
    assert repaired.code == 1
    assert repaired.err.endswith(f"; next: {reprocess}\n")
    (finding,) = [each for each in empty_cli.run("doctor", "--json").objects if each["check"] == "tables"]
    assert finding["next"] == reprocess
    assert empty_cli.run(*shlex.split(reprocess)[1:]).code == 0
    deployment.pipeline.judge_and_load([seal_run(deployment, DAY, "r3")])
    assert empty_cli.run("reconcile").code == 0
    assert empty_cli.run("state", "why", NAME, "--json").objects[0]["condition"] == "restated"


def reseal(deployment: LocalDeployment) -> None:
    """Write a seal that fits the changed payload."""
    import hashlib  # noqa: PLC0415

    folder = deployment.home / "raw" / f"{DAY.path}/run_id=r2"
    payload = (folder / "payload.jsonl").read_bytes()
    seal = json.loads((folder / "metadata.json").read_text())
    seal["payload_sha256"] = hashlib.sha256(payload).hexdigest()
    (folder / "metadata.json").chmod(0o644)
    (folder / "metadata.json").write_text(json.dumps(seal))


@pytest.mark.invariant("L12")
def test_verify_names_a_current_run_that_is_gone(empty_cli: CommandLine, deployment: LocalDeployment) -> None:
    """Its folder is not on disk, so that only the ledger knows it."""
    import shutil  # noqa: PLC0415

    run = seal_run(deployment, DAY)
    deployment.pipeline.judge_and_load([run])
    shutil.rmtree(deployment.home / "raw" / run.path)
    (deployment.home / "raw" / "other").mkdir()
    result = empty_cli.run("raw", "verify", "--since", "2026-01-01", "--until", "2026-01-31")
    assert result.code == 1
    assert "its raw data is gone" in " ".join(result.out.split())
