"""Starts the loopback server as a process of its own, and controls it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import yaml

from ads_pipeline.google_ads.loopback.credentials import (
    CERTIFICATE,
    DEVELOPER_TOKEN,
    KEY_FILE,
    LOOPBACK,
    write_certificate,
)
from ads_pipeline.google_ads.loopback.loopback_server import CONTROL, PORT_FILE
from ads_pipeline.google_ads.loopback.scenarios import Scenario, encode_scenario

ROOTS: Final = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
CONFIGURATION: Final = "google-ads.yaml"
_START_SECONDS: Final = 60


@dataclass(frozen=True)
class LoopbackServer:
    """A running server. `configuration` is the google-ads.yaml that leads the client to it."""

    folder: Path
    channel: Any

    @property
    def configuration(self) -> Path:
        return self.folder / CONFIGURATION

    @property
    def certificate(self) -> Path:
        return self.folder / CERTIFICATE

    def answer(self, scenario: Scenario) -> None:
        self._call("ReplaceScenario", encode_scenario(scenario))

    def reset(self) -> None:
        self._call("Reset")

    def operations(self) -> Mapping[str, int]:
        """The operations since the start or the last reset, by customer."""
        counted: Mapping[str, int] = self.describe()["operations"]
        return counted

    def describe(self) -> Any:
        return json.loads(self._call("Describe"))

    def _call(self, method: str, content: bytes = b"") -> Any:
        return self.channel.unary_unary(f"/{CONTROL}/{method}")(content, timeout=30)


@contextmanager
def loopback_server(folder: Path, version: str) -> Iterator[LoopbackServer]:
    """Run the server until the end of the block.

    A client trusts the server only in a process that had the certificate's path in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH
    before it opened its first channel. This function sets it for this process and its children, until the block ends.
    """
    write_certificate(folder)
    earlier = os.environ.get(ROOTS)
    os.environ[ROOTS] = str(_write_roots(folder, earlier))
    command = [sys.executable, "-m", "ads_pipeline.google_ads.loopback.loopback_server", str(folder), version]
    server = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 - this interpreter, this package
    try:
        port = _read_port(server, folder / PORT_FILE)
        _write_configuration(folder, port)
        credentials = grpc.ssl_channel_credentials((folder / CERTIFICATE).read_bytes())
        with grpc.secure_channel(f"{LOOPBACK}:{port}", credentials) as channel:
            yield LoopbackServer(folder, channel)
    finally:
        if server.stdin is not None:
            server.stdin.close()
        _end(server)
        if earlier is None:
            del os.environ[ROOTS]
        else:
            os.environ[ROOTS] = earlier


def _write_roots(folder: Path, earlier: str | None) -> Path:
    """The certificates that children of this process trust: that of this server, and those of earlier ones."""
    roots = folder / "roots.pem"
    certificates = [(folder / CERTIFICATE).read_bytes()]
    if earlier is not None:
        with suppress(OSError):
            certificates.append(Path(earlier).read_bytes())
    roots.write_bytes(b"\n".join(certificates))
    return roots


def _end(server: "subprocess.Popen[bytes]") -> None:
    """Wait for the server, which ends with its standard input."""
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _read_port(server: "subprocess.Popen[bytes]", path: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while not path.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the loopback server did not start")
        time.sleep(0.05)
    return path.read_text()


def _write_configuration(folder: Path, port: str) -> None:
    path = folder / CONFIGURATION
    path.touch(mode=0o600)
    document = {
        "json_key_file_path": str(folder / KEY_FILE),
        "developer_token": DEVELOPER_TOKEN,
        "endpoint": f"{LOOPBACK}:{port}",
    }
    path.write_text(yaml.safe_dump(document))
