"""The loopback server, a process of its own: GoogleAdsService and CustomerService over TLS, and a token server.

    python -m ads_pipeline.google_ads.loopback.loopback_server FOLDER VERSION

It writes its certificate, the key file of a service account, and last its port into the folder. It ends when its
standard input is closed. `process` starts it.
"""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.rpc import status_pb2

from ads_pipeline.google_ads.loopback.answers import Answers
from ads_pipeline.google_ads.loopback.credentials import (
    ACCESS_TOKEN,
    CERTIFICATE,
    LOOPBACK,
    PRIVATE_KEY,
    write_key_file,
)
from ads_pipeline.google_ads.loopback.scenarios import (
    Behaviour,
    GoogleError,
    RequestFailure,
    Scenario,
    decode_scenario,
)
from ads_pipeline.google_ads.requests.descriptors import VersionFields

CONTROL = "ads_pipeline.Loopback"
PORT_FILE = "port"
_TOO_OLD = GoogleError(category="click_view_error", number=3, message="The date is too old.")


class Service:
    """Answers requests by the current scenario, and counts one operation for each."""

    def __init__(self, version: str) -> None:
        self._answers = Answers(version, VersionFields(version))
        self._version, self._ids = version, count(1)
        self.scenario = Scenario()
        self._start_counting()

    def _start_counting(self) -> None:
        self._operations: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._headers: dict[str, str] = {}
        self._queries: list[str] = []

    def search_stream(self, request: Any, context: Any) -> Iterator[bytes]:
        request_id, customer = f"request-{next(self._ids)}", request.customer_id
        self._note(context, customer, request.query)
        if "FROM customer_client" in request.query:
            self._fail_as_told(customer, context, request_id, batches=0)
            if self._behaviour(customer).stalls_lists:
                _wait_until_gone(context)
            yield self._answers.clients(self.scenario.clients.get(customer, ()), request_id)
            return
        if "FROM conversion_action" in request.query:
            windows = self.scenario.conversion_windows.get(customer, {"ENABLED": 30})
            yield self._answers.lookback(windows, request.query, request_id)
            return
        self._check_query(request.query, customer, context, request_id)
        behaviour = self._behaviour(customer)
        sent = 0
        is_slow = _is_slow(behaviour, self._answers.days(request.query))
        for batch in self._answers.batches(customer, request.query, behaviour, behaviour.request_id or request_id):
            self._fail_as_told(customer, context, request_id, batches=sent)
            if is_slow or behaviour.stall_after == sent:
                yield from self._stall(behaviour, context, request_id)
                return
            if behaviour.delay_seconds:
                time.sleep(behaviour.delay_seconds)
            yield batch if sent or behaviour.batch_hex is None else bytes.fromhex(behaviour.batch_hex)
            sent += 1
        self._fail_as_told(customer, context, request_id, batches=sent)

    def search(self, request: Any, context: Any) -> Any:
        """Only validates, which is what the product asks for."""
        self._note(context, request.customer_id, request.query)
        self._check_query(request.query, request.customer_id, context, "request-0")
        self._fail_as_told(request.customer_id, context, "request-0", batches=0)
        types = import_module(f"google.ads.googleads.{self._version}.services.types.google_ads_service")
        return types.SearchGoogleAdsResponse()

    def list_accessible_customers(self, _request: Any, context: Any) -> Any:
        self._note(context, "list_accessible_customers", "")
        types = import_module(f"google.ads.googleads.{self._version}.services.types.customer_service")
        names = [f"customers/{each}" for each in self.scenario.accessible]
        return types.ListAccessibleCustomersResponse(resource_names=names)

    def replace_scenario(self, content: bytes, _context: Any) -> bytes:
        """Answer by another scenario. The counts go on."""
        self.scenario = decode_scenario(content)
        self._failed.clear()
        return b""

    def reset(self, _content: bytes, _context: Any) -> bytes:
        self.scenario = Scenario()
        self._start_counting()
        return b""

    def describe(self, _content: bytes, _context: Any) -> bytes:
        described = {"operations": self._operations, "headers": self._headers, "queries": self._queries}
        return json.dumps(described).encode()

    def _behaviour(self, customer: str) -> Behaviour:
        return self.scenario.customers.get(customer, Behaviour())

    def _stall(self, behaviour: Behaviour, context: Any, request_id: str) -> Iterator[bytes]:
        """Send nothing more, or only empty batches, until the client goes."""
        if not behaviour.stalls_empty:
            _wait_until_gone(context)
        while behaviour.stalls_empty and context.is_active():
            yield self._answers.empty_batch(request_id)
            time.sleep(0.02)

    def _note(self, context: Any, customer: str, query: str) -> None:
        metadata = dict(context.invocation_metadata())
        self._operations[customer] += 1
        self._queries.append(query)
        if self.scenario.away is not None:
            context.abort(grpc.StatusCode[self.scenario.away], "the source is away")
        self._headers = {
            name: metadata.get(name, "") for name in ("login-customer-id", "developer-token", "authorization")
        }

    def _check_query(self, query: str, customer: str, context: Any, request_id: str) -> None:
        behaviour = self._behaviour(customer)
        if unknown := self._answers.unknown_field(query):
            self._refuse(context, request_id, GoogleError(category="query_error", number=32, message=f"{unknown}?"))
        if behaviour.needs_login not in (None, self._headers["login-customer-id"]):
            denied = GoogleError(category="authorization_error", number=2, message="User doesn't have permission.")
            self._refuse(context, request_id, denied, code="PERMISSION_DENIED")
        if behaviour.max_days is not None and len(self._answers.days(query)) > behaviour.max_days:
            wide = behaviour.too_wide or GoogleError(category="query_error", number=36, message="Too wide.")
            self._refuse(context, request_id, wide)
        days = self._answers.days(query)
        if behaviour.first_day is not None and days and days[0].isoformat() < behaviour.first_day:
            self._refuse(context, request_id, _TOO_OLD)

    def _fail_as_told(self, customer: str, context: Any, request_id: str, *, batches: int) -> None:
        failure = self._behaviour(customer).failure
        if failure is None or batches != failure.after_batches:
            return
        if failure.times is not None and self._failed[customer] >= failure.times:
            return
        self._failed[customer] += 1
        self._fail(context, failure, request_id)

    def _refuse(self, context: Any, request_id: str, error: GoogleError, code: str = "INVALID_ARGUMENT") -> NoReturn:
        self._fail(context, RequestFailure(code=code, errors=(error,)), request_id)

    def _fail(self, context: Any, failure: RequestFailure, request_id: str) -> NoReturn:
        """As Google does: a status, and the failure in the trailing metadata under the version's key."""
        metadata = [("request-id", request_id)]
        if failure.errors or failure.undecodable or failure.failure_hex is not None:
            key = f"google.ads.googleads.{self._version}.errors.googleadsfailure-bin"
            metadata.append((key, self._answers.encode_failure(failure, request_id)))  # type: ignore[arg-type]
        context.set_trailing_metadata(tuple(metadata))
        message = failure.message or (failure.errors[0].message if failure.errors else "connection reset")
        if failure.details_code is not None:
            details = status_pb2.Status(code=failure.details_code, message=message)
            metadata.append(("grpc-status-details-bin", details.SerializeToString()))
            context.set_trailing_metadata(tuple(metadata))
        context.abort(grpc.StatusCode[failure.code], message)
        raise AssertionError("abort raises")


def _is_slow(behaviour: Behaviour, days: list[date]) -> bool:
    too_many = behaviour.slow_days is not None and len(days) > behaviour.slow_days
    return too_many or behaviour.slow_day in {day.isoformat() for day in days}


def _wait_until_gone(context: Any) -> None:
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait(600)


def serve(folder: Path, version: str) -> None:
    service = Service(version)
    server = grpc.server(ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers(_handlers(service, version))
    pair = (folder / PRIVATE_KEY).read_bytes(), (folder / CERTIFICATE).read_bytes()
    port = server.add_secure_port(f"{LOOPBACK}:0", grpc.ssl_server_credentials([pair]))
    server.start()
    write_key_file(folder, _serve_tokens(service))
    (folder / "port.tmp").write_text(str(port))
    (folder / "port.tmp").rename(folder / PORT_FILE)
    sys.stdin.read()  # until whoever started it goes
    server.stop(0)


def _handlers(service: Service, version: str) -> tuple[Any, ...]:
    package = f"google.ads.googleads.{version}.services"
    ads = import_module(f"{package}.types.google_ads_service")
    customers = import_module(f"{package}.types.customer_service")
    methods = {
        f"{package}.GoogleAdsService": {
            "SearchStream": grpc.unary_stream_rpc_method_handler(
                service.search_stream,
                request_deserializer=ads.SearchGoogleAdsStreamRequest.deserialize,
                response_serializer=bytes,
            ),
            "Search": grpc.unary_unary_rpc_method_handler(
                service.search,
                request_deserializer=ads.SearchGoogleAdsRequest.deserialize,
                response_serializer=ads.SearchGoogleAdsResponse.serialize,
            ),
        },
        f"{package}.CustomerService": {
            "ListAccessibleCustomers": grpc.unary_unary_rpc_method_handler(
                service.list_accessible_customers,
                request_deserializer=customers.ListAccessibleCustomersRequest.deserialize,
                response_serializer=customers.ListAccessibleCustomersResponse.serialize,
            )
        },
        CONTROL: {
            "ReplaceScenario": grpc.unary_unary_rpc_method_handler(service.replace_scenario),
            "Reset": grpc.unary_unary_rpc_method_handler(service.reset),
            "Describe": grpc.unary_unary_rpc_method_handler(service.describe),
        },
    }
    return tuple(grpc.method_handlers_generic_handler(name, each) for name, each in methods.items())


def _serve_tokens(service: Service) -> str:
    """Start the token server, and return the address of its tokens."""

    class Tokens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            refused, page = service.scenario.refuse_token, service.scenario.token_page
            token = {"access_token": ACCESS_TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            body = json.dumps({"error": "invalid_grant"} if refused else token).encode()
            if page is not None:
                body = b"<html><body>Blocked by the policy of the company</body></html>"
            self.send_response(page or (400 if refused else 200))
            self.send_header("content-type", "application/json" if page is None else "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Tokens)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{LOOPBACK}:{server.server_port}/token"


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
