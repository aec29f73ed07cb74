"""A ledger and the table `days` in one home, without Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables
from ads_pipeline.pipeline.completeness.days_table import DaysTable
from ads_pipeline.settings.environment import read_settings

Row = dict[str, Any]
Rows = dict[tuple[str, str, date], Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The files of one deployment."""

    path: Path
    ledger: Ledger
    now: Clock | None = None

    @property
    def days(self) -> DaysTable:
        return DaysTable(
            ledger=self.ledger, settings=read_settings({"ADS_PIPELINE_HOME": str(self.path)}), now=self.now
        )

    @property
    def tables(self) -> CompletenessTables:
        return CompletenessTables(
            ledger=self.ledger, settings=read_settings({"ADS_PIPELINE_HOME": str(self.path)}), now=self.now
        )

    def read_table(self, name: str) -> list[Row]:
        """The rows of a table, in the order of their times or customers."""
        rows = DeltaTable(str(self.path / "warehouse/google_ads" / name)).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: (str(row.get("at") or row.get("loaded_at")), row["customer_id"]))

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.days.table.uri)

    def read(self) -> Rows:
        """The rows of the table as any Delta reader has them."""
        rows = self.table.to_pyarrow_table().to_pylist()
        found = {(row["customer_id"], row["query_name"], row["logical_date"]): row for row in rows}
        assert len(found) == len(rows)
        return found


@contextmanager
def open_home(path: Path, *, clock: Clock | None = None, now: Clock | None = None) -> Iterator[Home]:
    """Open the ledger in a home. `clock` dates its rows, and `now` is the time of those who read it."""
    with Ledger.opened(f"sqlite:///{path / 'ledger.db'}", clock=clock) as ledger:
        yield Home(path=path, ledger=ledger, now=now)
