"""Sends a message to the webhook of the deployment. The URL is a secret: no result, error or log contains it."""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 15.0  # together shorter than the time that Dagster gives a tick
# The loggers of the HTTP library whose records may contain the URL.
_LOGGERS: Final = ("connection", "connectionpool", "poolmanager", "response", "util.retry")
_is_sending: Final = ContextVar("_is_sending", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Whether the server took the message; if not, why: without the URL and without the server's words."""

    problem: str = ""

    @property
    def is_done(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The address that messages go to."""

    url: str = field(repr=False)
    connect_seconds: float = CONNECT_SECONDS
    answer_seconds: float = ANSWER_SECONDS

    def send(self, body: str) -> Delivery:
        """Send one POST. The same body has the same idempotency key, so a server may recognize a repetition.

        The message is taken only when the server answers with 2xx. A redirect is not followed, because the message
        would go to an address that nobody configured.
        """
        import requests  # noqa: PLC0415 - few processes send

        encoded = body.encode()
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "Idempotency-Key": hashlib.sha256(encoded).hexdigest(),
        }
        with _silenced():
            try:
                # Only the status is read: a long or endless answer does not matter.
                with requests.post(
                    self.url,
                    data=encoded,
                    headers=headers,
                    timeout=(self.connect_seconds, self.answer_seconds),
                    allow_redirects=False,
                    stream=True,
                ) as answer:
                    return Delivery(problem=_find_problem(answer.status_code))
            except (requests.RequestException, OSError, ValueError) as error:
                return Delivery(problem=self._describe(error))

    def _describe(self, error: Exception) -> str:
        """The kind of failure. The message of the error may contain the URL."""
        import requests  # noqa: PLC0415 - the same

        match error:
            case requests.ConnectTimeout():
                return f"could not be reached within {self.connect_seconds:g} s"
            case requests.Timeout():
                return f"did not answer within {self.answer_seconds:g} s"
            case requests.exceptions.SSLError():
                return "has no valid certificate"
            case requests.ConnectionError():
                return "could not be reached, or closed the connection"
        return f"could not be called ({type(error).__name__})"


def _find_problem(status: int) -> str:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return ""
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return f"answered {status}, a redirect, which is not followed: set the final address"
    return f"answered {status}"


class _WhileSending(logging.Filter):
    """Drops the records of the HTTP library while a message is sent."""

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - the base's signature
        return not _is_sending.get()


for _name in _LOGGERS:
    logging.getLogger(f"urllib3.{_name}").addFilter(_WhileSending())


@contextmanager
def _silenced() -> Iterator[None]:
    token = _is_sending.set(True)
    try:
        yield
    finally:
        _is_sending.reset(token)
