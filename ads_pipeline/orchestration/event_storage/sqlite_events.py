"""Dagster's storage of events in SQLite, changed to keep its engines."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import sqlalchemy as sa

from ads_pipeline.orchestration.event_storage.dagster_private import SqliteEventLogStorage
from ads_pipeline.orchestration.event_storage.sqlite_engine import SqliteEngine

INDEX = "index"  # the file with the events that Dagster looks up over all runs


class SqliteEvents(SqliteEventLogStorage):
    """Dagster's storage of events in SQLite, with two engines: one for the files of runs, and one for the index.

    The file of a run is closed after each transaction. SQLite then writes its log into the file, and the webserver
    sees the change.
    """

    def __init__(self, base_dir: str) -> None:
        self._runs = SqliteEngine(stays_open=False)
        self._index = SqliteEngine(stays_open=True)
        self._prepared: set[str] = set()  # files in which Dagster has created the tables
        self._existing_tables: set[str] = set()
        super().__init__(base_dir)

    def run_connection(self, run_id: str | None = None) -> AbstractContextManager[sa.Connection]:
        return self._transaction(self._runs, str(run_id), super().run_connection(run_id))

    def index_connection(self) -> AbstractContextManager[sa.Connection]:
        return self._transaction(self._index, INDEX, super().index_connection())

    @contextmanager
    def _transaction(
        self, engine: SqliteEngine, name: str, first: AbstractContextManager[sa.Connection]
    ) -> Iterator[sa.Connection]:
        if name not in self._prepared:
            with first:  # Dagster's own connection creates the file and its tables
                pass
            self._prepared.add(name)
        with engine.transaction(Path(self.path_for_shard(name))) as connection:
            yield connection

    def has_table(self, table_name: str) -> bool:
        """Return whether the table exists. One that does is looked up once: Dagster asks for every event."""
        if table_name not in self._existing_tables and super().has_table(table_name):
            self._existing_tables.add(table_name)
        return table_name in self._existing_tables

    def wipe(self) -> None:
        self._prepared.clear()  # the files of runs are deleted
        super().wipe()

    def dispose(self) -> None:
        super().dispose()
        self._index.close()
