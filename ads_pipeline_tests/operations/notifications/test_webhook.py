"""One request to a webhook, against a real server: what counts as taken, and that the URL never shows."""

import logging
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ads_pipeline.operations.notifications.webhook import CALL, START_SECONDS, Webhook
from ads_pipeline_tests.webhook_server import (
    PATH,
    SECRET,
    WebhookServer,
    answer_with,
    close_without_answer,
    running_server,
)


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def webhook(server: WebhookServer) -> Webhook:
    return Webhook(url=server.url, seconds=60)  # a busy machine answers late


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_message_is_taken_with_2xx(server: WebhookServer, webhook: Webhook, status: int) -> None:
    """The same body has the same key, another body another one."""
    server.answer = answer_with(status)
    assert all(webhook.send(body) == "" for body in ("{}", "{}", '{"text": "é"}'))
    assert server.bodies == ["{}", "{}", '{"text": "é"}']
    assert server.paths == [PATH] * 3
    assert server.keys[0] == server.keys[1] != server.keys[2]


@pytest.mark.parametrize("status", [400, 404, 410, 429, 500, 503])
def test_other_status_is_a_failure(server: WebhookServer, webhook: Webhook, status: int) -> None:
    """The message is sent again."""
    server.answer = answer_with(status)
    assert webhook.send("{}") == f"answered {status}"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirect_is_not_followed(server: WebhookServer, webhook: Webhook, status: int) -> None:
    """The message would reach an address that nobody configured."""
    with running_server() as other:
        server.answer = answer_with(status, Location=f"{other.address}/elsewhere")
        assert "redirect, which is not followed" in webhook.send("{}")
        assert other.bodies == []


def test_hanging_server_is_a_failure(server: WebhookServer, webhook: Webhook) -> None:
    """The sender does not wait for it."""
    server.answer = server.hang
    impatient = replace(webhook, seconds=0.5)
    assert impatient.send("{}") == "did not answer within 0.5 s"


@pytest.mark.invariant("L5")
def test_call_that_ends_at_its_limit_has_one_result() -> None:
    """The call and the timer may end the process at the same moment."""
    program = f"""
import sys, threading
from {CALL} import _end
start = threading.Barrier(16)
for number in range(16):
    threading.Thread(target=lambda: (start.wait(), _end("x" * 1000 + "."))).start()
"""
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
        assert done.stdout == "x" * 1000 + "."


@contextmanager
def dripping_server(first: bytes) -> Iterator[str]:
    """A server that sends these bytes and then a byte every 0.2 s, for ever: each wait for the next one is short."""
    stopped = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _address = listener.accept()
        with connection:
            connection.sendall(first)
            while not stopped.wait(0.2):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        stopped.set()
    thread.join()


@pytest.mark.invariant("L5")
@pytest.mark.parametrize(
    ("scheme", "first"),
    [
        ("http", b""),  # in the status line
        ("http", b"HTTP/1.1 200 OK\r\nX-Drip: "),  # in the headers
        ("https", b"\x16\x03\x03\x40\x00\x02"),  # in a record of the handshake of TLS
    ],
)
def test_server_that_answers_a_byte_now_and_then_is_a_failure(scheme: str, first: bytes) -> None:
    """One limit holds for the whole call. The process that makes the call ends with it."""
    with dripping_server(first) as address:
        started = time.monotonic()
        problem = Webhook(url=f"{scheme}://{address}/", seconds=3).send("{}")
        assert problem == "did not answer within 3 s"
        assert time.monotonic() - started < 3 + START_SECONDS


def test_endless_answer_is_not_read(server: WebhookServer, webhook: Webhook) -> None:
    """The status is enough."""
    server.answer = server.drip
    assert webhook.send("{}") == ""


def test_lost_answer_is_a_failure(server: WebhookServer, webhook: Webhook) -> None:
    """The server has the message. The sender cannot know, and sends it again."""
    server.answer = close_without_answer
    assert webhook.send("{}") == "could not be reached, or closed the connection"
    assert server.bodies == ["{}"]


def test_server_that_is_down_is_a_failure() -> None:
    """It is no error of the sender."""
    with running_server() as stopped:
        pass
    assert Webhook(url=stopped.url).send("{}") == "could not be reached, or closed the connection"


@pytest.mark.invariant("X1")
@pytest.mark.parametrize("answer", ["ok", "error", "redirect", "hang", "close", "down", "bad header", "bad port"])
def test_url_is_never_shown(
    server: WebhookServer, webhook: Webhook, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the result nor any log record contains the URL, at the finest level."""
    caplog.set_level(logging.DEBUG)
    if answer == "down":
        with running_server() as stopped:
            webhook = replace(webhook, url=stopped.url)
    if answer == "hang":
        webhook = replace(webhook, seconds=0.5)
    if answer == "bad port":
        webhook = replace(webhook, url=f"http://127.0.0.1:99999{PATH}")
    server.answer = {
        "error": answer_with(500),
        "redirect": answer_with(302, Location=f"{server.url}/again"),
        "hang": server.hang,
        "close": close_without_answer,
        "bad header": answer_with(200, **{"X-Broken\nfolded": "x"}),
    }.get(answer, answer_with(200))
    shown = [repr(webhook), str(webhook)]
    try:
        shown.append(repr(webhook.send("{}")))
    except Exception:  # noqa: BLE001 - any error is shown by the caller
        shown.append(traceback.format_exc())
    shown += [record.getMessage() for record in caplog.records]
    assert "urllib3.connectionpool" not in {record.name for record in caplog.records}
    assert [text for text in shown if SECRET in text] == []
    assert "Traceback" not in "".join(shown)
