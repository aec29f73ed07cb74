"""Finds the engine of a deployment, and asks it for a Spark server.

The engine has a Unix socket in a directory that only its owner may enter. A link below the home points at it, because
the path of a socket must be short. Whoever may use the socket gets the port and the token of the server.
"""

import json
import os
import re
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

HAS_UNIX_SOCKETS: Final = hasattr(socket, "AF_UNIX")
LOOPBACK: Final = "127.0.0.1"
SECONDS_TO_START: Final = 120
# What a client of HTTP/2 sends first, with empty settings. A server answers with its own settings.
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of Spark's variable
MAX_ANSWER: Final = 4_096
_MASTER: Final = re.compile(r"local.*|yarn|(?:spark|k8s)://.*")
LOCATION: Final = "ads_pipeline.definitions"  # the module of this package's code location
UNTIL_STDIN_CLOSES: Final = "--until-stdin-closes"  # arguments of the supervisor: when it ends,
MODULE: Final = "--module"  # and the module of the code location whose runs it executes
START, PING = b"start\n", b"ping\n"
NO_ANSWER: Final = "the engine ended before it answered"
_FOREIGN: Final = "the engine belongs to another user"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The time that an engine may be silent, and the interval between looks at its server.

    `seconds_to_answer` is for the supervisor to say that it lives, and for the server to begin a connection. After
    `silent_checks` without a connection a server is ended, and with it what its runs do.
    """

    seconds_to_answer: float = 10.0
    seconds_between_checks: float = 10.0
    silent_checks: int = 3
    seconds_to_stop: float = 10.0


LIMITS: Final = EngineLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of the engine: a server on the loopback address, or the process of a run, or why there is none."""

    problem: str | None = None
    pid: int = 0  # of the process that executes the run
    port: int = 0
    token: str = ""
    spark: str = ""  # the setting that the server was started with
    version: str = ""  # of pyspark

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, text: bytes) -> "Answer":
        """Raises ValueError or TypeError for anything else."""
        return cls(**json.loads(text))


def needs_engine(spark: str) -> bool:
    """Return whether this setting names a master, and neither a server of Connect nor a user's function."""
    return _MASTER.fullmatch(spark) is not None


def engine_directory(home: Path) -> Path:
    return home / "engine"


def engine_link(home: Path) -> Path:
    return engine_directory(home) / "socket"


def request_server(home: Path, limits: EngineLimits = LIMITS) -> Answer | None:
    """Ask the engine of this home for its server, which may have to start first. None where no engine was started.

    The answer has a problem when the supervisor or its server hangs.
    """
    alive = _ask(home, PING, limits.seconds_to_answer)
    if alive is None or alive.problem is not None:
        return alive
    return _ask(home, START, SECONDS_TO_START)


def is_running(home: Path) -> bool:
    """Return whether an engine of this home answers."""
    answer = _ask(home, PING, LIMITS.seconds_to_answer)
    return answer is not None and answer.problem is None


def is_answering(port: int, seconds: float) -> bool:
    """Return whether the server at this port begins a connection. The kernel accepts one for a stopped process."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=seconds) as connection:
            connection.sendall(_HTTP2_PREFACE)
            return bool(connection.recv(1))
    except OSError:
        return False


def exchange(home: Path, question: bytes, seconds: float) -> bytes | None:
    """The answer of this home's engine to a question. None where no engine was started.

    Raises OSError when the engine does not answer in time, or belongs to another user.
    """
    if not HAS_UNIX_SOCKETS:
        return None
    try:
        path = engine_link(home).readlink()
    except OSError:
        return None
    if path.lstat().st_uid != os.geteuid():  # another user's server could return any verdict
        raise PermissionError(_FOREIGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        connection.sendall(question)
        return _receive(connection)


def _ask(home: Path, question: bytes, seconds: float) -> Answer | None:
    try:
        received = exchange(home, question, seconds)
    except OSError as error:
        return Answer(problem=describe_silence(error))
    return None if received is None else _parse(received)


def describe_silence(error: OSError) -> str:
    """Why the engine gave no answer."""
    if error.args == (_FOREIGN,):
        return _FOREIGN
    return f"the engine does not answer: {error.strerror or type(error).__name__}"


def _receive(connection: socket.socket) -> bytes:
    received = b""
    while len(received) < MAX_ANSWER and (part := connection.recv(MAX_ANSWER)):
        received += part
    return received


def _parse(answer: bytes) -> Answer:
    with suppress(ValueError, TypeError):
        return Answer.decode(answer)
    return Answer(problem=NO_ANSWER)
