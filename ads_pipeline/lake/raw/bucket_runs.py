"""`BucketRuns`: the sealed runs below a location in a bucket. `bucket_listing` finds them in a listing."""

import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import date, datetime, timedelta
from typing import BinaryIO, Final

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.errors import RawUnavailable, RunDamaged, RunNotSealed
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.bucket_listing import ListingPart, find_changed_days, find_in_listing
from ads_pipeline.lake.raw.discovery import ChangedDay, ChangedDays, DamagedRun, Found, ListedRun, RunWithoutSeal
from ads_pipeline.lake.raw.reading import NO_PAYLOAD, check_payload, check_payload_size, translate_os_errors
from ads_pipeline.lake.raw.seal import MAX_SEAL_BYTES, METADATA, PAYLOAD, parse_seal
from ads_pipeline.lake.raw.unsealed_files import UnsealedObjects
from ads_pipeline.lake.storage.store import Store

REQUESTS_AT_ONCE: Final = 16  # that wait for the service at the same time
OBJECTS_PER_SEARCH: Final = 60_000  # of 30,000 runs: 60 requests and 0.3 s of CPU time
_REQUESTS_PER_BATCH: Final = 64


class BucketRuns:
    """A read raises RawUnavailable when the location is empty: it may be the wrong one."""

    def __init__(self, store: Store, is_in_use: Callable[[], bool]) -> None:
        self._store, self._is_in_use = store, is_in_use

    def create(self, run: Run) -> UnsealedObjects:
        with self._translate(run.path):
            return UnsealedObjects(self._store, run)

    def read_seal(self, run: Run) -> SealedRun:
        with self._translate(run.path):
            seal = self._parse_seal(run)
            check_payload_size(seal, self._find_size(run))
            return seal

    def open_verified(self, run: Run, payload_sha256: str | None) -> tuple[SealedRun, BinaryIO]:
        """The seal, and a local copy of the payload: its bytes are the ones that were checked."""
        seal = self.read_seal(run)
        with self._translate(run.path):
            try:
                payload = self._store.open(f"{run.path}/{PAYLOAD}")
            except FileNotFoundError:
                raise RunDamaged(run.path, NO_PAYLOAD) from None
            copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
            try:
                with payload:
                    check_payload(seal, payload, payload_sha256, copy=copy)
                copy.seek(0)
            except BaseException:
                copy.close()
                raise
            return seal, copy

    def list_runs(self, key: PartitionKey, known: Container[Run]) -> tuple[Found, ...]:
        with self._translate(key.path):
            files = tuple(self._store.list(key.path))
            if not files:
                self._require_files(key.path)
            listed = find_in_listing(files, since=key.logical_date, until=key.logical_date, known=known)
            return tuple(map(self._read, listed))

    def find_runs(self, source: str, since: date, until: date, known: Container[Run]) -> Iterator[Found]:
        with self._translate(source):
            if not self._store.has_files(source):
                self._require_files(source)
            listed = find_in_listing(self._store.list(source), since=since, until=until, known=known)
            yield from self._read_all(listed)

    def list_many(self, keys: Sequence[PartitionKey], known: Container[Run]) -> Iterator[tuple[Found, ...]]:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            for batch in split_batches(keys, _REQUESTS_PER_BATCH):
                yield from pool.map(lambda key: self.list_runs(key, known), batch)

    def find_changed_days(
        self, source: str, since: date, until: date, seen: Mapping[str, int], after: str | None
    ) -> ChangedDays:
        with self._translate(source):
            part = ListingPart(self._store.list(source, after=after or ""), OBJECTS_PER_SEARCH)
            listed = tuple(find_changed_days(part, since=since, until=until, seen=seen))
            if part.is_empty:
                self._require_files(source)
        return ChangedDays(
            days=tuple(each for each in listed if isinstance(each, ChangedDay)),
            misnamed=tuple(each for each in listed if isinstance(each, DamagedRun)),
            end=part.end,
        )

    def read_days(self, days: Iterable[ChangedDay], known: Container[Run]) -> Iterator[Found]:
        return self._read_all(run for day in days for run in day.runs if run.run not in known)

    def _read_all(self, listed: Iterable[ListedRun | DamagedRun]) -> Iterator[Found]:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            for batch in split_batches(listed, _REQUESTS_PER_BATCH):
                yield from pool.map(self._read, batch)

    def find_unsealed(self, before: datetime) -> Iterator[tuple[str, datetime]]:
        with self._translate(""):
            files = find_in_listing(self._store.list(""), since=date.min, until=date.max, known=())
            for each in files:
                if isinstance(each, ListedRun) and not each.has_seal and each.modified_at < before.timestamp():
                    yield each.run.path, datetime.fromtimestamp(each.modified_at, tz=before.tzinfo)

    def remove_unsealed(self, age: timedelta) -> Iterator[str]:  # noqa: ARG002 - a bucket has no directories to remove
        yield from ()

    def _read(self, listed: ListedRun | DamagedRun) -> Found:
        """Read a listed run."""
        if isinstance(listed, DamagedRun):
            return listed
        if not listed.has_seal:
            return RunWithoutSeal(run=listed.run)
        try:
            with self._translate(listed.run.path):
                seal = self._parse_seal(listed.run)
                check_payload_size(seal, listed.payload_size)
                return seal
        except RunNotSealed:
            return RunWithoutSeal(run=listed.run)
        except RunDamaged as error:
            return DamagedRun(path=listed.run.path, problem=error.problem, run=listed.run)

    def _parse_seal(self, run: Run) -> SealedRun:
        try:
            with self._store.open(f"{run.path}/{METADATA}") as file:
                return parse_seal(file.read(MAX_SEAL_BYTES + 1), run)
        except FileNotFoundError:
            self._require_files(run.key.source)
            raise RunNotSealed(run.path, "no such run, or it has no seal") from None

    def _find_size(self, run: Run) -> int | None:
        info = self._store.head(f"{run.path}/{PAYLOAD}")
        return None if info is None else info.size

    def _require_files(self, path: str) -> None:
        """RawUnavailable when nothing is there although runs were registered."""
        if self._is_in_use() and not (self._store.has_files(path) or self._store.has_files("")):
            problem = "the raw root is empty; correct ADS_PIPELINE_LAKE"
            raise RawUnavailable(self._store.location, problem)

    def _translate(self, path: str) -> AbstractContextManager[None]:
        return translate_os_errors(path, self._store.location)
