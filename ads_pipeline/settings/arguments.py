"""Settings from the arguments of a call, for a deployment inside a user's own project. No variable is read."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ads_pipeline.domain.errors import BadSettings, Mistake
from ads_pipeline.settings.environment import PREFIX, Settings, read_settings

DATABASE_URL: Final = "ADS_PIPELINE_DATABASE_URL"
PATHS: Final = ("queries", "google_ads")  # they may be relative to the current directory
WORDS: Final = frozenset({"off", "env"})  # of `google_ads`, which are no paths
SHOWN: Final = ("home", "lake", "queries", "google_ads", "tenant", "workspace")  # others are secret, or of runs only
_VARIABLE: Final = re.compile(rf"\b{PREFIX}([A-Z_]+)\b")


def read_arguments(arguments: Mapping[str, object], query_names: Collection[str] | None = None) -> Settings:
    """Read the settings from arguments that are named like the variables. Without a value, a setting has its default.

    Only the named queries are built; None: all of the query file. Raises BadSettings, which lists every mistake by
    its argument, and BadName for a query that the file does not define.
    """
    texts = {name: _as_text(name, value) for name, value in arguments.items() if value not in (None, "")}
    with mistakes_by_argument():
        settings = read_settings({_variable(name): text for name, text in texts.items()})
    if query_names is not None:
        queries = MappingProxyType({name: settings.query(name) for name in query_names})
        settings = replace(settings, google_apis=settings.google_apis.model_copy(update={"queries": queries}))
    return replace(settings, invocation=_build_invocation(texts))


@contextmanager
def mistakes_by_argument() -> Iterator[None]:
    """Name mistakes by arguments instead of variables."""
    try:
        yield
    except BadSettings as error:
        raise BadSettings(tuple(map(_name_arguments, error.mistakes))) from None


def _variable(argument: str) -> str:
    return f"{PREFIX}{argument.upper()}"


def _name_arguments(mistake: Mistake) -> Mistake:
    location, problem = (
        _VARIABLE.sub(lambda found: found[1].lower(), text) for text in (mistake.location, mistake.problem)
    )
    return Mistake(location=location, problem=problem)


def _as_text(argument: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if argument in PATHS and value not in WORDS:
        return str(Path(str(value)).expanduser().absolute())
    return str(value)


def _build_invocation(texts: Mapping[str, str]) -> str:
    """The variables before a command. The shell refuses the command where the URL of the ledger is not set."""
    shown = [f"{_variable(name)}={shlex.quote(texts[name])}" for name in SHOWN if name in texts]
    if "database_url" in texts:
        shown.append(f'{DATABASE_URL}="${{{DATABASE_URL}:?set it to the ledger of this deployment}}"')
    return "".join(f"{each} " for each in shown)
