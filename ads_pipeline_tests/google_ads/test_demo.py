"""`ads-pipeline demo --google-ads`: everything that a new user sees without credentials."""

from pathlib import Path

import pytest

from ads_pipeline_tests.operations.cli.running import CommandLine


@pytest.mark.timeout(1200)
def test_demo_shows_extraction_without_credentials(tmp_path: Path) -> None:
    """Discovery, ranges, a parked account, a wait and a restatement; nothing of the server stays."""
    cli = CommandLine(home=tmp_path / "home", more={"ADS_PIPELINE_SPARK": "local[2]", "COLUMNS": "200"})
    done = cli.process("demo", "--google-ads")
    assert done.code == 0, done.err
    # A list of reachable accounts, one of the manager, four conversion windows, two accounts to fetch, two refusals.
    assert "operations of the API that the server counted: 10" in done.lines
    assert "operations of the API that the server counted: 4" in done.lines
    assert "account_canceled" in done.out
    assert "permission_denied" in done.out
    assert "the quota is used up" in done.out
    rows = [line.split() for line in done.lines if line.startswith(("2000000001 ", "2000000002 "))]
    shops = [row for row in rows if row[1] == "14"]  # the others are accounts and restatements
    assert [row[0] for row in shops] == ["2000000001", "2000000002"] * 2
    assert "3 restatements" in done.lines
    before, after = shops[:2], shops[2:]
    assert [(row[4], 2 * float(row[5])) for row in before] == [(row[4], float(row[5])) for row in after]
    assert list(tmp_path.rglob("*.pem")) == []
    assert list(tmp_path.rglob("google-ads.yaml")) == []
