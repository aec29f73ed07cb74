"""Translates errors of Spark, Delta, DuckDB, Arrow and the disk into WarehouseUnavailable.

Errors of callbacks that the caller passes in, such as `is_publishable`, are raised unchanged.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from pyspark.errors import AnalysisException

from ads_pipeline.domain.errors import AdsPipelineError, WarehouseUnavailable
from ads_pipeline.domain.quoting import printable, root_cause

# What a bucket's service answered, as delta-rs quotes it. It may repeat what the client signed.
_ANSWER = re.compile(r"<(?:\?xml|Error\b|html|!DOCTYPE).*", re.DOTALL | re.IGNORECASE)
_EXCERPT = "\nLINE "  # before the excerpt of a statement, with which DuckDB ends a message
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_P = ParamSpec("_P")
_T = TypeVar("_T")
_LIBRARIES = frozenset({"pyspark", "py4j", "deltalake", "_internal", "duckdb", "_duckdb", "pyarrow"})


class _CallbackError(Exception):
    """Carries an error of the caller's callback through the translation."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@contextmanager
def translate_errors(table: object) -> Iterator[None]:
    """Raise WarehouseUnavailable for errors of storage and cluster. Other errors, such as defects, pass unchanged."""
    try:
        yield
    except AdsPipelineError:
        raise
    except _CallbackError as wrapped:
        raise wrapped.error from wrapped.error.__cause__
    except Exception as error:
        if not is_external(error):
            raise
        text = str(error).partition(_EXCERPT)[0]
        quotes_answer = _ANSWER.search(text) is not None
        cause = error if text == str(error) and not quotes_answer else Exception(_ANSWER.sub(_keep_code, text))
        problem = error.strerror if isinstance(error, OSError) and error.strerror else root_cause(cause)
        problem = f"{type(error).__name__}: {printable(problem, limit=400)}"
        failure = WarehouseUnavailable(str(table), f"storage or cluster failed: {problem}")
        if quotes_answer:
            raise failure from None  # a log would show the causes with their text
        raise failure from error


def without_translation(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Wrap a callback so that `translate_errors` raises its errors unchanged."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise _CallbackError(error) from error

    return call


def _keep_code(answer: re.Match[str]) -> str:
    code = _CODE.search(answer[0])
    return code[1] if code else "…"


def is_external(error: Exception) -> bool:
    """True if storage or a library raised it.

    AnalysisException is excluded: the plan itself is wrong, so a retry would fail again.
    """
    if isinstance(error, AnalysisException):
        return False
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError) or not packages.isdisjoint(_LIBRARIES)
