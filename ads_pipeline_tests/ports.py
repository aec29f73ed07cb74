"""Ports for servers that are told their port before they listen."""

import atexit
import random
import socket
from typing import Final

# Below the ports that an operating system hands out by itself, to servers on port 0 and to connections.
FIRST: Final = 20_000
LAST: Final = 32_000


def reserve_port() -> int:
    """A port of the loopback address that nothing listens on, and that no other test gets until this process ends.

    A port that was free a moment ago can be another server's before the server of the test listens.
    """
    while True:
        port = random.randint(FIRST, LAST)
        reservation = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            reservation.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                atexit.register(reservation.close)
                return port
        except OSError:
            reservation.close()
