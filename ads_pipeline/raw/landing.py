"""Lands a run's bytes once, immutably, under a seal, and finds what has been sealed.

A run is a directory that holds `payload.jsonl` and the seal, `metadata.json`. It is written under a temporary name,
forced to disk, and given its own name by one rename, so at every instant it is either whole or not there. Whether a
sealed run is any good is for the validator to say; which run readers get, for the ledger.
"""

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO, Final

from ads_pipeline.domain.partition import PartitionKey, Run, parse_date, parse_run_path, validate_name
from ads_pipeline.errors import (
    BadJson,
    BadName,
    BadRow,
    RawUnavailable,
    RunDamaged,
    RunExists,
    RunNotSealed,
    UnsafePath,
)
from ads_pipeline.quoting import printable
from ads_pipeline.raw.seal import MAX_SEAL_BYTES, Seal, SealFacts, encode_seal, parse_seal
from ads_pipeline.raw.strict_json import parse_object

PAYLOAD: Final = "payload.jsonl"
METADATA: Final = "metadata.json"
TEMPORARY: Final = "_tmp."  # begins the names of landings that are not sealed
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hold us up
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_NOT_PLAIN = (errno.ELOOP, errno.ENOTDIR)
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, *_NOT_PLAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRun:
    """Something below the raw root that claims to be a run and is not one. `run` is None when its name is wrong."""

    path: str
    problem: str
    run: Run | None = None


class RawRuns:
    """The runs below one root. The root may be a symbolic link; nothing below it may."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def land(self, run: Run, rows: Iterable[Mapping[str, Any]], facts: SealFacts) -> Seal:
        """Write the rows in the order given and seal them. When this returns the run survives a power cut.

        RunExists when the name is taken. On any failure, also of the rows' own iterator, nothing is sealed; only when
        the very last step fails, which forces the new name to disk, the run is there but may not outlive a power cut.
        """
        with _translated(run.path), ExitStack() as opened:
            day = self._open_day(run.key, opened, create=True)
            _refuse_taken(run, os.listdir(day))
            temporary = f"{TEMPORARY}{run.run_id}.{secrets.token_hex(4)}"
            os.mkdir(temporary, 0o755, dir_fd=day)
            try:
                seal = _write(run, _own(rows), facts, day, temporary)
                # POSIX lets a directory replace only an empty one, and a sealed run never is: one racer wins.
                os.rename(temporary, f"run_id={run.run_id}", src_dir_fd=day, dst_dir_fd=day)
            except BaseException as error:
                _discard(temporary, day)
                if isinstance(error, OSError) and error.errno in _TAKEN:
                    raise _exists(run) from None
                raise
            os.fsync(day)
        return seal

    def seal(self, run: Run) -> Seal:
        """The run's seal, held against the payload's size. RunNotSealed, or RunDamaged with the reason."""
        with _translated(run.path), ExitStack() as opened:
            return _read_seal(self._open_run(run, opened), run)

    def payload_path(self, run: Run) -> str:
        """Where the run's payload lies, for readers on other machines; they check for themselves what they find."""
        return str(self._root / run.path / PAYLOAD)

    def verify(self, run: Run) -> Seal:
        """The run's seal, after every byte of the payload was held against it."""
        with self.open(run) as (seal, _payload):
            return seal

    @contextmanager
    def open(self, run: Run) -> Iterator[tuple[Seal, BinaryIO]]:
        """The seal and the payload, readable from its start, after every byte was held against the seal."""
        seal, payload = self._verified(run)
        with payload:
            yield seal, payload

    def runs(self, key: PartitionKey) -> tuple[Seal | DamagedRun, ...]:
        """Every sealed run of a partition, by name; a damaged one as the damage. Unsealed ones do not exist."""
        with _translated(key.path), ExitStack() as opened:
            try:
                day = self._open_day(key, opened)
            except FileNotFoundError:
                return ()
            return tuple(_runs_of_day(day, key.path))

    def find(
        self, *, source: str, since: date, until: date, known: Container[Run] = frozenset()
    ) -> Iterator[Seal | DamagedRun]:
        """Every sealed run of a source with a logical date in the window, both ends included, in path order.

        Seals are held against their payload's size only, and those of known runs neither read nor told. A directory
        whose name breaks the rules is reported as damage at whatever level it stands: an account in a misspelt
        directory must not drop out in silence.
        """
        validate_name("source", source)
        window = f"logical_date={since.isoformat()}", f"logical_date={until.isoformat()}"
        with _translated(source), ExitStack() as opened:
            try:
                above = opened.enter_context(_directory(str(self._root), None, follow=True))
                top = opened.enter_context(_directory(source, above))
            except FileNotFoundError:
                return
            yield from _walk(top, source, ("customer_id=", "query_name=", "logical_date="), window, known)

    def _open_day(self, key: PartitionKey, opened: ExitStack, *, create: bool = False) -> int:
        """A descriptor of the partition's directory, reached without following a link below the root."""
        if create:
            self._make_root()
        at = opened.enter_context(_directory(str(self._root), None, follow=True))
        for name in key.path.split("/"):
            if create:
                _make_directory(name, at)
            at = opened.enter_context(_directory(name, at))
        return at

    def _make_root(self) -> None:
        missing = [path for path in (self._root, *self._root.parents) if not path.exists()]
        self._root.mkdir(parents=True, exist_ok=True)
        for path in missing:
            with _directory(str(path.parent), None, follow=True) as parent:
                os.fsync(parent)

    def _open_run(self, run: Run, opened: ExitStack) -> int:
        try:
            return opened.enter_context(_directory(f"run_id={run.run_id}", self._open_day(run.key, opened)))
        except FileNotFoundError:
            raise RunNotSealed(run.path, "no such run") from None

    def _verified(self, run: Run) -> tuple[Seal, BinaryIO]:
        with _translated(run.path), ExitStack() as opened:
            directory = self._open_run(run, opened)
            seal = _read_seal(directory, run)
            payload = os.fdopen(_open_file(PAYLOAD, directory, run), "rb")
            try:
                _check_payload(seal, payload)
                payload.seek(0)
            except BaseException:
                payload.close()
                raise
            return seal, payload


def _write(run: Run, rows: Iterable[Mapping[str, Any]], facts: SealFacts, day: int, temporary: str) -> Seal:
    with _directory(temporary, day) as directory:
        digest, size, count = hashlib.sha256(), 0, 0
        with _new_file(PAYLOAD, directory) as payload:
            for count, row in enumerate(rows, 1):
                line = _line(run, row, count)
                payload.write(line)
                digest.update(line)
                size += len(line)
        seal = Seal(run=run, facts=facts, record_count=count, payload_bytes=size, payload_sha256=digest.hexdigest())
        with _new_file(METADATA, directory) as metadata:
            metadata.write(encode_seal(seal))
        os.fsync(directory)
    return seal


def _line(run: Run, row: Mapping[str, Any], number: int) -> bytes:
    try:
        line = json.dumps(dict(row), ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        parse_object(line)  # what is landed must be what a strict reader takes
    except (TypeError, ValueError, RecursionError) as error:
        problem = str(error) if isinstance(error, BadJson) else type(error).__name__
        raise BadRow(run.path, f"row {number} cannot be written as strict JSON: {problem}") from error
    return line + b"\n"


def _read_seal(directory: int, run: Run) -> Seal:
    try:
        descriptor = _open_file(METADATA, directory, run)
    except FileNotFoundError:
        raise RunNotSealed(run.path, "the run has no seal") from None
    with os.fdopen(descriptor, "rb") as metadata:
        seal = parse_seal(metadata.read(MAX_SEAL_BYTES + 1), run)
    try:
        found = os.stat(PAYLOAD, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        raise RunDamaged(run.path, "sealed, but there is no payload") from None
    if not stat.S_ISREG(found.st_mode):
        raise RunDamaged(run.path, f"{PAYLOAD} is not a plain file")
    if seal.payload_bytes is not None and found.st_size != seal.payload_bytes:
        raise RunDamaged(run.path, f"the payload has {found.st_size} bytes, the seal says {seal.payload_bytes}")
    return seal


def _check_payload(seal: Seal, payload: BinaryIO) -> None:
    digest, lines, last = hashlib.sha256(), 0, b"\n"
    while chunk := payload.read(_CHUNK):
        digest.update(chunk)
        lines += chunk.count(b"\n")
        last = chunk[-1:]
    lines += last != b"\n"  # the last line may lack its end
    if seal.payload_sha256 is not None and digest.hexdigest() != seal.payload_sha256:
        raise RunDamaged(seal.run.path, "the payload's sha256 is not the seal's")
    if lines != seal.record_count:
        raise RunDamaged(seal.run.path, f"the payload has {lines} lines, the seal says {seal.record_count}")


def _walk(
    at: int, path: str, prefixes: tuple[str, ...], window: tuple[str, str], known: Container[Run]
) -> Iterator[Seal | DamagedRun]:
    """The runs below a directory whose children are named by the first prefix."""
    if not prefixes:
        yield from _runs_of_day(at, path, known)
        return
    prefix, *below = prefixes
    for name in sorted(os.listdir(at)):
        if name[0] in "._":
            continue
        inner = f"{path}/{name}"
        if not below and _other_day(name, prefix, window):
            continue
        problem = _misnamed(inner)
        if problem:
            yield DamagedRun(path=printable(inner), problem=problem)
            continue
        try:
            with _directory(name, at) as child:
                yield from _walk(child, inner, tuple(below), window, known)
        except OSError as error:
            if error.errno not in _NOT_PLAIN:
                raise
            yield DamagedRun(path=printable(inner), problem="a symbolic link or a file where a directory must be")


def _other_day(name: str, prefix: str, window: tuple[str, str]) -> bool:
    """Whether this is the directory of a real day outside the window; cheap, because history is long."""
    if window[0] <= name <= window[1] or not name.startswith(prefix):
        return False
    try:
        parse_date(name.removeprefix(prefix))
    except BadName:
        return False
    return True


def _misnamed(path: str) -> str | None:
    """Why no run can lie below this path: its missing parts are filled with names that are fine."""
    filled = (
        path.split("/") + ["customer_id=0", "query_name=q", "logical_date=2000-01-01", "run_id=r"][path.count("/") :]
    )
    try:
        parse_run_path("/".join(filled))
    except BadName as error:
        return str(error)
    return None


def _runs_of_day(day: int, path: str, known: Container[Run] = frozenset()) -> Iterator[Seal | DamagedRun]:
    for name in sorted(os.listdir(day)):
        if name[0] in "._":
            continue
        inner = f"{path}/{name}"
        try:
            run = parse_run_path(inner)
        except BadName as error:
            yield DamagedRun(path=printable(inner), problem=str(error))
            continue
        if run in known:
            continue
        try:
            with _translated(inner), _directory(name, day) as directory:
                found: Seal | DamagedRun = _read_seal(directory, run)
        except RunNotSealed:
            continue
        except (RunDamaged, UnsafePath) as error:
            found = DamagedRun(path=inner, problem=error.problem, run=run)
        yield found


@contextmanager
def _directory(name: str, at: int | None, *, follow: bool = False) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY & ~os.O_NOFOLLOW if follow else _DIRECTORY, dir_fd=at)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _make_directory(name: str, at: int) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=at)
    os.fsync(at)  # also when it was there: whoever made it may have died before forcing its name to disk


@contextmanager
def _new_file(name: str, directory: int) -> Iterator[BinaryIO]:
    """A new read-only file, forced to disk before the block ends."""
    with os.fdopen(os.open(name, _CREATE, 0o444, dir_fd=directory), "wb", buffering=_CHUNK) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _open_file(name: str, directory: int, run: Run) -> int:
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise RunDamaged(run.path, f"{name} is not a plain file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunDamaged(run.path, f"{name} is not a plain file")
    return descriptor


def _refuse_taken(run: Run, siblings: list[str]) -> None:
    """Names that differ only in case would be one directory on some file systems."""
    wanted = f"run_id={run.run_id}".casefold()
    if any(name.casefold() == wanted for name in siblings):
        raise _exists(run)


def _exists(run: Run) -> RunExists:
    return RunExists(run.path, "the run_id is taken in this partition, in this spelling or another; use a new one")


def _discard(temporary: str, day: int) -> None:
    """Best effort: what is left behind carries a temporary name, which nobody reads."""
    with suppress(OSError):
        with _directory(temporary, day) as directory:
            for name in os.listdir(directory):
                os.unlink(name, dir_fd=directory)
        os.rmdir(temporary, dir_fd=day)


class _RowsFailed(Exception):
    """Carries an OSError of the rows' own past our translation of the file system's."""

    def __init__(self, error: OSError) -> None:
        self.error = error


def _own(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    try:
        yield from rows
    except OSError as error:
        raise _RowsFailed(error) from error


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except _RowsFailed as failed:
        raise failed.error from None
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise UnsafePath(path, "a symbolic link or a file stands where a directory must") from error
        raise RawUnavailable(path, f"the file system failed: {error.strerror}") from error
