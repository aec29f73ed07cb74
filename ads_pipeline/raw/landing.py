"""`RawRuns`: writes and seals runs below a raw root, and gives access to sealed runs.

A run is a directory with `payload.jsonl` and the seal, `metadata.json`. It is written under a temporary name, synced
to disk, and renamed. So at every moment a run is either complete or absent. The validator judges sealed runs; the
ledger decides which run has authority.
"""

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO

from ads_pipeline.domain.partition import PartitionKey, Run, validate_name
from ads_pipeline.errors import RawUnavailable, RunNotSealed
from ads_pipeline.raw.discovery import DamagedRun, find_in_day, find_in_source
from ads_pipeline.raw.reading import open_below, open_verified_payload, read_seal, translate_os_errors
from ads_pipeline.raw.seal import Seal, SealFacts
from ads_pipeline.raw.unsealed_run import UnsealedRun


class RawRuns:
    """The runs below one root. The root may be a symbolic link; nothing below it may.

    A read raises RawUnavailable when the root is missing or empty, because its disk may not be mounted. Only before
    the first use, when `is_in_use` returns False, such a root holds no runs. `land` creates a missing root.
    """

    def __init__(self, root: Path, *, is_in_use: Callable[[], bool] = lambda: True) -> None:
        self.root, self._is_in_use = root, is_in_use

    def land(self, run: Run, rows: Iterable[Mapping[str, Any]], facts: SealFacts) -> Seal:
        """Write the rows in the order given and seal the run. Afterwards the run survives a power cut.

        Raises RunExists when the run_id is taken. After any failure, also of the rows' iterator, nothing is sealed.
        The only exception is a failure of the last step, the sync of the new name: then the run is readable, but may
        not survive a power cut.
        """
        with self.landing(run) as unsealed:
            for row in rows:
                unsealed.write(row)
            return unsealed.seal(facts)

    def landing(self, run: Run) -> UnsealedRun:
        """A run to write row by row, for writers that fill several at once. RunExists when the run_id is taken."""
        return UnsealedRun(self.root, run)

    def read_seal(self, run: Run) -> Seal:
        """The run's seal, checked against the payload's size. RunNotSealed, or RunDamaged with the reason."""
        with translate_os_errors(run.path), ExitStack() as stack:
            return read_seal(self._open_run(run, stack), run)

    def verify(self, run: Run, *, payload_sha256: str | None = None) -> Seal:
        """The run's seal, after every byte of the payload was checked against it, and against a digest if given."""
        with self.open(run, payload_sha256=payload_sha256) as (seal, _payload):
            return seal

    @contextmanager
    def open(self, run: Run, *, payload_sha256: str | None = None) -> Iterator[tuple[Seal, BinaryIO]]:
        """The seal and the payload, open at its start, after every byte was checked as in `verify`."""
        with translate_os_errors(run.path), ExitStack() as stack:
            directory = self._open_run(run, stack)
            seal = read_seal(directory, run)
            payload = open_verified_payload(directory, seal, payload_sha256)
        with payload:
            yield seal, payload

    def list_runs(self, key: PartitionKey, known: Container[Run] = frozenset()) -> tuple[Seal | DamagedRun, ...]:
        """Every sealed run of a partition in order of run_id, except the known ones.

        Directories without a seal are skipped.
        """
        with translate_os_errors(key.path), ExitStack() as stack:
            try:
                day = self._open(key.path, stack)
            except FileNotFoundError:
                return ()
            return tuple(find_in_day(day, key.path, known))

    def find_runs(
        self, *, source: str, since: date, until: date, known: Container[Run] = frozenset()
    ) -> Iterator[Seal | DamagedRun]:
        """Every sealed run of a source with a logical date from since to until, in path order.

        Seals are checked against the payload's size only. Known runs are skipped without being read. A directory with
        an invalid name is reported as damage at every level, so that a misspelt account is noticed.
        """
        validate_name("source", source)
        with translate_os_errors(source), ExitStack() as stack:
            try:
                top = self._open(source, stack)
            except FileNotFoundError:
                return
            yield from find_in_source(top, source, since=since, until=until, known=known)

    def _open(self, path: str, stack: ExitStack) -> int:
        """A descriptor of a directory below the root. FileNotFoundError, or RawUnavailable when the root is gone."""
        try:
            return stack.enter_context(open_below(self.root, path))
        except OSError as error:
            problem = self._find_root_problem()
            if problem is None or (isinstance(error, FileNotFoundError) and not self._is_in_use()):
                raise
            advice = "mount its disk, or correct ADS_PIPELINE_HOME"
            raise RawUnavailable(str(self.root), f"the raw root {problem}; {advice}") from None

    def _find_root_problem(self) -> str | None:
        try:
            return None if os.listdir(self.root) else "is empty"
        except FileNotFoundError:
            return "does not exist"
        except OSError as error:
            return f"cannot be opened: {error.strerror}"

    def _open_run(self, run: Run, stack: ExitStack) -> int:
        try:
            return self._open(run.path, stack)
        except FileNotFoundError:
            raise RunNotSealed(run.path, "no such run") from None
