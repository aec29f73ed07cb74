"""Runs backfills of one partition while this package finds one name of Dagster no more. Dagster itself finds it.

Dagster is imported once, which takes longer than a backfill; a process with one thread then forks for each name. Each
line of standard input is a `Backfill`. Each line of standard output is the exit code of one; see `backfill_of_one`.
"""

import importlib
import json
import os
import runpy
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import alembic.command  # noqa: F401 - loaded once
import dagster  # noqa: F401 - the same
import dagster_postgres  # noqa: F401 - the same

PACKAGE = "ads_pipeline"
BACKFILL = "ads_pipeline_tests.orchestration.backfill_of_one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """The name to hide, the partition, the environment, and the files for what is printed."""

    module: str
    name: str
    partition: str
    environment: Mapping[str, str]
    out: str
    err: str


def is_called_by_package() -> bool:
    return str(sys._getframe(2).f_globals["__name__"]).split(".")[0] == PACKAGE


def hide(module_name: str, name: str) -> None:
    """Let the package find this name of a module no more, or this property of a class: `module:Class`."""
    module_name, _, class_name = module_name.partition(":")
    module: Any = importlib.import_module(module_name)

    class Hiding(ModuleType):
        def __getattribute__(self, wanted: str) -> Any:
            if wanted == name and is_called_by_package():
                raise AttributeError(wanted)
            return super().__getattribute__(wanted)

    if not class_name:
        module.__class__ = Hiding
        return
    owner = getattr(module, class_name)
    original = owner.__dict__[name]

    def get(instance: Any) -> Any:
        if is_called_by_package():
            raise AttributeError(name)
        return original.fget(instance)

    setattr(owner, name, property(get))


def run(backfill: Backfill) -> None:
    """Run the backfill in this process, which has no other use."""
    for number, path in ((1, backfill.out), (2, backfill.err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(descriptor, number)
    os.environ.update(backfill.environment)
    sys.argv = [BACKFILL, backfill.partition]
    hide(backfill.module, backfill.name)
    runpy.run_module(BACKFILL, run_name="__main__")


if __name__ == "__main__":
    for line in sys.stdin:
        if child := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        else:
            run(Backfill(**json.loads(line)))
            sys.exit()
