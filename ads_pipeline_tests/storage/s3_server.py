"""A server of moto that stands in for S3, in a process of its own."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

BUCKET: Final = "lake"
SECRET: Final = "canary-secret-key-81c3"
KEY_ID: Final = "AKIACANARY81C3"


def variables(endpoint: str) -> dict[str, str]:
    """The environment of a client, as obstore, delta-rs and DuckDB read it."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


@contextmanager
def start_s3() -> Iterator[str]:
    """The endpoint of a new server, which has one empty bucket."""
    command = [sys.executable, "-m", "ads_pipeline_tests.storage.s3_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
            request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
            yield endpoint
        finally:
            process.terminate()


def _serve() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002
            pass

    # One request after the other: moto looks for an object and then writes it, without a lock.
    server = make_server(
        "127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False, request_handler=Quiet
    )
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    os.environ |= variables("http://127.0.0.1")
    _serve()
