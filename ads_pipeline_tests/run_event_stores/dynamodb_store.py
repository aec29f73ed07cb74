"""An example of an adapter: a store of run events over the API of DynamoDB.

One table holds everything of a run under the partition key `engine_run_id`. The sort key of an event is its
idempotency key, and a conditional put refuses a second event with it. The item `head` is the atomic counter: each
transaction moves it on from the number that the writer has read. A local secondary index orders the events by
`run_seq`.
"""

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from botocore.exceptions import ClientError

from ads_pipeline.domain.errors import EventsNotFound, RunClosed
from ads_pipeline.domain.run_events import AppendResult, Event, LoggedEvent
from ads_pipeline.domain.run_snapshots import DEFAULT_PAGE_SIZE, RunSnapshot, RunStatus, StepStatus, fold_events

LARGEST_PAGE: Final = 10_000
EVENTS_PER_TRANSACTION: Final = 50  # of at most 100 actions; the others are heads
ATTEMPTS: Final = 30
FIELDS: Final = tuple(each.name for each in fields(Event) if each.init)
HEAD, SNAPSHOT, KEY_PREFIX, BY_SEQ = "head", "snapshot", "event#", "by_seq"
Item = dict[str, Any]


def create_table(client: Any, name: str) -> None:
    def key(sort_key: str) -> list[dict[str, str]]:
        return [
            {"AttributeName": "engine_run_id", "KeyType": "HASH"},
            {"AttributeName": sort_key, "KeyType": "RANGE"},
        ]

    types = {"engine_run_id": "S", "item": "S", "run_seq": "N"}
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": each, "AttributeType": kind} for each, kind in types.items()],
        KeySchema=key("item"),
        LocalSecondaryIndexes=[
            {"IndexName": BY_SEQ, "KeySchema": key("run_seq"), "Projection": {"ProjectionType": "ALL"}}
        ],
    )


class DynamoEventStore:
    """Stores run events in one table of DynamoDB. Any number of writers may append to a run."""

    contract_version = "1.0"

    def __init__(self, client: Any, table: str, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._client, self._table, self._clock = client, table, clock

    def append(self, event: Event) -> AppendResult:
        return self.append_many([event])[0]

    def append_many(self, events: Sequence[Event]) -> list[AppendResult]:
        """Append events. Calls of more than 50 events are split after all events are checked."""
        self._check_plans(events)
        parts = [events[at : at + EVENTS_PER_TRANSACTION] for at in range(0, len(events), EVENTS_PER_TRANSACTION)]
        return [result for part in parts for result in self._append_part(part)]

    def fetch(self, engine_run_id: str, *, after_seq: int = 0, limit: int = DEFAULT_PAGE_SIZE) -> list[LoggedEvent]:
        if after_seq < 0 or not 1 <= limit <= LARGEST_PAGE:
            raise ValueError(f"after_seq {after_seq} must be 0 or more, limit {limit} from 1 to {LARGEST_PAGE}")
        return list(islice(self._read_events(engine_run_id, after_seq), limit))

    def get_snapshot(self, engine_run_id: str) -> RunSnapshot | None:
        item = self._get(engine_run_id, SNAPSHOT)
        return _decode_snapshot(json.loads(item["snapshot"]["S"])) if item else None

    def project_snapshot(self, engine_run_id: str) -> RunSnapshot:
        snapshot, _ = fold_events(RunSnapshot(engine_run_id=engine_run_id), {}, self._read_events(engine_run_id))
        if not snapshot.last_event_seq:
            raise EventsNotFound(engine_run_id, "it has no events")
        last_seq = {"N": str(snapshot.last_event_seq)}
        text = json.dumps(asdict(snapshot), default=datetime.isoformat)
        # The condition fails when another process has stored this snapshot or a newer one.
        with suppress(self._client.exceptions.ConditionalCheckFailedException):
            self._client.put_item(
                TableName=self._table,
                Item=_item_key(engine_run_id, SNAPSHOT) | {"last_seq": last_seq, "snapshot": {"S": text}},
                ConditionExpression="attribute_not_exists(last_seq) OR last_seq < :new",
                ExpressionAttributeValues={":new": last_seq},
            )
        return snapshot

    def _append_part(self, events: Sequence[Event]) -> list[AppendResult]:
        """Append in one transaction. Another writer's transaction cancels it; it then starts again."""
        for attempt in range(ATTEMPTS):
            heads = self._check_plans(events)
            numbered = self._number(events)
            writes, results = self._plan(numbered, heads)
            try:
                if writes:
                    self._client.transact_write_items(TransactItems=writes)
            except ClientError as error:
                if error.response["Error"]["Code"] not in {"TransactionCanceledException", "TransactionConflict"}:
                    raise
                time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
            else:
                return results
        raise TimeoutError(f"other writers kept appending to {events[0].engine_run_id}")

    def _plan(self, events: Sequence[Event], heads: dict[str, Item]) -> tuple[list[Item], list[AppendResult]]:
        """The writes of one transaction, and the results if nothing has changed since the heads were read."""
        known = self._read_known(events)
        writes: list[Item] = []
        results: list[AppendResult] = []
        for event in events:
            key = event.engine_run_id, event.idempotency_key
            first = known.get(key)
            if first is None:
                head = heads[event.engine_run_id]
                now = max(self._clock().isoformat(), head.get("last_at", ""))
                heads[event.engine_run_id] = head | {"last_seq": head["last_seq"] + 1, "last_at": now}
                logged = LoggedEvent(
                    event=event,
                    run_seq=head["last_seq"] + 1,
                    persisted_at=datetime.fromisoformat(now),
                    idempotency_key=key[1],
                )
                known[key] = logged
                writes.append(self._put_event(logged))
            conflict = known[key].event.payload != event.payload
            results.append(
                AppendResult(run_seq=known[key].run_seq, idempotent=first is not None, payload_conflict=conflict)
            )
        moved = [head for head in heads.values() if head["last_seq"] > head["seen"]]
        return [*map(self._move_head, moved), *writes], results

    def _read_known(self, events: Sequence[Event]) -> dict[tuple[str, str], LoggedEvent]:
        """The stored events with the same keys."""
        keys = sorted({(event.engine_run_id, KEY_PREFIX + event.idempotency_key) for event in events})
        request = {self._table: {"Keys": [_item_key(*key) for key in keys], "ConsistentRead": True}}
        known = {}
        while request:
            answer = self._client.batch_get_item(RequestItems=request)
            for logged in map(_decode_event, answer["Responses"][self._table]):
                known[logged.event.engine_run_id, logged.idempotency_key] = logged
            request = answer.get("UnprocessedKeys")
        return known

    def _check_plans(self, events: Iterable[Event]) -> dict[str, Item]:
        """The heads of the runs. Raises RunClosed for an event of another plan."""
        heads: dict[str, Item] = {}
        for event in events:
            if event.engine_run_id not in heads:
                item = self._get(event.engine_run_id, HEAD) or {}
                last_seq = int(item["last_seq"]["N"]) if item else 0
                head = {
                    "engine_run_id": event.engine_run_id,
                    "plan": event.plan_version,
                    "last_seq": last_seq,
                    "seen": last_seq,
                }
                heads[event.engine_run_id] = head | {
                    name: item[name]["S"] for name in ("plan", "last_at") if name in item
                }
            plan = heads[event.engine_run_id]["plan"]
            if plan != event.plan_version:
                raise RunClosed(
                    event.engine_run_id, f"the run has plan {plan}, the event has plan {event.plan_version}"
                )
        return heads

    def _number(self, events: Sequence[Event]) -> list[Event]:
        """Number the repeatable events that have no number: the same event as before, or the next occurrence."""
        numbers: dict[tuple[str, str], dict[str, int]] = {}  # for each run and type, the number of each event id
        numbered = []
        for event in events:
            key, number = (event.engine_run_id, event.event_type), event.logical_attempt_id
            if number is None:
                taken = numbers.get(key) or self._read_numbers(*key, events)
                number = taken.get(event.event_id, max(taken.values(), default=0) + 1)
                numbers[key] = {event.event_id: number} | taken
            numbered.append(event.with_occurrence(number))
        return numbered

    def _read_numbers(self, engine_run_id: str, event_type: str, new: Sequence[Event]) -> dict[str, int]:
        """The numbers of the stored events of a type, and those that new events bring along."""
        events = [
            event for event in new if event.engine_run_id == engine_run_id and event.logical_attempt_id is not None
        ]
        events += [logged.event for logged in self._read_events(engine_run_id)]
        return {each.event_id: each.logical_attempt_id or 1 for each in events if each.event_type == event_type}

    def _move_head(self, head: Item) -> Item:
        values = {":last": {"N": str(head["last_seq"])}, ":at": {"S": head["last_at"]}, ":plan": {"S": head["plan"]}}
        return {
            "Update": {
                "TableName": self._table,
                "Key": _item_key(head["engine_run_id"], HEAD),
                "UpdateExpression": "SET last_seq = :last, last_at = :at, #plan = :plan",
                "ConditionExpression": "last_seq = :seen" if head["seen"] else "attribute_not_exists(last_seq)",
                "ExpressionAttributeNames": {"#plan": "plan"},
                "ExpressionAttributeValues": values | ({":seen": {"N": str(head["seen"])}} if head["seen"] else {}),
            }
        }

    def _put_event(self, logged: LoggedEvent) -> Item:
        event = {name: getattr(logged.event, name) for name in FIELDS}
        item = _item_key(logged.event.engine_run_id, KEY_PREFIX + logged.idempotency_key) | {
            "run_seq": {"N": str(logged.run_seq)},
            "persisted_at": {"S": logged.persisted_at.isoformat()},
            "event": {"S": json.dumps(event, ensure_ascii=False)},
        }
        return {
            "Put": {
                "TableName": self._table,
                "Item": item,
                "ConditionExpression": "attribute_not_exists(engine_run_id)",
            }
        }

    def _read_events(self, engine_run_id: str, after_seq: int = 0) -> Iterator[LoggedEvent]:
        query = {
            "TableName": self._table,
            "IndexName": BY_SEQ,
            "ConsistentRead": True,
            "KeyConditionExpression": "engine_run_id = :run AND run_seq > :after",
            "ExpressionAttributeValues": {":run": {"S": engine_run_id}, ":after": {"N": str(after_seq)}},
        }
        for page in self._client.get_paginator("query").paginate(**query):
            yield from map(_decode_event, page["Items"])

    def _get(self, engine_run_id: str, item: str) -> Item | None:
        answer = self._client.get_item(TableName=self._table, Key=_item_key(engine_run_id, item), ConsistentRead=True)
        found: Item | None = answer.get("Item")
        return found


def _item_key(engine_run_id: str, item: str) -> Item:
    return {"engine_run_id": {"S": engine_run_id}, "item": {"S": item}}


def _decode_event(item: Item) -> LoggedEvent:
    return LoggedEvent(
        event=Event(**json.loads(item["event"]["S"])),
        run_seq=int(item["run_seq"]["N"]),
        persisted_at=datetime.fromisoformat(item["persisted_at"]["S"]),
        idempotency_key=item["item"]["S"].removeprefix(KEY_PREFIX),
    )


def _decode_snapshot(values: dict[str, Any]) -> RunSnapshot:
    moments = {
        name: values[name] and datetime.fromisoformat(values[name])
        for name in ("started_at", "ended_at", "stale_since")
    }
    steps = {StepStatus(name): count for name, count in values["steps"].items()}
    return replace(RunSnapshot(**values | moments), status=RunStatus(values["status"]), steps=steps)
