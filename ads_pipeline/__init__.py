"""Turns Google Ads reports into a warehouse people can trust."""

import os

# A process that has called an API over gRPC may start the JVM of Spark, and pyspark forks for that. With gRPC's fork
# handlers, about one child in a hundred dies before it becomes the JVM. gRPC reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
