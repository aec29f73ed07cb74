"""`queries check`: fields that a version of the API does not have, before any call."""

from pathlib import Path

import pytest

from ads_pipeline.google_ads.configuration import installed_versions
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE
from ads_pipeline_tests.operations.cli.running import CommandLine

NO_NETWORK = (
    "import socket\n"
    "def refuse(*_a, **_k): raise OSError('the network is forbidden')\n"
    "socket.socket.connect = socket.create_connection = refuse\n"
)


def own_file(cli: CommandLine, old: str, new: str) -> Path:
    """A query file in the home, with one change."""
    path = cli.home / "google_apis.yaml"
    text = DEFAULT_QUERIES_FILE.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_shipped_queries_pass_without_a_network(empty_cli: CommandLine, tmp_path: Path) -> None:
    """The shipped queries fit the configured version, and the check works where no connection is possible."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    path = f"{tmp_path / 'site'}:{empty_cli.environ().get('PYTHONPATH', '')}"
    done = empty_cli.process("queries", "check", PYTHONPATH=path)
    assert (done.code, done.err) == (0, "")
    assert done.lines[-1] == "the fields of all queries exist in v26 and fit their contracts"


@pytest.mark.parametrize("version", installed_versions())
def test_each_installed_version_can_be_checked(empty_cli: CommandLine, version: str) -> None:
    """The queries can be checked against any version that the client has."""
    done = empty_cli.run("queries", "check", "--api-version", version)
    assert (done.code, done.lines[-1]) == (
        0,
        f"the fields of all queries exist in {version} and fit their contracts",
    )


def test_misspelt_field_is_named_with_file_line_and_nearest_name(empty_cli: CommandLine) -> None:
    """A field that the version does not have fails the check, with its file, line, query and the nearest name."""
    path = own_file(empty_cli, "campaign.advertising_channel_type,", "campaign.advertising_channel_typ,")
    contracts = empty_cli.run("queries", "check")
    assert contracts.code == 78  # the contract needs the column of the right spelling
    path.write_text(path.read_text().replace("channel_typ,", "channel_type,\n        metrics.cost_microz,"))
    done = empty_cli.run("queries", "check")
    assert done.code == 1
    (line,) = [each for each in done.lines if "cost_microz" in each]
    assert line.startswith(f"{path}:")
    assert line.endswith(
        "campaign_daily: metrics.cost_microz: no such field in v26; did you mean metrics.cost_micros?"
    )


def test_upgrade_that_breaks_a_query_is_a_notice(empty_cli: CommandLine) -> None:
    """What the next version lacks is listed, and does not fail the check of the version in use."""
    own_file(empty_cli, "api_version: v26", "api_version: v25")
    done = empty_cli.run("queries", "check")
    assert (done.code, "an upgrade to v26 breaks nothing that can be checked here" in done.lines) == (0, True)


def test_ended_version_is_refused(empty_cli: CommandLine) -> None:
    """A version that the client no longer has is an error that lists those it has."""
    own_file(empty_cli, "api_version: v26", "api_version: v19")
    done = empty_cli.run("queries", "check")
    assert done.code == 64
    assert "api_version v19: the client has no such version; it has v26, v25" in done.err
    assert "--api-version v18" in empty_cli.run("queries", "check", "--api-version", "v18").err
