"""A proxy between a client and a bucket's service, which fails as a test wants and counts its failures."""

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

from ads_pipeline_tests.lake.storage.s3_server import KEY_ID, SECRET

# What S3 tells a client whose signature is wrong.
ERROR_BODY: Final = f"<Error><Code>Injected</Code><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId>{SECRET}</Error>".encode()
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"}


class Fault(StrEnum):
    """What becomes of one request. The service executes it only where it says so."""

    FORBIDDEN = "403"
    CONFLICT = "409"  # S3: another conditional put of this name is under way
    PRECONDITION_FAILED = "412"
    TOO_MANY_REQUESTS = "429"
    SERVER_ERROR = "500"
    SLOW_DOWN = "503"
    RESET = "reset"
    TIMEOUT = "timeout"
    EXECUTED_AND_RESET = "executed, then reset"
    EXECUTED_AND_SERVER_ERROR = "executed, then 500"
    EXECUTED_AND_TIMEOUT = "executed, then timeout"
    CUT = "executed, the answer ends early"


TRANSIENT = tuple(fault for fault in Fault if fault is not Fault.FORBIDDEN)
LOST_ANSWERS = (Fault.EXECUTED_AND_RESET, Fault.EXECUTED_AND_SERVER_ERROR, Fault.EXECUTED_AND_TIMEOUT)
# (method, path) -> a fault, or None for none
Choice = Callable[[str, str], Fault | None]


@dataclass(slots=True, kw_only=True)
class FaultProxy:
    """The endpoint of the proxy, which requests fail, and how many did."""

    endpoint: str = ""
    hold: float = 1.0  # seconds that a request is held back; more than the client waits
    choose: Choice = field(default=lambda _method, _path: None)
    after_execution: Callable[[], object] = lambda: None  # called once a request is carried out whose answer is lost
    removed_headers: frozenset[str] = frozenset()  # what the service does not know
    fired: Counter[str] = field(default_factory=Counter)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail_next(self, *faults: Fault, methods: str = "PUT") -> None:
        """Fail the next requests of these methods, one fault each."""
        left = list(faults)

        def choose(method: str, _path: str) -> Fault | None:
            return left.pop(0) if left and method in methods.split() else None

        self.choose = choose

    def fail_at_random(self, seed: int, rate: float, methods: str = "GET HEAD PUT POST DELETE") -> None:
        """Fail this part of the requests of these methods, with faults that the seed chooses."""
        chance = random.Random(seed)

        def choose(method: str, _path: str) -> Fault | None:
            return chance.choice(TRANSIENT) if method in methods.split() and chance.random() < rate else None

        self.choose = choose

    def take(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.requests.append(f"{method} {path}")
            fault = self.choose(method, path)
            if fault is not None:
                self.fired[fault] += 1
            return fault


@contextmanager
def start_fault_proxy(service: str) -> Iterator[FaultProxy]:
    """A proxy in front of the service at this endpoint."""
    proxy = FaultProxy()

    class Handler(_Handler):
        state = proxy
        host = urlsplit(service).netloc

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FaultProxy
    host: str

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.state.take(self.command, self.path)
        match fault:
            case None:
                self._answer(*self._forward(body))
            case Fault.RESET:
                self._reset()
            case Fault.TIMEOUT:
                self._hold()
            case Fault.EXECUTED_AND_RESET:
                self._forward(body)
                self.state.after_execution()
                self._reset()
            case Fault.EXECUTED_AND_TIMEOUT:
                self._forward(body)
                self._hold()
            case Fault.EXECUTED_AND_SERVER_ERROR:
                self._forward(body)
                self._answer(500, {}, ERROR_BODY)
            case Fault.CUT:
                self._answer(*self._forward(body), cut=True)
            case _:
                self._answer(int(fault), {}, ERROR_BODY)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any  # noqa: N815 - named by the library

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            removed = _HOP_BY_HOP | self.state.removed_headers
            headers = {name: value for name, value in self.headers.items() if name.lower() not in removed}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            answer = connection.getresponse()
            content = answer.read()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
            if self.command == "HEAD":
                kept["Content-Length"] = answer.getheader("Content-Length") or "0"
            return answer.status, kept, content
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
        with suppress(ConnectionError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers and status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self._reset()

    def _hold(self) -> None:
        time.sleep(self.state.hold)
        self.close_connection = True

    def _reset(self) -> None:
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass
