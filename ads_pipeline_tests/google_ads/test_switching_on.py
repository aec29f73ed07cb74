"""ADS_PIPELINE_GOOGLE_ADS: off is as if there were no extraction; on is checked at once, without a call."""

import os
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from ads_pipeline.domain.errors import BadSettings
from ads_pipeline.google_ads import configuration
from ads_pipeline.google_ads.loopback.credentials import KEY_FILE
from ads_pipeline.google_ads.loopback.loopback_process import ROOTS, LoopbackServer
from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.orchestration.runs.origin_files import origin_files
from ads_pipeline.settings.environment import read_settings

LOAD = """
import sys
from ads_pipeline.definitions import defs
loaded = defs()
print("google.ads" in sys.modules, "ads_pipeline.google_ads.client" in sys.modules)
print(*sorted(job.name for job in loaded.resolve_all_job_defs() if not job.name.startswith("_")))
"""


def load(home: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ADS_PIPELINE_", "GOOGLE_ADS_"))}
    return subprocess.run(
        [sys.executable, "-c", LOAD],
        env=own | {"ADS_PIPELINE_HOME": str(home)} | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_off_imports_nothing_and_adds_no_job(tmp_path: Path) -> None:
    """Without the setting, credentials of other tools change nothing: no job and no import of the client."""
    done = load(tmp_path, GOOGLE_ADS_CLIENT_ID="x", GOOGLE_ADS_REFRESH_TOKEN="y")
    assert done.stdout.splitlines() == ["False False", "maintenance reconcile"], done.stderr


def test_on_imports_the_client_only_in_a_step(tmp_path: Path, server: LoopbackServer) -> None:
    """Loading the definitions with extraction on checks the configuration, imports no client and makes no call."""
    done = load(tmp_path, ADS_PIPELINE_GOOGLE_ADS=str(server.configuration))
    assert done.stdout.splitlines() == [
        "False False",
        "discover_accounts maintenance reconcile",
    ], done.stderr
    assert server.operations() == {}


@pytest.mark.invariant("L10")
def test_waiting_process_is_outdated_by_new_credentials(tmp_path: Path, server: LoopbackServer) -> None:
    """The files of the credentials are among those that outdate a process that has loaded the definitions.

    So is the query file, also the one in the home that does not exist yet.
    """
    settings = read_settings(
        {"ADS_PIPELINE_HOME": str(tmp_path), "ADS_PIPELINE_GOOGLE_ADS": str(server.configuration)}
    )
    build_location(settings)
    folder = server.configuration.parent
    expected = {
        settings.queries_file,
        tmp_path / "google_apis.yaml",
        server.configuration,
        folder / KEY_FILE,
        Path(os.environ[ROOTS]),
    }
    assert expected <= origin_files()


def mistakes(monkeypatch: pytest.MonkeyPatch, home: Path, setting: str, **environ: str) -> str:
    for name in list(os.environ):
        if name.startswith("GOOGLE_ADS_"):
            monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadSettings) as caught:
        build_location(read_settings({"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_GOOGLE_ADS": setting}))
    return str(caught.value)


def test_on_without_the_extra_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the client, the code location does not load, and the message has the command that installs it."""

    def absent(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(configuration, "distribution", absent)
    assert f"run {configuration.install_command()}, or set" in mistakes(monkeypatch, tmp_path, "env")


def test_command_installs_the_client_into_this_python() -> None:
    """With the versions that the extra allows. It works wherever this package came from; pip resolves it."""
    program, *arguments, client = shlex.split(configuration.install_command())
    assert [program, *arguments] == [sys.executable, "-m", "pip", "install"]
    assert set(client.removeprefix("google-ads").split(",")) == {"<35", ">=34"}


@pytest.mark.invariant("X1")
def test_on_without_credentials_names_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing and half credentials are named by their keys, and values are not shown."""
    assert "no GOOGLE_ADS_… variable is set" in mistakes(monkeypatch, tmp_path, "env")
    half = mistakes(monkeypatch, tmp_path, "env", GOOGLE_ADS_CLIENT_ID="i", GOOGLE_ADS_REFRESH_TOKEN="never-shown")
    assert "client_secret of the refresh token's keys are missing" in half
    assert "never-shown" not in half


def test_on_with_a_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read or parsed is a mistake at start."""
    assert "the file cannot be read" in mistakes(monkeypatch, tmp_path, str(tmp_path / "none.yaml"))
    (tmp_path / "broken.yaml").write_text("a: [")
    assert "the file is not valid YAML" in mistakes(monkeypatch, tmp_path, str(tmp_path / "broken.yaml"))
