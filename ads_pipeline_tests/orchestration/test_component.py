"""The component: `dg` lists, scaffolds and checks it, and each folder is a deployment of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

PROJECT = """
[project]
name = "agency"
version = "0.1"
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "{name}"
"""
DEFINITIONS = """
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
COMPONENT = "ads_pipeline.api.AdsPipelineComponent"
LOADED_BY_DG = """
import sys, ads_pipeline.api as api
assert [name for name in dir(api) if hasattr(api, name)]
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"duckdb", "pandera", "pyspark", "sqlalchemy"}))
"""


def make_project(folder: Path, name: str) -> Path:
    """An empty project of `dg`; its folder of definitions."""
    (defs := folder / "src" / name / "defs").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(name=name))
    for package in (defs, defs.parent):
        (package / "__init__.py").touch()
    (defs.parent / "definitions.py").write_text(DEFINITIONS)
    return defs


def add_deployment(defs: Path, name: str, **attributes: Any) -> None:
    (defs / name).mkdir()
    (defs / name / "defs.yaml").write_text(yaml.safe_dump({"type": COMPONENT, "attributes": attributes}))


def run_dg(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ADS_PIPELINE_")}
    return subprocess.run(
        [Path(sys.executable).parent / "dg", *arguments],
        cwd=folder,
        env=environ | {"PYTHONPATH": str(folder / "src"), "ADS_PIPELINE_HOMES": "nonsense"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the folder of definitions of a project as Dagster does."""
    name = re.sub(r"\W", "_", tmp_path.name)  # a module is imported once
    defs = make_project(tmp_path, name)
    monkeypatch.syspath_prepend(str(tmp_path / "src"))

    def load_all() -> dg.Definitions:
        return dg.load_from_defs_folder(path_within_project=defs)

    return defs, load_all


def test_dg_lists_scaffolds_and_checks(tmp_path: Path) -> None:
    """The written defs.yaml loads unchanged. A misspelt attribute is named with its file and line."""
    defs = make_project(tmp_path, "agency")
    listed = json.loads(run_dg(tmp_path, "list", "components", "--json").stdout)
    (summary,) = (each["summary"] for each in listed["items"] if each["key"] == COMPONENT)
    assert summary.startswith("Turns Google Ads reports into Delta tables")

    scaffolded = run_dg(tmp_path, "scaffold", "defs", COMPONENT, "ads")
    assert scaffolded.returncode == 0, scaffolded.stderr
    checked = run_dg(tmp_path, "check", "defs")
    assert checked.returncode == 0, checked.stderr + checked.stdout

    add_deployment(defs, "beta", home=str(tmp_path / "beta"), key_prefix=["beta"], quieries="own.yaml")
    misspelt = run_dg(tmp_path, "check", "defs")
    assert misspelt.returncode != 0
    assert "`attributes.quieries at " in misspelt.stderr + misspelt.stdout


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # Dagster adds the path of the defs.yaml to each asset
def test_two_folders_are_two_deployments(load: Any, tmp_path: Path) -> None:
    """Each has its own prefix; the query file is found beside the defs.yaml; owners and tags are passed on."""
    defs, load_all = load
    add_deployment(defs, "acme", home=str(tmp_path / "acme"), key_prefix=["acme"])
    add_deployment(
        defs,
        "beta",
        home=str(tmp_path / "beta"),
        key_prefix=["beta"],
        queries="own.yaml",
        query_names=["campaign_daily"],
        owners=["team:growth"],
        tags={"domain": "ads"},
    )
    shipped = Path(sys.modules["ads_pipeline"].__file__ or "").parent / "settings/config/google_apis.yaml"
    (defs / "beta" / "own.yaml").write_text(shipped.read_text())
    graph = load_all().resolve_asset_graph()
    keys = sorted("/".join(key.path) for key in graph.get_all_asset_keys())
    assert len([key for key in keys if key.startswith("acme/")]) == 11
    assert [key for key in keys if key.startswith("beta/raw/")] == ["beta/raw/campaign_daily"]
    node = graph.get(dg.AssetKey(["beta", "raw", "campaign_daily"]))
    assert (list(node.owners), node.tags["domain"]) == (["team:growth"], "ads")


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"home": "here"}, "home: must be an absolute path"),
        ({"google_ads": "none.yaml"}, "google_ads: the file cannot be read: No such file or directory"),
        ({"key_prefix": ["a-b"]}, "key_prefix: ('a-b',) is refused"),
        ({"query_names": ["campain_daily"]}, "did you mean campaign_daily"),
    ],
)
def test_bad_attribute_is_named(load: Any, tmp_path: Path, attributes: dict[str, Any], text: str) -> None:
    """The cause of the failed load is one message that names the attribute."""
    defs, load_all = load
    add_deployment(defs, "ads", **{"home": str(tmp_path / "home")} | attributes)
    with pytest.raises(Exception, match="ads") as caught:
        load_all()
    causes = list[str]()
    error: BaseException | None = caught.value
    while error is not None:
        causes.append(str(error))
        error = error.__cause__ or error.__context__
    assert any(text in cause for cause in causes), causes


def test_dg_loads_no_library_of_the_work() -> None:
    """`dg` loads every name that the interface shows, with each of its commands. They need only Dagster."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOADED_BY_DG], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []
