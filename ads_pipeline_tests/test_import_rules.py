"""The rooms do not know one another, and the pure ones need nothing but Python."""

import subprocess
import sys
from pathlib import Path

import pytest

import ads_pipeline
from ads_pipeline_tests.import_rules import LAW, violations

ROOT = Path(ads_pipeline.__file__).parent


def test_every_import_is_lawful() -> None:
    """No module imports a library or a room that its place in the house does not allow."""
    assert violations(ROOT) == []


def test_the_law_names_no_room_that_is_gone() -> None:
    """Every room of the law exists."""
    assert {room for room in LAW if not (ROOT / room).is_dir() and not (ROOT / f"{room}.py").is_file()} == set()


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("domain/partition.py", "import sqlalchemy"),
        ("domain/partition.py", "def f():\n    import dagster"),
        ("domain/transitions.py", "from ads_pipeline.ledger import database"),
        ("domain/transitions.py", "from ads_pipeline import ledger"),
        ("raw/landing.py", "from ads_pipeline.settings import read_settings"),
        ("raw/landing.py", "def f():\n    from ads_pipeline.ledger.ledger import Ledger"),
        ("ledger/ledger.py", "import dagster"),
        ("ledger/ledger.py", "from ads_pipeline.raw.landing import RawRuns"),
        ("ledger/state/pointers.py", "from ads_pipeline.warehouse.publication import Warehouse"),
        ("errors.py", "import importlib\nimportlib.import_module('pyspark')"),
        ("errors.py", "name = 'x'\n__import__(name)"),
        ("errors.py", "from . import domain"),
        ("__init__.py", "from ads_pipeline.raw.landing import RawRuns"),
        ("helpers.py", "import json"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path: Path, module: str, line: str) -> None:
    """The law sees imports at the top, in functions, through importlib, relative ones, and rooms nobody planned."""
    planted = tmp_path / module
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(line + "\n")
    (found,) = [each for each in violations(tmp_path) if "importlib" not in each]
    assert found.startswith(module)


PURE = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("errors.py", "domain/[a-z]*.py", "raw/[a-z]*.py")
    for path in sorted(ROOT.glob(folder))
]


@pytest.mark.parametrize("word", PURE)
def test_a_pure_room_loads_no_library(word: str) -> None:
    """Importing a pure room in a fresh interpreter brings in nothing from outside the standard library."""
    script = (
        "import sys; before = set(sys.modules); import ads_pipeline.{word}; "
        "print(*sorted({{name.partition('.')[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script.format(word=word)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["ads_pipeline"]
