"""Judging many runs in one Spark job: each run gets its own verdict, and outages give no verdicts."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.domain.errors import JudgingFailed
from ads_pipeline.domain.measures import Measures
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.validation.contract_checks import check_rows
from ads_pipeline.validation.contract_models import CONTRACTS
from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline.validation.contract_rules import PARTITION_CUSTOMER, PARTITION_DAY, Rules
from ads_pipeline.validation.judgement import Judgement
from ads_pipeline.validation.payload_rows import read_rows
from ads_pipeline.validation.payload_task import TaskRun, judge_in_task
from ads_pipeline.validation.spark_job import MAX_UNIT_BYTES, judge_and_write, plan_units
from ads_pipeline_tests.builders import read_tree
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.validation.builders import (
    CUSTOMER,
    DAY,
    RULES,
    KillOnUnpickle,
    SealedPayload,
    create_outside_run,
    create_run,
    judge_runs,
    make_payload,
    make_run_of_size,
    row,
    row_without,
)


def create_valid_and_invalid_runs(root: Path) -> dict[str, SealedPayload]:
    """Valid runs, and runs that fail for one reason each."""
    good = make_payload(row(1), row(2))
    return {
        "good": create_run(root, "good", row(1), row(2)),
        "empty": create_run(root, "empty"),
        "outside": create_outside_run(root, "outside", good, payload_bytes=None, payload_sha256=None),
        "unknown-column": create_run(root, "unknown-column", row(1, new_field=1)),
        "large-cost": create_run(root, "large-cost", row(1, cost_micros=10**18)),
        "negative": create_run(root, "negative", row(1), row(2, clicks=-1)),
        "huge-cost": create_run(root, "huge-cost", row(1), row(2, cost_micros=1 << 62)),
        "huge-value": create_run(root, "huge-value", row(1, conversions_value=-1.7e308)),
        "missing": create_run(root, "missing", row(1), row_without("clicks")),
        "twice": create_run(root, "twice", row(1), row(2), row(1)),
        "other-day": create_run(root, "other-day", row(1, date="2026-02-04")),
        "other-customer": create_run(root, "other-customer", row(1, customer_id="42")),
        "no-enum": create_run(root, "no-enum", row(1, campaign_status="Enabled\n")),
        "other-query": create_run(root, "other-query", {"search_term": "shoes", "clicks": 1}),
        "long-line": create_run(root, "long-line", row(1, campaign_name="x" * (17 << 20))),
        "truncated": create_outside_run(
            root, "truncated", good[:-20], record_count=2, payload_bytes=None, payload_sha256=None
        ),
        "short": create_outside_run(root, "short", good, record_count=3, payload_bytes=None, payload_sha256=None),
        "wrong-digest": create_outside_run(root, "wrong-digest", good, payload_sha256="0" * 64),
        "wrong-size": _change_seal(create_outside_run(root, "wrong-size", good), payload_bytes=3),
        "two-a-line": create_outside_run(
            root, "two-a-line", good.replace(b"}\n{", b"}{"), record_count=2, payload_bytes=None, payload_sha256=None
        ),
    }


def _change_seal(payload: SealedPayload, **changes: Any) -> SealedPayload:
    return replace(payload, seal=replace(payload.seal, **changes))


REASONS = {
    "negative": ("contract", "clicks must be at least 0 in 1 row (line 2: -1)"),
    "huge-cost": ("contract", f"cost_micros must be at most {10**18} in 1 row (line 2: {1 << 62})"),
    "huge-value": ("contract", "conversions_value must be at least -1e+18 in 1 row"),
    "missing": ("contract", "clicks is missing in 1 row (line 2: absent)"),
    "twice": ("contract", "campaign_id not unique in 2 rows (line 1: 1; line 3: 1)"),
    "other-day": ("contract", "date does not match the partition in 1 row (line 1: '2026-02-04')"),
    "other-customer": ("contract", "customer_id does not match the partition in 1 row (line 1: '42')"),
    "no-enum": ("contract", "campaign_status must match"),
    "other-query": ("contract", "campaign_id is missing in 1 row"),
    "long-line": ("unreadable_line", "line longer than 16777216 bytes in 1 row (line 1)"),
    "truncated": ("unreadable_line", "not JSON"),
    "short": ("count_mismatch", "the payload has 2 rows, the seal says 3"),
    "wrong-digest": ("damaged", "the payload's sha256 is not the seal's"),
    "wrong-size": ("damaged", f"the payload has {len(make_payload(row(1), row(2)))} bytes, the seal says 3"),
    "two-a-line": ("unreadable_line", "extra text after the JSON value in 1 row (line 1)"),
}


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, SealedPayload]:
    return create_valid_and_invalid_runs(tmp_path / "raw")


@pytest.mark.invariant("V1", "V2")
def test_each_run_gets_its_own_verdict(spark: SparkSession, runs: dict[str, SealedPayload]) -> None:
    """Invalid runs are rejected with a class and a reason; valid runs are accepted with their row count."""
    judged = dict(zip(runs, judge_runs(spark, list(runs.values()), RULES), strict=True))
    for name, judgement in judged.items():
        verdict = judgement.verdict
        assert verdict.run == runs[name].seal.run
        if name in REASONS:
            error_class, reason = REASONS[name]
            assert (verdict.outcome, verdict.error_class) == (Outcome.REJECTED, error_class)
            assert verdict.error_message is not None
            assert reason in verdict.error_message
            assert verdict.error_message.startswith(f"{verdict.run.run_id}: ")
        else:
            assert verdict.outcome is Outcome.ACCEPTED, verdict.error_message
            assert verdict.rows_read == runs[name].seal.record_count
    assert judged["unknown-column"].unknown_columns == ("new_field",)


def test_verdict_has_the_sums_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Also a rejected run whose rows could be read has sums; an empty run has zeros, a damaged one none."""
    two = make_payload(row(1), row(2, cost_micros=5, conversions=0.25))
    runs = [
        create_outside_run(tmp_path, "two", two),
        create_outside_run(tmp_path, "negative", make_payload(row(1, clicks=-1))),
        create_outside_run(tmp_path, "empty", b""),
        create_outside_run(tmp_path, "damaged", two, payload_sha256="0" * 64),
    ]
    assert [judgement.verdict.measures for judgement in judge_runs(spark, runs, RULES)] == [
        Measures(cost_micros=12_000_005, conversions=1.75, conversions_value=60.0),
        Measures(cost_micros=12_000_000, conversions=1.5, conversions_value=30.0),
        Measures(cost_micros=0, conversions=0, conversions_value=0),
        Measures(),
    ]


def test_order_of_rows_does_not_change_the_sums(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise a re-read of unchanged rows would look like a restatement. A sum beyond all numbers is left out."""
    values = (1e16, 1.0, -1e16, 0.1, 0.2, 0.3)
    orders = {"first": values, "second": values[::-1], "huge": (1.7e308, 1.7e308)}
    runs = [
        create_outside_run(
            tmp_path, name, make_payload(*(row(n, conversions_value=each) for n, each in enumerate(order)))
        )
        for name, order in orders.items()
    ]
    first, second, huge = [each.verdict.measures.conversions_value for each in judge_runs(spark, runs, RULES)]
    assert (first, huge) == (second, None)


@pytest.mark.invariant("V3", "V6")
def test_verdict_is_repeatable_and_raw_files_stay_unchanged(
    spark: SparkSession, runs: dict[str, SealedPayload], tmp_path: Path
) -> None:
    """A verdict depends only on the bytes and the rules. Judging changes neither content nor mode of raw files."""
    before = read_tree(tmp_path)
    payloads = list(runs.values())
    first = judge_runs(spark, payloads, RULES)
    assert judge_runs(spark, payloads, RULES) == first
    alone = [judge_runs(spark, [payload], RULES)[0] for payload in payloads[:6]]
    assert alone == first[:6]
    reverse = judge_runs(spark, payloads[::-1], RULES, validation_id="v2")
    assert [_without_validation_id(judgement) for judgement in reverse[::-1]] == first
    assert read_tree(tmp_path) == before


def _without_validation_id(judgement: Judgement) -> Judgement:
    return replace(judgement, verdict=replace(judgement.verdict, validation_id=""))


def test_judging_no_runs_returns_nothing(spark: SparkSession) -> None:
    """An empty list of runs gives an empty list of judgements."""
    assert judge_runs(spark, [], RULES) == []


@pytest.mark.invariant("V4")
def test_missing_disk_gives_no_verdict(spark: SparkSession, tmp_path: Path) -> None:
    """When the disk with the runs is missing, judging raises a transient error and rejects no run."""
    good = create_run(tmp_path / "raw", "good", row())
    elsewhere = replace(good, location=str(tmp_path / "not-mounted"))
    with pytest.raises(JudgingFailed, match="2 runs could not be judged") as caught:
        judge_runs(spark, [elsewhere, elsewhere], RULES)
    assert caught.value.is_transient
    assert judge_runs(spark, [good], RULES)[0].verdict.outcome is Outcome.ACCEPTED


@pytest.mark.invariant("V4")
def test_killed_worker_gives_no_verdict(spark: SparkSession, tmp_path: Path) -> None:
    """A killed Spark task fails the call, and no run gets a verdict."""
    good = create_run(tmp_path / "raw", "good", row())
    killing = replace(RULES, partition_columns=(("date", KillOnUnpickle("x")),))
    with pytest.raises(JudgingFailed, match="1 runs could not be judged"):
        judge_runs(spark, [good], killing)


def test_missing_payload_beside_its_seal_is_damage(spark: SparkSession, tmp_path: Path) -> None:
    """A sealed directory without its payload is rejected as damaged; the run next to it is accepted."""
    empty, good = create_run(tmp_path / "raw", "empty", row()), create_run(tmp_path / "raw", "good", row())
    Path(empty.payload_path).unlink()
    first, second = judge_runs(spark, [empty, good], RULES)
    assert first.verdict.error_message is not None
    assert "the run has a seal but no payload" in first.verdict.error_message
    assert second.verdict.outcome is Outcome.ACCEPTED


@pytest.mark.invariant("V5")
@pytest.mark.parametrize("setting", ["PANDERA_VALIDATION_ENABLED=False", "PANDERA_VALIDATION_DEPTH=SCHEMA_ONLY"])
def test_pandera_settings_cannot_disable_checks(setting: str) -> None:
    """Pandera's environment variables, which can disable validation, have no effect on the rules."""
    script = (
        "from ads_pipeline_tests.validation.builders import *\n"
        "from ads_pipeline.validation.contract_checks import check_rows\n"
        "from ads_pipeline.validation.payload_rows import read_rows\n"
        "table = read_rows(make_payload(row(1, clicks=-1), row(1)), RULES).table\n"
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


class RowsAsJson:
    """A sink that gives the rows to the driver."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, accepted: Sequence[tuple[TaskRun, int]], rows: pa.Table) -> None:
        runs = [run.run_id for run, count in accepted for _ in range(count)]
        values = rows.select(["campaign_id", "campaign_name"]).to_pylist()
        self._rows += [{"run_id": run, **value} for run, value in zip(runs, values, strict=True)]

    def finish(self) -> list[dict[str, Any]]:
        return self._rows


def test_sink_gets_the_rows_of_accepted_runs_alone(spark: SparkSession, tmp_path: Path) -> None:
    """In the order of the customers, with every value as it was landed; a rejected run gives no row."""
    runs = [
        create_run(tmp_path, "r3", row(3, customer_id="3"), customer_id="3"),
        create_run(tmp_path, "r1", row(1, customer_id="1"), row(2, customer_id="1"), customer_id="1"),
        create_run(tmp_path, "r2", row(9, customer_id="2", clicks=-1), customer_id="2"),
        create_run(tmp_path, "r4", row(4, customer_id="4", campaign_name="Été"), customer_id="4"),
    ]
    judgements, written = judge_and_write(
        spark, str(tmp_path), [run.seal for run in runs], RULES, open_sink=RowsAsJson
    )
    assert [each.verdict.outcome is Outcome.ACCEPTED for each in judgements] == [True, True, False, True]
    assert written == [
        {"run_id": "r1", "campaign_id": 1, "campaign_name": "Spring"},
        {"run_id": "r1", "campaign_id": 2, "campaign_name": "Spring"},
        {"run_id": "r3", "campaign_id": 3, "campaign_name": "Spring"},
        {"run_id": "r4", "campaign_id": 4, "campaign_name": "Été"},
    ]


# Each value is valid or invalid for one reason, so that a generated table fails many checks at once.
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
    st.fixed_dictionaries(values).map(lambda changes: row(**changes)) | st.just(row(7, all_conversions=1.0)),
    max_size=5,
)


@pytest.mark.invariant("V6")
@settings(max_examples=examples(4), suppress_health_check=list(HealthCheck))
@given(tables)
def test_failing_checks_equal_those_of_pandera(spark: SparkSession, rows: list[dict[str, Any]]) -> None:
    """The failing checks are exactly those that pandera on Spark reports for the same rows."""
    rules = SHIPPED.rules("campaign_daily", "2")
    read = read_rows(make_payload(*rows), rules) if rows else None
    assert read is None or read.table is not None, read
    table = read.table if read else pa.table({c.name: [] for c in rules.columns})
    problems = check_rows(table, rules, customer_id=CUSTOMER, logical_date=DAY) if read else ()
    assert {problem.text for problem in problems} == _run_pandera(spark, rows, rules)


def _run_pandera(spark: SparkSession, rows: list[dict[str, Any]], rules: Rules) -> set[str]:
    types = {"long": "bigint", "double": "double", "string": "string", "date": "date"}
    schema = ", ".join(f"`{column.name}` {types[column.kind]}" for column in rules.columns)
    values = [tuple(_typed(row.get(column.name), column.kind) for column in rules.columns) for row in rows]
    frame = spark.createDataFrame(values, schema)
    frame = frame.withColumn(PARTITION_DAY, sf.lit(DAY)).withColumn(PARTITION_CUSTOMER, sf.lit(CUSTOMER)).cache()
    contract: Any = CONTRACTS["campaign_daily", "2"]
    errors = contract.validate(frame).pandera.errors
    frame.unpersist()
    groups = [group for kind in json.loads(json.dumps(errors)).values() for group in kind.values()]
    return {_describe_check(error, rules) for group in groups for error in group}


def _typed(value: Any, kind: str) -> Any:
    return date.fromisoformat(value) if kind == "date" and value is not None else value


def _describe_check(error: dict[str, str], rules: Rules) -> str:
    column, check = error["column"], error["check"]
    if check == "not_nullable":
        return f"{column} is missing"
    if check == "unique":
        return f"{' and '.join(rules.natural_key)} not unique"
    frame_checks = {"date_matches_partition": "date", "customer_matches_partition": "customer_id"}
    if check in frame_checks:
        return f"{frame_checks[check]} does not match the partition"
    comparisons = {"greater_than_or_equal_to": "ge", "less_than_or_equal_to": "le", "str_matches": "matches"}
    comparison = comparisons[check.partition("(")[0]]
    (description,) = {
        rule.description for rule in rules.checks if (rule.column, rule.comparison) == (column, comparison)
    }
    return f"{column} {description}"


def _replace_payload_by_fifo(run: SealedPayload) -> None:
    Path(run.payload_path).unlink()
    os.mkfifo(run.payload_path)


def _replace_payload_by_link(run: SealedPayload) -> None:
    moved = Path(run.payload_path).rename(Path(run.payload_path).with_name("moved"))
    Path(run.payload_path).symlink_to(moved)


def _replace_run_by_link(run: SealedPayload) -> None:
    """Make the run's directory a link to a copy outside the raw root."""
    directory = Path(run.payload_path).parent
    directory.symlink_to(directory.rename(Path(run.location).parent / "outside"))


def _replace_customer_by_link(run: SealedPayload) -> None:
    customer = Path(run.payload_path).parents[3]
    customer.symlink_to(customer.rename(Path(run.location).parent / "outside"))


@pytest.mark.invariant("R7")
@pytest.mark.parametrize(
    "replacement",
    [_replace_payload_by_fifo, _replace_payload_by_link, _replace_run_by_link, _replace_customer_by_link],
)
def test_only_plain_files_below_the_root_are_read(
    spark: SparkSession, tmp_path: Path, replacement: Callable[[SealedPayload], None]
) -> None:
    """A payload that became a FIFO or a link after the seal was checked is damage; nothing blocks or is followed."""
    run = create_run(tmp_path / "raw", "r1", row())
    replacement(run)
    (judgement,) = judge_runs(spark, [run], RULES)
    assert judgement.verdict.error_class == "damaged"
    assert judgement.verdict.payload_sha256 is None


good_rows = st.integers(1, 9).map(row)
one_run = st.lists(good_rows, min_size=1, max_size=6, unique_by=lambda each: each["campaign_id"])
bad_run = st.lists(
    st.one_of(
        good_rows,
        st.sampled_from([row(1, clicks=-1), row(2, date="2026-02-04"), row(3, new_field=1), row_without("clicks")]),
        st.sampled_from(
            [row(4, campaign_name="{}"), row(5, clicks="7"), row(6, clicks=True), row(7, customer_id="1")]
        ),
    ),
    max_size=4,
)


@pytest.mark.invariant("V6")
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(one_run | one_run | bad_run, min_size=2, max_size=8), st.booleans())
def test_runs_judged_together_get_the_verdicts_they_get_alone(
    tmp_path: Path, payloads: list[list[dict[str, Any]]], final_line_feed: bool
) -> None:
    """Many small runs are read and checked together. Results and rows are those of each run for itself."""
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    runs = []
    for number, rows in enumerate(payloads):
        payload = make_payload(*rows) if final_line_feed else make_payload(*rows).removesuffix(b"\n")
        runs.append(create_outside_run(root, f"r{number}", payload, record_count=len(rows)))
    (unit,) = plan_units([run.seal for run in runs])
    together = list(judge_in_task(str(root), unit, RULES, show_text=False))
    alone = [next(judge_in_task(str(root), [run], RULES, show_text=False)) for run in unit]
    by_position = {result.position: result for judged in together for result in judged.results}
    assert list(map(by_position.get, range(len(unit)))) == [judged.results[0] for judged in alone]
    rows_by_run: dict[str, list[Any]] = {}
    for judged in [*together, *alone]:
        start = 0
        for run, count in judged.accepted:
            assert judged.rows is not None
            rows_by_run.setdefault(run.run_id, []).append(judged.rows.slice(start, count).to_pylist())
            start += count
    assert all(first == second for first, second in rows_by_run.values())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 40)), min_size=1, max_size=30))
def test_units_hold_each_run_once_in_the_order_of_days(sizes: list[tuple[int, int, int]]) -> None:
    """A day is cut only where it is longer than a unit may be, and small days share a unit."""
    runs = [make_run_of_size(day, customer, mebibytes << 20) for day, customer, mebibytes in sizes]
    units = plan_units(runs)
    order = [(run.logical_date, run.customer_id, run.position) for unit in units for run in unit]
    assert order == sorted(order)
    assert len(order) == len(runs)
    for unit in units:
        assert len(unit) == 1 or sum(run.payload_bytes or 0 for run in unit) <= MAX_UNIT_BYTES
    for first, second in pairwise(units):
        if first[-1].logical_date == second[0].logical_date:
            same_day = [run for run in [*first, second[0]] if run.logical_date == second[0].logical_date]
            whole = sum(run.payload_bytes or 0 for run in [*first, second[0]])
            assert whole > MAX_UNIT_BYTES, same_day
