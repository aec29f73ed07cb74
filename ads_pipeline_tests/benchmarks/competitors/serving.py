"""Runs a loader as a process: reads requests from standard input, one JSON object a line, and answers each.

This module and `payload_table` use nothing of this project, because other environments lack its packages.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Payloads below one raw root, each one partition, that replace their partitions in the loader's home."""

    root: str
    payloads: tuple[str, ...]
    home: Path

    @property
    def days(self) -> tuple[str, str]:
        """The first and the last logical date."""
        days = [path.split("/logical_date=")[1][:10] for path in self.payloads]
        return min(days), max(days)

    @property
    def customers(self) -> set[str]:
        return {path.split("/customer_id=")[1].split("/")[0] for path in self.payloads}


class Loader(Protocol):
    """One way to make payloads queryable."""

    def load(self, batch: Batch) -> Mapping[str, float] | None:
        """Replace the partitions of these payloads. May return the seconds of its steps."""
        ...

    def read_totals(self, home: Path) -> tuple[int, int]:
        """The number of rows that readers of this home see, and the sum of their clicks."""
        ...


def serve(loader: Loader) -> None:
    """Answer requests until standard input ends. What the loader prints goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        _answer(answers, {"ready": True})
        for line in sys.stdin:
            request = json.loads(line)
            home = Path(request["home"])
            if request["payloads"]:
                batch = Batch(root=request["root"], payloads=tuple(request["payloads"]), home=home)
                _answer(answers, {"steps": dict(loader.load(batch) or {})})
            else:
                rows, clicks = loader.read_totals(home)
                _answer(answers, {"rows": int(rows), "clicks": int(clicks)})


def _answer(answers: TextIO, document: Mapping[str, Any]) -> None:
    print(json.dumps(document), file=answers, flush=True)
