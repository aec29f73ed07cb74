"""A process that uses gRPC can start others, among them the JVM of Spark."""

import os
import subprocess
import sys

# pyspark starts its JVM with a `preexec_fn`, so that Python forks.
FORK_WITH_GRPC = """
import ads_pipeline
import grpc, os, subprocess
from concurrent.futures import ThreadPoolExecutor

server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result(60)
for _ in range(100):
    subprocess.run(["true"], preexec_fn=lambda: None, check=True)
os._exit(0)
"""


def test_process_that_uses_grpc_can_fork() -> None:
    """gRPC's handlers of a fork log a line for each, and sometimes the child dies in them. They are switched off."""
    variables = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-c", FORK_WITH_GRPC]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
