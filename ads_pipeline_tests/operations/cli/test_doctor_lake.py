"""`ads-pipeline doctor` on a lake that is not in the home: a folder elsewhere, or a bucket."""

import os
from pathlib import Path

from ads_pipeline_tests.lake.storage.fault_proxy import start_fault_proxy
from ads_pipeline_tests.lake.storage.s3_server import SECRET
from ads_pipeline_tests.operations.cli.running import CommandLine


def find_lake_problems(cli: CommandLine) -> list[tuple[str, str]]:
    findings = cli.run("doctor", "--json").objects
    return [(each["severity"], each["problem"]) for each in findings if each["check"] == "lake"]


def open_cli(home: Path, lake: str, postgres_url: str, **more: str) -> CommandLine:
    return CommandLine(home=home, more={"ADS_PIPELINE_LAKE": lake, "ADS_PIPELINE_DATABASE_URL": postgres_url, **more})


def test_usable_lake_has_no_finding(tmp_path: Path, postgres_url: str, store_location: str) -> None:
    """An empty folder and an empty bucket can be used."""
    if store_location.startswith("/"):
        Path(store_location).mkdir(mode=0o700)
    assert find_lake_problems(open_cli(tmp_path, store_location, postgres_url)) == []


def test_missing_folder_is_an_error(tmp_path: Path, postgres_url: str) -> None:
    """The next step names the variable."""
    cli = open_cli(tmp_path, str(tmp_path / "lake"), postgres_url)
    assert find_lake_problems(cli) == [("error", "it is not a directory")]


def test_missing_bucket_is_an_error(tmp_path: Path, postgres_url: str, s3_endpoint: str) -> None:
    """The finding has the code of the service, and no credentials."""
    cli = open_cli(tmp_path, "s3://no-such-bucket/ads", postgres_url)
    assert find_lake_problems(cli) == [("error", "the bucket's service answered 404 NoSuchBucket")]
    assert SECRET not in cli.run("doctor").out


def test_bucket_without_conditional_put_is_an_error(tmp_path: Path, postgres_url: str, s3_location: str) -> None:
    """Two writers of one name would overwrite each other, so the service is refused."""
    with start_fault_proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        proxy.removed_headers = frozenset({"if-none-match"})
        cli = open_cli(tmp_path, s3_location, postgres_url, AWS_ENDPOINT_URL=proxy.endpoint)
        ((severity, problem),) = find_lake_problems(cli)
    assert severity == "error"
    assert problem == (f"{s3_location} has no conditional put (If-None-Match: *): writers would overwrite each other")
