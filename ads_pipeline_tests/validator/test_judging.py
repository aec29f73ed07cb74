"""Judging sets of runs on Spark: each gets its own verdict, and an outage is nobody's."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.contracts.catalogue import contract_for, rules_for
from ads_pipeline.contracts.models import PARTITION_CUSTOMER, PARTITION_DAY
from ads_pipeline.contracts.rules import Rules
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.errors import JudgingFailed
from ads_pipeline.validator.contract_checks import check_rows
from ads_pipeline.validator.judging import Judgement, SealedPayload, judge, rows_of
from ads_pipeline.validator.payload import read_rows
from ads_pipeline_tests.builders import tree
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.validator.builders import CUSTOMER, DAY, RULES, by_hand, landed, payload_of, row, without


def bad_and_good(root: Path) -> dict[str, SealedPayload]:
    """Runs that fail for one reason each, among good ones."""
    good = payload_of(row(1), row(2))
    return {
        "good": landed(root, "good", row(1), row(2)),
        "empty": landed(root, "empty"),
        "outside": by_hand(root, "outside", good, payload_bytes=None, payload_sha256=None),
        "unknown-column": landed(root, "unknown-column", row(1, new_field=1)),
        "negative": landed(root, "negative", row(1), row(2, clicks=-1)),
        "missing": landed(root, "missing", row(1), without("clicks")),
        "twice": landed(root, "twice", row(1), row(2), row(1)),
        "other-day": landed(root, "other-day", row(1, date="2026-02-04")),
        "other-customer": landed(root, "other-customer", row(1, customer_id="42")),
        "no-enum": landed(root, "no-enum", row(1, campaign_status="Enabled\n")),
        "other-query": landed(root, "other-query", {"search_term": "shoes", "clicks": 1}),
        "long-line": landed(root, "long-line", row(1, campaign_name="x" * (17 << 20))),
        "truncated": by_hand(root, "truncated", good[:-20], record_count=2, payload_bytes=None, payload_sha256=None),
        "short": by_hand(root, "short", good, record_count=3, payload_bytes=None, payload_sha256=None),
        "lying": by_hand(root, "lying", good, payload_sha256="0" * 64),
        "two-a-line": by_hand(
            root, "two-a-line", good.replace(b"}\n{", b"}{"), record_count=2, payload_bytes=None, payload_sha256=None
        ),
    }


REASONS = {
    "negative": ("contract", "clicks must be at least 0 in 1 row (line 2: -1)"),
    "missing": ("contract", "clicks is missing in 1 row (line 2: absent)"),
    "twice": ("contract", "campaign_id not unique in 2 rows (line 1: 1; line 3: 1)"),
    "other-day": ("contract", "date is not the partition's in 1 row (line 1: '2026-02-04')"),
    "other-customer": ("contract", "customer_id is not the partition's in 1 row (line 1: '42')"),
    "no-enum": ("contract", "campaign_status must match"),
    "other-query": ("contract", "campaign_id is missing in 1 row"),
    "long-line": ("unreadable_line", "a line longer than 16777216 bytes in 1 row (line 1)"),
    "truncated": ("unreadable_line", "not JSON"),
    "short": ("count_mismatch", "the payload has 2 rows, the seal says 3"),
    "lying": ("damaged", "the payload's sha256 is not the seal's"),
    "two-a-line": ("unreadable_line", "something follows the JSON value in 1 row (line 1)"),
}


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, SealedPayload]:
    return bad_and_good(tmp_path / "raw")


@pytest.mark.invariant("V1", "V2")
def test_each_run_of_a_set_gets_its_own_verdict(spark: SparkSession, runs: dict[str, SealedPayload]) -> None:
    """Bad runs are refused with a reason a person can act on; the good among them are accepted with their count."""
    judged = dict(zip(runs, judge(spark, list(runs.values()), RULES), strict=True))
    for name, judgement in judged.items():
        verdict = judgement.verdict
        assert verdict.run == runs[name].seal.run
        if name in REASONS:
            error_class, reason = REASONS[name]
            assert (verdict.outcome, verdict.error_class) == (Outcome.REJECTED, error_class)
            assert verdict.error_message is not None
            assert reason in verdict.error_message
            assert str(verdict.run) in verdict.error_message
        else:
            assert verdict.outcome is Outcome.ACCEPTED, verdict.error_message
            assert verdict.rows_read == runs[name].seal.record_count
    assert judged["unknown-column"].unknown_columns == ("new_field",)


@pytest.mark.invariant("V3", "V6")
def test_judging_again_says_the_same_and_touches_nothing(
    spark: SparkSession, runs: dict[str, SealedPayload], tmp_path: Path
) -> None:
    """A verdict depends on the bytes and the rules alone; raw is as it was, in content and in mode."""
    before = tree(tmp_path)
    everything = list(runs.values())
    first = judge(spark, everything, RULES)
    assert judge(spark, everything, RULES) == first
    alone = [judge(spark, [each], RULES)[0] for each in everything[:6]]
    assert alone == first[:6]
    backwards = judge(spark, everything[::-1], RULES, validation_id="v2")
    assert [_unnamed(judgement) for judgement in backwards[::-1]] == first
    assert tree(tmp_path) == before


def _unnamed(judgement: Judgement) -> Judgement:
    return replace(judgement, verdict=replace(judgement.verdict, validation_id=""))


def test_no_runs_are_no_work(spark: SparkSession) -> None:
    """Judging nothing gives nothing."""
    assert judge(spark, [], RULES) == []


@pytest.mark.invariant("V4")
def test_an_outage_is_not_a_verdict(spark: SparkSession, tmp_path: Path) -> None:
    """When the disk with the runs is not there, nobody is rejected: the call fails, and waiting may cure it."""
    good = landed(tmp_path / "raw", "good", row())
    elsewhere = replace(good, payload=good.payload.replace("raw", "not-mounted"))
    with pytest.raises(JudgingFailed, match="2 runs could not be judged") as caught:
        judge(spark, [good, elsewhere], RULES)
    assert caught.value.is_transient
    assert judge(spark, [good], RULES)[0].verdict.outcome is Outcome.ACCEPTED


@pytest.mark.invariant("V4")
def test_a_worker_that_dies_is_not_a_verdict(spark: SparkSession, tmp_path: Path) -> None:
    """A task killed in the middle fails the call; no run is judged by what was left."""
    good = landed(tmp_path / "raw", "good", row())
    dying = replace(RULES, of_partition=(("date", _Deadly("x")),))
    with pytest.raises(JudgingFailed, match="1 runs could not be judged"):
        judge(spark, [good], dying)


class _Deadly(str):
    """A name that kills whoever unpacks it on another machine."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def test_a_payload_that_is_gone_is_damage_only_beside_its_seal(spark: SparkSession, tmp_path: Path) -> None:
    """A sealed directory without its payload is that run's fault, and its neighbour is unharmed."""
    gone, good = landed(tmp_path / "raw", "gone", row()), landed(tmp_path / "raw", "good", row())
    Path(gone.payload).unlink()
    first, second = judge(spark, [gone, good], RULES)
    assert first.verdict.error_message is not None
    assert "sealed, but there is no payload" in first.verdict.error_message
    assert second.verdict.outcome is Outcome.ACCEPTED


@pytest.mark.invariant("V5")
@pytest.mark.parametrize("setting", ["PANDERA_VALIDATION_ENABLED=False", "PANDERA_VALIDATION_DEPTH=SCHEMA_ONLY"])
def test_no_setting_of_panderas_turns_judging_off(setting: str) -> None:
    """Pandera's switches, which would let everything pass, do not reach the rules."""
    script = (
        "from ads_pipeline_tests.validator.builders import *\n"
        "from ads_pipeline.validator.contract_checks import check_rows\n"
        "from ads_pipeline.validator.payload import read_rows\n"
        "table = read_rows(payload_of(row(1, clicks=-1), row(1)), RULES).table\n"
        "print(len(check_rows(table, RULES, customer_id=CUSTOMER, logical_date=DAY)))\n"
    )
    name, _, value = setting.partition("=")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2"]


def test_rows_come_under_their_partitions_names(spark: SparkSession, tmp_path: Path) -> None:
    """The rows of accepted runs carry the key, the run and the schema version, and every value as it was landed."""
    root = tmp_path / "raw"
    runs = [landed(root, "r1", row(1), row(2, campaign_name="Été")), landed(root, "r2", row(3))]
    found = rows_of(spark, runs, RULES).orderBy("campaign_id").collect()
    assert [(each.customer_id, each.logical_date, each.run_id, each.schema_version) for each in found] == [
        (CUSTOMER, DAY, "r1", "1"),
        (CUSTOMER, DAY, "r1", "1"),
        (CUSTOMER, DAY, "r2", "1"),
    ]
    assert [each.campaign_name for each in found] == ["Spring", "Été", "Spring"]
    assert "date" in found[0].asDict()


def test_rows_of_a_run_that_changed_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """A payload that is no longer what was accepted fails the reading instead of giving other rows."""
    run = landed(tmp_path / "raw", "r1", row(1), row(2))
    Path(run.payload).chmod(0o644)
    Path(run.payload).write_bytes(payload_of(row(1)))
    with pytest.raises(Exception, match="does not read as it did"):
        rows_of(spark, [run], RULES).collect()


# Each value is right or wrong for one reason, so that a table of them fails many checks at once.
values = {
    "date": st.sampled_from([DAY.isoformat()] * 8 + ["2026-02-04", None]),
    "customer_id": st.sampled_from([CUSTOMER] * 8 + ["42", "", None]),
    "campaign_id": st.sampled_from([1, 2, 3, 4, 5, 6, 0, -1, None]),
    "campaign_name": st.sampled_from(["Spring", "", "Été", None]),
    "campaign_status": st.sampled_from(["ENABLED"] * 6 + ["PAUSED", "enabled", "ENABLED\n", "", None]),
    "clicks": st.sampled_from([0, 5, 1 << 62, -1, None]),
    "conversions": st.sampled_from([0.0, 0.5, -0.0, -1e-300, None]),
    "all_conversions": st.sampled_from([0.0, 1.5, -1.5]),
    "search_impression_share": st.sampled_from([None, 0.0, 1.0, 0.5, 1.0000001, -0.1]),
}
tables = st.lists(
    st.fixed_dictionaries(values).map(lambda odd: row(**odd)) | st.just(row(7, all_conversions=1.0)), max_size=5
)


@pytest.mark.invariant("V6")
@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))
@given(tables)
def test_the_verdict_is_the_one_pandera_gives_the_partition_alone(
    spark: SparkSession, rows: list[dict[str, Any]]
) -> None:
    """The failing checks are pandera's for the same rows on Spark: none more, none fewer."""
    rules = rules_for("campaign_daily", "2")
    read = read_rows(payload_of(*rows), rules) if rows else None
    assert read is None or read.table is not None, read
    table = read.table if read else pa.table({c.name: [] for c in rules.columns})
    checked = check_rows(table, rules, customer_id=CUSTOMER, logical_date=DAY) if read else ()
    ours = {finding.problem for finding in checked}
    assert ours == _panderas_findings(spark, rows, rules)


def _panderas_findings(spark: SparkSession, rows: list[dict[str, Any]], rules: Rules) -> set[str]:
    types = {"long": "bigint", "double": "double", "string": "string", "date": "date"}
    schema = ", ".join(f"`{column.name}` {types[column.kind]}" for column in rules.columns)
    values = [tuple(_typed(each.get(column.name), column.kind) for column in rules.columns) for each in rows]
    frame = spark.createDataFrame(values, schema)
    frame = frame.withColumn(PARTITION_DAY, sf.lit(DAY)).withColumn(PARTITION_CUSTOMER, sf.lit(CUSTOMER)).cache()
    contract: Any = contract_for("campaign_daily", "2")
    errors = contract.validate(frame).pandera.errors
    frame.unpersist()
    listed = [error for kind in json.loads(json.dumps(errors)).values() for found in kind.values() for error in found]
    return {_our_words(error, rules) for error in listed}


def _typed(value: Any, kind: str) -> Any:
    return date.fromisoformat(value) if kind == "date" and value is not None else value


def _our_words(error: dict[str, str], rules: Rules) -> str:
    column, check = error["column"], error["check"]
    if check == "not_nullable":
        return f"{column} is missing"
    if check == "unique":
        return f"{' and '.join(rules.natural_key)} not unique"
    own = {"date_is_the_partitions": "date", "customer_is_the_partitions": "customer_id"}
    if check in own:
        return f"{own[check]} is not the partition's"
    compared = {"greater_than_or_equal_to": "ge", "less_than_or_equal_to": "le", "str_matches": "matches"}
    by = compared[check.partition("(")[0]]
    (words,) = {each.words for each in rules.checks if (each.column, each.by) == (column, by)}
    return words
