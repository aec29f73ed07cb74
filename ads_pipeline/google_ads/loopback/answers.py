"""Builds the messages of the loopback server from the client's own message classes."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from importlib import import_module
from typing import Any, Final

from ads_pipeline.domain.partition import days_between
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, GoogleError, ListedAccount, RequestFailure
from ads_pipeline.google_ads.requests.descriptors import VersionFields
from ads_pipeline.google_ads.requests.gaql import selected_fields

_SOME_DAY: Final = "2000-01-01"  # of the prepared batch, whose bytes are replaced by those of each day
_DAYS = re.compile(r"BETWEEN '([0-9-]{10})' AND '([0-9-]{10})'")
_NATURAL_KEYS: Final = ("campaign.id", "ad_group.id", "ad_group_criterion.criterion_id")


@dataclass(frozen=True)
class Answers:
    """The answers in one version of the API."""

    version: str
    fields: VersionFields
    _prepared: dict[tuple[Any, ...], bytes] = field(default_factory=dict)

    def days(self, query: str) -> list[date]:
        match = _DAYS.search(query)
        return list(days_between(*map(date.fromisoformat, match.groups()))) if match else []

    def batches(self, customer_id: str, query: str, behaviour: Behaviour, request_id: str) -> Iterator[bytes]:
        """Batches of one day each, several times through all days with rows, and a last one with the consumption."""
        days = [day for day in self.days(query) if day.isoformat() not in behaviour.quiet_days]
        selected, revisions = selected_fields(query), dict(behaviour.day_revisions)
        for _ in range(behaviour.batches_per_day):
            for day in [] if behaviour.is_empty else days:
                revision = revisions.get(day.isoformat(), behaviour.revision)
                shown = replace(behaviour, revision=revision, day_revisions=()) if revisions else behaviour
                yield self._batch(customer_id, selected, shown, request_id).replace(
                    _SOME_DAY.encode(), day.isoformat().encode()
                )
        last = self._reply(request_id)
        if behaviour.odd_row:
            # A line break after the last day would only look like a later day.
            day = self.days(query)[0 if behaviour.odd_row == "day_with_line_break" else -1]
            self._add_odd_row(last, customer_id, selected, behaviour, day)
        last.query_resource_consumption = 100 + len(days)
        yield last.SerializeToString()

    def clients(self, accounts: Sequence[ListedAccount], request_id: str) -> bytes:
        reply = self._reply(request_id)
        for account in accounts:
            client = reply.results.add().customer_client
            client.id, client.descriptive_name = int(account.customer_id), account.name
            client.level, client.status, client.manager = account.level, account.status, account.manager
            client.test_account, client.hidden = account.test_account, account.hidden
            client.time_zone, client.currency_code = account.time_zone, account.currency_code
        encoded: bytes = reply.SerializeToString()
        return encoded

    def empty_batch(self, request_id: str) -> bytes:
        encoded: bytes = self._reply(request_id).SerializeToString()
        return encoded

    def lookback(self, windows: Mapping[str, int | None], query: str, request_id: str) -> bytes:
        """The window of each conversion action, by its status, as far as the query does not leave the status out."""
        reply = self._reply(request_id)
        for status, days in windows.items():
            if "status =" in query and f"'{status}'" not in query:
                continue
            action = reply.results.add().conversion_action
            if days is not None:
                action.click_through_lookback_window_days, action.view_through_lookback_window_days = days, 1
        encoded: bytes = reply.SerializeToString()
        return encoded

    def unknown_field(self, query: str) -> str | None:
        """The first selected field that this version does not have."""
        return next((path for path in selected_fields(query) if self.fields.find(path) is None), None)

    def encode_failure(self, failure: RequestFailure, request_id: str) -> bytes:
        if failure.undecodable:
            return b"\xff\xff\xff\xff"
        if failure.failure_hex is not None:
            return bytes.fromhex(failure.failure_hex)
        types = import_module(f"google.ads.googleads.{self.version}.errors.types.errors")
        message = types.GoogleAdsFailure.pb(types.GoogleAdsFailure())
        for error in failure.errors:
            _add_error(message, error)
        message.request_id = request_id
        encoded: bytes = message.SerializeToString()
        return encoded

    def _reply(self, request_id: str) -> Any:
        types = import_module(f"google.ads.googleads.{self.version}.services.types.google_ads_service")
        reply = types.SearchGoogleAdsStreamResponse.pb(types.SearchGoogleAdsStreamResponse())
        reply.request_id = request_id
        return reply

    def _batch(self, customer_id: str, selected: Sequence[str], behaviour: Behaviour, request_id: str) -> bytes:
        key = (customer_id, selected, behaviour, request_id)
        if key not in self._prepared:
            self._prepared.clear()  # of the request before
            reply = self._reply(request_id)
            for number in range(behaviour.rows):
                self._fill(reply.results.add(), customer_id, selected, behaviour, number)
            self._prepared[key] = reply.SerializeToString()
        return self._prepared[key]

    def _add_odd_row(
        self, reply: Any, customer_id: str, selected: Sequence[str], behaviour: Behaviour, day: date
    ) -> None:
        """Add the odd row between two good ones, so that the three are read together."""
        for number in (998, 999, 1000):
            self._fill(reply.results.add(), customer_id, selected, behaviour, number)
            reply.results[-1].segments.date = day.isoformat()
        row = reply.results[-2]
        match behaviour.odd_row:
            case "foreign_day":
                row.segments.date = (day + timedelta(days=40)).isoformat()
            case "day_with_line_break":
                row.segments.date = f"{day.isoformat()}\n"
            case "foreign_customer":
                row.customer.id += 1
            case "missing_day":
                row.segments.ClearField("date")
            case "nan":
                row.metrics.conversions = math.nan

    def _fill(self, row: Any, customer_id: str, selected: Sequence[str], behaviour: Behaviour, number: int) -> None:
        for path in selected:
            found = self.fields.find(path)
            assert found is not None, path  # noqa: S101 - the server looks for unknown fields first
            message = row
            for name in found.parents:
                message = getattr(message, name)
            setattr(message, found.name, _value(path, found.kind, customer_id, behaviour, number))


def _value(path: str, kind: str, customer_id: str, behaviour: Behaviour, number: int) -> Any:
    fixed = {
        "segments.date": _SOME_DAY,
        "customer.id": int(customer_id),
        "metrics.search_impression_share": 0.5,
        "metrics.cost_micros": (number + 1) * behaviour.revision * 1_000_000,
        **dict.fromkeys(_NATURAL_KEYS, 2**53 + 1 + number),  # exact only as an integer
    }
    by_kind = {
        "integer": (number + 1) * behaviour.revision,
        "number": number * 0.5 * behaviour.revision,
        "enum": behaviour.enum_number,
        "boolean": number % 2 == 0,
        "text": f"Text № {number}",
    }
    return fixed.get(path, by_kind[kind])


def _add_error(message: Any, error: GoogleError) -> None:
    added = message.errors.add(message=error.message)
    setattr(added.error_code, error.category, error.number)
    details = added.details.quota_error_details
    if error.rate_scope:
        details.rate_scope = error.rate_scope
    if error.retry_seconds is not None:
        details.retry_delay.seconds, details.retry_delay.nanos = error.retry_seconds, error.retry_nanos
