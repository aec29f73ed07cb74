"""Which module may import what: the rules hold, and the check finds violations."""

import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ads_pipeline
from ads_pipeline_tests.import_rules import PACKAGE, RULES, dotted_name, find_imports, find_violations

ROOT = Path(ads_pipeline.__file__).parent


def test_every_import_is_allowed() -> None:
    """No module imports a library or a package that the rules do not allow."""
    assert find_violations(ROOT) == []


def test_rules_name_existing_packages() -> None:
    """Every package or module in the rules exists."""
    paths = {name: ROOT.joinpath(*name.split(".")) for name in RULES}
    missing = {name for name, path in paths.items() if not path.is_dir() and not path.with_suffix(".py").is_file()}
    assert missing == set()


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("domain/partition.py", "import sqlalchemy"),
        ("domain/partition.py", "def f():\n    import dagster"),
        ("domain/transitions.py", "from ads_pipeline.ledger.sql import database"),
        ("domain/transitions.py", "from ads_pipeline import ledger"),
        ("lake/raw/landing.py", "from ads_pipeline.settings.environment import read_settings"),
        ("lake/raw/landing.py", "def f():\n    from ads_pipeline.ledger.ledger import Ledger"),
        ("ledger/ledger.py", "import dagster"),
        ("pipeline/pipeline.py", "def f():\n    from google.ads.googleads.client import GoogleAdsClient"),
        ("google_ads/google_ads_source.py", "from ads_pipeline.ledger.ledger import Ledger"),
        ("ledger/ledger.py", "from ads_pipeline.lake.raw.landing import RawRuns"),
        ("ledger/state/pointers.py", "from ads_pipeline.lake.warehouse.replacement import Warehouse"),
        ("domain/errors.py", "import importlib\nimportlib.import_module('pyspark')"),
        ("domain/errors.py", "name = 'x'\n__import__(name)"),
        ("domain/errors.py", "from . import domain"),
        ("__init__.py", "from ads_pipeline.lake.raw.landing import RawRuns"),
        ("helpers.py", "import json"),
        ("operations/metrics.py", "from ads_pipeline.operations.report.writing import write_report"),
        ("orchestration/assets.py", "from ads_pipeline.operations.cli.main import app"),
    ],
)
def test_forbidden_import_is_found(tmp_path: Path, module: str, line: str) -> None:
    """The check sees imports in functions, through importlib, relative imports, and modules without a rule."""
    path = tmp_path / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    (violation,) = [each for each in find_violations(tmp_path) if "importlib" not in each]
    assert violation.startswith(module)


MODULES = {dotted_name(path, ROOT): path for path in sorted(ROOT.rglob("*.py")) if path.name != "__init__.py"}
MAX_ENTRIES, MAX_MODULES = 14, 15


def test_rooms_stay_small() -> None:
    """The package has few entries, no folder has many modules, and no two modules share a name."""
    entries = {name.partition(".")[0] for name in MODULES if not name.startswith("__")}
    assert len(entries) <= MAX_ENTRIES
    widths = Counter(path.parent for path in MODULES.values())
    assert {str(folder): width for folder, width in widths.items() if width > MAX_MODULES} == {}
    names = Counter(name.rpartition(".")[2] for name in MODULES)
    assert {name for name, number in names.items() if number > 1} == set()


def test_folders_import_one_another_in_one_direction() -> None:
    """No folder imports, directly or through others, a folder that imports it. `prepare` raises CycleError."""
    imported: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        folder = name.rpartition(".")[0]
        for _line, found in find_imports(path):
            target = found.removeprefix(f"{PACKAGE}.")
            other = target.rpartition(".")[0] if target in MODULES else target
            if found.startswith(f"{PACKAGE}.") and other != folder:
                imported.setdefault(folder, set()).add(other)
    TopologicalSorter(imported).prepare()


def test_only_the_extraction_imports_google() -> None:
    """No other package may import the client of Google Ads, which is an optional extra."""
    assert [name for name, (libraries, _) in RULES.items() if "google" in libraries] == ["google_ads"]


STANDARD_LIBRARY_ONLY = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for pattern in ("domain/errors.py", "quoting.py", "domain/[a-z]*.py", "storage/[a-z]*.py", "raw/[a-z]*.py")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "object_store.py"  # loaded once a bucket is opened
]


@pytest.mark.parametrize("module", STANDARD_LIBRARY_ONLY)
def test_module_loads_no_library(module: str) -> None:
    """Importing the module in a fresh interpreter loads only the standard library."""
    script = (
        "import sys; before = set(sys.modules); import ads_pipeline.{module}; "
        "print(*sorted({{name.partition('.')[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script.format(module=module)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["ads_pipeline"]
