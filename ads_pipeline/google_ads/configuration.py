"""Reads and checks the client's own configuration: the GOOGLE_ADS_* variables or a google-ads.yaml.

Nothing here imports the client or makes a call, so the check runs whenever the code location is loaded. Messages name
keys and never show a value.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Any, Final

import yaml

from ads_pipeline.domain.errors import BadSettings, Mistake
from ads_pipeline.domain.quoting import printable
from ads_pipeline.google_ads.faults.scrubbing import Scrubber

VARIABLE: Final = "ADS_PIPELINE_GOOGLE_ADS"
FROM_ENVIRONMENT: Final = "env"
_EXTRA: Final = "google-ads"
_PREFIX: Final = "GOOGLE_ADS_"
_PATH_VARIABLE: Final = f"{_PREFIX}CONFIGURATION_FILE_PATH"
_OAUTH_KEYS: Final = ("client_id", "client_secret", "refresh_token")
_KEYS: Final = (
    *_OAUTH_KEYS,
    "json_key_file_path",
    "impersonated_email",
    "use_application_default_credentials",
    "developer_token",
    "login_customer_id",
    "linked_customer_id",
    "endpoint",
    "http_proxy",
)
_SECRET_KEYS: Final = ("client_secret", "refresh_token", "developer_token", "http_proxy")
_KEY_FILE_FIELDS: Final = ("client_email", "private_key", "token_uri")
_TRUE: Final = ("y", "yes", "t", "true", "on", "1")
_LOGIN_ID: Final = re.compile(r"[0-9]{10}", re.ASCII)
_OTHERS: Final = 0o077  # permissions of anybody but the owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfiguration:
    """The client's configuration, and the files that it was read from.

    `warnings` are sentences for the log, such as a key file that others may read.
    """

    values: Mapping[str, Any] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def login_customer_id(self) -> str | None:
        login = self.values.get("login_customer_id")
        return None if login is None else str(login)

    @property
    def scrubber(self) -> Scrubber:
        return Scrubber(self.secrets)


def read_configuration(setting: str, environ: Mapping[str, str]) -> ClientConfiguration:
    """The configuration that the setting names, `env` or a path; BadSettings lists every mistake."""
    mistakes: list[str] = []
    named = dict(_find_file(setting, environ))
    values = _read_values(named, environ, mistakes)
    files = named | dict(_find_key_file(values or {}))
    warnings = list(_find_open_files(files))
    if values is not None:
        mistakes += _find_value_problems(values)
    secrets = _collect_secrets(values or {}, mistakes)
    if mistakes:
        raise BadSettings(tuple(Mistake(location=VARIABLE, problem=problem) for problem in mistakes))
    assert values is not None  # noqa: S101 - otherwise there is a mistake
    return ClientConfiguration(values=values, secrets=secrets, files=tuple(files.values()), warnings=tuple(warnings))


def installed_versions() -> tuple[str, ...]:
    """The versions of the API that the installed client has, newest first; empty without the client."""
    try:
        package = Path(str(distribution("google-ads").locate_file("google/ads/googleads")))
    except PackageNotFoundError:
        return ()
    found = [path.name for path in package.glob("v*") if re.fullmatch(r"v[0-9]+", path.name)]
    return tuple(sorted(found, key=lambda name: int(name[1:]), reverse=True))


def install_command() -> str:
    """The command that installs the client into this Python, from the package index.

    It names the client and not this package, which may have come from a checkout or a wheel.
    """
    given = (each.partition(";") for each in requires("ads-pipeline") or ())
    clients = [requirement.strip() for requirement, _, marker in given if _EXTRA in marker]
    return shlex.join([sys.executable, "-m", "pip", "install", *clients])


def check_installation(api_version: str, location: str) -> None:
    """BadSettings when the client is not installed or does not have this version of the API."""
    versions = installed_versions()
    if not versions:
        problem = f"the client of Google Ads is not installed; run {install_command()}, or set {VARIABLE}=off"
        raise BadSettings((Mistake(location=VARIABLE, problem=problem),))
    if api_version not in versions:
        problem = f"the installed client has no {printable(api_version)}; it has {', '.join(versions)}"
        raise BadSettings((Mistake(location=location, problem=problem),))


def _find_file(setting: str, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """The google-ads.yaml with the variable that names it; nothing where variables are the configuration."""
    if setting != FROM_ENVIRONMENT:
        yield VARIABLE, Path(setting)
    elif named := environ.get(_PATH_VARIABLE):
        yield _PATH_VARIABLE, Path(os.path.expanduser(named))  # noqa: PTH111 - Path's own raises for an unknown user


def _find_key_file(values: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    if path := values.get("json_key_file_path"):
        yield "json_key_file_path", Path(path)


def _read_values(named: Mapping[str, Path], environ: Mapping[str, str], mistakes: list[str]) -> dict[str, Any] | None:
    for name, path in named.items():
        return _read_file(path, "the file" if name == VARIABLE else f"the file of {name}", mistakes)
    found = {key: environ.get(_PREFIX + key.upper()) for key in _KEYS}
    values: dict[str, Any] = {key: value for key, value in found.items() if value}
    if not values:
        mistakes.append(f"is env, and no {_PREFIX}… variable is set; docs/google-ads.md lists them")
        return None
    return _normalize(values)


def _read_file(path: Path, name: str, mistakes: list[str]) -> dict[str, Any] | None:
    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        mistakes.append(f"{name} cannot be read: {error.strerror}")
        return None
    except (yaml.YAMLError, ValueError, RecursionError):
        mistakes.append(f"{name} is not valid YAML")  # the parser's text would quote the file
        return None
    if not isinstance(document, dict):
        mistakes.append(f"{name} must hold keys and values, such as json_key_file_path: …")
        return None
    return _normalize({key: document[key] for key in _KEYS if document.get(key) not in (None, "")})


def _normalize(values: dict[str, Any]) -> dict[str, Any]:
    """Texts as the client wants them. Without proto-plus, reading a row is nine times as fast."""
    texts = {key: value if isinstance(value, bool) else str(value) for key, value in values.items()}
    default = str(texts.pop("use_application_default_credentials", "")).lower() in _TRUE
    return texts | ({"use_application_default_credentials": True} if default else {}) | {"use_proto_plus": False}


def _find_value_problems(values: Mapping[str, Any]) -> Iterator[str]:
    given = [key for key in _OAUTH_KEYS if key in values]
    is_complete = len(given) == len(_OAUTH_KEYS)
    if not (is_complete or "json_key_file_path" in values or "use_application_default_credentials" in values):
        missing = ", ".join(key for key in _OAUTH_KEYS if key not in values)
        yield (
            f"{missing} of the refresh token's keys are missing"
            if given
            else "names no credentials: set json_key_file_path; or client_id, client_secret and refresh_token; or "
            "use_application_default_credentials"
        )
    for key in ("login_customer_id", "linked_customer_id"):
        if key in values and not _LOGIN_ID.fullmatch(values[key]):
            yield f"{key} must be ten digits without hyphens"


def _collect_secrets(values: Mapping[str, Any], mistakes: list[str]) -> tuple[str, ...]:
    """The values that must not reach a message: tokens, passwords, and the lines of a private key."""
    secrets = [values[key] for key in _SECRET_KEYS if key in values]
    if "json_key_file_path" in values:
        secrets += _read_private_key(Path(values["json_key_file_path"]), mistakes)
    return tuple(secrets)


def _read_private_key(path: Path, mistakes: list[str]) -> list[str]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        mistakes.append(f"the file of json_key_file_path cannot be read: {error.strerror}")
        return []
    except (ValueError, RecursionError):
        mistakes.append("the file of json_key_file_path is not JSON")
        return []
    absent = [name for name in _KEY_FILE_FIELDS if not isinstance(document, dict) or not document.get(name)]
    if absent:
        mistakes.append(f"the file of json_key_file_path lacks {', '.join(absent)}: it is no service account's key")
        return []
    return [line for line in str(document["private_key"]).splitlines() if line and "PRIVATE KEY" not in line]


def _find_open_files(files: Mapping[str, Path]) -> Iterator[str]:
    """A warning for each file of secrets that others may read."""
    for name, path in files.items():
        try:
            is_open = path.stat().st_mode & _OTHERS
        except OSError:
            continue
        if is_open:
            yield f"others may read the file of {name}; run chmod 600 on it"
