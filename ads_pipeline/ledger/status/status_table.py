"""Looks after the ADR-026 rows as a whole: lists them, keeps what a sweep found, and makes them anew from the logs.

The rows of single partitions are written by whoever finishes an attempt, through `statuses`. Nothing here can change
what the ledger says is safe to read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby, islice
from typing import Any, Final, Self

import sqlalchemy as sa

from ads_pipeline.domain.freshness import (
    RAW,
    AttemptOutcome,
    CodeVersion,
    FinishedAttempt,
    PartitionStatus,
    Staleness,
    Tenancy,
    fold,
    partition_values,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger import database
from ads_pipeline.ledger.reader import HERE
from ads_pipeline.ledger.row_mapping import clock_of, insert_into, key_in, key_of, same_key
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.status.partition_status import (
    MATERIALIZING,
    OUTCOMES,
    PLACE,
    STATUS_ROW,
    Statuses,
    joined,
    next_instant,
    place_fields,
    read_code_versions,
    status_of,
    version_at,
)
from ads_pipeline.ledger.tables import KEY, attempts, code_versions, finishes, instant_text, partition_status, runs

AT_ONCE: Final = 5_000


class StatusTable:
    """All rows of one space."""

    def __init__(self, engine: sa.Engine, *, space: Tenancy = HERE) -> None:
        self._engine, self._space = engine, space
        self._statuses = Statuses(engine.dialect.name, space)
        self._mark = RowStatement(
            "mark_stale", engine.dialect.name, lambda rowset: _mark(engine.dialect.name, rowset)
        )
        self._read_clock = sa.select(clock_of(engine.dialect.name))

    @classmethod
    @contextmanager
    def opened(cls, url: str, *, space: Tenancy = HERE) -> Iterator[Self]:
        with database.opened(url) as engine:
            yield cls(engine, space=space)

    def every(self) -> Iterator[PartitionStatus]:
        """Every row as of one moment, in the order of its key, however many there are."""
        order = [partition_status.c[name] for name in PLACE]
        try:
            reading = {database.ONLY_READS: True, "yield_per": AT_ONCE}
            with self._engine.connect().execution_options(**reading) as connection:
                for row in connection.execute(sa.select(partition_status).order_by(*order)):
                    status = status_of(row)
                    if status is not None:
                        yield status
        except sa.exc.DBAPIError as error:
            raise database.translated(error) from error

    def code_versions(self, source: str) -> dict[str, CodeVersion]:
        """The version of each asset's definition that runs now, by the asset's key."""
        return database.transact(self._engine, lambda c: read_code_versions(c, self._space, source))

    def see_code(self, source: str, versions: Mapping[str, str]) -> None:
        """Say which version of each asset's definition runs now; one that is new is dated by this."""
        here = {"tenant_id": self._space.tenant_id, "workspace_id": self._space.workspace_of(source)}
        insert = insert_into(self._engine.dialect.name, code_versions)
        put = insert.on_conflict_do_update(
            index_elements=["tenant_id", "workspace_id", "asset_key"],
            set_={"code_version": insert.excluded.code_version, "seen_since": insert.excluded.seen_since},
            where=code_versions.c.code_version != insert.excluded.code_version,
        )

        def work(connection: sa.Connection) -> None:
            now = connection.scalars(self._read_clock).one()
            for asset_key, version in sorted(versions.items()):
                connection.execute(put, here | {"asset_key": asset_key, "code_version": version, "seen_since": now})

        known = {asset_key: each.version for asset_key, each in self.code_versions(source).items()}
        if any(known.get(asset_key) != version for asset_key, version in versions.items()):
            database.transact(self._engine, work)

    def keep_staleness(self, found: Sequence[tuple[PartitionStatus, Staleness | None]]) -> int:
        """Write what a sweep found to rows that are as the sweep saw them; how many were."""

        def work(connection: sa.Connection) -> int:
            now = connection.scalars(self._read_clock).one()
            return self._mark.run(connection, (_mark_fields(status, stale, now) for status, stale in found)).rowcount

        return database.transact(self._engine, work)

    def rebuild(self) -> int:
        """Make every row anew from the attempts and the other finishes; how many there are then.

        What a sweep had kept is gone until the next one. Nobody else writes statuses meanwhile.
        """
        return database.transact(self._engine, self.rebuild_within)

    def rebuild_within(self, connection: sa.Connection) -> int:
        """The same, in the caller's transaction."""
        self._lock(connection)
        connection.execute(sa.delete(partition_status))
        finished = groupby(self._finishes(connection), key=lambda each: (each[0], each[1]))
        folded = (self._folded(*of, [finish for *_, finish in members]) for of, members in finished)
        kept = 0
        while some := list(islice(folded, AT_ONCE)):
            kept += self._statuses.keep(connection, some)
        return kept

    def _lock(self, connection: sa.Connection) -> None:
        """Everybody who finishes an attempt waits; SQLite's transaction holds the whole database anyway."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("LOCK TABLE partition_status IN EXCLUSIVE MODE")

    def _folded(self, asset: str, key: PartitionKey, finished: list[FinishedAttempt]) -> PartitionStatus:
        status, place = None, self._statuses.place(asset, key)
        for finish in finished:
            status = fold(status, finish, place=place, values=partition_values(key))
        if status is None:
            raise ValueError(f"{key}: nothing was finished")
        return status

    def _finishes(self, connection: sa.Connection) -> Iterator[tuple[str, PartitionKey, FinishedAttempt]]:
        """Every finish there was, by asset and partition, a portion at a time: there may be millions."""
        made = attempts.c.effect.in_([str(effect) for effect in MATERIALIZING])
        judged = sa.select(
            sa.literal(RAW).label("asset"),
            *key_of(attempts),
            attempts.c.judged_at.label("at"),
            attempts.c.run_id,
            attempts.c.outcome,
            sa.case((made, runs.c.schema_version)).label("code_version"),
        ).join(runs, sa.and_(same_key(runs, attempts), runs.c.run_id == attempts.c.run_id))
        others = sa.select(
            finishes.c.asset,
            *key_of(finishes),
            finishes.c.finished_at.label("at"),
            finishes.c.run_id,
            finishes.c.outcome,
            finishes.c.code_version,
        )
        both = sa.union_all(judged, others).order_by("asset", *KEY)
        for row in connection.execute(both, execution_options={"yield_per": AT_ONCE}):
            yield row.asset, key_in(row), self._finish(row)

    def _finish(self, row: sa.Row[Any]) -> FinishedAttempt:
        return FinishedAttempt(
            run_id=row.run_id,
            at=row.at,
            outcome=OUTCOMES.get(row.outcome) or AttemptOutcome(row.outcome),
            version=version_at(row.at, self._statuses.place(row.asset, key_in(row))),
            code_version=row.code_version,
        )


def _mark_fields(status: PartitionStatus, stale: Staleness | None, now: datetime) -> dict[str, Any]:
    return place_fields(status.place) | {
        "seen_version": status.row_version,
        "stale_since": stale and instant_text(stale.since),
        "stale_reason_code": stale and stale.reason,
        "row_version": version_at(next_instant(status.row_version, now), status.place),
    }


def _mark(dialect: str, rowset: Rowset) -> sa.Update:
    """Rows that are as they were seen. One that somebody holds is about to change, so it is not waited for.

    Whoever finishes attempts takes these rows in an order of their own; a sweep that waited could wait in a circle.
    SQLite's transaction holds the whole database anyway.
    """
    changed = ("stale_since", "stale_reason_code", "row_version")
    asked = rowset({name: STATUS_ROW[name] for name in (*PLACE, *changed)} | {"seen_version": sa.Text()})
    unchanged = sa.and_(joined(asked), partition_status.c.row_version == asked.c.seen_version)
    marked = sa.update(partition_status).values({name: asked.c[name] for name in changed}).where(unchanged)
    if dialect == "sqlite":
        return marked
    place = [partition_status.c[name] for name in PLACE]
    free = sa.select(*place).join_from(asked, partition_status, unchanged)
    return marked.where(sa.tuple_(*place).in_(free.with_for_update(of=partition_status, skip_locked=True)))
