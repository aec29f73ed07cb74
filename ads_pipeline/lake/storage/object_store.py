"""`ObjectStore`: a store in a bucket of S3, Google Cloud Storage or Azure, over obstore.

Credentials, region and endpoint come from the environment, as obstore reads them (AWS_…, GOOGLE_…, AZURE_…). They are
in no pickle and in no message: what the service answered is reduced to its status and error code.
"""

import errno
import io
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, BinaryIO, Final, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import from_url
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_random_exponential

from ads_pipeline.lake.storage.object_file import BUFFER_SIZE, ObjectFile
from ads_pipeline.lake.storage.store import Content, FileInfo

PROBE: Final = "_conditional_put"  # an empty object below each location that was written to; `list` leaves it out
_WRITER: Final = (
    "createdby"  # of an object's metadata: names the call that created it. Azure allows only letters here
)
_LARGE: Final = 8 << 20
_NOT_FOUND_CODES: Final = frozenset({"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"})
_VARIABLES: Final = {"s3": "AWS_", "gs": "GOOGLE_", "abfss": "AZURE_"}
_CLIENT_OPTIONS: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
)
_STATUS = re.compile(r"status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_TRANSIENT_STATUS = re.compile(r"408|409|412|425|429|5[0-9]{2}")
_FAILURES: Final = (
    (PermissionDeniedError | UnauthenticatedError, errno.EACCES, "the bucket refuses access"),
    (InvalidPathError | UnknownConfigurationKeyError, errno.EINVAL, "the name or the configuration is invalid"),
    (NotSupportedError, errno.ENOTSUP, "the bucket's service does not support this request"),
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The time that a request may take, and the time for which failed requests are repeated.

    obstore repeats requests after 5xx answers and lost connections. It does not repeat a conditional put whose answer
    was lost, nor any request after 409 or 429. `attempts` is how often this module tries all the same.
    """

    request: timedelta = timedelta(seconds=30)  # a part of 8 MiB needs 0.3 MiB/s
    upload: timedelta = timedelta(minutes=10)  # a larger file is sent in one request, because its name is conditional
    repeat: timedelta = timedelta(minutes=1)
    attempts: int = 4


class _Transient(OSError):
    """A failure after which the same request may succeed."""


class ObjectStore:
    """Objects below a prefix of a bucket. Threads may share one; processes must be spawned, not forked."""

    def __init__(self, location: str, limits: Limits = Limits()) -> None:
        self.location, self._limits = location.rstrip("/"), limits
        self._store = _open(self.location, limits, limits.request)
        self._uploads = _open(self.location, limits, limits.upload)
        self._is_probed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location, self._limits)

    def create(self, name: str, content: Content) -> bool:
        if not self._is_probed:
            self.require_exclusive_create()
        return self._create(name, content)

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        try:
            file: io.RawIOBase = ObjectFile(lambda options: self._get(name, options))
        except FileNotFoundError:
            raise
        except OSError:
            if (info := self.head(name)) is None or info.size:
                raise
            return io.BytesIO()  # an empty object has no range that could be read
        return io.BufferedReader(file, BUFFER_SIZE)

    def head(self, name: str) -> FileInfo | None:
        try:
            return _describe(self._repeat(name, lambda: obstore.head(self._store, name)))
        except FileNotFoundError:
            return None

    def list(self, prefix: str, after: str = "") -> Iterator[FileInfo]:
        # obstore repeats each request.
        pages = iter(obstore.list(self._store, prefix or None, offset=after or None, chunk_size=1000))
        while page := self._once(prefix, lambda: next(pages, ())):
            yield from (_describe(each) for each in page if each["path"] != PROBE)

    def has_files(self, prefix: str) -> bool:
        first = self._repeat(prefix, lambda: next(iter(obstore.list(self._store, prefix or None, chunk_size=2)), ()))
        return any(each["path"] != PROBE for each in first)

    def replace(self, name: str, content: Content) -> None:
        self._repeat(name, lambda: obstore.put(self._choose(content), name, content))

    def delete(self, name: str) -> None:
        try:
            self._repeat(name, lambda: obstore.delete(self._store, name))
        except FileNotFoundError:
            return

    def make_folder(self, name: str) -> None:
        """Nothing: a bucket has no folders."""

    def make_durable(self, name: str) -> None:
        """Nothing: an object whose put was answered is durable."""

    def delete_leftovers(self, prefix: str, age: timedelta) -> None:
        """Nothing: an object is there as a whole or not at all."""

    def read_clock(self) -> float:
        self.replace(PROBE, b"")  # its age is no part of a rule
        info = self.head(PROBE)
        if info is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.location}/{PROBE}")
        return info.modified_at

    def require_exclusive_create(self) -> None:
        """OSError when the service overwrites an object that a conditional put should create.

        The first call below a location creates an empty object, which stays: object locks forbid to delete it.
        """
        if self._create(PROBE, b"") and self._create(PROBE, b""):
            problem = f"{self.location} has no conditional put (If-None-Match: *): writers would overwrite each other"
            raise OSError(errno.ENOTSUP, problem)
        self._is_probed = True

    def _create(self, name: str, content: Content) -> bool:
        """True if this call created the object, also when its first answer was lost.

        The object's metadata names the call. S3 also answers "exists" (409) when two writers hindered each other and
        none has won; then the object is missing, and the put is repeated.
        """
        writer = secrets.token_hex(16)

        def put() -> bool:
            try:
                obstore.put(
                    self._choose(content),
                    name,
                    content,
                    mode="create",
                    attributes={_WRITER: writer},
                    use_multipart=False,
                )
            except NotSupportedError:
                raise
            except (BaseError, FileNotFoundError) as error:
                failure = _translate(error, name)
                known = isinstance(error, AlreadyExistsError | PreconditionError)
                if not known and not isinstance(failure, _Transient):
                    raise
                found = self._find_writer(name)
                if found is None:
                    hindered = "another writer hindered this one"
                    raise (_Transient(errno.EBUSY, hindered) if known else failure) from None
                return found == writer
            return True

        return self._repeat(name, put)

    def _find_writer(self, name: str) -> str | None:
        """The call that created an object, "" for an object of another tool, None when it is missing."""
        try:
            return str(obstore.get(self._store, name, options={"head": True}).attributes.get(_WRITER, ""))
        except FileNotFoundError:
            return None

    def _get(self, name: str, options: Any) -> tuple[bytes, Any]:
        def get() -> tuple[bytes, Any]:
            try:
                result = obstore.get(self._store, name, options=options)
            except PreconditionError:
                if "if_match" in options:
                    raise OSError(errno.ESTALE, "the object was replaced while it was read") from None
                raise
            return bytes(result.bytes()), result.meta

        return self._repeat(name, get)

    def _choose(self, content: Content) -> Any:
        return self._store if len(content) <= _LARGE else self._uploads

    def _repeat(self, name: str, request: Callable[[], _T]) -> _T:
        """The request's result, after a few attempts if need be. OSError without what the service answered."""
        retrying = Retrying(
            retry=retry_if_exception_type(_Transient),
            stop=stop_after_attempt(self._limits.attempts) | stop_after_delay(self._limits.repeat),
            wait=wait_random_exponential(0.2, max=4),
            reraise=True,
        )
        return self._once(name, lambda: retrying(_translated(request, name)))

    def _once(self, name: str, request: Callable[[], _T]) -> _T:
        """The request's result, or an OSError that is chained to nothing."""
        failure: OSError
        try:
            return _translated(request, name)()
        except OSError as error:
            failure = OSError(error.errno, error.strerror, f"{self.location}/{name}")
        raise failure


def _open(location: str, limits: Limits, timeout: timedelta) -> Any:
    scheme = location.partition(":")[0]
    config: Any = {"conditional_put": "etag"} if scheme == "s3" else {}
    options: Any = {"timeout": timeout, "connect_timeout": timedelta(seconds=5)}
    options |= _read_client_options(_VARIABLES[scheme], os.environ)
    try:
        return from_url(
            location,
            config=config,
            client_options=options,
            retry_config={
                "max_retries": 6,
                "retry_timeout": limits.repeat,
                "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5)},
            },
        )
    except (BaseError, ValueError) as error:
        problem = "cannot be opened: correct the location, and the variables of the environment that obstore reads"
        failure = OSError(errno.EINVAL, f"{location} {problem} ({type(error).__name__})")
    raise failure


def _read_client_options(prefix: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The options of the HTTP client in the environment, such as AWS_ALLOW_HTTP.

    obstore reads them itself only when a store is opened without any option, and then has its own time limits.
    """
    names = {name: f"{prefix}{name.upper()}" for name in _CLIENT_OPTIONS}
    return {name: environ[variable] for name, variable in names.items() if environ.get(variable)}


def _translated(request: Callable[[], _T], name: str) -> Callable[[], _T]:
    def translated() -> _T:
        try:
            return request()
        except (BaseError, FileNotFoundError) as error:
            failure = _translate(error, name)
        raise failure

    return translated


def _translate(error: Exception, name: str) -> OSError:
    """An OSError that names the status and the error code of the answer. The rest of it may hold secrets."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    answer = " ".join(match[1] for match in (status, code) if match)
    if isinstance(error, FileNotFoundError) and not (code and code[1] in _NOT_FOUND_CODES):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    if "169.254." in text:  # where a cloud's machines ask for their credentials, for want of others
        return PermissionError(errno.EACCES, "the environment has no credentials for the bucket")
    if status and status[1] in {"401", "403"}:
        return PermissionError(errno.EACCES, f"the bucket refuses access ({answer})")
    for kinds, number, problem in _FAILURES:
        if isinstance(error, kinds):
            return OSError(number, f"{problem} ({answer})" if answer else problem)
    if status and not _TRANSIENT_STATUS.fullmatch(status[1]):
        return OSError(errno.EIO, f"the bucket's service answered {answer}")
    return _Transient(errno.EIO, f"the bucket's service answered {answer}" if answer else _name_cause(text))


def _name_cause(text: str) -> str:
    """Say why there was no answer."""
    for sign, cause in (
        ("dns error", "the name of the bucket's service is unknown"),
        ("Connection refused", "the bucket's service refuses connections"),
        ("certificate", "the certificate of the bucket's service is not trusted"),
        ("timed out", "the bucket's service did not answer in time"),
    ):
        if sign in text:
            return cause
    return "the bucket's service did not answer"


def _describe(meta: Any) -> FileInfo:
    return FileInfo(name=meta["path"], size=meta["size"], modified_at=meta["last_modified"].timestamp())
