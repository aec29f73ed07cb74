"""Interrupted landings (R1, R3, R4): a crash, failure or race at any moment leaves a complete run or none.

A child process lands a run repeatedly on a disk that kills it before its first call, its second, and so on, until a
landing survives all calls. The tests then read what each crash left behind."""

import errno
import io
import json
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ads_pipeline.domain.errors import BadRow, RawUnavailable, RunNotSealed
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD
from ads_pipeline_tests.builders import (
    PAYLOAD_OF_ROWS,
    ROWS,
    find_runs,
    key,
    land_in_races,
    raw_before_first_use,
    run,
    seal_facts,
)

WATCHED = ("open", "close", "write", "mkdir", "fsync", "fdatasync", "rename", "replace", "link", "unlink", "listdir")
SMALL_BUFFER = 32  # a payload of a hundred bytes then takes several writes


class CrashingDisk:
    """Replaces functions of `os`: records each call, and kills the process before a given one.

    A power cut also removes what was not synced: a file's bytes, and its name in its directory."""

    def __init__(self, trace: Path, *, fatal: int, power_cut: bool) -> None:
        self._real = {name: getattr(os, name) for name in (*WATCHED, "fdopen")}
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._fatal, self._power_cut, self._calls = fatal, power_cut, 0
        self._names: dict[int, str] = {}
        self._dirty: dict[int, int] = {}
        self._unlisted: dict[int, list[tuple[int, str]]] = {}

    def install(self) -> None:
        for name in WATCHED:
            setattr(os, name, self._watched(name))
        setattr(os, "fdopen", self._fdopen)  # noqa: B010 - mypy knows the real one's overloads

    def is_fatal(self, call: str, target: object) -> bool:
        self._calls += 1
        label = self._names.get(target, "?") if isinstance(target, int) else Path(str(target)).name
        self._real["write"](self._trace, f"{call} {label}\n".encode())
        return self._calls == self._fatal

    def crash(self) -> NoReturn:
        self.lose_power()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("outlived SIGKILL")

    def lose_power(self) -> None:
        if not self._power_cut:
            return
        for descriptor in self._dirty.values():
            os.ftruncate(descriptor, 0)
        for names in self._unlisted.values():
            for directory, name in names:
                self._real["unlink"](name, dir_fd=directory)

    def mark_dirty(self, descriptor: int) -> None:
        self._dirty.setdefault(os.fstat(descriptor).st_ino, os.dup(descriptor))

    def _watched(self, call: str) -> Any:
        def watched(target: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_fatal(call, target):
                self.crash()
            result = self._real[call](target, *args, **kwargs)
            if call == "open":
                self._opened(result, str(target), args[0], kwargs.get("dir_fd"))
            elif call == "write":
                self.mark_dirty(target)
            elif call in ("fsync", "fdatasync"):
                inode = os.fstat(target).st_ino
                self._dirty.pop(inode, None)
                self._unlisted.pop(inode, None)
            return result

        return watched

    def _opened(self, descriptor: int, path: str, flags: int, directory: int | None) -> None:
        self._names[descriptor] = Path(path).name
        if flags & os.O_CREAT and directory is not None:
            self.mark_dirty(descriptor)
            created = os.dup(directory), path
            self._unlisted.setdefault(os.fstat(directory).st_ino, []).append(created)

    def _fdopen(self, descriptor: int, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "w" not in mode:
            return self._real["fdopen"](descriptor, mode, *args, **kwargs)
        return io.BufferedWriter(CrashingFile(self, descriptor), SMALL_BUFFER)


class CrashingFile(io.FileIO):
    """A file whose fatal write is torn: half of it reaches the disk."""

    def __init__(self, disk: CrashingDisk, descriptor: int) -> None:
        super().__init__(descriptor, "w")
        self._disk = disk

    def write(self, content: Any) -> int:
        if self._disk.is_fatal("write", self.fileno()):
            super().write(content[: len(content) // 2])
            self._disk.crash()
        self._disk.mark_dirty(self.fileno())
        return super().write(content)


def crash_at_every_call(base: Path, power_cut: bool) -> None:
    """Land below base/1, base/2, ..., killed before the call of that number, until one landing succeeds."""
    for fatal in count(1):
        child = os.fork()  # safe: this process was spawned and has one thread
        if not child:
            try:
                disk = CrashingDisk(base / f"{fatal}.trace", fatal=fatal, power_cut=power_cut)
                disk.install()
                RawRuns(base / str(fatal)).land(run(), ROWS, seal_facts())
                disk.lose_power()
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            sys.exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A landing that was killed before the last of its calls. The very last landing succeeded."""

    root: Path
    calls: list[str]

    @property
    def sealed(self) -> bool:
        return any(call.startswith("rename _tmp") for call in self.calls[:-1])


@pytest.fixture(scope="module", params=["killed", "power cut"])
def crashes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Crash]:
    base = tmp_path_factory.mktemp("crashes")
    process = multiprocessing.get_context("spawn").Process(
        target=crash_at_every_call, args=(base, request.param == "power cut")
    )
    process.start()
    process.join(600)
    assert process.exitcode == 0
    traces = sorted(base.glob("*.trace"), key=lambda trace: int(trace.stem))
    return [Crash(root=trace.with_suffix(""), calls=trace.read_text().splitlines()) for trace in traces]


def assert_nothing_sealed(root: Path) -> None:
    raw = raw_before_first_use(root)
    assert list(raw.list_runs(key())) == find_runs(raw) == []
    assert [path for path in root.rglob("*") if path.name.startswith(("_tmp", "run_id"))] == []


class TestCrash:
    def test_crashes_cover_every_kind_of_call(self, crashes: list[Crash]) -> None:
        """The crashes cover every kind of call, before and after the rename."""
        assert len(crashes) > 30
        fatal = {crash.calls[-1].split()[0] for crash in crashes[:-1]}
        assert fatal >= {"mkdir", "open", "write", "fsync", "close", "rename"}
        assert [len(crash.calls) for crash in crashes[:-1]] == list(range(1, len(crashes)))
        assert sum(crash.sealed for crash in crashes) > 3

    @pytest.mark.invariant("R1", "R3")
    def test_crash_leaves_complete_run_or_none(self, crashes: list[Crash]) -> None:
        """Before the rename nothing is listed or read; after it the run is listed and complete."""
        for crash in crashes:
            raw = raw_before_first_use(crash.root)
            listed = [each for each in raw.list_runs(key()) if each.run != run("again")]
            assert listed == [each for each in find_runs(raw) if each.run != run("again")]
            if crash.sealed:
                with raw.open(run()) as (seal, payload):
                    assert (listed, payload.read()) == ([seal], PAYLOAD_OF_ROWS), crash
            else:
                assert listed == [], crash
                with pytest.raises(RunNotSealed):
                    raw.verify(run())

    @pytest.mark.invariant("R3")
    def test_landing_again_succeeds(self, crashes: list[Crash]) -> None:
        """After any crash, a landing under a new run_id succeeds."""
        for crash in crashes:
            raw = RawRuns(crash.root)
            seal = raw.land(run("again"), ROWS, seal_facts())
            assert raw.verify(run("again")) == seal
            assert seal in raw.list_runs(key())

    @pytest.mark.invariant("R3")
    def test_run_is_synced_before_rename(self, crashes: list[Crash]) -> None:
        """Payload, seal and their directory are synced before the rename, the parent directory after it."""
        calls = crashes[-1].calls
        (rename,) = (n for n, call in enumerate(calls) if call.startswith("rename _tmp"))
        temporary = calls[rename].removeprefix("rename ")
        for name in (PAYLOAD, METADATA):
            last_write = max(n for n, call in enumerate(calls) if call == f"write {name}")
            assert last_write < calls.index(f"fsync {name}") < calls.index(f"fsync {temporary}") < rename
        assert f"fsync logical_date={key().logical_date}" in calls[rename:]


class TestPowerCutAfterLanding:
    """A landed run survives a power cut: each directory's name is synced in its parent."""

    @pytest.fixture
    def synced_inodes(self, monkeypatch: pytest.MonkeyPatch) -> set[int]:
        inodes: set[int] = set()
        fsync = os.fsync

        def watched(descriptor: int) -> None:
            fsync(descriptor)
            inodes.add(os.fstat(descriptor).st_ino)

        monkeypatch.setattr(os, "fsync", watched)
        return inodes

    def test_new_directories_are_synced(self, tmp_path: Path, synced_inodes: set[int]) -> None:
        """A landing syncs every directory that it creates below the root."""
        RawRuns(tmp_path).land(run(), ROWS, seal_facts())
        assert [p for p in (tmp_path / run().path).parents[:5] if p.stat().st_ino not in synced_inodes] == []

    def test_new_root_is_synced(self, tmp_path: Path, synced_inodes: set[int]) -> None:
        """A landing that creates the root syncs the root's name too."""
        RawRuns(tmp_path / "raw").land(run(), ROWS, seal_facts())
        assert tmp_path.stat().st_ino in synced_inodes

    def test_directories_of_crashed_landing_are_synced(self, crashes: list[Crash], synced_inodes: set[int]) -> None:
        """A landing syncs the directories that an earlier, crashed landing created but did not sync."""
        made = "mkdir google_ads"
        (unsynced,) = (crash for crash in crashes if crash.calls[-2:-1] == [made])
        RawRuns(unsynced.root).land(run("later"), ROWS, seal_facts())
        assert unsynced.root.stat().st_ino in synced_inodes


class TestFailure:
    @pytest.mark.parametrize("call", ["mkdir", "open", "fsync", "rename"])
    def test_full_disk_seals_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        """A full disk is a transient error; nothing is sealed, and the run_id stays free."""

        def fail(*_args: object, **_kwargs: object) -> NoReturn:
            raise OSError(errno.ENOSPC, "no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(RawUnavailable) as failure:
                RawRuns(tmp_path).land(run(), ROWS, seal_facts())
        assert failure.value.is_transient
        assert_nothing_sealed(tmp_path)
        assert RawRuns(tmp_path).land(run(), ROWS, seal_facts()).record_count == 2

    def test_failed_fsync_fails_landing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """When any fsync fails, the landing fails; a run that is listed all the same is complete."""
        fsync, unsealed = os.fsync, 0
        for fatal in count(1):
            root, left = tmp_path / str(fatal), iter(range(fatal - 1, -1, -1))

            def failing(descriptor: int, left: Iterator[int] = left) -> None:
                if next(left, 1) == 0:
                    raise OSError(errno.ENOSPC, "no space left on device")
                fsync(descriptor)

            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", failing)
                try:
                    RawRuns(root).land(run(), ROWS, seal_facts())
                    break
                except RawUnavailable:
                    unsealed += not find_runs(raw_before_first_use(root))
                    for listed in find_runs(raw_before_first_use(root)):
                        assert isinstance(listed, SealedRun)
                        RawRuns(root).verify(listed.run)
        assert fatal > 6
        assert unsealed == fatal - 2, "only the last fsync, of the new name, may fail with the run in place"

    def test_refused_write_seals_nothing(self, tmp_path: Path) -> None:
        """A write that the operating system refuses leaves nothing behind."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
        try:
            with pytest.raises(RawUnavailable):
                RawRuns(tmp_path).land(run(), [{"text": "x" * (1 << 13)}], seal_facts())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert_nothing_sealed(tmp_path)

    def test_outage_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An unreadable disk is a transient error, never an empty list of runs."""
        raw = RawRuns(tmp_path)
        raw.land(run(), ROWS, seal_facts())

        def fail(_directory: object) -> NoReturn:
            raise OSError(errno.EIO, "input/output error")

        monkeypatch.setattr(os, "listdir", fail)
        for ask in (lambda: raw.list_runs(key()), lambda: find_runs(raw)):
            with pytest.raises(RawUnavailable):
                ask()

    @pytest.mark.parametrize("error", [LookupError(), ConnectionResetError(104, "reset"), FileExistsError(17, "")])
    def test_error_of_rows_is_passed_on(self, tmp_path: Path, error: Exception) -> None:
        """An error of the rows' iterator is raised unchanged, and nothing is sealed."""

        def rows() -> Iterator[dict[str, int]]:
            yield {"n": 1}
            raise error

        with pytest.raises(type(error)) as raised:
            RawRuns(tmp_path).land(run(), rows(), seal_facts())
        assert raised.value is error
        assert_nothing_sealed(tmp_path)

    @pytest.mark.parametrize(
        "row",
        [
            pytest.param({"x": float("nan")}, id="NaN"),
            pytest.param({"x": float("-inf")}, id="infinity"),
            pytest.param({"x": object()}, id="object"),
            pytest.param({"x": b"bytes"}, id="bytes"),
            pytest.param({"x": Decimal(1)}, id="decimal"),
            pytest.param({"x": 10**5000}, id="5001 digits"),
            pytest.param({("a", "b"): 1}, id="tuple key"),
            pytest.param({"x": "\ud800"}, id="lone surrogate"),
            pytest.param({1: "number", "1": "text"}, id="one key twice"),
        ],
    )
    def test_unserializable_row_is_refused(self, tmp_path: Path, row: dict[Any, Any]) -> None:
        """A row that strict JSON cannot express is refused with its number, and nothing is sealed."""
        with pytest.raises(BadRow, match="row 2 "):
            RawRuns(tmp_path).land(run(), [{"fine": 1}, row], seal_facts())
        assert_nothing_sealed(tmp_path)


class TestRace:
    @pytest.mark.invariant("R4")
    def test_one_of_eight_racers_wins(self, tmp_path: Path) -> None:
        """Of eight processes that land the same run at once, one seals it, and its rows are read."""
        rounds, racers = 10, 8
        spawn = multiprocessing.get_context("spawn")
        start, results = spawn.Barrier(racers), spawn.SimpleQueue()
        field = [
            spawn.Process(target=land_in_races, args=(tmp_path, rounds, n, start, results)) for n in range(racers)
        ]
        for process in field:
            process.start()
        for process in field:
            process.join(600)
        assert [process.exitcode for process in field] == [0] * racers
        won = dict(results.get() for _ in field)
        results.close()
        assert sorted(number for numbers in won.values() for number in numbers) == list(range(rounds))
        for racer, numbers in won.items():
            for number in numbers:
                with RawRuns(tmp_path).open(run(f"round-{number}")) as (_seal, payload):
                    assert json.loads(payload.read()) == {"racer": racer}
        assert {path.name for path in (tmp_path / key().path).iterdir()} == {
            f"run_id=round-{n}" for n in range(rounds)
        }
