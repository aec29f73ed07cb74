"""A ledger as the release of revision 0002 left it, written in plain SQL."""

from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from alembic import command

from ads_pipeline.ledger import database
from ads_pipeline.ledger.tables import instant_text

AT: Final = [datetime(2026, 2, 10, hour, 0, 0, 1234, tzinfo=UTC) for hour in range(6)]
OLD_TABLES: Final = (
    *("partition_state", "runs", "attempts", "warehouse_pointer", "load_records"),
    *("operator_acts", "acted_partitions", "demotions"),
)
_KEY = {"source": "google_ads", "customer_id": "1234567890", "query_name": "campaign_daily"}


def make_old(url: str) -> None:
    engine = database.open_engine(url)
    database.transact(engine, _to_0002)
    for table, rows in _rows().items():
        for row in rows:
            columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
            insert = sa.text(f"INSERT INTO {table} ({columns}) VALUES ({values})")
            database.transact(engine, lambda connection, one=insert, bound=row: connection.execute(one, bound))  # type: ignore[misc]
    engine.dispose()


def _to_0002(connection: sa.Connection) -> None:
    config = database._alembic()
    config.attributes["connection"] = connection
    command.upgrade(config, "0002")


def _rows() -> dict[str, list[dict[str, Any]]]:
    """One day each.

    1: accepted, loaded, accepted again. 2: accepted, loaded, a newer one rejected. 3: rejected. 4: only landed.
    5: two runs that were loaded at one instant.
    """
    landed = {1: 2, 2: 2, 3: 1, 4: 1, 5: 2}
    runs = [_run(day, number) for day, count in landed.items() for number in range(1, count + 1)]
    return {
        "runs": runs,
        "partition_state": [
            _state(1, "success", 2, "r2"),
            _state(2, "success", 2, "r1"),
            _state(3, "failed", 1, None, error_message="no"),
            _state(4, "pending", 0, None),
            _state(5, "pending", 0, None),
        ],
        "attempts": [
            _attempt(1, 1, "accepted", "promoted", AT[1]),
            _attempt(1, 2, "accepted", "promoted", AT[4]),
            _attempt(2, 1, "accepted", "promoted", AT[1]),
            _attempt(2, 2, "rejected", "set_aside", AT[2], error_class="row_contract", error_message="no"),
            _attempt(3, 1, "rejected", "failed", AT[1], error_class="row_contract", error_message="no"),
        ],
        "warehouse_pointer": [
            _at(day)
            | {"run_id": "r1", "schema_version": "1", "record_count": 3, "table_version": 1}
            | {"availability": "published", "changed_at": instant_text(AT[3])}
            for day in (1, 2)
        ],
        "load_records": [_loaded(1, 1), _loaded(2, 1), _loaded(5, 1), _loaded(5, 2)],
        "operator_acts": [
            {
                "act_id": "a1",
                "act": "requeue",
                "operator": "ada",
                "command": "retry",
                "filters": "",
                "reason": "asked",
            }
            | {"partitions_changed": 1, "acted_at": instant_text(AT[5])}
        ],
        "acted_partitions": [_at(4) | {"act_id": "a1", "status_before": "failed"}],
        "demotions": [
            _at(2)
            | {"run_id": "r1", "validation_id": "v2", "error_class": "row_contract", "error_message": "no"}
            | {"begun_at": instant_text(AT[5])}
        ],
    }


def _at(day: int) -> dict[str, Any]:
    return _KEY | {"logical_date": f"2026-02-0{day}"}


def _run(day: int, number: int) -> dict[str, Any]:
    told = {"run_id": f"r{number}", "ordinal": number, "schema_version": str(number), "record_count": 3}
    return _at(day) | told | {"payload_sha256": "0" * 64, "registered_at": instant_text(AT[0])}


def _state(day: int, status: str, attempts: int, run_id: str | None, **why: str) -> dict[str, Any]:
    held = {"schema_version": run_id[1:], "record_count": 3} if run_id else {}
    told = {"status": status, "current_run_id": run_id, "attempt_count": attempts}
    return _at(day) | held | told | {"updated_at": instant_text(AT[4])} | why


def _attempt(day: int, number: int, outcome: str, effect: str, at: datetime, **why: str) -> dict[str, Any]:
    told = {"attempt_no": number, "run_id": f"r{number}", "validation_id": "", "ordinal": number}
    return _at(day) | told | {"outcome": outcome, "effect": effect, "judged_at": instant_text(at)} | why


def _loaded(day: int, number: int) -> dict[str, Any]:
    told = {"run_id": f"r{number}", "schema_version": str(number), "record_count": 3, "table_version": number}
    return _at(day) | told | {"loaded_at": instant_text(AT[3])}
