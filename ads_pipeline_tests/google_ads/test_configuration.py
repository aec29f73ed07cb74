"""The client's configuration: read without a call, every mistake named by its key, no value in any message."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ads_pipeline.domain.errors import BadSettings
from ads_pipeline.google_ads.configuration import check_installation, read_configuration
from ads_pipeline.google_ads.faults.scrubbing import Scrubber

SECRET = "never-shown-5f2c"
KEY_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
OAUTH = {"client_id": "id", "client_secret": SECRET, "refresh_token": f"1//{SECRET}"}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key.json"
    path.touch(mode=0o600)
    lines = ["-----BEGIN PRIVATE KEY-----", KEY_LINE, "-----END PRIVATE KEY-----", ""]
    document = {"client_email": "a@b", "private_key": "\n".join(lines), "token_uri": "https://t"}
    path.write_text(json.dumps(document))
    return path


def write(path: Path, document: Any, mode: int = 0o600) -> str:
    path.touch(mode=mode)
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return str(path)


def mistakes(setting: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        read_configuration(setting, environ or {})
    assert SECRET not in str(caught.value)
    return [str(each) for each in caught.value.mistakes]


@pytest.mark.invariant("X1")
def test_refresh_token_from_the_environment(tmp_path: Path) -> None:
    """The GOOGLE_ADS_* variables are read as the client reads them, and no secret is in the repr."""
    environ = {f"GOOGLE_ADS_{key.upper()}": value for key, value in OAUTH.items()} | {
        "GOOGLE_ADS_LOGIN_CUSTOMER_ID": "1234567890",
        "GOOGLE_ADS_USE_PROTO_PLUS": "True",
    }
    found = read_configuration("env", environ)
    assert found.values == OAUTH | {"login_customer_id": "1234567890", "use_proto_plus": False}
    assert found.login_customer_id == "1234567890"
    assert SECRET not in repr(found) + repr(found.scrubber)
    file = write(tmp_path / "google-ads.yaml", OAUTH | {"login_customer_id": 1234567890, "logging": {"version": 1}})
    assert read_configuration(file, {}).values == found.values
    assert read_configuration("env", {"GOOGLE_ADS_CONFIGURATION_FILE_PATH": file}).values == found.values


@pytest.mark.invariant("X1")
def test_lines_of_a_private_key_are_secrets(tmp_path: Path, key_file: Path) -> None:
    """The key file of a service account is checked, and the lines of its key never reach a message."""
    file = write(tmp_path / "google-ads.yaml", {"json_key_file_path": str(key_file), "developer_token": SECRET})
    found = read_configuration(file, {})
    assert found.scrubber(f"key {KEY_LINE} token {SECRET}.") == "key [secret] token [secret]."
    assert found.warnings == ()


@pytest.mark.invariant("L10")
def test_files_of_the_configuration_are_known(tmp_path: Path, key_file: Path) -> None:
    """Whoever keeps the configuration can compare it with the files that it was read from."""
    file = write(tmp_path / "google-ads.yaml", {"json_key_file_path": str(key_file)})
    assert read_configuration(file, {}).files == (Path(file), key_file)
    assert read_configuration("env", {"GOOGLE_ADS_CONFIGURATION_FILE_PATH": file}).files == (Path(file), key_file)
    variables = {"GOOGLE_ADS_JSON_KEY_FILE_PATH": str(key_file)}
    assert read_configuration("env", variables).files == (key_file,)


def test_files_that_others_may_read_are_warned_of(tmp_path: Path, key_file: Path) -> None:
    """A configuration or key file that others may read gets a warning with the command, and is used."""
    key_file.chmod(0o640)
    file = write(tmp_path / "google-ads.yaml", {"json_key_file_path": str(key_file)}, mode=0o644)
    warnings = read_configuration(file, {}).warnings
    assert [each.split(";")[0] for each in warnings] == [
        "others may read the file of ADS_PIPELINE_GOOGLE_ADS",
        "others may read the file of json_key_file_path",
    ]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({}, "names no credentials"),
        ({"client_id": "x", "refresh_token": SECRET}, "client_secret of the refresh token's keys are missing"),
        (OAUTH | {"login_customer_id": "123-456-7890"}, "login_customer_id must be ten digits without hyphens"),
        (OAUTH | {"login_customer_id": 12345}, "login_customer_id must be ten digits without hyphens"),
        ({"json_key_file_path": "/nowhere/key.json"}, "the file of json_key_file_path cannot be read: No such file"),
        (f"a: [{SECRET}", "the file is not valid YAML"),
        ([SECRET], "the file must hold keys and values"),
    ],
)
def test_mistake_in_the_file_is_named(tmp_path: Path, document: Any, problem: str) -> None:
    """Each mistake names the key and the rule, and never shows a value."""
    (mistake,) = mistakes(write(tmp_path / "google-ads.yaml", document))
    assert mistake.startswith(f"ADS_PIPELINE_GOOGLE_ADS: {problem}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "lacks client_email, private_key, token_uri"),
        (json.dumps({"private_key": SECRET, "token_uri": "x"}), "lacks client_email"),
    ],
)
def test_broken_key_file_is_named(tmp_path: Path, content: str, problem: str) -> None:
    """A key file that is no service account's key is refused before any call."""
    (tmp_path / "key.json").write_text(content)
    file = write(tmp_path / "google-ads.yaml", {"json_key_file_path": str(tmp_path / "key.json")})
    (mistake,) = mistakes(file)
    assert problem in mistake


def test_missing_file_and_empty_environment() -> None:
    """A missing file, and `env` without any variable, are mistakes; other tools' variables do not count."""
    assert mistakes("/nowhere/google-ads.yaml") == [
        "ADS_PIPELINE_GOOGLE_ADS: the file cannot be read: No such file or directory"
    ]
    (mistake,) = mistakes("env", {"GOOGLE_ADS_OTHER": "x", "HOME": "/"})
    assert "no GOOGLE_ADS_… variable is set" in mistake


def test_file_below_the_home_of_an_unknown_user_is_a_mistake() -> None:
    """The library that expands ~ raises an error of its own, which nobody would understand."""
    (mistake,) = mistakes("env", {"GOOGLE_ADS_CONFIGURATION_FILE_PATH": "~no-such-user-here/google-ads.yaml"})
    assert "GOOGLE_ADS_CONFIGURATION_FILE_PATH" in mistake


def test_version_that_the_client_lacks_is_refused() -> None:
    """A version that the installed client does not have is a mistake that lists those it has."""
    check_installation("v26", "google_apis.yaml")
    with pytest.raises(BadSettings, match="has no v19; it has v26, v25"):
        check_installation("v19", "google_apis.yaml")


def test_scrubber_keeps_ordinary_words() -> None:
    """A secret of a few letters would hide parts of words, and is left alone."""
    assert Scrubber(["abc", SECRET])(f"abcdef {SECRET}") == "abcdef [secret]"
