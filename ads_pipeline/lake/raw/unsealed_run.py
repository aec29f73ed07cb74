"""`UnsealedRun`: a run while its rows arrive. It ends sealed or discarded; readers never see it before its seal."""

import hashlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ads_pipeline.domain.errors import BadJson, BadRow
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.sealed_run import SealedRun, SealFacts
from ads_pipeline.lake.raw.reading import translate_os_errors
from ads_pipeline.lake.raw.row_encoding import StrictLine, encode_row
from ads_pipeline.lake.raw.seal import encode_seal
from ads_pipeline.lake.raw.unsealed_files import UnsealedFiles


class UnsealedRun:
    """The rows of one run and their digest.

    Use it as a context manager: leaving the block without a seal discards the rows.
    """

    def __init__(self, run: Run, files: UnsealedFiles) -> None:
        self.run, self._files = run, files
        self._digest, self._size, self._count = hashlib.sha256(), 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.discard()

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row. BadRow when strict JSON cannot express it."""
        try:
            line = encode_row(row)
        except BadJson as error:
            problem = f"row {self._count + 1} cannot be written as strict JSON: {error}"
            raise BadRow(self.run.path, problem) from error
        self.write_lines([line])

    def write_lines(self, lines: Sequence[StrictLine]) -> None:
        """Add encoded rows."""
        block = b"".join(lines)
        with translate_os_errors(self.run.path):
            self._files.write(block)
        self._digest.update(block)
        self._size += len(block)
        self._count += len(lines)

    def seal(self, facts: SealFacts, *, extraction: Mapping[str, Any] | None = None) -> SealedRun:
        """Seal the run. Afterwards it survives a power cut; a row can no longer be added.

        `extraction` is what the extractor notes about itself in the seal, for people; readers ignore it.

        RunExists when another writer has sealed the run_id. After any failure nothing is sealed, except when the last
        step fails: on a disk, the sync of the new name; then the run is readable, but may not survive a power cut. In
        a bucket, the put of the seal; then the run may be sealed, or become so once the request is carried out.
        """
        seal = SealedRun(
            run=self.run,
            facts=facts,
            record_count=self._count,
            payload_bytes=self._size,
            payload_sha256=self._digest.hexdigest(),
        )
        try:
            with translate_os_errors(self.run.path):
                self._files.publish(encode_seal(seal, extraction))
        finally:
            self.discard()
        return seal

    def discard(self) -> None:
        """Remove the rows, best effort. Does nothing after the seal, or a second time."""
        self._files.discard()
