"""One stream, many days: all are sealed or none, whatever breaks, and the seals hold what was received."""

import json
import multiprocessing
import os
import resource
import signal
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from ads_pipeline.domain.errors import RawUnavailable
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.loopback.loopback_process import ROOTS, LoopbackServer, loopback_server
from ads_pipeline.google_ads.loopback.scenarios import RequestFailure
from ads_pipeline.google_ads.streaming import ROWS_PER_BLOCK, StreamResult
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import METADATA
from ads_pipeline_tests.builders import find_runs
from ads_pipeline_tests.google_ads.builders import (
    API_VERSION,
    CUSTOMER,
    FIRST,
    NOW,
    behaving,
    failing,
    partitions,
    range_request,
    shipped_query,
    streams,
)

LAST = FIRST + timedelta(days=60)


def sealed(root: Path) -> list[Any]:
    return find_runs(RawRuns(root, is_in_use=lambda: False), since=FIRST - timedelta(days=60), until=LAST)


def rows_of(root: Path, seal: SealedRun) -> list[dict[str, Any]]:
    with RawRuns(root).open(seal.run) as (_seal, payload):
        return [json.loads(line) for line in payload]


def assert_nothing_sealed(root: Path, result: StreamResult, error_class: str) -> None:
    assert result.fault is not None
    assert result.fault.error_class == error_class
    assert result.seals == ()
    assert sealed(root) == []
    assert [path for path in root.rglob("*") if path.name.startswith("_tmp")] == []


@pytest.mark.invariant("R1")
def test_one_request_seals_each_day(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """A range of days is one operation and one verified run a day, in day order, with that day's rows."""
    server.answer(behaving(quiet_days=("2026-10-03",), enum_number=2))
    result = streams(clients, tmp_path).fetch(range_request())
    assert server.operations() == {CUSTOMER: 1}
    assert (result.fault, [seal.run.key for seal in result.seals]) == (None, partitions())
    assert [seal.record_count for seal in result.seals] == [3, 3, 0, 3, 3, 3, 3]
    assert (result.facts.rows, result.facts.consumption) == (18, 106)
    assert sealed(tmp_path) == list(result.seals)
    for seal in result.seals:
        day = seal.run.key.logical_date.isoformat()
        assert [(row["date"], row["customer_id"]) for row in rows_of(tmp_path, seal)] == (
            [(day, CUSTOMER)] * seal.record_count
        )
    first = rows_of(tmp_path, result.seals[0])[1]
    assert first == {
        "date": "2026-10-01",
        "customer_id": CUSTOMER,
        "campaign_id": 2**53 + 2,
        "campaign_name": "Text № 1",
        "campaign_status": "ENABLED",
        "campaign_advertising_channel_type": "SEARCH",
        "impressions": 2,
        "clicks": 2,
        "cost_micros": 2_000_000,
        "conversions": 0.5,
        "conversions_value": 0.5,
        "all_conversions": 0.5,
        "search_impression_share": 0.5,
    }


def test_seal_notes_the_extraction(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """The seal has the account's zone and currency, and notes on the request; no secret, endpoint or file."""
    result = streams(clients, tmp_path).fetch(range_request())
    seal = result.seals[-1]
    assert (seal.facts.time_zone, seal.facts.currency_code, seal.facts.extracted_at) == ("Europe/Paris", "EUR", NOW)
    text = (tmp_path / seal.run.path / METADATA).read_text()
    assert json.loads(text)["extraction"] == {
        "tool": "google-ads",
        "tool_version": "34.0.0",
        "request_id": result.facts.request_id,
        "range": ["2026-10-01", "2026-10-07"],
        "query_resource_consumption": 107,
        "day_closed_at": "2026-10-08T01:00:00+00:00",
        "provisional": False,
        "lookback_days": 30,
        "login_customer_id": "1000000000",
        "unknown_enum_values": 0,
    }
    assert "127.0.0.1" not in text
    assert str(tmp_path) not in text


def test_loopback_server_is_named_by_the_address_it_has_bound(server: LoopbackServer) -> None:
    """The client gets no name that may also be the address of another user's server."""
    assert yaml.safe_load(server.configuration.read_text())["endpoint"].startswith("127.0.0.1:")


def test_seal_says_whether_the_day_may_still_change(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """A report is provisional until the lookback after the end of the account's day, and a day more, has passed."""
    days = partitions(4, first=date(2026, 10, 17))
    result = streams(clients, tmp_path).fetch(range_request(days))
    notes = [json.loads((tmp_path / seal.run.path / METADATA).read_text())["extraction"] for seal in result.seals]
    assert [each["provisional"] for each in notes] == [False, False, True, True]


@pytest.mark.parametrize(
    ("zone", "currency", "stated"),
    [("Not/AZone", "EUR", (None, "EUR")), (None, None, (None, None)), ("Asia/Tokyo", "yen\n", ("Asia/Tokyo", None))],
)
def test_unknown_zone_or_currency_is_left_out(
    server: LoopbackServer, clients: Clients, tmp_path: Path, zone: str, currency: str, stated: tuple[Any, Any]
) -> None:
    """A zone that is unknown here, or no currency, does not stop the fetch; the seal leaves them out."""
    request = range_request(time_zone=zone, currency_code=currency)
    seal = streams(clients, tmp_path).fetch(request).seals[0]
    assert (seal.facts.time_zone, seal.facts.currency_code) == stated


def test_bridged_days_are_not_written(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """Days inside the range that were not requested are read past."""
    wanted = [each for each in partitions(5) if each.logical_date.day != 3]
    result = streams(clients, tmp_path).fetch(range_request(wanted))
    assert [seal.run.key for seal in result.seals] == wanted
    assert server.operations() == {CUSTOMER: 1}


def test_day_whose_rows_come_last_is_whole(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """A day whose rows come in three batches, with those of all other days in between, has all of them."""
    server.answer(behaving(rows=2, batches_per_day=3))
    result = streams(clients, tmp_path).fetch(range_request())
    assert [seal.record_count for seal in result.seals] == [6] * 7


@pytest.mark.invariant("R1", "R8")
def test_batch_of_several_blocks_is_whole(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """A batch with more rows than are encoded at once gives all its rows, in the order received."""
    rows = 2 * ROWS_PER_BLOCK + 1
    server.answer(behaving(rows=rows, batches_per_day=2))
    result = streams(clients, tmp_path).fetch(range_request(partitions(2)))
    assert result.facts.rows == 2 * 2 * rows
    for seal in result.seals:
        assert RawRuns(tmp_path).verify(seal.run).record_count == 2 * rows
        assert [row["impressions"] for row in rows_of(tmp_path, seal)] == [*range(1, rows + 1)] * 2


def test_stream_that_breaks_in_the_last_rows_of_a_day_seals_nothing(
    server: LoopbackServer, clients: Clients, tmp_path: Path
) -> None:
    """When every day has some rows and only the last batch of one is missing, no day is sealed."""
    server.answer(behaving(batches_per_day=2, failure=RequestFailure(code="UNAVAILABLE", after_batches=13)))
    assert_nothing_sealed(tmp_path, streams(clients, tmp_path).fetch(range_request()), "transient")


def test_answer_without_any_row_seals_empty_days(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """Rows whose metrics are all zero are left out by Google, so a day without rows is a run of 0 rows."""
    server.answer(behaving(is_empty=True))
    result = streams(clients, tmp_path).fetch(range_request())
    assert [seal.record_count for seal in result.seals] == [0] * 7


@pytest.mark.invariant("R3")
@pytest.mark.parametrize("after_batches", range(9))
@pytest.mark.parametrize("code", ["UNAVAILABLE", "INTERNAL"])
def test_stream_that_breaks_seals_nothing(
    server: LoopbackServer, clients: Clients, tmp_path: Path, code: str, after_batches: int
) -> None:
    """A stream that breaks after any number of its 8 batches, also after all of them, seals no day.

    One that is refused a connection before its first batch speaks of the source, not of the account.
    """
    server.answer(behaving(failure=RequestFailure(code=code, after_batches=after_batches)))
    is_source = code == "UNAVAILABLE" and after_batches == 0
    error_class = "source_unavailable" if is_source else "transient"
    assert_nothing_sealed(tmp_path, streams(clients, tmp_path).fetch(range_request()), error_class)


@pytest.mark.parametrize("after_batches", [0, 4, 8])
def test_failure_of_google_midway_seals_nothing(
    server: LoopbackServer, clients: Clients, tmp_path: Path, after_batches: int
) -> None:
    """A GoogleAdsFailure at any point of the stream seals nothing and keeps the request id."""
    server.answer(behaving(failure=failing("quota_error", "RESOURCE_EXHAUSTED", after_batches=after_batches)))
    result = streams(clients, tmp_path).fetch(range_request())
    assert_nothing_sealed(tmp_path, result, "quota_exhausted")
    assert result.fault is not None
    assert result.fault.request_id is not None


@pytest.mark.parametrize("odd_row", ["foreign_day", "day_with_line_break", "foreign_customer", "missing_day", "nan"])
def test_row_that_was_not_requested_seals_nothing(
    server: LoopbackServer, clients: Clients, tmp_path: Path, odd_row: str
) -> None:
    """A row of another day or customer, without a day, or with NaN refuses the whole answer, with the request id.

    The rows beside it in its block are good.
    """
    server.answer(behaving(odd_row=odd_row))
    result = streams(clients, tmp_path).fetch(range_request())
    assert_nothing_sealed(tmp_path, result, "rows_refused")
    assert result.facts.request_id is not None
    assert result.fault is not None
    assert result.facts.request_id in result.fault.message


def test_refused_row_in_the_first_batch_has_its_request_id(
    server: LoopbackServer, clients: Clients, tmp_path: Path
) -> None:
    """The request id of a batch is known before its rows are looked at."""
    server.answer(behaving(rows=0, is_empty=True, odd_row="foreign_customer"))
    result = streams(clients, tmp_path).fetch(range_request(partitions(1)))
    assert_nothing_sealed(tmp_path, result, "rows_refused")
    assert result.facts.request_id is not None
    assert result.facts.request_id.startswith("request-")


@pytest.mark.parametrize("stall_after", [0, 3])
def test_stalled_stream_is_cancelled(
    server: LoopbackServer, clients: Clients, tmp_path: Path, stall_after: int
) -> None:
    """A stream that brings no batch for the limit is cancelled, also when the first batch never comes."""
    server.answer(behaving(stall_after=stall_after))
    result = streams(clients, tmp_path, stall_limit=timedelta(seconds=0.5)).fetch(range_request())
    assert_nothing_sealed(tmp_path, result, "timed_out")
    assert result.fault is not None
    assert "the stream stalled" in result.fault.message
    assert result.facts.seconds < 10


@pytest.mark.invariant("L5")
def test_stream_of_empty_batches_is_stalled(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """Batches without rows are no progress: a stream that sends only those is cancelled at the limit."""
    server.answer(behaving(stall_after=3, stalls_empty=True))
    result = streams(clients, tmp_path, stall_limit=timedelta(seconds=1)).fetch(range_request())
    assert_nothing_sealed(tmp_path, result, "timed_out")
    assert result.fault is not None
    assert "the stream stalled: no rows for 1 s" in result.fault.message
    assert result.facts.seconds < 30


def test_slow_stream_is_not_stalled(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """A stream that takes longer than the limit in all, but brings batches, is sealed."""
    server.answer(behaving(delay_seconds=0.2))
    result = streams(clients, tmp_path, stall_limit=timedelta(seconds=1)).fetch(range_request())
    assert (result.fault, len(result.seals)) == (None, 7)
    assert result.facts.seconds > 1


def test_stream_beyond_its_deadline_seals_nothing(
    server: LoopbackServer, clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is not finished at its deadline has timed out, and seals nothing."""
    monkeypatch.setattr("ads_pipeline.google_ads.client.STREAM_SECONDS", 1.0)
    server.answer(behaving(delay_seconds=0.3))
    assert_nothing_sealed(tmp_path, streams(clients, tmp_path).fetch(range_request()), "timed_out")


def test_unknown_enum_value_is_sealed_and_counted(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """A value that is newer than the version is UNKNOWN in the rows, and counted in the seal."""
    server.answer(behaving(enum_number=77))
    seal = streams(clients, tmp_path).fetch(range_request(partitions(1))).seals[0]
    assert {row["campaign_status"] for row in rows_of(tmp_path, seal)} == {"UNKNOWN"}
    document = json.loads((tmp_path / seal.run.path / METADATA).read_text())
    assert document["extraction"]["unknown_enum_values"] == 2 * 3


def test_full_disk_seals_nothing(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """A write that the operating system refuses is an outage of the disk, and no day is sealed."""
    server.answer(behaving(rows=400))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
    try:
        with pytest.raises(RawUnavailable):
            streams(clients, tmp_path).fetch(range_request())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sealed(tmp_path) == []


def fetch_and_die(configuration: Path, root: Path, fatal: int) -> None:
    """Fetch a week in a process that is killed before its rename of this number."""
    rename, calls = os.rename, iter(range(fatal - 1, -1, -1))

    def fatal_rename(*args: Any, **kwargs: Any) -> None:
        if next(calls, 1) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*args, **kwargs)

    os.rename = fatal_rename
    clients = Clients(read_configuration(str(configuration), {}), API_VERSION)
    streams(clients, root).fetch(range_request())


@pytest.mark.invariant("R3")
@pytest.mark.parametrize("fatal", [1, 2, 5, 7])
def test_crash_between_two_seals_leaves_whole_days(server: LoopbackServer, tmp_path: Path, fatal: int) -> None:
    """A process that is killed between two seals leaves the earlier days whole, and the later ones unsealed."""
    server.answer(behaving())
    process = multiprocessing.get_context("spawn").Process(
        target=fetch_and_die, args=(server.configuration, tmp_path, fatal)
    )
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    found = sealed(tmp_path)
    assert [seal.run.key for seal in found] == partitions()[: fatal - 1]
    for seal in found:
        assert RawRuns(tmp_path).verify(seal.run).record_count == 3


def test_refused_request_writes_nothing(server: LoopbackServer, clients: Clients, tmp_path: Path) -> None:
    """A request that Google refuses before any row leaves no directory below raw."""
    server.answer(behaving(failure=failing("authorization_error", "USER_PERMISSION_DENIED")))
    result = streams(clients, tmp_path).fetch(range_request([*partitions(1, first=date(2026, 10, 9))]))
    assert_nothing_sealed(tmp_path, result, "permission_denied")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["metrics.cost_microz", "campaign.labels"])
def test_field_that_cannot_be_flattened_parks_the_query(
    server: LoopbackServer, clients: Clients, tmp_path: Path, field: str
) -> None:
    """A field that the version lacks, or that is a list, is a fault of the query. Nothing is requested."""
    query = shipped_query().model_copy(update={"gaql": f"SELECT segments.date, customer.id, {field} FROM campaign"})
    result = streams(clients, tmp_path).fetch(range_request(query=query))
    assert_nothing_sealed(tmp_path, result, "unrecognized_field")
    assert result.fault is not None
    assert field in result.fault.message
    assert server.operations() == {}


def fetch_week(configuration: Path, root: Path) -> None:
    clients = Clients(read_configuration(str(configuration), {}), API_VERSION)
    streams(clients, root).fetch(range_request())


def test_children_trust_each_running_server(server: LoopbackServer, tmp_path: Path) -> None:
    """A process that starts beside two servers fetches from each of them."""
    trusted = os.environ[ROOTS]
    with loopback_server(tmp_path, API_VERSION) as second:
        for number, each in enumerate((server, second)):
            each.answer(behaving())
            child = multiprocessing.get_context("spawn").Process(
                target=fetch_week, args=(each.configuration, tmp_path / str(number))
            )
            child.start()
            child.join(120)
            assert [seal.run.key for seal in sealed(tmp_path / str(number))] == partitions()
    assert os.environ[ROOTS] == trusted
