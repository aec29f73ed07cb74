"""A Spark Connect server on the loopback address, for as long as its standard input is open.

The supervisor starts this program. When the supervisor dies in any way, standard input closes and this process ends;
then the standard input of its JVM closes, and the JVM ends, too.
"""

import os
import select
import socket
import subprocess
import sys
from typing import Final

from py4j.protocol import Py4JError

from ads_pipeline.spark.engine_address import LOOPBACK
from ads_pipeline.spark.private_directory import remove_private_directory
from ads_pipeline.spark.session import SPARK_SETTINGS, open_own_session

WARM_UP: Final = "ads_pipeline.spark.engine.warm_up"
SECONDS_BETWEEN_CHECKS: Final = 1.0
SERVER_SETTINGS: Final = SPARK_SETTINGS | {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": LOOPBACK,
}


def serve(master: str) -> None:
    """Start the server, print its port, and return when standard input closes or the JVM has died."""
    port = find_free_port()
    settings = SERVER_SETTINGS | {"spark.master": master, "spark.connect.grpc.binding.port": str(port)}
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = open_own_session(settings)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    if master.startswith("local"):
        _warm_up = subprocess.Popen([sys.executable, "-m", WARM_UP, str(port)], stdin=subprocess.PIPE)  # noqa: S603
    while not select.select([sys.stdin], [], [], SECONDS_BETWEEN_CHECKS)[0]:
        try:
            _ = spark.version  # a call to the JVM
        except (Py4JError, OSError):
            return


def find_free_port() -> int:
    """A port for the server, which cannot tell the one that it would choose itself."""
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        port: int = unused.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(sys.argv[1])
    remove_private_directory()
    os._exit(0)  # without waiting for a JVM that still works for a dead run
