"""Which module may import what: the rules hold, and the check finds violations."""

import subprocess
import sys
from pathlib import Path

import pytest

import ads_pipeline
from ads_pipeline_tests.import_rules import RULES, find_violations

ROOT = Path(ads_pipeline.__file__).parent


def test_every_import_is_allowed() -> None:
    """No module imports a library or a package that the rules do not allow."""
    assert find_violations(ROOT) == []


def test_rules_name_existing_packages() -> None:
    """Every package or module in the rules exists."""
    missing = {name for name in RULES if not (ROOT / name).is_dir() and not (ROOT / f"{name}.py").is_file()}
    assert missing == set()


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("domain/partition.py", "import sqlalchemy"),
        ("domain/partition.py", "def f():\n    import dagster"),
        ("domain/transitions.py", "from ads_pipeline.ledger import database"),
        ("domain/transitions.py", "from ads_pipeline import ledger"),
        ("raw/landing.py", "from ads_pipeline.settings.environment import read_settings"),
        ("raw/landing.py", "def f():\n    from ads_pipeline.ledger.ledger import Ledger"),
        ("ledger/ledger.py", "import dagster"),
        ("pipeline/pipeline.py", "def f():\n    from google.ads.googleads.client import GoogleAdsClient"),
        ("google_ads/source.py", "from ads_pipeline.ledger.ledger import Ledger"),
        ("ledger/ledger.py", "from ads_pipeline.lake.raw.landing import RawRuns"),
        ("ledger/state/pointers.py", "from ads_pipeline.lake.warehouse.replacement import Warehouse"),
        ("errors.py", "import importlib\nimportlib.import_module('pyspark')"),
        ("errors.py", "name = 'x'\n__import__(name)"),
        ("errors.py", "from . import domain"),
        ("__init__.py", "from ads_pipeline.lake.raw.landing import RawRuns"),
        ("helpers.py", "import json"),
    ],
)
def test_forbidden_import_is_found(tmp_path: Path, module: str, line: str) -> None:
    """The check sees imports in functions, through importlib, relative imports, and modules without a rule."""
    path = tmp_path / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    (violation,) = [each for each in find_violations(tmp_path) if "importlib" not in each]
    assert violation.startswith(module)


def test_only_the_extraction_imports_google() -> None:
    """No other package may import the client of Google Ads, which is an optional extra."""
    assert [name for name, (libraries, _) in RULES.items() if "google" in libraries] == ["google_ads"]


STANDARD_LIBRARY_ONLY = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for pattern in ("errors.py", "quoting.py", "domain/[a-z]*.py", "storage/[a-z]*.py", "raw/[a-z]*.py")
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
