"""A Spark Connect server on the loopback address, for as long as its standard input is open.

The supervisor starts this program. When the supervisor dies in any way, standard input closes and this process ends;
then the standard input of its JVM closes, and the JVM ends, too.
"""

import os
import select
import socket
import subprocess
import sys
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ads_pipeline.engine.address import TOKEN
from ads_pipeline.spark_session import SPARK_SETTINGS

LOOPBACK: Final = "127.0.0.1"
WARM_UP: Final = "ads_pipeline.engine.warm_up"
SECONDS_BETWEEN_CHECKS: Final = 1.0
SERVER_SETTINGS: Final = SPARK_SETTINGS | {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": LOOPBACK,
    "spark.ui.enabled": "false",  # it would listen for every host, and show what runs do
}
LOCAL_SETTINGS: Final = {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}


def serve(master: str) -> None:
    """Start the server, print its port, and return when standard input closes or the JVM has died."""
    port = _find_free_port()
    settings = SERVER_SETTINGS | {"spark.master": master, "spark.connect.grpc.binding.port": str(port)}
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= LOCAL_SETTINGS
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    if master.startswith("local"):
        address = f"sc://localhost:{port}/;token={os.environ[TOKEN]}"
        environment = os.environ | {"SPARK_REMOTE": address}
        _warm_up = subprocess.Popen([sys.executable, "-m", WARM_UP], env=environment, stdin=subprocess.PIPE)  # noqa: S603
    while not select.select([sys.stdin], [], [], SECONDS_BETWEEN_CHECKS)[0]:
        try:
            _ = spark.version  # a call to the JVM
        except (Py4JError, OSError):
            return


def _find_free_port() -> int:
    """A port for the server, which cannot tell the one that it would choose itself."""
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        port: int = unused.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(sys.argv[1])
    os._exit(0)  # without waiting for a JVM that still works for a dead run
