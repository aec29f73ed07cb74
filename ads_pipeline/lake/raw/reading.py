"""Reading one sealed run: its seal, its payload, and the checks of the payload against the seal.

`stream_payload` reads from a disk and from a bucket.
Functions with a `directory` parameter take an open descriptor and never follow a symbolic link below it.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from ads_pipeline.domain.errors import RawUnavailable, RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.seal import MAX_SEAL_BYTES, METADATA, PAYLOAD, parse_seal
from ads_pipeline.lake.storage.durable_files import make_directory, make_durable_directories, open_directory
from ads_pipeline.lake.storage.open_store import is_bucket, open_store
from ads_pipeline.lake.storage.store import Store

NOT_A_DIRECTORY = (errno.ELOOP, errno.ENOTDIR)
NOT_A_DIRECTORY_PROBLEM = "a symbolic link or a file stands where a directory must be"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a FIFO must not block
_CHUNK = 1 << 20
BLOCK_BYTES = 8 << 20
NO_PAYLOAD = "the run has a seal but no payload"
PAYLOAD_CHANGED = "the payload is not the one that the validator read"


@contextmanager
def open_below(root: Path, path: str, *, create: bool = False) -> Iterator[int]:
    """A descriptor of a directory below the raw root. The root may be a symbolic link; nothing below it may."""
    if create:
        make_durable_directories(root)
    parent = ExitStack()
    directory = parent.enter_context(open_directory(str(root), None, follow=True))
    for name in path.split("/"):
        with parent:  # is closed once its child is open, so that many directories can be open at once
            if create:
                make_directory(name, directory)
            child = ExitStack()
            directory = child.enter_context(open_directory(name, directory))
        parent = child
    with parent:
        yield directory


def stream_payload(location: str, path: str, *, max_bytes: int, block_size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The payload of a run of the raw root at this location, in blocks.

    RunDamaged when it is too large, missing beside its seal, or no plain file. UnsafePath when a symbolic link stands
    on the way, and RawUnavailable when the storage failed. The first block is read only after these checks.
    """
    with translate_os_errors(path, location), ExitStack() as stack:
        if is_bucket(location):
            payload = stack.enter_context(_open_object(open_store(location), path))
        else:
            payload = stack.enter_context(_open_payload(stack.enter_context(open_below(Path(location), path)), path))
        if payload.seek(0, os.SEEK_END) > max_bytes:
            raise RunDamaged(path, f"the payload is larger than {max_bytes} bytes")
        payload.seek(0)
        while block := payload.read(block_size):
            yield block


def read_seal(directory: int, run: Run) -> SealedRun:
    """The seal in a run's directory, checked against the payload's size. RunNotSealed or RunDamaged."""
    try:
        descriptor = _open_plain_file(METADATA, directory, run.path)
    except FileNotFoundError:
        raise RunNotSealed(run.path, "the run has no seal") from None
    with os.fdopen(descriptor, "rb") as metadata:
        seal = parse_seal(metadata.read(MAX_SEAL_BYTES + 1), run)
    try:
        payload = os.stat(PAYLOAD, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        raise RunDamaged(run.path, NO_PAYLOAD) from None
    if not stat.S_ISREG(payload.st_mode):
        raise RunDamaged(run.path, f"{PAYLOAD} is not a plain file")
    check_payload_size(seal, payload.st_size)
    return seal


def check_payload_size(seal: SealedRun, size: int | None) -> None:
    """RunDamaged when the payload is missing, or has not the size in the seal."""
    if size is None:
        raise RunDamaged(seal.run.path, NO_PAYLOAD)
    if seal.payload_bytes not in {None, size}:
        raise RunDamaged(seal.run.path, f"the payload has {size} bytes, the seal says {seal.payload_bytes}")


def open_verified_payload(directory: int, seal: SealedRun, payload_sha256: str | None = None) -> BinaryIO:
    """The payload, open at its start, after every byte was checked against the seal and a digest from elsewhere.

    RunDamaged if they differ.
    """
    payload = os.fdopen(_open_plain_file(PAYLOAD, directory, seal.run.path), "rb")
    try:
        check_payload(seal, payload, payload_sha256)
        payload.seek(0)
    except BaseException:
        payload.close()
        raise
    return payload


@contextmanager
def translate_os_errors(path: str, root: str | None = None) -> Iterator[None]:
    """Raise UnsafePath or RawUnavailable in place of an OSError. The message names a given root."""
    try:
        yield
    except OSError as error:
        if error.errno in NOT_A_DIRECTORY:
            raise UnsafePath(path, NOT_A_DIRECTORY_PROBLEM) from error
        where = "" if root is None else f" below {root}"
        raise RawUnavailable(path, f"the storage failed{where}: {error.strerror}") from error


def check_payload(
    seal: SealedRun, payload: BinaryIO, payload_sha256: str | None, *, copy: BinaryIO | None = None
) -> None:
    """Read the payload to its end, and write it to the copy. RunDamaged if the seal or the digest differs."""
    digest, lines, last_byte = hashlib.sha256(), 0, b"\n"
    while chunk := payload.read(_CHUNK if copy is None else BLOCK_BYTES):  # each read of an object is a request
        if copy is not None:
            copy.write(chunk)
        digest.update(chunk)
        lines += chunk.count(b"\n")
        last_byte = chunk[-1:]
    lines += last_byte != b"\n"  # the last line may lack its newline
    if seal.payload_sha256 is not None and digest.hexdigest() != seal.payload_sha256:
        raise RunDamaged(seal.run.path, "the payload's sha256 is not the seal's")
    if payload_sha256 is not None and digest.hexdigest() != payload_sha256:
        raise RunDamaged(seal.run.path, PAYLOAD_CHANGED)
    if lines != seal.record_count:
        raise RunDamaged(seal.run.path, f"the payload has {lines} lines, the seal says {seal.record_count}")


def _open_payload(directory: int, path: str) -> BinaryIO:
    try:
        return os.fdopen(_open_plain_file(PAYLOAD, directory, path), "rb", buffering=0)
    except FileNotFoundError:
        os.stat(METADATA, dir_fd=directory, follow_symlinks=False)  # without the seal, the file system has failed
        raise RunDamaged(path, NO_PAYLOAD) from None


def _open_object(store: Store, path: str) -> BinaryIO:
    try:
        return store.open(f"{path}/{PAYLOAD}")
    except FileNotFoundError:
        if store.head(f"{path}/{METADATA}") is None:  # without the seal, the location is wrong
            raise
        raise RunDamaged(path, NO_PAYLOAD) from None


def _open_plain_file(name: str, directory: int, path: str) -> int:
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise RunDamaged(path, f"{name} is not a plain file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunDamaged(path, f"{name} is not a plain file")
    return descriptor
