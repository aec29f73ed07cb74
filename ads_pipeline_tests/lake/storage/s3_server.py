"""A server of moto that stands in for S3, in a process of its own."""

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

BUCKET: Final = "lake"
SECRET: Final = "canary-secret-key-81c3"
KEY_ID: Final = "AKIACANARY81C3"
_OLDER: Final = "/_older"


def variables(endpoint: str) -> dict[str, str]:
    """The environment of a client, as obstore, delta-rs and DuckDB read it."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def reserve_endpoint() -> socket.socket:
    """A port of its own for a server that starts later. Processes that need the endpoint can start before it."""
    reserved = socket.socket()
    reserved.bind(("127.0.0.1", 0))
    return reserved


@contextmanager
def start_s3(reserved: socket.socket) -> Iterator[str]:
    """The endpoint of a new server at the reserved port, which has one empty bucket."""
    command = [sys.executable, "-m", "ads_pipeline_tests.lake.storage.s3_server", str(reserved.fileno())]
    with subprocess.Popen(
        command, pass_fds=[reserved.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline(), "moto did not start"
            endpoint = endpoint_of(reserved)
            request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
            yield endpoint
        finally:
            process.terminate()


def endpoint_of(reserved: socket.socket) -> str:
    return f"http://127.0.0.1:{reserved.getsockname()[1]}"


def make_older(location: str, days: float) -> None:
    """Move the time at which all objects below a location were written back by this many days."""
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    query = urlencode({"bucket": bucket, "prefix": prefix, "seconds": days * 86400})
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{endpoint}{_OLDER}?{query}").close()


def _make_older(parameters: dict[str, str]) -> None:
    """What the server does. moto keeps its objects in memory."""
    from moto.s3.models import s3_backends  # noqa: PLC0415

    age = timedelta(seconds=float(parameters["seconds"]))
    for account in s3_backends.values():
        for backend in account.values():
            if bucket := backend.buckets.get(parameters["bucket"]):
                for name in [name for name in bucket.keys if name.startswith(parameters["prefix"])]:
                    bucket.keys[name].last_modified -= age


def _serve() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002
            pass

    moto = DomainDispatcherApplication(create_backend_app)

    def serve(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] != _OLDER:
            return moto(environ, start_response)
        _make_older(dict(parse_qsl(environ["QUERY_STRING"])))
        start_response("204 No Content", [])
        return []

    # One request after the other: moto looks for an object and then writes it, without a lock.
    reserved = socket.socket(fileno=int(sys.argv[1]))
    reserved.listen(128)
    server = make_server("127.0.0.1", 0, serve, threaded=False, request_handler=Quiet, fd=reserved.fileno())
    print("started", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    os.environ |= variables("http://127.0.0.1")
    _serve()
