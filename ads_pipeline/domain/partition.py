"""Names one unit of work and spells it as text, path and Dagster key.

Every name is checked against a whitelist when the value is made, so a `PartitionKey` or a `Run` that exists is safe
to put in a path or a statement. Which runs exist is for `raw` and the ledger to say.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NoReturn

from ads_pipeline.errors import BadName


def _word(longest: int) -> tuple[re.Pattern[str], str]:
    rest = longest - 1
    return re.compile(rf"[a-z][a-z0-9_]{{0,{rest}}}"), f"a-z, then up to {rest} of a-z, 0-9 and _"


def _label(longest: int) -> tuple[re.Pattern[str], str]:
    rest = longest - 1
    rule = f"a letter or digit, then up to {rest} of A-Z, a-z, 0-9, '.', '_' and '-'"
    return re.compile(rf"[0-9A-Za-z][0-9A-Za-z._-]{{0,{rest}}}"), rule


# field -> (what the whole value must match, the rule in words)
NAME_RULES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "source": _word(32),
    "customer_id": (re.compile(r"[0-9]{1,20}"), "1 to 20 digits 0-9, without hyphens"),
    "query_name": _word(64),
    "run_id": _label(96),
    "validation_id": _label(96),
    "act_id": _label(96),
    "schema_version": _label(32),
    "error_class": _word(64),
    "label": _label(96),
}
DATE_RULE = "a real day written YYYY-MM-DD"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PATH_FIELDS = ("source", "customer_id", "query_name", "logical_date", "run_id")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PartitionKey:
    """The smallest unit of work and of truth: one query's rows for one customer on one day."""

    source: str
    customer_id: str
    query_name: str
    logical_date: date

    def __post_init__(self) -> None:
        for field in ("source", "customer_id", "query_name"):
            checked_name(field, getattr(self, field))
        if type(self.logical_date) is not date:  # a datetime is a date too, and its zone would shift the day
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
    def dagster_key(self) -> str:
        """The key inside one query's asset: Dagster joins its two dimensions, in name order, with a bar."""
        return f"{self.customer_id}|{self.logical_date.isoformat()}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Run:
    """One attempt to produce a partition; it names one raw partition for ever."""

    key: PartitionKey
    run_id: str

    def __post_init__(self) -> None:
        checked_name("run_id", self.run_id)

    def __str__(self) -> str:
        return f"{self.key}/{self.run_id}"

    @property
    def path(self) -> str:
        """The raw partition's directory below the raw root."""
        return f"{self.key.path}/run_id={self.run_id}"


def checked_name(field: str, value: object) -> str:
    """The value itself when it satisfies the field's rule, else BadName."""
    pattern, rule = NAME_RULES[field]
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise BadName(field, value, rule)
    return value


def parse_date(text: object) -> date:
    """The day that YYYY-MM-DD names; any other spelling of it is refused."""
    if not isinstance(text, str) or _DATE.fullmatch(text) is None:
        raise BadName("logical_date", text, DATE_RULE)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadName("logical_date", text, DATE_RULE) from None


def parse_key(text: str) -> PartitionKey:
    """The key that `str(key)` spelled."""
    match text.split("/"):
        case [source, customer_id, query_name, day]:
            return _key(source, customer_id, query_name, day)
    _refuse_shape("partition", text, "source/customer_id/query_name/YYYY-MM-DD")


def parse_run(text: str) -> Run:
    """The run that `str(run)` spelled."""
    key, _, run_id = text.rpartition("/")
    return Run(key=parse_key(key), run_id=run_id)


def parse_run_path(path: str) -> Run:
    """The run whose raw directory this is, relative to the raw root."""
    source, *named = path.split("/")
    prefixes = [f"{field}=" for field in _PATH_FIELDS[1:]]
    if len(named) == len(prefixes) and all(map(str.startswith, named, prefixes)):
        customer_id, query_name, day, run_id = map(str.removeprefix, named, prefixes)
        return Run(key=_key(source, customer_id, query_name, day), run_id=run_id)
    _refuse_shape("path", path, "/".join(["<source>", *(f"{prefix}…" for prefix in prefixes)]))


def parse_dagster_key(text: str, *, source: str, query_name: str) -> PartitionKey:
    """The key that `dagster_key` spelled, in the asset family of one query."""
    match text.split("|"):
        case [customer_id, day]:
            return _key(source, customer_id, query_name, day)
    _refuse_shape("Dagster partition key", text, "customer_id|YYYY-MM-DD")


def new_run_id(now: datetime, random_hex: str) -> str:
    """A run_id of our own: sortable by eye, safe in a path, unique by its eight random digits.

    Which of two runs is newer is for the ledger's ordinal to say, never for this name.
    """
    if now.tzinfo is None:
        raise ValueError("a run_id is dated by an instant; this time has no zone")
    now = now.astimezone(UTC)
    run_id = f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03d}Z-{random_hex}"
    if re.fullmatch(r"[0-9a-f]{8}", random_hex) is None:
        raise BadName("run_id", run_id, "our own run_ids end in eight hexadecimal digits")
    return checked_name("run_id", run_id)


def days_between(since: date, until: date) -> Iterable[date]:
    """Every day from since to until, both included; none when until is earlier."""
    return (since + timedelta(days=n) for n in range((until - since).days + 1))


def _key(source: str, customer_id: str, query_name: str, day: str) -> PartitionKey:
    return PartitionKey(source=source, customer_id=customer_id, query_name=query_name, logical_date=parse_date(day))


def _refuse_shape(what: str, text: str, shape: str) -> NoReturn:
    raise BadName(what, text, f"it is written {shape}")
