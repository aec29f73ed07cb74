"""Turns what Spark, Delta, DuckDB, Arrow and the disk throw into the room's own failures, in one place.

What callers hand in (`still`) fails in its own words: those pass through unchanged.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from pyspark.errors import AnalysisException

from ads_pipeline.errors import AdsPipelineError, WarehouseUnavailable, cause_of, printable

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LIBRARIES = frozenset({"pyspark", "py4j", "deltalake", "_internal", "duckdb", "_duckdb", "pyarrow"})


class _Callers(Exception):
    """Carries a failure of the caller's own code past the translation."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@contextmanager
def translated(table: object) -> Iterator[None]:
    """WarehouseUnavailable for whatever storage and cluster throw; a defect of ours stays what it is."""
    try:
        yield
    except AdsPipelineError:
        raise
    except _Callers as carried:
        raise carried.error from carried.error.__cause__
    except Exception as error:
        if not _foreign(error):
            raise
        problem = error.strerror if isinstance(error, OSError) and error.strerror else cause_of(error)
        raise WarehouseUnavailable(
            str(table), f"storage or cluster failed: {type(error).__name__}: {printable(problem, limit=400)}"
        ) from error


def callers(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The caller's function, with failures that the translation leaves alone."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise _Callers(error) from error

    return call


def _foreign(error: Exception) -> bool:
    """Spark's refusal of a plan is the fault of whoever wrote the plan, so waiting would not cure it."""
    if isinstance(error, AnalysisException):
        return False
    families = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError) or not families.isdisjoint(_LIBRARIES)
