"""Raw runs (R1, R2, R4 to R8): complete or absent, immutable, one winner, safe names, no links, row order.

Interrupted landings are tested in `test_landing_crashes`, the content of seals in `test_seal`."""

import hashlib
import json
import os
import posixpath
import stat
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.partition import PartitionKey, Run, parse_run_path
from ads_pipeline.errors import BadName, BadRow, RawError, RunDamaged, RunExists, RunNotSealed, UnsafePath
from ads_pipeline.raw.discovery import DamagedRun
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import METADATA, PAYLOAD, Seal
from ads_pipeline_tests.builders import (
    DAY,
    PAYLOAD_OF_ROWS,
    ROWS,
    assert_listed_as_damaged,
    assert_unreadable,
    find_runs,
    key,
    read_tree,
    run,
    seal_facts,
    write_sealed_run,
)
from ads_pipeline_tests.example_counts import examples

Change = Callable[[Path], object]
RUN_DEPTH = 5
LEVELS = pytest.mark.parametrize("depth", range(1, RUN_DEPTH + 1), ids=["source", "customer", "query", "date", "run"])
ESCAPES = ["", "..", "../x", "/x", "a/b", "a\\b"]
HOSTILE = [*ESCAPES, "a|b", "a=b", "a b", "a\n", "a\x00", "a\x1b[2J", "é", "٣", "-a", "a" * 300]
PARTS = {"source": "s", "customer_id": "1", "query_name": "q", "logical_date": DAY, "run_id": "r"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "outer" / "raw"


@pytest.fixture
def raw(root: Path) -> RawRuns:
    return RawRuns(root)


def rewrite(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


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
    @settings(deadline=None, max_examples=examples(40))
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
    def test_rows_keep_their_order(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
    ) -> None:
        """The payload's lines are the rows in the order given."""
        raw = RawRuns(tmp_path_factory.mktemp("raw"))
        raw.land(run(), iter(rows), seal_facts())
        with raw.open(run()) as (seal, payload):
            assert [json.loads(line) for line in payload] == rows
        assert seal.record_count == len(rows)

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda path: rewrite(path, PAYLOAD_OF_ROWS[:-9]), id="truncated"),
            pytest.param(lambda path: rewrite(path, b""), id="emptied"),
            pytest.param(lambda path: rewrite(path, PAYLOAD_OF_ROWS + b"{}\n"), id="extended"),
            pytest.param(lambda path: path.unlink(), id="missing"),
        ],
    )
    def test_payload_of_another_size_is_damage(self, raw: RawRuns, root: Path, change: Change) -> None:
        """A sealed run whose payload is shorter, longer or missing is listed as damage and never read."""
        raw.land(run(), ROWS, seal_facts())
        change(root / run().path / PAYLOAD)
        assert_listed_as_damaged(raw)
        assert_unreadable(raw, RunDamaged)

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize("position", [0, len(PAYLOAD_OF_ROWS) // 2, len(PAYLOAD_OF_ROWS) - 1])
    def test_flipped_bit_is_damage(self, raw: RawRuns, root: Path, position: int) -> None:
        """A payload with one wrong bit is refused before the first byte is returned."""
        raw.land(run(), ROWS, seal_facts())
        flipped = bytearray(PAYLOAD_OF_ROWS)
        flipped[position] ^= 1
        rewrite(root / run().path / PAYLOAD, bytes(flipped))
        assert_unreadable(raw, RunDamaged)

    @pytest.mark.invariant("R1")
    def test_unsealed_run_is_not_listed(self, raw: RawRuns, root: Path) -> None:
        """A directory without metadata.json, and a complete run under a temporary name, are not listed."""
        raw.land(run(), ROWS, seal_facts())
        raw.land(run("r2"), ROWS, seal_facts())
        (root / run().path / METADATA).unlink()
        (root / run("r2").path).rename(root / key().path / "_tmp.r2.0badcafe")
        assert list(raw.list_runs(key())) == find_runs(raw) == []
        assert_unreadable(raw, RunNotSealed)

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize("rows", [0, 5])
    def test_rows_of_any_size_are_counted(self, raw: RawRuns, rows: int) -> None:
        """No rows at all, and rows larger than a read buffer, are sealed and verified."""
        assert raw.land(run(), ({"text": "x" * 900_000} for _ in range(rows)), seal_facts()).record_count == rows
        assert raw.verify(run()).record_count == rows

    @pytest.mark.invariant("R1")
    def test_extra_files_are_ignored(self, raw: RawRuns, root: Path) -> None:
        """Files that other tools leave in a run, or hidden beside one, change nothing."""
        seal = raw.land(run(), ROWS, seal_facts())
        for directory in [(root / run().path), *list((root / run().path).parents)[: RUN_DEPTH - 1]]:
            (directory / "_SUCCESS").write_text("x")
            (directory / ".crc").write_text("x")
        (root / run().path / "notes.txt").write_text("x")
        assert list(raw.list_runs(key())) == find_runs(raw) == [raw.verify(run())] == [seal]

    def test_date_range_includes_both_ends(self, raw: RawRuns) -> None:
        """A search finds the runs of the first and last day and between, in path order."""
        days = [DAY + timedelta(days=n) for n in range(5)]
        runs = [run(name, key(customer, day=day)) for day in days for customer in ("20", "3") for name in ("b", "a")]
        for each in runs:
            raw.land(each, ROWS, seal_facts())
        listed = [seal.run for seal in find_runs(raw, days[1], days[3]) if isinstance(seal, Seal)]
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
    def test_misnamed_directories_are_reported(self, raw: RawRuns, root: Path, path: str) -> None:
        """A directory with an invalid name is reported as damage at its level, beside the sound runs."""
        seal = raw.land(run(), ROWS, seal_facts())
        (root / "google_ads" / path).mkdir(parents=True)
        listed = find_runs(raw, DAY, DAY + timedelta(days=20))
        assert seal in listed
        assert [(each.path, each.run) for each in listed if isinstance(each, DamagedRun)] == [
            (f"google_ads/{path}", None)
        ]


class TestLanding:
    @pytest.mark.invariant("R2")
    def test_sealed_run_never_changes(self, raw: RawRuns, root: Path) -> None:
        """No later call changes a sealed run's bytes, and its files are read-only."""
        mask = os.umask(0o022)
        try:
            raw.land(run(), ROWS, seal_facts())
        finally:
            os.umask(mask)
        before = read_tree(root / run().path)
        assert {name: stat.S_IMODE(mode) for name, (mode, _) in before.items()} == {PAYLOAD: 0o400, METADATA: 0o400}
        raw.land(run("r2"), ROWS, seal_facts())
        with pytest.raises(RunExists):
            raw.land(run(), [], seal_facts())
        with pytest.raises(BadRow):
            raw.land(run("r3"), [{"x": float("nan")}], seal_facts())
        with raw.open(run()) as (_seal, payload):
            payload.read()
        assert len(raw.list_runs(key())) == len(find_runs(raw)) == 2
        assert raw.read_seal(run()) == raw.verify(run())
        assert read_tree(root / run().path) == before

    @pytest.mark.invariant("R2", "R4")
    @pytest.mark.parametrize(
        "occupy",
        [
            pytest.param(lambda day: RawRuns(day.parents[3]).land(run(), ROWS, seal_facts()), id="same run"),
            pytest.param(lambda day: RawRuns(day.parents[3]).land(run("R1"), ROWS, seal_facts()), id="other case"),
            pytest.param(lambda day: (day / "run_id=r1").mkdir(), id="empty directory"),
            pytest.param(lambda day: (day / "run_id=r1").write_text("x"), id="file"),
            pytest.param(lambda day: (day / "run_id=r1").symlink_to(day), id="link"),
        ],
    )
    def test_taken_run_id_is_refused(self, raw: RawRuns, root: Path, occupy: Change) -> None:
        """Landing under a taken name, also in another case, changes nothing."""
        day = root / key().path
        day.mkdir(parents=True)
        occupy(day)
        before = read_tree(root)
        with pytest.raises(RunExists):
            raw.land(run(), [{"other": 1}], seal_facts())
        assert read_tree(root) == before


class TestNames:
    @pytest.mark.invariant("R5")
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *((field, value) for field in ("source", "customer_id", "query_name", "run_id") for value in HOSTILE),
            *(
                ("customer_id", value)
                for value in ("123-456-7890", "1234567890\n", "١٢٣٤٥٦٧٨٩٠", "1" * 21, 1234567890)
            ),
            *((field, value) for field in ("source", "query_name") for value in ("Campaign", "a-b", "1a", "_a")),
            *(("run_id", value) for value in (".hidden", "_tmp.x", "a" * 97, None)),
            *(("logical_date", value) for value in ("2026-02-03", datetime.combine(DAY, datetime.min.time()))),
        ],
    )
    def test_invalid_name_is_refused(self, tmp_path: Path, raw: RawRuns, field: str, value: object) -> None:
        """An invalid name is refused on one line with its field; nothing is written."""
        raw.land(run(), ROWS, seal_facts())
        before = read_tree(tmp_path)
        parts: dict[str, Any] = {**PARTS, field: value}
        run_id = parts.pop("run_id")
        with pytest.raises(BadName) as refused:
            raw.land(Run(key=PartitionKey(**parts), run_id=run_id), ROWS, seal_facts())
        assert refused.value.field == field
        assert str(refused.value).startswith(f"{field}: ")
        assert str(refused.value).isprintable()
        assert read_tree(tmp_path) == before

    @pytest.mark.invariant("R5")
    @pytest.mark.parametrize("source", [*HOSTILE, "Google_Ads"])
    def test_invalid_source_is_refused(self, raw: RawRuns, source: str) -> None:
        """A search below an invalid source is refused, and nothing outside the root is read."""
        raw.land(run(), ROWS, seal_facts())
        with pytest.raises(BadName):
            list(raw.find_runs(source=source, since=DAY, until=DAY))

    NEAR = st.builds(
        PartitionKey,
        source=st.sampled_from(["a", "aa", "a_"]),
        customer_id=st.sampled_from(["0", "00", "1"]),
        query_name=st.sampled_from(["a", "aa", "a_"]),
        logical_date=st.sampled_from([date(1, 1, 1), date(11, 1, 1), DAY]),
    )
    ANY = st.builds(
        PartitionKey,
        source=st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True),
        customer_id=st.from_regex(r"[0-9]{1,20}", fullmatch=True),
        query_name=st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True),
        logical_date=st.dates(),
    )

    @pytest.mark.invariant("R5")
    @given(NEAR | ANY, NEAR | ANY, st.from_regex(r"[0-9A-Za-z][0-9A-Za-z._-]{0,95}", fullmatch=True))
    def test_different_keys_have_different_paths(self, one: PartitionKey, other: PartitionKey, run_id: str) -> None:
        """Two keys share a path, in any case, only when they are equal; every path is below the root."""
        assert (one == other) == (one.path.casefold() == other.path.casefold())
        path = Run(key=one, run_id=run_id).path
        assert posixpath.normpath(path) == path
        assert not path.startswith(("/", ".."))
        assert max(len(name) for name in path.split("/")) < 128
        assert parse_run_path(path) == Run(key=one, run_id=run_id)


class TestLinks:
    @pytest.mark.invariant("R7")
    @LEVELS
    def test_symbolic_link_is_not_followed(self, tmp_path: Path, raw: RawRuns, root: Path, depth: int) -> None:
        """A symbolic link in place of any directory below the root stops reading and landing."""
        raw.land(run(), ROWS, seal_facts())
        linked = "/".join(run().path.split("/")[:depth])
        (root / linked).rename(tmp_path / "elsewhere")
        (root / linked).symlink_to(tmp_path / "elsewhere")
        before = read_tree(tmp_path)
        assert_unreadable(raw, UnsafePath)
        with pytest.raises(UnsafePath):
            raw.read_seal(run())
        with pytest.raises(RunExists if depth == RUN_DEPTH else UnsafePath):
            raw.land(run(), ROWS, seal_facts())
        if depth == RUN_DEPTH:
            assert_listed_as_damaged(raw)
        else:
            with pytest.raises(UnsafePath):
                raw.list_runs(key())
        if depth == 1:
            with pytest.raises(UnsafePath):
                find_runs(raw)
        else:
            assert [(each.path, type(each)) for each in find_runs(raw) if isinstance(each, DamagedRun)] == [
                (linked, DamagedRun)
            ]
        assert read_tree(tmp_path) == before

    @pytest.mark.invariant("R1", "R7")
    @pytest.mark.timeout(240)
    @pytest.mark.parametrize(
        "kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFDIR, stat.S_IFLNK], ids=["pipe", "socket", "directory", "link"]
    )
    @pytest.mark.parametrize("name", [PAYLOAD, METADATA])
    def test_special_file_is_damage(self, raw: RawRuns, root: Path, name: str, kind: int) -> None:
        """A pipe, socket, directory or link in place of a run's file is damage and does not block."""
        file = write_sealed_run(root, run(), b"", payload_bytes=None, payload_sha256=None) / name
        moved = file.rename(root / "moved")
        if kind == stat.S_IFDIR:
            file.mkdir()
        elif kind == stat.S_IFLNK:
            file.symlink_to(moved)
        else:
            os.mknod(file, kind | 0o600)
        assert_listed_as_damaged(raw)
        assert_unreadable(raw, RawError)

    @pytest.mark.invariant("R7")
    def test_root_may_be_a_link(self, tmp_path: Path) -> None:
        """The root itself may be a symbolic link."""
        (tmp_path / "disk").mkdir()
        (tmp_path / "root").symlink_to(tmp_path / "disk")
        seal = RawRuns(tmp_path / "root").land(run(), ROWS, seal_facts())
        assert RawRuns(tmp_path / "disk").verify(run()) == seal


def count_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


class TestSeveralAtOnce:
    """Runs that are written row by row, as an extractor does that receives several days in one answer."""

    def test_rows_of_open_runs_do_not_mix(self, raw: RawRuns, root: Path) -> None:
        """Runs of a month are written in turn with two descriptors each; only sealed ones are listed."""
        partitions = [key(day=DAY + timedelta(days=n)) for n in range(31)]
        before = count_descriptors()
        unsealed = [raw.landing(run("r1", partition)) for partition in partitions]
        assert count_descriptors() - before == 2 * len(partitions)
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
        assert count_descriptors() == before
        assert [path for path in root.rglob("*") if path.name.startswith("_tmp")] == []

    @pytest.mark.invariant("R3")
    def test_block_without_seal_leaves_nothing(self, raw: RawRuns, root: Path) -> None:
        """A block that ends without a seal discards the rows; after a seal nothing is discarded."""
        with raw.landing(run()) as unsealed:
            unsealed.write({"n": 1})
        assert read_tree(root / key().path) == {}
        with raw.landing(run()) as unsealed:
            seal = unsealed.seal(seal_facts())
            unsealed.discard()
        assert (seal.record_count, find_runs(raw)) == (0, [seal])

    def test_notes_of_the_extractor_are_in_the_seal(self, raw: RawRuns, root: Path) -> None:
        """What an extractor notes about itself is written into the seal, and readers ignore it."""
        with raw.landing(run()) as unsealed:
            seal = unsealed.seal(
                seal_facts(), extraction={"request_id": "r-1", "range": ["2026-02-01", "2026-02-03"]}
            )
        document = json.loads((root / run().path / METADATA).read_text())
        assert document["extraction"] == {"request_id": "r-1", "range": ["2026-02-01", "2026-02-03"]}
        assert raw.verify(run()) == seal
