"""An HTTP server on loopback that receives messages and answers as a test wants."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "canary-webhook-55d01c"
PATH = f"/services/{SECRET}"
Answer = Callable[[BaseHTTPRequestHandler], None]


def answer_with(status: int, **headers: str) -> Answer:
    """An answer with this status and no body."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def close_without_answer(request: BaseHTTPRequestHandler) -> None:
    """The server took the message, and its answer is lost."""
    request.close_connection = True


@dataclass(slots=True, kw_only=True)
class WebhookServer:
    """The requests that a server got, and how it answers the next one."""

    address: str
    answer: Answer = field(default_factory=lambda: answer_with(200))
    bodies: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"{self.address}{PATH}"

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [fact for message in self.messages for fact in message["facts"]]

    def hang(self, request: BaseHTTPRequestHandler) -> None:
        """Never answer."""
        self.stopped.wait(60)
        request.close_connection = True

    def drip(self, request: BaseHTTPRequestHandler) -> None:
        """Answer with a body that does not end."""
        request.send_response(200)
        request.end_headers()
        while not self.stopped.wait(0.05):
            try:
                request.wfile.write(b"x")
            except OSError:
                return


@contextmanager
def running_server(port: int = 0) -> Iterator[WebhookServer]:
    """Serve in a thread of this process until the end of the block."""
    received: WebhookServer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.bodies.append(body.decode())
            received.keys.append(self.headers["Idempotency-Key"])
            received.paths.append(self.path)
            received.answer(self)

        def log_message(self, *arguments: object) -> None:
            """Keep the output of the tests clean."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    received = WebhookServer(address=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        received.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
