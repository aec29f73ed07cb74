"""A proxy that answers every request over HTTP/2 with an HTTP status and an HTML page, as company proxies do."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server, socket
from typing import Final

from ads_pipeline.google_ads.loopback.credentials import CERTIFICATE, PRIVATE_KEY

_PAGE: Final = b"<html><body>Blocked by the policy of the company</body></html>"
_SETTINGS, _HEADERS, _DATA, _END_STREAM, _END_HEADERS, _ACK = 4, 1, 0, 1, 4, 1
_PREFACE_BYTES: Final = 24


@contextmanager
def refusing_proxy(folder: Path, status: int) -> Iterator[int]:
    """Run the proxy with the certificate in the folder until the end of the block. Yield its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / CERTIFICATE, folder / PRIVATE_KEY)
    context.set_alpn_protocols(["h2"])
    with create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, status), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket, context: ssl.SSLContext, status: int) -> None:
    while True:
        try:
            plain, _address = listener.accept()
        except OSError:  # the listener is closed
            return
        threading.Thread(target=_serve, args=(plain, context, status), daemon=True).start()


def _serve(plain: socket, context: ssl.SSLContext, status: int) -> None:
    try:
        with context.wrap_socket(plain, server_side=True) as connection:
            _read(connection, _PREFACE_BYTES)
            connection.sendall(_frame(_SETTINGS, 0, 0, b""))
            while True:
                length, kind, flags, stream = _read_frame_header(connection)
                _read(connection, length)
                if kind == _SETTINGS and not flags & _ACK:
                    connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
                elif kind == _HEADERS:
                    connection.sendall(_answer(stream, status))
    except OSError:
        return


def _answer(stream: int, status: int) -> bytes:
    """HEADERS with :status and content-type as literals without indexing, then the page."""
    fields = b"\x08\x03" + str(status).encode() + b"\x0f\x10\x09text/html"
    return _frame(_HEADERS, _END_HEADERS, stream, fields) + _frame(_DATA, _END_STREAM, stream, _PAGE)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _read_frame_header(connection: socket) -> tuple[int, int, int, int]:
    header = _read(connection, 9)
    return int.from_bytes(header[:3]), header[3], header[4], int.from_bytes(header[5:])


def _read(connection: socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        part = connection.recv(count - len(content))
        if not part:
            raise ConnectionError("the client is gone")
        content += part
    return content
