"""Names and values that a query may have: words of SQL as names, and costs whose sum exceeds 64 bits."""

from dataclasses import replace

import pytest

from ads_pipeline.validation.contract_registry import SHIPPED, Contracts
from ads_pipeline_tests.pipeline.builders import QUERY, LocalDeployment, key, seal_run

RULES = SHIPPED.rules(QUERY, "1")
SQL_WORDS = ("order", "select", "group", "table", "user", "current_date", "sqlite_master", "duckdb_tables", "rows")


def accepting(deployment: LocalDeployment, *query_names: str) -> LocalDeployment:
    """The deployment with these queries, whose contracts check no value."""
    own = {(name, "1"): RULES.without_checks() for name in query_names}
    return replace(deployment, contracts=Contracts({**SHIPPED.declared, **own}))


@pytest.mark.invariant("L4")
def test_query_named_like_a_word_of_sql_is_readable(deployment: LocalDeployment) -> None:
    """Each has its two views, and breaks neither the views nor the sums of other queries."""
    names = (QUERY, *SQL_WORDS)
    deployment = accepting(deployment, *names)
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1, query_name=name)) for name in names])
    with deployment.readers.connect(names) as connection:
        for name in names:
            for view in (name, f"{name}_current"):
                assert connection.execute(f'SELECT count(*) FROM "{view}"').fetchall() == [(2,)], view
    day = key().logical_date
    for name in names:
        sums = deployment.readers.sum_per_partition(name, "cost_micros", since=day, until=day)
        assert sums == {key(1, query_name=name): 24_000_000}


@pytest.mark.invariant("L4")
def test_cost_beyond_64_bits_stops_no_neighbour(deployment: LocalDeployment) -> None:
    """The sums of a day are exact for every customer. An attempt keeps no sum that the ledger cannot store."""
    deployment = accepting(deployment, QUERY)
    runs = [seal_run(deployment, key(1)), seal_run(deployment, key(2), cost_micros=1 << 62, count=3)]
    judged, loaded = deployment.pipeline.judge_and_load(runs)
    assert len(loaded.published) == 2
    day = key().logical_date
    sums = deployment.readers.sum_per_partition(QUERY, "cost_micros", since=day, until=day)
    assert sums == {key(1): 24_000_000, key(2): 3 << 62}
    measures = {each.verdict.run.key: each.verdict.measures for each in judged.judgements}
    assert measures[key(1)].cost_micros == 24_000_000
    assert (measures[key(2)].cost_micros, measures[key(2)].conversions) == (None, 4.5)


def test_column_of_another_type_has_no_sum(deployment: LocalDeployment) -> None:
    """Text, dates and fractions have no sum; neither has a column that does not exist."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key())])
    day = key().logical_date
    for column in ("campaign_name", "date", "conversions", "no_such_column"):
        assert deployment.readers.sum_per_partition(QUERY, column, since=day, until=day) == {}
