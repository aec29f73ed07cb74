"""Counts the transactions of the ledger that begin in a block."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

import ads_pipeline

PACKAGE: Final = Path(ads_pipeline.__file__).parent


@contextmanager
def counted_transactions() -> Iterator[list[str]]:
    """Collect the functions that open a transaction of the ledger while the block runs, in any thread."""
    callers = list[str]()

    def note(_connection: Any) -> None:
        frames = [each for each in traceback.extract_stack() if Path(each.filename).is_relative_to(PACKAGE)]
        if frames and Path(frames[-1].filename).is_relative_to(PACKAGE / "ledger"):
            callers.append(" > ".join(f"{Path(each.filename).stem}.{each.name}" for each in frames))

    sa.event.listen(sa.Engine, "begin", note)
    try:
        yield callers
    finally:
        sa.event.remove(sa.Engine, "begin", note)
