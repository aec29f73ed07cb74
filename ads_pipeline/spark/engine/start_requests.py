"""Asks the engine to execute a run, and reads its answer."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ads_pipeline.spark.engine_address import NO_ANSWER, Answer, exchange

EXECUTE: Final = b"execute "
MAX_REQUEST: Final = 60_000  # bytes; a pipe holds 64 KiB for a process that does not read
SECONDS_TO_LAUNCH: Final = 15.0  # Dagster's daemon launches one run after the other
# Variables that name a file of certificates or credentials, which a library may read once for a process.
CERTIFICATES: Final = (
    "AWS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "PGPASSFILE",
    "PGSSLCERT",
    "PGSSLKEY",
    "PGSSLROOTCERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)
_PREFIXES: Final = ("ADS_PIPELINE_", "GOOGLE_", "AWS_", "AZURE_", "PG", "SPARK_", "PYSPARK_")
_NAMES: Final = frozenset({*CERTIFICATES, "PYTHONPATH", "JAVA_HOME", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run, and what its process must have: the module of its definitions, a Python, and an environment."""

    engine_run_id: str
    module: str
    executable: str
    arguments: tuple[str, ...]  # of the command `dagster`; they may hold secrets of Dagster's configuration
    environment: Mapping[str, str]  # the digest of each variable that decides what a run does

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, text: bytes) -> "RunRequest":
        """Raises ValueError or TypeError for anything else."""
        found: Any = json.loads(text)
        return cls(**found | {"arguments": tuple(found["arguments"])})


def request_run(home: Path, request: RunRequest) -> Answer:
    """Ask the engine of this home to execute a run. Raises OSError when it does not say whether it does."""
    question = EXECUTE + request.encode() + b"\n"
    if len(question) > MAX_REQUEST:
        return Answer(problem=f"Dagster's configuration has more than {MAX_REQUEST:,} bytes")
    received = exchange(home, question, SECONDS_TO_LAUNCH)
    if received is None:
        return Answer()
    try:
        return Answer.decode(received)
    except (ValueError, TypeError) as error:
        raise ConnectionError(NO_ANSWER) from error


def describe_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The digests of the variables that decide what a run does. Other variables differ from process to process."""
    return {
        name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()
        for name, value in environ.items()
        if name.startswith(_PREFIXES) or name.upper() in _NAMES
    }


def find_changed(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """The names of the variables that differ."""
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
