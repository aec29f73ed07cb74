"""Connects to the Spark server of the engine, at the address that the server has bound."""

import os
from collections.abc import Mapping
from typing import Any, Final

import grpc
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.session import SparkSession as RemoteSession

from ads_pipeline.spark.engine_address import LOOPBACK

_REMOTE_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"  # as Spark's own builder sets it


class LoopbackChannel(DefaultChannelBuilder):
    """A channel to the loopback address, with a token and without TLS.

    Spark's own channel sends a token without TLS to the name `localhost` only. That name may also be another address,
    such as ::1, where another user can listen on the same port.
    """

    def __init__(self, port: int, token: str) -> None:
        super().__init__(f"sc://{LOOPBACK}:{port}")
        self._credentials = grpc.composite_channel_credentials(
            grpc.local_channel_credentials(), grpc.access_token_call_credentials(token)
        )

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - the name in Spark
        return self._secure_channel(self.endpoint, self._credentials)


def connect(port: int, token: str, options: Mapping[str, str]) -> SparkSession:
    """A session on the server at this port."""
    os.environ[_REMOTE_MODE] = "1"
    builder: Any = RemoteSession.builder.channelBuilder(LoopbackChannel(port, token))
    for name, value in options.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session
