"""Lets Spark run for a user without an entry in the passwd database, as a container with `user: 12345` has none.

Java reads the name and the home of the user from that database. Without them, Ivy refuses the folder "?/.ivy2", and
the login of Hadoop fails with "invalid null input: name".
"""

import os
from functools import cache
from typing import Any

from ads_pipeline.spark.private_directory import private_directory


@cache
def user_name() -> str | None:
    """A name for the user of this process; None when the system knows one, or has no passwd database."""
    try:
        import pwd  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return f"uid{os.getuid()}"
    return None


def java_properties() -> dict[str, str]:
    """The properties that Java cannot find out about a user without a name."""
    name = user_name()
    return {} if name is None else {"user.name": name, "user.home": str(private_directory())}


@cache
def log_in(options: tuple[tuple[str, str], ...]) -> None:
    """Start the JVM and a context with these options, for a user with a name. A process keeps its JVM."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - commands that start no Spark import this module
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - the same

    conf = SparkConf().setAll(list(options))
    gateway: Any = launch_gateway(conf)  # type: ignore[no-untyped-call] # pyspark's own types leave it out
    users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
    users.setLoginUser(users.createRemoteUser(user_name()))
    SparkContext(conf=conf, gateway=gateway)
