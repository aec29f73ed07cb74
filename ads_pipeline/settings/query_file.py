"""Reads the query file (`config/google_apis.yaml`): the queries, their schema versions and the retry policy.

Every mistake is reported with its line.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from ads_pipeline.domain.days.expectation import DEFAULT_DUE_AFTER
from ads_pipeline.domain.days.materialization_status import FreshnessPolicy
from ads_pipeline.domain.errors import BadName, Mistake
from ads_pipeline.domain.fetching.retry_policy import FRESH_DAYS, RetryPolicy
from ads_pipeline.domain.partition import parse_date, validate_name
from ads_pipeline.domain.quoting import printable, quoted, suggest
from ads_pipeline.domain.warehouse_names import find_column_problem, find_view_problem
from ads_pipeline.settings.extraction_section import ExtractionSettings, LookbackDays, Section

DEFAULT_QUERIES_FILE = Path(__file__).parent / "config" / "google_apis.yaml"
MAX_YAML_DEPTH = 100
ONE_MINUTE, ONE_HOUR = timedelta(minutes=1), timedelta(hours=1)
MAX_DUE_AFTER_HOURS = 24 * FRESH_DAYS  # a later deadline would be after the day is missing

_SELECT = re.compile(r"SELECT (?P<fields>[a-z0-9_., ]+) FROM (?P<resource>[a-z_]+)", re.ASCII)
_FIELD = re.compile(r"[a-z_]+(\.[a-z0-9_]+)+", re.ASCII)
_MODULE = re.compile(r"(?:[\w-]+/)*[\w-]+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_REQUIRED_FIELDS = ("segments.date", "customer.id")


def _parse_gaql(text: str) -> str:
    """The query on one line; ValueError unless a partition's date can be added to it as a WHERE clause."""
    match = _SELECT.fullmatch(re.sub(r"[ \t\r\n]+", " ", text.strip(" \t\r\n")))
    if match is None:
        raise ValueError("must read SELECT field, … FROM resource, with no WHERE, ORDER BY or LIMIT")
    fields = [name.strip() for name in match["fields"].split(",")]
    invalid = [name for name in fields if _FIELD.fullmatch(name) is None]
    if invalid:
        raise ValueError(f"{quoted(invalid[0])} is not a field name")
    if len(set(fields)) < len(fields):
        raise ValueError(f"selects {next(name for name in fields if fields.count(name) > 1)} twice")
    by_column: dict[str, str] = {}
    for name in fields:
        if (other := by_column.setdefault(name_column(name), name)) != name:
            raise ValueError(
                f"selects {other} and {name}, which both become the column {name_column(name)}; keep one"
            )
    for name in _REQUIRED_FIELDS:
        if name not in fields:
            raise ValueError(f"must select {name}, which the validator compares with the partition")
    problems = [f"{name}: {problem}" for name in fields if (problem := find_column_problem(name_column(name)))]
    if problems:
        raise ValueError(problems[0])
    return f"SELECT {', '.join(fields)} FROM {match['resource']}"  # noqa: S608 - every part matched a pattern


def _parse_query_name(name: str) -> str:
    """The name of a query; ValueError for one that is malformed or that the warehouse uses itself."""
    validate_name("query_name", name)
    if problem := find_view_problem(name):
        raise ValueError(problem)
    return name


def name_column(field: str) -> str:
    """The column of a GAQL field: without segments. or metrics., dots as underscores."""
    return field.removeprefix("segments.").removeprefix("metrics.").replace(".", "_")


def _parse_days(value: object) -> object:
    """The list as a tuple, checked by FreshnessPolicy."""
    if not isinstance(value, list):
        raise ValueError("must be a list of days, such as [3, 30]")  # noqa: TRY004 - pydantic reports only ValueError
    return FreshnessPolicy(reread_after_days=tuple(value)).reread_after_days


def _parse_minutes(value: object) -> object:
    """The list as a tuple, checked by RetryPolicy."""
    if not isinstance(value, list) or not all(type(minutes) is int for minutes in value):
        raise ValueError("must be a list of minutes, such as [5, 30, 120]")
    policy = RetryPolicy(delays=tuple(minutes * ONE_MINUTE for minutes in value))
    return tuple(delay // ONE_MINUTE for delay in policy.delays)


def _parse_module(name: str) -> str:
    if _MODULE.fullmatch(name) is None:
        raise ValueError("must be a Python file beside this one, such as contracts.py, or an installed module")
    return name


def _name_validator(field_name: str) -> Callable[[str], str]:
    return lambda value: validate_name(field_name, value)


class _Loader(yaml.SafeLoader):
    """A YAML loader that keeps dates as text, so that an invalid date is reported with its line."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - replaces a class attribute of PyYAML
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class Query(Section):
    """One GAQL query and the schema version of its rows."""

    schema_version: Annotated[str, AfterValidator(_name_validator("schema_version"))]
    gaql: Annotated[str, AfterValidator(_parse_gaql)]
    reread_after_days: Annotated[tuple[int, ...], BeforeValidator(_parse_days)] = ()
    due_after_hours: Annotated[int, Field(ge=0, le=MAX_DUE_AFTER_HOURS)] = DEFAULT_DUE_AFTER // ONE_HOUR
    lookback_days: LookbackDays | None = None

    @property
    def due_after(self) -> timedelta:
        """The time after its end, in UTC, within which a day should be readable."""
        return self.due_after_hours * ONE_HOUR

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.gaql.removeprefix("SELECT ").partition(" FROM ")[0].split(", "))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its rows, in the order of the selected fields."""
        return tuple(map(name_column, self.fields))

    @property
    def freshness_policy(self) -> FreshnessPolicy:
        return FreshnessPolicy(reread_after_days=self.reread_after_days)


class RetrySettings(Section):
    """The `retries` section of the query file. Missing values have defaults."""

    delays_minutes: Annotated[tuple[int, ...], BeforeValidator(_parse_minutes)] = (5, 30, 120)
    max_attempts: Annotated[int, Field(ge=1)] = 6
    max_age_days: Annotated[int, Field(ge=1)] = 90

    @property
    def policy(self) -> RetryPolicy:
        return RetryPolicy(
            delays=tuple(minutes * ONE_MINUTE for minutes in self.delays_minutes),
            max_attempts=self.max_attempts,
            max_age=timedelta(days=self.max_age_days),
        )


class GoogleApis(Section):
    """The query file."""

    source: Annotated[str, AfterValidator(_name_validator("source"))]
    api_version: Annotated[str, Field(pattern=r"^v[0-9]{1,3}\z")]
    start_date: Annotated[date, BeforeValidator(parse_date)]
    retries: RetrySettings = Field(default_factory=RetrySettings)
    google_ads: ExtractionSettings = Field(default_factory=ExtractionSettings)
    contracts: Annotated[str, AfterValidator(_parse_module)] | None = None  # a file beside this one, or a module
    queries: Annotated[
        Mapping[Annotated[str, AfterValidator(_parse_query_name)], Query],
        Field(min_length=1),
        AfterValidator(MappingProxyType),
    ]

    @property
    def due_after(self) -> dict[str, timedelta]:
        """The time after its end at which a day of each query is due, by query name."""
        return {name: query.due_after for name, query in self.queries.items()}


def read_query_file(path: Path, mistakes: list[Mistake]) -> GoogleApis | None:
    """Read the query file. Without a valid one, add its mistakes to the list and return None."""
    try:
        document, lines = _load_yaml(path.read_bytes().decode("utf-8"), path, mistakes)
    except OSError as error:  # its text repeats the path, which may be a secret that was set by mistake
        mistakes.append(Mistake(location="ADS_PIPELINE_QUERIES", problem=f"cannot be read: {error.strerror}"))
        return None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        mistakes.append(Mistake(location=printable(str(path)), problem=f"cannot be read: {printable(str(error))}"))
        return None
    try:
        apis = GoogleApis.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        mistakes.extend(_locate_mistake(path, lines, problem) for problem in problems)
        return None
    mistakes.extend(_find_unknown_queries(path, lines, apis))
    return apis


def line_of(path: Path, *path_in_file: str) -> int:
    """The line of a part of a query file that was read before."""
    _document, lines = _load_yaml(path.read_bytes().decode("utf-8"), path, [])
    return lines[path_in_file]


def narrow_query_file(start_date: date, query_names: Collection[str]) -> str:
    """The text of the query file that ships with the package, with another start date and only these queries.

    A day is due at its end, so that the result does not depend on the hour.
    """
    document = yaml.safe_load(DEFAULT_QUERIES_FILE.read_text(encoding="utf-8"))
    queries = {name: document["queries"][name] | {"due_after_hours": 0} for name in sorted(query_names)}
    return yaml.safe_dump(document | {"start_date": start_date, "queries": queries}, sort_keys=False)


def _find_unknown_queries(path: Path, lines: Mapping[tuple[str, ...], int], apis: GoogleApis) -> Iterator[Mistake]:
    """The settings of customers for queries that the file does not define."""
    for customer, settings in apis.google_ads.customers.items():
        for name in settings.queries:
            if name not in apis.queries:
                inner = ("google_ads", "customers", customer, "queries", name)
                problem = f"no such query; {suggest(name, list(apis.queries))}"
                yield Mistake(location=printable(f"{path}:{lines.get(inner, 1)} {'.'.join(inner)}"), problem=problem)


def _locate_mistake(path: Path, lines: Mapping[tuple[str, ...], int], problem: Any) -> Mistake:
    path_in_file = tuple(str(part) for part in problem["loc"] if part != "[key]")
    nearest = next((path_in_file[:n] for n in range(len(path_in_file), -1, -1) if path_in_file[:n] in lines), ())
    cause = problem.get("ctx", {}).get("error")
    text = f"{quoted(cause.value)} is refused: {cause.rule}" if isinstance(cause, BadName) else problem["msg"]
    location = f"{path}:{lines.get(nearest, 1)} {'.'.join(path_in_file)}".rstrip()
    return Mistake(location=printable(location), problem=printable(text.removeprefix("Value error, ")))


def _find_excess(text: str) -> str | None:
    """An alias or deep nesting, with which a short document could use much memory; None when there is neither."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            return f"line {line} has an alias; write the value in full"
        if depth > MAX_YAML_DEPTH:
            return f"line {line} is nested deeper than {MAX_YAML_DEPTH}"
    return None


def _load_yaml(text: str, path: Path, mistakes: list[Mistake]) -> tuple[object, dict[tuple[str, ...], int]]:
    """The document, and the line of each of its parts. A duplicate key is a mistake."""
    if problem := _find_excess(text):
        raise yaml.YAMLError(problem)
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        lines: dict[tuple[str, ...], int] = {}
        if root is None:
            return None, lines
        _collect_lines(root, (), lines, path, mistakes)
        return loader.construct_document(root), lines
    except (KeyError, AttributeError, ArithmeticError) as error:  # a tag does not fit its value
        raise yaml.YAMLError(f"a value does not fit its tag: {error}") from error
    finally:
        loader.dispose()


def _collect_lines(
    node: yaml.Node,
    path_in_file: tuple[str, ...],
    lines: dict[tuple[str, ...], int],
    path: Path,
    mistakes: list[Mistake],
) -> None:
    lines.setdefault(path_in_file, node.start_mark.line + 1)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        inner = (*path_in_file, str(key.value))
        if inner in lines:
            location = printable(f"{path}:{key.start_mark.line + 1} {'.'.join(inner)}")
            mistakes.append(Mistake(location=location, problem=f"duplicate key, first on line {lines[inner]}"))
        lines.setdefault(inner, key.start_mark.line + 1)
        _collect_lines(value, inner, lines, path, mistakes)
