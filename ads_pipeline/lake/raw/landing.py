"""`RawRuns`: writes and seals runs below a raw root, and gives access to sealed runs.

A run is a folder with `payload.jsonl` and the seal, `metadata.json`. On a disk it is written under a temporary name,
synced, and renamed (`disk_runs`). In a bucket the payload is put first, and then the seal (`bucket_runs`). So at
every moment a run is either complete or absent. The validator judges sealed runs; the ledger decides which run has
authority.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

from ads_pipeline.domain.partition import PartitionKey, Run, validate_name
from ads_pipeline.domain.sealed_run import SealedRun, SealFacts
from ads_pipeline.lake.raw.bucket_runs import BucketRuns
from ads_pipeline.lake.raw.discovery import ChangedDay, ChangedDays, DamagedRun, Found, RunWithoutSeal
from ads_pipeline.lake.raw.disk_runs import DiskRuns
from ads_pipeline.lake.raw.unsealed_run import UnsealedRun
from ads_pipeline.lake.storage.open_store import is_bucket, open_store

UNSEALED_KEPT: Final = timedelta(days=7)  # a landing that wrote nothing for so long is dead


class RawRuns:
    """The runs below one root: a directory, which may be a symbolic link, or a location in a bucket.

    A read raises RawUnavailable when the root is missing or empty, because its disk may not be mounted. Only before
    the first use, when `is_in_use` returns False, such a root holds no runs. `land` creates a missing directory.
    """

    def __init__(self, location: str | Path, *, is_in_use: Callable[[], bool] = lambda: True) -> None:
        self.location = str(location)
        self._runs = (
            BucketRuns(open_store(self.location), is_in_use)
            if is_bucket(self.location)
            else DiskRuns(Path(location), is_in_use)
        )

    @property
    def root(self) -> Path:
        return Path(self.location)

    def land(self, run: Run, rows: Iterable[Mapping[str, Any]], facts: SealFacts) -> SealedRun:
        """Write the rows in the order given and seal the run. Afterwards the run survives a power cut.

        Raises RunExists when the run_id is taken. After any failure, also of the rows' iterator, nothing is sealed.
        The only exception is a failure of the last step, as `UnsealedRun.seal` says.
        """
        with self.landing(run) as unsealed:
            for row in rows:
                unsealed.write(row)
            return unsealed.seal(facts)

    def landing(self, run: Run) -> UnsealedRun:
        """A run to write row by row, for writers that fill several at once. RunExists when the run_id is taken."""
        return UnsealedRun(run, self._runs.create(run))

    def read_seal(self, run: Run) -> SealedRun:
        """The run's seal, checked against the payload's size. RunNotSealed, or RunDamaged with the reason."""
        return self._runs.read_seal(run)

    def verify(self, run: Run, *, payload_sha256: str | None = None) -> SealedRun:
        """The run's seal, after every byte of the payload was checked against it, and against a digest if given."""
        with self.open(run, payload_sha256=payload_sha256) as (seal, _payload):
            return seal

    @contextmanager
    def open(self, run: Run, *, payload_sha256: str | None = None) -> Iterator[tuple[SealedRun, BinaryIO]]:
        """The seal and the payload, open at its start, after every byte was checked as in `verify`."""
        seal, payload = self._runs.open_verified(run, payload_sha256)
        with payload:
            yield seal, payload

    def list_runs(self, key: PartitionKey, known: Container[Run] = frozenset()) -> tuple[SealedRun | DamagedRun, ...]:
        """Every sealed run of a partition in order of run_id, except the known ones.

        Folders without a seal are skipped.
        """
        found = self._runs.list_runs(key, known)
        return tuple(each for each in found if not isinstance(each, RunWithoutSeal))

    def list_many(
        self, keys: Sequence[PartitionKey], known: Container[Run] = frozenset()
    ) -> Iterator[SealedRun | DamagedRun]:
        """The same of several partitions, one after the other. A bucket answers several requests at a time."""
        for found in self._runs.list_many(keys, known):
            yield from (each for each in found if not isinstance(each, RunWithoutSeal))

    @property
    def is_listed_in_parts(self) -> bool:
        """True if `find_changed_days` lists a part of the source in each call."""
        return isinstance(self._runs, BucketRuns)

    def find_runs(
        self, *, source: str, since: date, until: date, known: Container[Run] = frozenset()
    ) -> Iterator[SealedRun | DamagedRun]:
        """Every sealed run of a source with a logical date from since to until, in path order.

        Seals are checked against the payload's size only. Known runs are skipped without being read. A folder with
        an invalid name is reported as damage at every level, so that a misspelt account is noticed.
        """
        for found in self.find_folders(source=source, since=since, until=until, known=known):
            if not isinstance(found, RunWithoutSeal):
                yield found

    def find_folders(
        self, *, source: str, since: date, until: date, known: Container[Run] = frozenset()
    ) -> Iterator[Found]:
        """The same with the folders that have no seal."""
        validate_name("source", source)
        yield from self._runs.find_runs(source, since, until, known)

    def find_changed_days(
        self, *, source: str, since: date, until: date, seen: Mapping[str, int], after: str | None = None
    ) -> ChangedDays:
        """The days of a range to which a run was added since their fingerprints were seen, and invalid names.

        In a bucket one call lists a part of the source, from its start or after the end of the call before.
        """
        validate_name("source", source)
        return self._runs.find_changed_days(source, since, until, seen, after)

    def read_days(self, days: Iterable[ChangedDay], known: Container[Run]) -> Iterator[Found]:
        """The runs of changed days, also those without a seal, except the known ones."""
        return self._runs.read_days(days, known)

    def find_unsealed(self, before: datetime) -> Iterator[tuple[str, datetime]]:
        """Yield what interrupted landings left behind and when they wrote last, if that was before this instant.

        The paths are relative to the raw root.
        """
        yield from self._runs.find_unsealed(before)

    def remove_unsealed(self, age: timedelta = UNSEALED_KEPT) -> Iterator[str]:
        """Remove the directories of dead landings, to which nothing was written for so long, and yield their paths.

        In a bucket, nothing is removed: an extractor of another maker may upload the seal of a payload much later.
        """
        yield from self._runs.remove_unsealed(age)
