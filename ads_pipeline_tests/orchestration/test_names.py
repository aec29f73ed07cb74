"""Every name of a deployment stands below its prefix."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.errors import BadName
from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.settings.environment import read_settings

PREFIX = "acme"
OAUTH = {"client_id": "id", "client_secret": "secret", "refresh_token": "token", "developer_token": "developer"}
TEXTS = st.sampled_from(["raw_arrivals", "google_ads_customers", "warehouse_campaign_daily", "pyspark"])
PARTS = st.from_regex(r"[A-Za-z](_?[A-Za-z0-9]){0,3}", fullmatch=True, alphabet="aAz_09")
PREFIXES = st.lists(PARTS, max_size=3).map(tuple)


@given(one=PREFIXES, other=PREFIXES, text=TEXTS, other_text=TEXTS)
def test_prefixes_share_no_name(one: tuple[str, ...], other: tuple[str, ...], text: str, other_text: str) -> None:
    """Two names, or two tags, are equal only when prefix and text are."""
    first, second = Names(one), Names(other)
    is_same = (one, text) == (other, other_text)
    assert (first.name(text) == second.name(other_text)) is is_same
    assert (first.tag(f"a/{text}") == second.tag(f"a/{other_text}")) is is_same
    assert (first.key("x", text) == second.key("x", other_text)) is is_same


@pytest.mark.parametrize(
    "prefix", [("a-b",), ("",), ("a__b",), ("_a",), ("a_",), ("1a",), ("a" * 41,), "acme", ["a"]]
)
def test_other_prefixes_are_refused(prefix: tuple[str, ...]) -> None:
    """A prefix that Dagster or the names cannot hold is refused when the definitions are built."""
    with pytest.raises(BadName, match="key_prefix"):
        Names(prefix)


def list_names(defs: dg.Definitions) -> Iterator[tuple[str, str]]:
    """Each name in the definitions, and its kind."""
    repository = defs.get_repository_def()
    graph = repository.asset_graph
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        yield "asset", key.path[0]
        yield "group", node.group_name
        tags = (tag.partition("/") for tag in node.tags)
        yield from (("tag", text) for space, _, text in tags if space == "ads_pipeline")
        dimensions = getattr(node.partitions_def, "partitions_defs", ())
        yield from (("partitions", str(each.partitions_def.name)) for each in dimensions if each.name == "customer")
    yield from (("check", check.asset_key.path[0]) for check in graph.asset_check_keys)
    yield from (("sensor", each.name) for each in repository.sensor_defs)
    yield from (("schedule", each.name) for each in repository.schedule_defs)
    yield from (("resource", name) for name in repository.get_top_level_resources() if name != "io_manager")
    for job in repository.get_all_jobs():
        name = job.name.removeprefix("__anonymous_asset_job_")  # of the target of a sensor or schedule
        yield from [("job", name)] if name != "__ASSET_JOB" else []
        for node_def in job.all_node_defs:
            yield "op", node_def.name
            yield from (("pool", str(pool)) for pool in getattr(node_def, "pools", ()))
            keys: set[str] = getattr(node_def, "required_resource_keys", set())
            yield from (("required resource", str(name)) for name in keys if name != "io_manager")
    for sensor in repository.sensor_defs:
        yield from (("resource of a sensor", name) for name in sensor.required_resource_keys)


def test_no_name_lacks_the_prefix(tmp_path: Path) -> None:
    """Assets, checks, groups, tags, partitions, sensors, schedules, jobs, ops, pools and resources have it."""
    (credentials := tmp_path / "google-ads.yaml").write_text(yaml.safe_dump(OAUTH))
    settings = read_settings(
        {"ADS_PIPELINE_HOME": str(tmp_path), "ADS_PIPELINE_GOOGLE_ADS": str(credentials)},
    )
    found, plain = (sorted(list_names(build_location(settings, names=Names(prefix)))) for prefix in ((PREFIX,), ()))
    assert [each for each in found if each[1] != PREFIX and not each[1].startswith(f"{PREFIX}__")] == []
    assert len(found) == len(plain)
    kinds = {"asset", "group", "tag", "partitions", "check", "sensor", "schedule", "resource", "job", "op", "pool"}
    assert kinds <= {kind for kind, _name in found}
    assert {("sensor", f"{PREFIX}__days_due"), ("job", f"{PREFIX}__discover_accounts")} <= set(found)
