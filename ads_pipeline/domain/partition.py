"""`PartitionKey` and `Run`: validation of names, and conversion to and from text, paths and Dagster keys.

Every name is checked against a whitelist on construction, so a `PartitionKey` or a `Run` is safe to use in a path or
a statement.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NoReturn

from ads_pipeline.domain.errors import BadName


def _identifier(max_length: int) -> tuple[re.Pattern[str], str]:
    rest = max_length - 1
    return re.compile(rf"[a-z][a-z0-9_]{{0,{rest}}}"), f"a-z, then up to {rest} of a-z, 0-9 and _"


def _label(max_length: int) -> tuple[re.Pattern[str], str]:
    rest = max_length - 1
    rule = f"a letter or digit, then up to {rest} of A-Z, a-z, 0-9, '.', '_' and '-'"
    return re.compile(rf"[0-9A-Za-z][0-9A-Za-z._-]{{0,{rest}}}"), rule


# field -> (the pattern of the whole value, the rule in words)
NAME_RULES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "source": _identifier(32),
    "customer_id": (re.compile(r"[0-9]{1,20}"), "1 to 20 digits 0-9, without hyphens"),
    "query_name": _identifier(64),
    "run_id": _label(96),
    "validation_id": _label(96),
    "action_id": _label(96),
    "failure_id": _label(96),
    "schema_version": _label(32),
    "error_class": _identifier(64),
    "label": _label(96),
}
DATE_RULE = "a real day written YYYY-MM-DD"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PATH_FIELDS = ("source", "customer_id", "query_name", "logical_date", "run_id")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PartitionKey:
    """A logical partition: one query's rows for one customer on one day."""

    source: str
    customer_id: str
    query_name: str
    logical_date: date

    def __post_init__(self) -> None:
        for field in ("source", "customer_id", "query_name"):
            validate_name(field, getattr(self, field))
        if type(self.logical_date) is not date:  # a datetime is a date too, and its time zone would shift the day
            raise BadName("logical_date", self.logical_date, DATE_RULE)

    def __str__(self) -> str:
        return f"{self.source}/{self.customer_id}/{self.query_name}/{self.logical_date.isoformat()}"

    @property
    def path(self) -> str:
        """The partition's directory below the raw root."""
        return (
            f"{self.source}/customer_id={self.customer_id}/query_name={self.query_name}"
            f"/logical_date={self.logical_date.isoformat()}"
        )

    @property
    def short_name(self) -> str:
        """The text without the source, as operators type it in commands."""
        return f"{self.customer_id}/{self.query_name}/{self.logical_date.isoformat()}"

    @property
    def dagster_key(self) -> str:
        """The partition key in one query's asset. Dagster joins the two dimensions, in name order, with a bar."""
        return f"{self.customer_id}|{self.logical_date.isoformat()}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Run:
    """One attempt to produce a partition. It names one raw directory for ever."""

    key: PartitionKey
    run_id: str

    def __post_init__(self) -> None:
        validate_name("run_id", self.run_id)

    def __str__(self) -> str:
        return f"{self.key}/{self.run_id}"

    @property
    def path(self) -> str:
        """The run's directory below the raw root."""
        return f"{self.key.path}/run_id={self.run_id}"


def validate_name(field: str, value: object) -> str:
    """The value when it satisfies the field's rule, otherwise BadName."""
    pattern, rule = NAME_RULES[field]
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise BadName(field, value, rule)
    return value


def find_customer_problem(name: str) -> str | None:
    """The rule that a customer's name breaks, with the right spelling where only hyphens are wrong; else None."""
    pattern, rule = NAME_RULES["customer_id"]
    if pattern.fullmatch(name):
        return None
    digits = name.replace("-", "")
    return f"{rule}; this account is {digits}" if pattern.fullmatch(digits) else rule


def parse_date(text: object) -> date:
    """The date written as YYYY-MM-DD; BadName for any other spelling."""
    if not isinstance(text, str) or _DATE.fullmatch(text) is None:
        raise BadName("logical_date", text, DATE_RULE)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadName("logical_date", text, DATE_RULE) from None


def parse_key(text: str) -> PartitionKey:
    """The inverse of `str(key)`."""
    match text.split("/"):
        case [source, customer_id, query_name, day]:
            return _make_key(source, customer_id, query_name, day)
    _raise_bad_shape("partition", text, "source/customer_id/query_name/YYYY-MM-DD")


def parse_run_path(path: str) -> Run:
    """The inverse of `run.path`."""
    source, *parts = path.split("/")
    prefixes = [f"{field}=" for field in _PATH_FIELDS[1:]]
    if len(parts) == len(prefixes) and all(map(str.startswith, parts, prefixes)):
        customer_id, query_name, day, run_id = map(str.removeprefix, parts, prefixes)
        return Run(key=_make_key(source, customer_id, query_name, day), run_id=run_id)
    _raise_bad_shape("path", path, "/".join(["<source>", *(f"{prefix}…" for prefix in prefixes)]))


def parse_dagster_key(text: str, *, source: str, query_name: str) -> PartitionKey:
    """The inverse of `dagster_key`, for an asset of this query."""
    match text.split("|"):
        case [customer_id, day]:
            return _make_key(source, customer_id, query_name, day)
    _raise_bad_shape("Dagster partition key", text, "customer_id|YYYY-MM-DD")


def generate_run_id(now: datetime, random_hex: str) -> str:
    """A new run_id: the time in UTC and eight random hexadecimal digits.

    The order of runs is the ledger's ordinal, never this name.
    """
    if now.tzinfo is None:
        raise ValueError("the time of a run_id needs a time zone")
    now = now.astimezone(UTC)
    run_id = f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03d}Z-{random_hex}"
    if re.fullmatch(r"[0-9a-f]{8}", random_hex) is None:
        raise BadName("run_id", run_id, "a generated run_id ends in eight hexadecimal digits")
    return validate_name("run_id", run_id)


def days_between(since: date, until: date) -> Iterable[date]:
    """Every day from since to until, both included; empty when until is earlier."""
    return (since + timedelta(days=n) for n in range((until - since).days + 1))


def _make_key(source: str, customer_id: str, query_name: str, day: str) -> PartitionKey:
    return PartitionKey(source=source, customer_id=customer_id, query_name=query_name, logical_date=parse_date(day))


def _raise_bad_shape(name: str, text: str, shape: str) -> NoReturn:
    raise BadName(name, text, f"it must be {shape}")
