"""What `make` prints before and while it installs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ads_pipeline_tests.processes import ROOT

FILES = "Makefile", "pyproject.toml", "product.lock", "requirements.lock"
SLOW_INSTALLER = "#!/bin/sh\nmkdir -p .venv; sleep 1\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without an environment."""
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(checkout: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return subprocess.run(
        ["make", *arguments], cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_browser_tests_say_what_is_missing_before_anything_is_installed(checkout: Path) -> None:
    """Chromium and Playwright, each with the command that installs it."""
    done = make(checkout, "test-browser", "CHROMIUM=")
    assert done.returncode == 2
    assert "needs Chromium on the PATH" in done.stderr
    assert "apt-get install chromium" in done.stderr
    assert "make .venv/ready && .venv/bin/uv pip install --group browser" in done.stderr
    assert sorted(path.name for path in checkout.iterdir()) == sorted(FILES)


def test_install_prints_lines_where_the_output_is_no_terminal(checkout: Path) -> None:
    """One every few seconds, and the last says how many packages there are."""
    installer = checkout / "installer"
    installer.write_text(SLOW_INSTALLER)
    installer.chmod(0o755)
    done = make(checkout, ".venv/ready", f"UV={installer}", "SECONDS_BETWEEN_LINES=0.2")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if " s: 0 of " in line]
    assert len(lines) >= 4
    assert lines[-1].endswith(" packages")
    installer.write_text("#!/bin/sh\nexit 3\n")
    (checkout / ".venv" / "ready").unlink()
    assert make(checkout, ".venv/ready", f"UV={installer}").returncode == 2


@pytest.mark.parametrize(("version", "stays"), [(sys.version_info[:2], True), ((3, 1), False)])
def test_another_python_makes_the_environment_anew(checkout: Path, version: tuple[int, int], *, stays: bool) -> None:
    """An environment of another version than PYTHON names is deleted; one of the same version is kept."""
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{version}'\n")
    python.chmod(0o755)
    assert make(checkout, "help").returncode == 0
    assert python.exists()
    assert make(checkout, "help", f"PYTHON={sys.executable}").returncode == 0
    assert python.exists() is stays
