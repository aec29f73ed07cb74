"""The files that the definitions of this process were made from, beside its modules.

A process that waits for a run has loaded the definitions before, and does not take the run when one of them changed.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from ads_pipeline.spark.engine.start_requests import CERTIFICATES

_FILES: Final = set[Path]()


def note_origin(files: Collection[Path]) -> None:
    """Add files that definitions were made from, also those that would be used if they existed."""
    _FILES.update(files)


def origin_files(environ: Mapping[str, str] = os.environ) -> frozenset[Path]:
    """These files, and those of the certificates that variables name."""
    return frozenset(_FILES) | {Path(environ[name]) for name in CERTIFICATES if environ.get(name)}
