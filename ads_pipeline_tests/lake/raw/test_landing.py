"""Raw runs on a disk (R2, R4, R5, R7): read-only files, safe names, no links.

`test_raw_runs` has the rules that hold in a bucket too, `test_landing_crashes` interrupted landings, `test_seal` the
content of seals."""

import os
import posixpath
import stat
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.errors import BadName, BadRow, RawError, RunExists, UnsafePath
from ads_pipeline.domain.partition import PartitionKey, Run, parse_run_path
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD
from ads_pipeline_tests.builders import (
    DAY,
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
