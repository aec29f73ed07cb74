"""A server of azurite that stands in for Azure, from npm.

`make test` needs no npm. The suites also run against Azure after `npm install --prefix DIR azurite`, with
`AZURITE=DIR/node_modules/.bin/azurite-blob make test`.
"""

import base64
import hashlib
import hmac
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Final

from ads_pipeline_tests.ports import reserve_port

ACCOUNT: Final = "devstoreaccount1"
# The key of every emulator: https://learn.microsoft.com/azure/storage/common/storage-connect-azurite
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER: Final = "lake"
COMMAND: Final = os.environ.get("AZURITE")
_VERSION = "2021-12-02"


def variables(endpoint: str) -> dict[str, str]:
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{ACCOUNT}",
        "AZURE_ALLOW_HTTP": "true",
    }


@contextmanager
def start_azurite() -> Iterator[str]:
    """The endpoint of a new server, which has one empty container."""
    assert COMMAND is not None
    port = reserve_port()
    command = [COMMAND, "--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with subprocess.Popen([*command, "--blobHost", "127.0.0.1", "--blobPort", str(port)]) as process:
        try:
            endpoint = f"http://127.0.0.1:{port}"
            for _ in range(300):
                try:
                    _create_container(endpoint)
                    break
                except urllib.error.URLError as error:
                    if isinstance(error, urllib.error.HTTPError):
                        raise
                    time.sleep(0.1)
            yield endpoint
        finally:
            process.terminate()


def _create_container(endpoint: str) -> None:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    path = f"/{ACCOUNT}/{CONTAINER}"
    signed = "PUT\n" + "\n" * 11 + "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed += f"/{ACCOUNT}{path}\nrestype:container"
    signature = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    request = urllib.request.Request(f"{endpoint}{path}?restype=container", headers=headers, method="PUT")
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
