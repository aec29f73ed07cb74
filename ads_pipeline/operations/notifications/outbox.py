"""Keeps the state of the sensor `notifications`: its position in the ledger, and the message that is not delivered.

A message is stored before it is sent, and stays the same until the server took it. So a repeated request has the same
body and the same keys, whatever happened to the ledger meanwhile.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from ads_pipeline.ledger.events.new_events import LogPosition, read_events_after, read_position
from ads_pipeline.operations.notifications.finding import EVENT_TYPES, FactFinder, of_holds, of_parkings
from ads_pipeline.operations.notifications.notices import compose_message, group_facts

FIRST_DELAY: Final = timedelta(seconds=30)
LONGEST_DELAY: Final = timedelta(minutes=10)
BLOCKED_INTERVAL: Final = timedelta(minutes=10)  # the search compares all partitions with their runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A message to deliver: its exact text, how often that failed, and when to try next."""

    body: str
    failures: int = 0
    not_before: datetime | None = None

    def postpone(self, now: datetime) -> Self:
        """The same message after one more failure: twice the delay, up to ten minutes."""
        delay = min(FIRST_DELAY * 2 ** min(self.failures, 16), LONGEST_DELAY)
        return replace(self, failures=self.failures + 1, not_before=now + delay)

    def is_due(self, now: datetime) -> bool:
        return self.not_before is None or self.not_before <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """The state between two ticks. Its text is the sensor's cursor."""

    position: LogPosition
    deadlines_at: datetime  # until when deadlines were looked at
    parkings: Sequence[str] = ()  # the parkings and holds that were reported
    pending: Pending | None = None
    blocked: Sequence[str] = ()  # the causes of blocked days that were reported
    blocked_at: datetime | None = None  # when blocked days were looked for

    @classmethod
    def opened(cls, finder: FactFinder, now: datetime) -> Self:
        """The state of a sensor that starts now: it reports nothing of the past."""
        position = read_position(finder.ledger.engine, now)
        return cls(
            position=position,
            deadlines_at=now,
            parkings=sorted({*finder.list_parkings(), *finder.list_holds(now)}),
            blocked=sorted(finder.list_blocked(now)),
            blocked_at=now,
        )

    @classmethod
    def parse(cls, cursor: str | None) -> Self | None:
        """The state in a cursor; None when there is none, or somebody has changed it."""
        try:
            document = json.loads(cursor or "")
            pending = document["pending"]
            return cls(
                position=LogPosition.parse(document),
                deadlines_at=_parse_instant(document["deadlines_at"]),
                parkings=[str(each) for each in document["parkings"]],
                blocked=[str(each) for each in document.get("blocked", ())],
                blocked_at=_parse_optional(document.get("blocked_at")),
                pending=pending
                and Pending(
                    body=str(pending["body"]),
                    failures=int(pending["failures"]),
                    not_before=pending["not_before"] and _parse_instant(pending["not_before"]),
                ),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    @property
    def cursor(self) -> str:
        pending = self.pending
        document: dict[str, Any] = {
            **self.position.document,
            "deadlines_at": _instant_text(self.deadlines_at),
            "parkings": self.parkings,
            "blocked": self.blocked,
            "blocked_at": _instant_text(self.blocked_at),
            "pending": pending
            and {
                "body": pending.body,
                "failures": pending.failures,
                "not_before": _instant_text(pending.not_before),
            },
        }
        return json.dumps(document)

    def _is_search_due(self, now: datetime) -> bool:
        return self.blocked_at is None or not timedelta() <= now - self.blocked_at < BLOCKED_INTERVAL

    def compose(self, finder: FactFinder, *, workspace: str, now: datetime) -> "tuple[Outbox, int]":
        """The state with a message about everything new, if there is anything, and the number of its notices."""
        events, position = read_events_after(finder.ledger.engine, self.position, EVENT_TYPES, now=now)
        parkings, holds = finder.list_parkings(), finder.list_holds(now)
        blocked = finder.list_blocked(now) if self._is_search_due(now) else None
        grouped = group_facts(
            [
                *finder.of_events(events, now),
                *finder.of_deadlines(self.deadlines_at, now),
                *finder.of_ended_waits(self.deadlines_at, now),
                *of_parkings(parking for name, parking in parkings.items() if name not in self.parkings),
                *of_holds(hold for name, hold in holds.items() if name not in self.parkings),
                *(fact for cause, facts in (blocked or {}).items() if cause not in self.blocked for fact in facts),
            ]
        )
        names = finder.ledger.accounts.names(finder.source) if grouped else {}
        notices = [replace(each, invocation=finder.invocation, account_names=names) for each in grouped]
        message = compose_message(notices, source=finder.source, workspace=workspace, now=now)
        return replace(
            self,
            position=position,
            deadlines_at=max(now, self.deadlines_at),
            parkings=sorted({*parkings, *holds}),
            blocked=self.blocked if blocked is None else sorted(blocked),
            blocked_at=self.blocked_at if blocked is None else now,
            pending=Pending(body=json.dumps(message)) if notices else None,
        ), len(notices)


def _parse_optional(text: str | None) -> datetime | None:
    return None if text is None else _parse_instant(text)


def _parse_instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _instant_text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
