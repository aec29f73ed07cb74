"""Raw runs on a disk and in a bucket (R1, R2, R4, R6, R8): complete or absent, immutable, one winner, row order."""

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.errors import BadRow, RawUnavailable, RunDamaged, RunExists, RunNotSealed
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.bucket_runs import REQUESTS_AT_ONCE
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.reading import stream_payload
from ads_pipeline.lake.raw.row_encoding import encode_columns
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD
from ads_pipeline.lake.storage.open_store import is_bucket, open_store
from ads_pipeline.lake.storage.store import Store
from ads_pipeline_tests.builders import (
    DAY,
    PAYLOAD_OF_ROWS,
    ROWS,
    assert_listed_as_damaged,
    assert_unreadable,
    find_runs,
    key,
    run,
    seal_document,
    seal_facts,
)
from ads_pipeline_tests.example_counts import examples

SEAL_OF_ANOTHER_RUN = json.dumps(seal_document(run("r2"), PAYLOAD_OF_ROWS)).encode()
Change = Callable[[Store, str], object]
TOMORROW = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def raw(store_location: str) -> RawRuns:
    return RawRuns(store_location)


@pytest.fixture
def files(store_location: str) -> Store:
    """The files of `raw`, to look at and to damage."""
    return open_store(store_location)


def read_files(files: Store) -> dict[str, tuple[float, bytes]]:
    """Every file with its age and content."""
    return {info.name: (info.modified_at, files.read(info.name)) for info in files.list("")}


class TestReading:
    @pytest.mark.invariant("R1")
    def test_landed_run_is_listed_and_read(self, raw: RawRuns) -> None:
        """A landed run is listed, verified and read, and the seal has the size and digest of the bytes."""
        seal = raw.land(run(), ROWS, seal_facts())
        assert (seal.run, seal.facts, seal.record_count) == (run(), seal_facts(), 2)
        assert seal.payload_bytes == len(PAYLOAD_OF_ROWS)
        assert seal.payload_sha256 == hashlib.sha256(PAYLOAD_OF_ROWS).hexdigest()
        assert list(raw.list_runs(key())) == find_runs(raw) == [seal]
        assert raw.read_seal(run()) == raw.verify(run()) == seal
        with raw.open(run()) as (again, payload):
            assert (again, payload.read()) == (seal, PAYLOAD_OF_ROWS)

    @pytest.mark.invariant("R8")
    @settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(
            st.dictionaries(
                st.text(max_size=5),
                st.none()
                | st.booleans()
                | st.integers()
                | st.floats(allow_nan=False, allow_infinity=False)
                | st.text(),
                max_size=4,
            )
        )
    )
    def test_rows_keep_their_order(self, raw: RawRuns, rows: list[dict[str, Any]]) -> None:
        """The payload's lines are the rows in the order given."""
        landed = run(uuid.uuid4().hex)
        raw.land(landed, iter(rows), seal_facts())
        with raw.open(landed) as (seal, payload):
            assert [json.loads(line) for line in payload] == rows
        assert seal.record_count == len(rows)

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda files, name: files.replace(name, PAYLOAD_OF_ROWS[:-9]), id="truncated"),
            pytest.param(lambda files, name: files.replace(name, b""), id="emptied"),
            pytest.param(lambda files, name: files.replace(name, PAYLOAD_OF_ROWS + b"{}\n"), id="extended"),
            pytest.param(lambda files, name: files.delete(name), id="missing"),
        ],
    )
    def test_payload_of_another_size_is_damage(self, raw: RawRuns, files: Store, change: Change) -> None:
        """A sealed run whose payload is shorter, longer or missing is listed as damage and never read."""
        raw.land(run(), ROWS, seal_facts())
        change(files, f"{run().path}/{PAYLOAD}")
        assert_listed_as_damaged(raw)
        assert_unreadable(raw, RunDamaged)

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize("position", [0, len(PAYLOAD_OF_ROWS) // 2, len(PAYLOAD_OF_ROWS) - 1])
    def test_flipped_bit_is_damage(self, raw: RawRuns, files: Store, position: int) -> None:
        """A payload with one wrong bit is refused before the first byte is returned."""
        raw.land(run(), ROWS, seal_facts())
        flipped = bytearray(PAYLOAD_OF_ROWS)
        flipped[position] ^= 1
        files.replace(f"{run().path}/{PAYLOAD}", bytes(flipped))
        assert_unreadable(raw, RunDamaged)

    @pytest.mark.invariant("R1")
    def test_unsealed_run_is_not_listed(self, raw: RawRuns, files: Store) -> None:
        """A folder without metadata.json, and a complete run under a temporary name, are not listed."""
        raw.land(run(), ROWS, seal_facts())
        raw.land(run("r2"), ROWS, seal_facts())
        for name in (PAYLOAD, METADATA):
            files.create(f"{key().path}/_tmp.r2.0badcafe/{name}", files.read(f"{run('r2').path}/{name}"))
            files.delete(f"{run('r2').path}/{name}")
        files.delete(f"{run().path}/{METADATA}")
        assert list(raw.list_runs(key())) == find_runs(raw) == []
        assert_unreadable(raw, RunNotSealed)

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize("rows", [0, 5])
    def test_rows_of_any_size_are_counted(self, raw: RawRuns, rows: int) -> None:
        """No rows at all, and rows larger than a read buffer, are sealed and verified."""
        assert raw.land(run(), ({"text": "x" * 900_000} for _ in range(rows)), seal_facts()).record_count == rows
        assert raw.verify(run()).record_count == rows

    @pytest.mark.invariant("R1")
    def test_extra_files_are_ignored(self, raw: RawRuns, files: Store) -> None:
        """Files that other tools leave in a run, or hidden beside one, change nothing."""
        seal = raw.land(run(), ROWS, seal_facts())
        parts = run().path.split("/")
        for depth in range(1, len(parts) + 1):
            for name in ("_SUCCESS", ".crc", "_delta_log/x", ".hidden/x"):
                files.create("/".join([*parts[:depth], name]), b"x")
        files.create(f"{run().path}/notes.txt", b"x")
        assert list(raw.list_runs(key())) == find_runs(raw) == [raw.verify(run())] == [seal]

    def test_date_range_includes_both_ends(self, raw: RawRuns) -> None:
        """A search finds the runs of the first and last day and between, in path order."""
        days = [DAY + timedelta(days=n) for n in range(5)]
        runs = [run(name, key(customer, day=day)) for day in days for customer in ("20", "3") for name in ("b", "a")]
        for each in runs:
            raw.land(each, ROWS, seal_facts())
        listed = [seal.run for seal in find_runs(raw, days[1], days[3]) if isinstance(seal, SealedRun)]
        assert listed == sorted((r for r in runs if days[1] <= r.key.logical_date <= days[3]), key=lambda r: r.path)
        assert len(listed) == 12
        assert find_runs(raw, days[3], days[1]) == []
        assert list(raw.find_runs(source="other_ads", since=days[0], until=days[4])) == []

    @pytest.mark.parametrize(
        "path",
        [
            "customer_id=123-456-7890",
            "1234567890",
            *(f"customer_id=1/{name}" for name in ("query_name=Campaign", "queryname=x")),
            *(f"customer_id=1/query_name=x/logical_date={day}" for day in ("2026-2-3", "2026_02_03", "2026-02-30")),
            *(f"customer_id=1/query_name=x/logical_date=2026-02-03/{name}" for name in ("run_id=-x", "runid=x")),
        ],
    )
    def test_misnamed_folders_are_reported(self, raw: RawRuns, files: Store, path: str) -> None:
        """A folder with an invalid name is reported as damage at its level, beside the sound runs."""
        seal = raw.land(run(), ROWS, seal_facts())
        for name in ("x", "y/z"):
            files.create(f"google_ads/{path}/{name}", b"x")
        listed = find_runs(raw, DAY, DAY + timedelta(days=20))
        assert seal in listed
        assert [(each.path, each.run) for each in listed if isinstance(each, DamagedRun)] == [
            (f"google_ads/{path}", None)
        ]


class TestLanding:
    @pytest.mark.invariant("R2")
    def test_sealed_run_never_changes(self, raw: RawRuns, files: Store) -> None:
        """No later call changes a sealed run's files."""
        raw.land(run(), ROWS, seal_facts())
        before = read_files(files)
        assert set(before) == {f"{run().path}/{PAYLOAD}", f"{run().path}/{METADATA}"}
        raw.land(run("r2"), ROWS, seal_facts())
        with pytest.raises(RunExists):
            raw.land(run(), [], seal_facts())
        with pytest.raises(BadRow):
            raw.land(run("r3"), [{"x": float("nan")}], seal_facts())
        with raw.open(run()) as (_seal, payload):
            payload.read()
        assert len(raw.list_runs(key())) == len(find_runs(raw)) == 2
        assert raw.read_seal(run()) == raw.verify(run())
        assert read_files(files).items() >= before.items()

    @pytest.mark.invariant("R2", "R4", "R5")
    @pytest.mark.parametrize("occupant", ["r1", "R1"])
    def test_taken_run_id_is_refused(self, raw: RawRuns, files: Store, occupant: str) -> None:
        """Landing under a taken name, also in another case, changes nothing."""
        raw.land(run(occupant), ROWS, seal_facts())
        before = read_files(files)
        with pytest.raises(RunExists):
            raw.land(run(), [{"other": 1}], seal_facts())
        assert read_files(files) == before

    @pytest.mark.invariant("R4")
    def test_seal_of_a_slower_writer_is_refused(self, raw: RawRuns) -> None:
        """Two writers open the same run; the first to seal wins, and its rows are read."""
        slower, faster = raw.landing(run()), raw.landing(run())
        slower.write({"writer": "slower"})
        faster.write({"writer": "faster"})
        seal = faster.seal(seal_facts())
        with pytest.raises(RunExists):
            slower.seal(seal_facts())
        with raw.open(run()) as (again, payload):
            assert (again, json.loads(payload.read())) == (seal, {"writer": "faster"})

    def test_seal_of_another_extractor_is_read(self, raw: RawRuns, files: Store) -> None:
        """Other extractors write the two files, the seal last, and may leave out what is optional."""
        document = seal_document(run(), PAYLOAD_OF_ROWS, payload_bytes=None, payload_sha256=None)
        files.create(f"{run().path}/{PAYLOAD}", PAYLOAD_OF_ROWS)
        assert find_runs(raw) == []
        files.create(f"{run().path}/{METADATA}", json.dumps(document).encode())
        assert find_runs(raw) == [raw.verify(run())]

    @pytest.mark.invariant("R1", "R6")
    @pytest.mark.parametrize(
        "content", [b"", b"{", b"x" * 70_000, json.dumps(seal_document(run("r2"), b"")).encode()]
    )
    def test_invalid_seal_is_damage(self, raw: RawRuns, files: Store, content: bytes) -> None:
        """A seal that is no seal, too large, or of another run, is damage."""
        raw.land(run(), ROWS, seal_facts())
        files.replace(f"{run().path}/{METADATA}", content)
        assert_listed_as_damaged(raw)
        assert_unreadable(raw, RunDamaged)

    @pytest.mark.parametrize("error", [LookupError(), ConnectionResetError(104, "reset"), FileExistsError(17, "")])
    def test_error_of_rows_is_passed_on(self, raw: RawRuns, files: Store, error: Exception) -> None:
        """An error of the rows' iterator is raised unchanged, and no file stays."""

        def rows() -> Iterator[dict[str, int]]:
            yield {"n": 1}
            raise error

        with pytest.raises(type(error)) as raised:
            raw.land(run(), rows(), seal_facts())
        assert raised.value is error
        assert list(files.list("")) == []
        assert list(raw.find_unsealed(TOMORROW)) == []


class TestStreaming:
    """What Spark workers read: the payload of a sealed run by location and path."""

    def test_payload_is_read_in_blocks(self, raw: RawRuns) -> None:
        """The blocks are the payload."""
        raw.land(run(), ({"text": "x" * 900_000} for _ in range(3)), seal_facts())
        blocks = list(stream_payload(raw.location, run().path, max_bytes=1 << 22, block_size=1 << 20))
        assert max(map(len, blocks)) <= 1 << 20
        with raw.open(run()) as (_seal, payload):
            assert b"".join(blocks) == payload.read()

    def test_empty_payload_has_no_blocks(self, raw: RawRuns) -> None:
        """A day without rows."""
        raw.land(run(), [], seal_facts())
        assert list(stream_payload(raw.location, run().path, max_bytes=0)) == []

    def test_payload_that_is_too_large_is_damage(self, raw: RawRuns) -> None:
        """Nothing of it is returned."""
        raw.land(run(), ROWS, seal_facts())
        size = len(PAYLOAD_OF_ROWS)
        assert b"".join(stream_payload(raw.location, run().path, max_bytes=size)) == PAYLOAD_OF_ROWS
        with pytest.raises(RunDamaged, match=f"larger than {size - 1} bytes"):
            next(stream_payload(raw.location, run().path, max_bytes=size - 1))

    def test_missing_payload_is_damage_only_beside_its_seal(self, raw: RawRuns, files: Store) -> None:
        """Without the seal as well, the storage has failed, which is no verdict on the run."""
        raw.land(run(), ROWS, seal_facts())
        files.delete(f"{run().path}/{PAYLOAD}")
        with pytest.raises(RunDamaged, match="no payload"):
            next(stream_payload(raw.location, run().path, max_bytes=1 << 20))
        files.delete(f"{run().path}/{METADATA}")
        with pytest.raises(RawUnavailable):
            next(stream_payload(raw.location, run().path, max_bytes=1 << 20))


class TestRoot:
    def test_empty_root_in_use_is_unavailable(self, store_location: str) -> None:
        """When runs were registered, an empty root is the wrong one, or its disk is not mounted."""
        for raw in (RawRuns(store_location), RawRuns(store_location, is_in_use=lambda: True)):
            for ask in (lambda raw=raw: raw.list_runs(key()), lambda raw=raw: find_runs(raw)):
                with pytest.raises(
                    RawUnavailable, match=r"the raw root (is empty|does not exist).*ADS_PIPELINE_LAKE"
                ):
                    ask()
            with pytest.raises(RawUnavailable):
                raw.read_seal(run())

    def test_empty_root_before_the_first_use_has_no_runs(self, store_location: str) -> None:
        """Then nothing is missing."""
        raw = RawRuns(store_location, is_in_use=lambda: False)
        assert list(raw.list_runs(key())) == find_runs(raw) == []
        with pytest.raises(RunNotSealed):
            raw.verify(run())

    def test_partition_without_runs_is_empty(self, raw: RawRuns) -> None:
        """A root with other runs is not the wrong one."""
        raw.land(run(), ROWS, seal_facts())
        assert raw.list_runs(key("2")) == ()
        assert list(raw.find_runs(source="other_ads", since=DAY, until=DAY)) == []
        with pytest.raises(RunNotSealed):
            raw.read_seal(run("r2"))


class TestUnsealed:
    @pytest.mark.invariant("R3")
    def test_files_of_an_interrupted_landing_are_found(self, raw: RawRuns, files: Store) -> None:
        """An operator can remove what a landing left that died before the seal. Sealed runs are never among it."""
        raw.land(run(), ROWS, seal_facts())
        folder = run("r2").path if is_bucket(raw.location) else f"{key().path}/_tmp.r2.0badcafe"
        files.create(f"{folder}/{PAYLOAD}", b"{}")
        assert [path for path, _modified_at in raw.find_unsealed(TOMORROW)] == [folder]
        assert list(raw.find_unsealed(TOMORROW - timedelta(days=2))) == []


def count_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


class TestSeveralAtOnce:
    """Runs that are written row by row, as an extractor does that receives several days in one answer."""

    def test_rows_of_open_runs_do_not_mix(self, raw: RawRuns) -> None:
        """Runs of a month are written in turn with two descriptors each at most; only sealed ones are listed."""
        partitions = [key(day=DAY + timedelta(days=n)) for n in range(31)]
        raw.land(run("r1", key(day=DAY - timedelta(days=1))), [], seal_facts())  # opens a client's connections
        before = count_descriptors()
        unsealed = [raw.landing(run("r1", partition)) for partition in partitions]
        assert len(partitions) - 2 <= count_descriptors() - before <= 2 * len(partitions)
        for number in range(3):
            for each in unsealed:
                each.write({"day": each.run.key.logical_date.isoformat(), "n": number})
        assert find_runs(raw, until=DAY + timedelta(days=40)) == []
        seals = [each.seal(seal_facts()) for each in unsealed[:-1]]
        unsealed[-1].discard()
        assert find_runs(raw, until=DAY + timedelta(days=40)) == seals
        for seal in seals:
            with raw.open(seal.run) as (_seal, payload):
                days = [json.loads(line)["day"] for line in payload]
                assert days == [seal.run.key.logical_date.isoformat()] * 3
        assert count_descriptors() <= before + (REQUESTS_AT_ONCE if is_bucket(raw.location) else 0)  # connections
        assert list(raw.find_unsealed(TOMORROW)) == []

    @pytest.mark.invariant("R1", "R8")
    def test_encoded_rows_are_sealed_like_rows(self, raw: RawRuns) -> None:
        """Rows that were encoded before and rows keep their order, and count alike in the seal."""
        with raw.landing(run()) as unsealed:
            unsealed.write({"n": 0})
            unsealed.write_lines(encode_columns({"n": [1, 2, 3]}))
            unsealed.write_lines([])
            unsealed.write({"n": 4})
            sealed = unsealed.seal(seal_facts())
        landed = raw.land(run("r2"), [{"n": n} for n in range(5)], seal_facts())
        assert (sealed.record_count, sealed.payload_bytes, sealed.payload_sha256) == (
            (landed.record_count, landed.payload_bytes, landed.payload_sha256)
        )
        assert raw.verify(run()) == sealed
        with raw.open(run()) as (_seal, payload):
            assert payload.read() == b"".join(b'{"n":%d}\n' % n for n in range(5))

    @pytest.mark.invariant("R3")
    def test_block_without_seal_leaves_nothing(self, raw: RawRuns, files: Store) -> None:
        """A block that ends without a seal discards the rows; after a seal nothing is discarded."""
        with raw.landing(run()) as unsealed:
            unsealed.write({"n": 1})
        assert list(files.list("")) == []
        assert list(raw.find_unsealed(TOMORROW)) == []
        with raw.landing(run()) as unsealed:
            seal = unsealed.seal(seal_facts())
            unsealed.discard()
        assert (seal.record_count, find_runs(raw)) == (0, [seal])

    def test_notes_of_the_extractor_are_in_the_seal(self, raw: RawRuns, files: Store) -> None:
        """What an extractor notes about itself is written into the seal, and readers ignore it."""
        with raw.landing(run()) as unsealed:
            seal = unsealed.seal(
                seal_facts(), extraction={"request_id": "r-1", "range": ["2026-02-01", "2026-02-03"]}
            )
        document = json.loads(files.read(f"{run().path}/{METADATA}"))
        assert document["extraction"] == {"request_id": "r-1", "range": ["2026-02-01", "2026-02-03"]}
        assert raw.verify(run()) == seal
