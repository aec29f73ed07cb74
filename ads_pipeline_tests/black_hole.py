"""A TCP proxy on loopback that can fall silent: it takes what both sides send, and passes nothing on."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import sqlalchemy as sa


@dataclass(slots=True, kw_only=True)
class BlackHole:
    """The port of the proxy. While `swallows` is set, each connection stays open and gets no answer."""

    port: int
    swallows: threading.Event = field(default_factory=threading.Event)
    connections: int = 0

    def url(self, postgres_url: str) -> str:
        """The URL of the database through the proxy."""
        through = sa.make_url(postgres_url).set(host="127.0.0.1", port=self.port)
        return through.difference_update_query(["host", "port"]).render_as_string(hide_password=False)


@contextmanager
def black_hole_before(postgres_url: str) -> Iterator[BlackHole]:
    """Run a proxy to the database until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy, opened = BlackHole(port=listener.getsockname()[1]), list[socket.socket]()
        thread = threading.Thread(target=_accept, args=(listener, postgres_url, proxy, opened), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in opened:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()


def _accept(listener: socket.socket, postgres_url: str, proxy: BlackHole, opened: list[socket.socket]) -> None:
    with suppress(OSError):  # the listener was shut down
        while True:
            client, _address = listener.accept()
            server = _connect(postgres_url)
            opened += [client, server]
            proxy.connections += 1
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(source, target, proxy), daemon=True).start()


def _connect(postgres_url: str) -> socket.socket:
    """A connection to the database, which may listen on a Unix socket."""
    url = sa.make_url(postgres_url)
    host, port = str(url.query.get("host", url.host)), int(str(url.query.get("port", url.port or 5432)))
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(f"{host}/.s.PGSQL.{port}")
    return connection


def _pass_on(source: socket.socket, target: socket.socket, proxy: BlackHole) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            if not proxy.swallows.is_set():
                target.sendall(data)
        if not proxy.swallows.is_set():
            target.shutdown(socket.SHUT_WR)
