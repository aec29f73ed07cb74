"""Holds landing to R1, R3 and R4: it may die, fail or race at any instant, and leaves a whole run or none.

A process of its own lands a run again and again on a disk that kills it before its first call, its second, and so
on until a landing outlives them all. What the dead left behind is then read by a healthy one.
"""

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

from ads_pipeline.errors import BadRow, RawUnavailable, RunNotSealed
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import METADATA, PAYLOAD, Seal
from ads_pipeline_tests.builders import PAYLOAD_OF_ROWS, ROWS, facts, found, key, race, run

WATCHED = ("open", "close", "write", "mkdir", "fsync", "fdatasync", "rename", "replace", "link", "unlink", "listdir")
SMALL_BUFFER = 32  # a payload of a hundred bytes then takes several writes


class CrashingDisk:
    """Stands between a landing and `os`: notes each call, and kills the process before the one it was told to.

    After a power cut what was not forced to disk is gone: a file's bytes, and its name in its directory.
    """

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

    def fatal_now(self, call: str, target: object) -> bool:
        self._calls += 1
        label = self._names.get(target, "?") if isinstance(target, int) else Path(str(target)).name
        self._real["write"](self._trace, f"{call} {label}\n".encode())
        return self._calls == self._fatal

    def die(self) -> NoReturn:
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

    def soil(self, descriptor: int) -> None:
        self._dirty.setdefault(os.fstat(descriptor).st_ino, os.dup(descriptor))

    def _watched(self, call: str) -> Any:
        def watched(target: Any, *args: Any, **kwargs: Any) -> Any:
            if self.fatal_now(call, target):
                self.die()
            result = self._real[call](target, *args, **kwargs)
            if call == "open":
                self._opened(result, str(target), args[0], kwargs.get("dir_fd"))
            elif call == "write":
                self.soil(target)
            elif call in ("fsync", "fdatasync"):
                inode = os.fstat(target).st_ino
                self._dirty.pop(inode, None)
                self._unlisted.pop(inode, None)
            return result

        return watched

    def _opened(self, descriptor: int, path: str, flags: int, directory: int | None) -> None:
        self._names[descriptor] = Path(path).name
        if flags & os.O_CREAT and directory is not None:
            self.soil(descriptor)
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
        if self._disk.fatal_now("write", self.fileno()):
            super().write(content[: len(content) // 2])
            self._disk.die()
        self._disk.soil(self.fileno())
        return super().write(content)


def crash_everywhere(base: Path, power_cut: bool) -> None:
    """Lands under base/1, base/2, ... dying before the call of that number, until one landing outlives it."""
    for fatal in count(1):
        child = os.fork()  # safe: this process was spawned and has one thread
        if not child:
            try:
                disk = CrashingDisk(base / f"{fatal}.trace", fatal=fatal, power_cut=power_cut)
                disk.install()
                RawRuns(base / str(fatal)).land(run(), ROWS, facts())
                disk.lose_power()
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            sys.exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A landing that died before the last of its calls. The last landing of all outlived its calls."""

    root: Path
    calls: list[str]

    @property
    def sealed(self) -> bool:
        return any(call.startswith("rename _tmp") for call in self.calls[:-1])


@pytest.fixture(scope="module", params=["killed", "power cut"])
def deaths(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Death]:
    base = tmp_path_factory.mktemp("deaths")
    process = multiprocessing.get_context("spawn").Process(
        target=crash_everywhere, args=(base, request.param == "power cut")
    )
    process.start()
    process.join(100)
    assert process.exitcode == 0
    traces = sorted(base.glob("*.trace"), key=lambda trace: int(trace.stem))
    return [Death(root=trace.with_suffix(""), calls=trace.read_text().splitlines()) for trace in traces]


def assert_nothing_sealed(root: Path) -> None:
    raw = RawRuns(root)
    assert list(raw.list_runs(key())) == found(raw) == []
    assert [path for path in root.rglob("*") if path.name.startswith(("_tmp", "run_id"))] == []


class TestDeath:
    def test_every_kind_of_call_was_fatal_once(self, deaths: list[Death]) -> None:
        """The deaths that the other tests look at are many, of every kind, and on both sides of the rename."""
        assert len(deaths) > 30
        fatal = {death.calls[-1].split()[0] for death in deaths[:-1]}
        assert fatal >= {"mkdir", "open", "write", "fsync", "close", "rename"}
        assert [len(death.calls) for death in deaths[:-1]] == list(range(1, len(deaths)))
        assert sum(death.sealed for death in deaths) > 3

    @pytest.mark.invariant("R1", "R3")
    def test_the_dead_leave_a_whole_run_or_none(self, deaths: list[Death]) -> None:
        """Before the rename nothing is listed or read; after it the run is listed and every byte of it is right."""
        for death in deaths:
            raw = RawRuns(death.root)
            listed = [each for each in raw.list_runs(key()) if each.run != run("again")]
            assert listed == [each for each in found(raw) if each.run != run("again")]
            if death.sealed:
                with raw.open(run()) as (seal, payload):
                    assert (listed, payload.read()) == ([seal], PAYLOAD_OF_ROWS), death
            else:
                assert listed == [], death
                with pytest.raises(RunNotSealed):
                    raw.verify(run())

    @pytest.mark.invariant("R3")
    def test_landing_again_succeeds(self, deaths: list[Death]) -> None:
        """Whatever a death left behind, a landing under a new run_id beside it succeeds."""
        for death in deaths:
            raw = RawRuns(death.root)
            seal = raw.land(run("again"), ROWS, facts())
            assert raw.verify(run("again")) == seal
            assert seal in raw.list_runs(key())

    @pytest.mark.invariant("R3")
    def test_the_run_is_forced_to_disk_before_it_is_named(self, deaths: list[Death]) -> None:
        """Payload, seal and their directory are forced to disk before the rename, the directory above after it."""
        calls = deaths[-1].calls
        (rename,) = (n for n, call in enumerate(calls) if call.startswith("rename _tmp"))
        temporary = calls[rename].removeprefix("rename ")
        for name in (PAYLOAD, METADATA):
            last_write = max(n for n, call in enumerate(calls) if call == f"write {name}")
            assert last_write < calls.index(f"fsync {name}") < calls.index(f"fsync {temporary}") < rename
        assert f"fsync logical_date={key().logical_date}" in calls[rename:]


class TestPowerCutAfterLanding:
    """What a landing returned for survives: each directory's name is forced to disk in the one above it."""

    @pytest.fixture
    def forced(self, monkeypatch: pytest.MonkeyPatch) -> set[int]:
        inodes: set[int] = set()
        fsync = os.fsync

        def watched(descriptor: int) -> None:
            fsync(descriptor)
            inodes.add(os.fstat(descriptor).st_ino)

        monkeypatch.setattr(os, "fsync", watched)
        return inodes

    def test_new_directories_survive(self, tmp_path: Path, forced: set[int]) -> None:
        """A landing forces every directory that it makes below the root."""
        RawRuns(tmp_path).land(run(), ROWS, facts())
        assert [p for p in (tmp_path / run().path).parents[:5] if p.stat().st_ino not in forced] == []

    def test_a_new_root_survives(self, tmp_path: Path, forced: set[int]) -> None:
        """A landing that makes the root forces the root's own name too."""
        RawRuns(tmp_path / "raw").land(run(), ROWS, facts())
        assert tmp_path.stat().st_ino in forced

    def test_directories_that_the_dead_left_survive(self, deaths: list[Death], forced: set[int]) -> None:
        """A landing forces the directories that one before it made and died too early to force."""
        made = "mkdir google_ads"
        (unforced,) = (death for death in deaths if death.calls[-2:-1] == [made])
        RawRuns(unforced.root).land(run("later"), ROWS, facts())
        assert unforced.root.stat().st_ino in forced


class TestFailure:
    @pytest.mark.parametrize("call", ["mkdir", "open", "fsync", "rename"])
    def test_a_full_disk_seals_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        """A disk that is full is a failure that waiting cures; nothing is sealed, and the name is still free."""

        def fail(*_args: object, **_kwargs: object) -> NoReturn:
            raise OSError(errno.ENOSPC, "no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(RawUnavailable) as failure:
                RawRuns(tmp_path).land(run(), ROWS, facts())
        assert failure.value.is_transient
        assert_nothing_sealed(tmp_path)
        assert RawRuns(tmp_path).land(run(), ROWS, facts()).record_count == 2

    def test_any_fsync_may_fail(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whichever fsync of a landing fails, the landing fails with it; what is listed all the same is whole."""
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
                    RawRuns(root).land(run(), ROWS, facts())
                    break
                except RawUnavailable:
                    unsealed += not found(RawRuns(root))
                    for listed in found(RawRuns(root)):
                        assert isinstance(listed, Seal)
                        RawRuns(root).verify(listed.run)
        assert fatal > 6
        assert unsealed == fatal - 2, "only the last fsync, of the new name, may fail with the run in place"

    def test_a_payload_that_outgrows_the_disk_seals_nothing(self, tmp_path: Path) -> None:
        """A write that the operating system really refuses leaves nothing behind."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
        try:
            with pytest.raises(RawUnavailable):
                RawRuns(tmp_path).land(run(), [{"text": "x" * (1 << 13)}], facts())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert_nothing_sealed(tmp_path)

    def test_an_outage_is_not_an_empty_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A disk that cannot be read is an error that waiting cures, never a partition without runs."""
        raw = RawRuns(tmp_path)
        raw.land(run(), ROWS, facts())

        def fail(_directory: object) -> NoReturn:
            raise OSError(errno.EIO, "input/output error")

        monkeypatch.setattr(os, "listdir", fail)
        for ask in (lambda: raw.list_runs(key()), lambda: found(raw)):
            with pytest.raises(RawUnavailable):
                ask()

    @pytest.mark.parametrize("error", [LookupError(), ConnectionResetError(104, "reset"), FileExistsError(17, "")])
    def test_the_sources_failure_stays_its_own(self, tmp_path: Path, error: Exception) -> None:
        """When the rows break off their own error comes out, whatever its class, and nothing is sealed."""

        def rows() -> Iterator[dict[str, int]]:
            yield {"n": 1}
            raise error

        with pytest.raises(type(error)) as raised:
            RawRuns(tmp_path).land(run(), rows(), facts())
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
    def test_a_row_that_is_not_json_is_refused(self, tmp_path: Path, row: dict[Any, Any]) -> None:
        """A row that one line of strict JSON cannot say is refused by its number, and nothing is sealed."""
        with pytest.raises(BadRow, match="row 2 "):
            RawRuns(tmp_path).land(run(), [{"fine": 1}, row], facts())
        assert_nothing_sealed(tmp_path)


class TestRace:
    @pytest.mark.invariant("R4")
    @pytest.mark.timeout(120)
    def test_one_of_eight_racers_seals(self, tmp_path: Path) -> None:
        """Of eight processes that land the same run at the same moment one seals it; its rows are what is read."""
        rounds, racers = 10, 8
        spawn = multiprocessing.get_context("spawn")
        start, results = spawn.Barrier(racers), spawn.SimpleQueue()
        field = [spawn.Process(target=race, args=(tmp_path, rounds, n, start, results)) for n in range(racers)]
        for process in field:
            process.start()
        for process in field:
            process.join(100)
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
