"""Makes one call to a webhook: a program that reads the request from standard input and prints the problem, if any.

It ends at the limit of the call, whatever it waits for.
"""

import hashlib
import json
import os
import sys
import threading
from http import HTTPStatus
from typing import Final, NoReturn

import requests

CONNECT_SECONDS: Final = 5.0  # for each address of the server
_ENDING: Final = threading.Lock()


def call(url: str, body: str, seconds: float) -> str:
    """Send one POST and return the problem, or an empty text when the server took the message."""
    encoded = body.encode()
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "Idempotency-Key": hashlib.sha256(encoded).hexdigest(),
    }
    connect_seconds = min(CONNECT_SECONDS, seconds)
    try:
        # Only the status is read: a long or endless answer does not matter.
        with requests.post(
            url,
            data=encoded,
            headers=headers,
            timeout=(connect_seconds, seconds),
            allow_redirects=False,
            stream=True,
        ) as answer:
            return _find_problem(answer.status_code)
    except requests.ConnectTimeout:
        return f"could not be reached within {connect_seconds:g} s"
    except (requests.RequestException, OSError, ValueError) as error:
        return _describe(error, seconds)


def _describe(error: Exception, seconds: float) -> str:
    """The kind of failure. The message of the error may contain the URL."""
    match error:
        case requests.Timeout():
            return _no_answer(seconds)
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


def _no_answer(seconds: float) -> str:
    return f"did not answer within {seconds:g} s"


def _end(problem: str) -> NoReturn:
    """End the process at once: without closing a connection, which may wait for the server.

    Of the call and its limit, the first one ends the process.
    """
    _ENDING.acquire()  # and never released
    sys.stdout.write(problem)
    sys.stdout.flush()
    os._exit(0)


def main() -> NoReturn:
    request = json.load(sys.stdin)
    seconds: float = request["seconds"]
    limit = threading.Timer(seconds, _end, [_no_answer(seconds)])
    limit.daemon = True
    limit.start()
    _end(call(request["url"], request["body"], seconds))


if __name__ == "__main__":
    main()
