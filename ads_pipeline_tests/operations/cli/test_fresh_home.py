"""Commands in a home where nothing has run yet: one sentence names the next command, and nothing is a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

from ads_pipeline_tests.operations.cli.running import CommandLine

READ_COMMANDS = [
    ("state", "inspect"),
    ("state", "due"),
    ("warehouse", "gaps"),
    ("warehouse", "query", "SELECT 1"),
    ("warehouse", "loads"),
    ("report",),
    ("metrics",),
    ("events", "runs"),
    ("audit",),
    ("accounts", "list"),
    ("reconcile", "--plan"),
]


@pytest.mark.parametrize("arguments", READ_COMMANDS, ids=" ".join)
def test_fresh_home_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A command that reads says where it looked, how to start and how to name another home. Nothing is created."""
    home = tmp_path / "home"
    result = CommandLine(home=home).run(*arguments)
    assert result.code == 78
    assert result.out == ""
    expected = f"There is no data below {home} yet. Start with: ads-pipeline dev."
    assert expected in result.err.replace("\n", "")
    assert "ADS_PIPELINE_HOME" in result.err
    assert not home.exists()


def test_home_directory_is_shortened(tmp_path: Path) -> None:
    """A home below the user's directory is printed with ~, as a person would write it."""
    done = CommandLine(home=tmp_path / ".ads_pipeline").process("state", "inspect", HOME=str(tmp_path))
    assert "There is no data below ~/.ads_pipeline yet." in done.err


@pytest.mark.parametrize("more", [{}, {"ADS_PIPELINE_DATABASE_URL": "empty"}], ids=["sqlite", "postgres"])
def test_fresh_home_is_healthy(tmp_path: Path, more: dict[str, str], request: pytest.FixtureRequest) -> None:
    """`doctor` finds nothing wrong and names the first command, so that `doctor && dev` starts."""
    if more:
        more = {"ADS_PIPELINE_DATABASE_URL": request.getfixturevalue("unmigrated_postgres_url")}
    result = CommandLine(home=tmp_path / "home", more=more).run("doctor")
    assert result.code == 0
    assert "there is no data yet" in result.out
    assert "ads-pipeline dev" in result.out
    assert "failed" not in result.out


def test_package_runs_as_a_module(tmp_path: Path) -> None:
    """`python -m ads_pipeline` is the same program, also where its directory is not on the PATH."""
    done = subprocess.run(
        [sys.executable, "-m", "ads_pipeline", "--version"],
        env=CommandLine(home=tmp_path).environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "ads-pipeline")
