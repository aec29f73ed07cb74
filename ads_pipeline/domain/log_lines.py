"""Log records with an event name and fields, for the loggers below `ads_pipeline`, and their two forms.

A record has names, counts and keys: no value of a payload, and no secret. They are not the run events of the ledger,
which are the durable record of what happened to runs and partitions.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from ads_pipeline.domain.quoting import printable

ROOT: Final = "ads_pipeline"


class LogEvent(StrEnum):
    """The names of the events."""

    RUN_OPENED = "run.opened"
    LEASE_LOST = "lease.lost"
    LEASE_RENEWAL_FAILED = "lease.renewal_failed"
    TRANSACTION_RETRIED = "transaction.retried"
    VERDICTS_RECORDED = "verdicts.recorded"
    RUNS_UNJUDGED = "runs.unjudged"
    LOAD_PUBLISHED = "load.published"
    LOAD_UNREADABLE = "load.unreadable"
    COMMIT_RETRIED = "commit.retried"
    FILES_DAMAGED = "table.files_damaged"
    STATISTICS_REMOVED = "table.statistics_removed"
    DAYS_BEHIND = "days.behind"
    REPAIRED = "reconcile.repaired"
    ACTION_EXECUTED = "action.executed"
    FETCHES_FAILED = "fetches.failed"
    FETCH_AWAITED = "fetch.awaited"
    SPARK_STARTED = "spark.started"
    SPARK_START_REPEATED = "spark.start_repeated"
    ARCHIVE_READY = "archive.ready"
    ARCHIVE_NOT_MADE = "archive.not_made"
    ENGINE_UNAVAILABLE = "engine.unavailable"
    ENGINE_HUNG = "engine.hung"
    RUN_PROCESS_ENDED = "run_process.ended"
    NOTIFICATION_DELIVERED = "notification.delivered"
    NOTIFICATION_FAILED = "notification.failed"


# Each event with its level and its meaning.
LOG_EVENTS: Final[Mapping[LogEvent, tuple[int, str]]] = {
    LogEvent.RUN_OPENED: (logging.INFO, "a Dagster run took its lease"),
    LogEvent.LEASE_LOST: (logging.ERROR, "a run has lost its lease, so the ledger refuses its writes"),
    LogEvent.LEASE_RENEWAL_FAILED: (logging.WARNING, "the ledger was out of reach; the run tries again"),
    LogEvent.TRANSACTION_RETRIED: (
        logging.WARNING,
        "a transaction met a conflict or an outage, and is repeated",
    ),
    LogEvent.VERDICTS_RECORDED: (logging.INFO, "verdicts on runs are recorded"),
    LogEvent.RUNS_UNJUDGED: (logging.WARNING, "runs got no verdict, because a contract or their files are missing"),
    LogEvent.LOAD_PUBLISHED: (logging.INFO, "partitions are loaded and readers see them"),
    LogEvent.LOAD_UNREADABLE: (logging.ERROR, "accepted runs no longer match their sealed files, and are not loaded"),
    LogEvent.COMMIT_RETRIED: (logging.INFO, "another commit to the Delta table came first; this one is staged again"),
    LogEvent.FILES_DAMAGED: (logging.ERROR, "data files of a Delta table are missing, cut or unreadable"),
    LogEvent.STATISTICS_REMOVED: (
        logging.WARNING,
        "statistics of columns, with which some readers dropped rows, are removed from a Delta table's log",
    ),
    LogEvent.DAYS_BEHIND: (
        logging.WARNING,
        "the table days could not be written after a change; a later change or reconcile writes it",
    ),
    LogEvent.REPAIRED: (logging.WARNING, "reconcile repaired differences between ledger, pointers and table"),
    LogEvent.ACTION_EXECUTED: (logging.INFO, "a control action changed partitions"),
    LogEvent.FETCHES_FAILED: (logging.WARNING, "an extractor reported fetches without a run"),
    LogEvent.FETCH_AWAITED: (logging.INFO, "a run waits for a fetch of another run of its backfill"),
    LogEvent.SPARK_STARTED: (logging.INFO, "a Spark session has started"),
    LogEvent.SPARK_START_REPEATED: (
        logging.WARNING,
        "Spark's JVM ended at its start; another one has started, without the options that make it fast",
    ),
    LogEvent.ARCHIVE_READY: (logging.INFO, "the archive of the classes of Spark's JVM is there"),
    LogEvent.ARCHIVE_NOT_MADE: (logging.WARNING, "there is no archive of these classes; Spark starts slower"),
    LogEvent.ENGINE_UNAVAILABLE: (logging.WARNING, "the engine cannot be used; Spark starts in this process"),
    LogEvent.ENGINE_HUNG: (logging.WARNING, "the engine's Spark hung; it was ended and starts again"),
    LogEvent.RUN_PROCESS_ENDED: (
        logging.WARNING,
        "the process that waited for the next run has ended; runs load their code themselves for some minutes",
    ),
    LogEvent.NOTIFICATION_DELIVERED: (logging.INFO, "the webhook took a message"),
    LogEvent.NOTIFICATION_FAILED: (logging.WARNING, "the webhook did not take a message; it is sent again"),
}


def log_event(logger: logging.Logger, event: LogEvent, /, **fields: object) -> None:
    """Log an event with its level. Fields that are None are left out."""
    level, _meaning = LOG_EVENTS[event]
    if logger.isEnabledFor(level):
        given = {name: value for name, value in fields.items() if value is not None}
        logger.log(level, "%s", _describe(event, given), extra={"event": event.value, "fields": given}, stacklevel=2)


def configure_logging(form: str | None) -> None:
    """Write the records of this process to standard error in this form; with None, only pass them to other handlers.

    A second call replaces what the first has set up. Dagster adds a handler of its own in a run.
    """
    logger = logging.getLogger(ROOT)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    for handler in [each for each in logger.handlers if isinstance(each, _StandardError)]:
        logger.removeHandler(handler)
    if form is not None:
        handler = _StandardError()
        handler.setFormatter(EventFormatter(as_json=form == "json"))
        logger.addHandler(handler)


class EventFormatter(logging.Formatter):
    """Formats a record on one line, as text or as a JSON object."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event, fields = getattr(record, "event", None), getattr(record, "fields", {})
        text = _describe(event, fields) if event else printable(record.getMessage())
        if not self._as_json:
            return f"{at} {record.levelname} {text}"
        own = {"time": at, "level": record.levelname, "logger": record.name}
        return _encode(own | ({"event": event} | fields if event else {"message": text}))


class _StandardError(logging.StreamHandler[Any]):
    """Writes to what standard error is now."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)


# Without a handler, Python would print warnings on standard error, among the output of a command.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


def _describe(event: str, fields: Mapping[str, object]) -> str:
    return " ".join([event, *(f"{name}={_value_text(value)}" for name, value in fields.items())])


def _value_text(value: object) -> str:
    """The value, in quotes when it has spaces or quotes."""
    text = printable(str(value))
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or '"' in text or "=" in text else text


def _encode(fields: Mapping[str, object]) -> str:
    return json.dumps({name: _plain(value) for name, value in fields.items()}, ensure_ascii=False)


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float) else printable(str(value))
