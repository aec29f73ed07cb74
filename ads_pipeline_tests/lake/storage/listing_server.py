"""A server that answers an S3 client's listings and reads from objects that it computes, in a process of its own.

moto sorts all keys of a bucket for every page. This one lists a million objects as fast as a client can read them, so
that the client's CPU time and its requests can be measured. It stores nothing.
"""

import multiprocessing
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE: Final = 1000
_MODIFIED: Final = "2026-02-01T00:00:00.000Z"


class ListingServer:
    """A running server. `count_requests` counts listings and reads since it was last called."""

    def __init__(self, endpoint: str, pipe: Connection) -> None:
        self.endpoint, self._pipe = endpoint, pipe

    def add(self, objects: Mapping[str, bytes]) -> None:
        self._pipe.send(objects)
        self._pipe.recv()

    def count_requests(self) -> dict[str, int]:
        self._pipe.send(None)
        counts: dict[str, int] = self._pipe.recv()
        return counts


@contextmanager
def start_listing_server() -> Iterator[ListingServer]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ListingServer(f"http://127.0.0.1:{ours.recv()}", ours)
    finally:
        process.kill()
        process.join()


def _serve(pipe: Connection) -> None:
    _Handler.objects, _Handler.names, _Handler.counts = {}, [], Counter()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(server.server_address[1])
    while True:
        added = pipe.recv()
        if added is None:
            pipe.send(dict(_Handler.counts))
            _Handler.counts.clear()
        else:
            _Handler.objects |= added
            _Handler.names = sorted(_Handler.objects)
            pipe.send(True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    names: list[str]
    counts: Counter[str]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        _bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        if name:
            self.counts["read"] += 1
            self._send_object(self.objects.get(name))
        else:
            self.counts["list"] += 1
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            self._send(200, _list(self.names, self.objects, query).encode(), {"Content-Type": "application/xml"})

    def _send_object(self, content: bytes | None) -> None:
        if content is None:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        headers = {"ETag": '"0"', "Last-Modified": "Sun, 01 Feb 2026 00:00:00 GMT"}
        start, end, total = 0, len(content), len(content)
        if part := self.headers.get("Range"):
            first, _, last = part.removeprefix("bytes=").partition("-")
            start, end = int(first), min(total, int(last) + 1 if last else total)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
        self._send(206 if part else 200, content[start:end], headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing: a listing of a million objects would be a thousand lines."""


def _list(names: list[str], objects: Mapping[str, bytes], query: Mapping[str, str]) -> str:
    """A page of ListObjectsV2. The continuation token is the last name of the page before."""
    prefix = query.get("prefix", "")
    after = query.get("continuation-token") or query.get("start-after") or ""
    first = max(bisect_left(names, prefix), bisect_right(names, after) if after else 0)
    size = min(int(query.get("max-keys", PAGE)), PAGE)
    end = bisect_left(names, prefix + "\U0010ffff") if prefix else len(names)
    page = names[first : min(first + size, end)]
    more = first + size < end
    token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
    contents = "".join(
        f"<Contents><Key>{quote(name) if 'encoding-type' in query else escape(name)}</Key>"
        f"<LastModified>{_MODIFIED}</LastModified><ETag>&quot;0&quot;</ETag><Size>{len(objects[name])}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for name in page
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{contents}{token}</ListBucketResult>"
    )
