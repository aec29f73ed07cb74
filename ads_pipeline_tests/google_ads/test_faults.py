"""Faults: each of Google's errors, as the real client raises it, gives its class, wait, request id and message."""

from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.protobuf.message import DecodeError

from ads_pipeline.domain.fetching.outages import SOURCE_UNAVAILABLE
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.configuration import installed_versions, read_configuration
from ads_pipeline.google_ads.faults.fault_reading import (
    DEFAULT_WAIT,
    LONGEST_WAIT,
    Fault,
    RequestContext,
    read_fault,
)
from ads_pipeline.google_ads.faults.fault_table import GRAVITY, NEXT_MOVES, ROWS_REFUSED, classify, listed_faults
from ads_pipeline.google_ads.loopback.credentials import DEVELOPER_TOKEN
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, GoogleError, RequestFailure, Scenario
from ads_pipeline_tests.google_ads.builders import API_VERSION, CUSTOMER, LOGIN, google_error
from ads_pipeline_tests.google_ads.refusing_proxy import refusing_proxy

QUERY = "SELECT segments.date, customer.id, metrics.clicks FROM campaign WHERE segments.date BETWEEN '{}' AND '{}'"
CODES = ["INVALID_ARGUMENT", "INTERNAL", "RESOURCE_EXHAUSTED"]


NAMES = {"source": "google_ads", "customer": CUSTOMER, "query": "campaign_daily"}


def provoke(server: LoopbackServer, clients: Clients, failure: RequestFailure, **context: Any) -> Fault:
    """Let the server fail a request, and read the exception that the real client raises."""
    server.answer(Scenario(customers={CUSTOMER: Behaviour(failure=failure)}))
    query = QUERY.format("2026-10-01", "2026-10-07")
    try:
        for _batch in clients.search_stream(customer_id=CUSTOMER, login_customer_id=LOGIN, query=query):
            pass
    except Exception as error:  # noqa: BLE001 - the client raises more than it documents
        return read_fault(error, replace(clients.request_context(LOGIN, parked_names=NAMES), **context))
    raise AssertionError("the request did not fail")


EXPECTED = [
    ("quota_error", "RESOURCE_EXHAUSTED", "quota_exhausted"),
    ("quota_error", "RESOURCE_TEMPORARILY_EXHAUSTED", "quota_exhausted"),
    ("quota_error", "EXCESSIVE_SHORT_TERM_QUERY_RESOURCE_CONSUMPTION", "quota_exhausted"),
    ("quota_error", "EXCESSIVE_LONG_TERM_QUERY_RESOURCE_CONSUMPTION", "quota_exhausted"),
    ("quota_error", "ACCESS_PROHIBITED", "credentials_refused"),
    ("authorization_error", "PROJECT_DISABLED", "credentials_refused"),
    ("authorization_error", "CLOUD_PROJECT_NOT_APPROVED_FOR_PRODUCTION", "credentials_refused"),
    ("authorization_error", "CLOUD_PROJECT_NOT_UNDER_ORGANIZATION", "credentials_refused"),
    ("authorization_error", "MISSING_TOS", "credentials_refused"),
    ("authorization_error", "DEVELOPER_TOKEN_PROHIBITED", "credentials_refused"),
    ("authorization_error", "DEVELOPER_TOKEN_NOT_ON_ALLOWLIST", "credentials_refused"),
    ("authorization_error", "SERVICE_ACCESS_DENIED", "credentials_refused"),
    ("authentication_error", "OAUTH_TOKEN_REVOKED", "credentials_refused"),
    ("authentication_error", "NOT_ADS_USER", "credentials_refused"),
    ("authentication_error", "CUSTOMER_NOT_FOUND", "permission_denied"),
    ("authentication_error", "CLIENT_CUSTOMER_ID_INVALID", "permission_denied"),
    ("authorization_error", "CUSTOMER_NOT_ENABLED", "customer_not_enabled"),
    ("authorization_error", "ACTION_NOT_PERMITTED_FOR_SUSPENDED_ACCOUNT", "customer_not_enabled"),
    ("authorization_error", "INCOMPLETE_SIGNUP", "customer_not_enabled"),
    ("customer_error", "ACCOUNT_NOT_SET_UP", "customer_not_enabled"),
    ("authorization_error", "USER_PERMISSION_DENIED", "permission_denied"),
    ("authorization_error", "INVALID_LOGIN_CUSTOMER_ID_SERVING_CUSTOMER_ID_COMBINATION", "permission_denied"),
    ("authorization_error", "ACTION_NOT_PERMITTED", "permission_denied"),
    ("authorization_error", "AUTHORIZATION_ERROR", "permission_denied"),
    ("authorization_error", "ACCESS_DENIED_FOR_ACCOUNT_TYPE", "permission_denied"),
    ("request_error", "LOGIN_CUSTOMER_ID_PARAMETER_MISSING", "permission_denied"),
    ("request_error", "INVALID_CUSTOMER_ID", "permission_denied"),
    ("header_error", "INVALID_LOGIN_CUSTOMER_ID", "permission_denied"),
    ("query_error", "REQUESTED_METRICS_FOR_MANAGER", "manager_account"),
    ("request_error", "CANNOT_BE_EXECUTED_BY_MANAGER_ACCOUNT", "manager_account"),
    ("query_error", "UNRECOGNIZED_FIELD", "unrecognized_field"),
    ("query_error", "BAD_FIELD_NAME", "unrecognized_field"),
    ("query_error", "DATE_RANGE_TOO_WIDE", "range_too_wide"),
    ("query_error", "PROHIBITED_SEGMENT_WITH_METRIC_IN_SELECT_OR_WHERE_CLAUSE", "query_refused"),
    ("authorization_error", "METRIC_ACCESS_DENIED", "query_refused"),
    ("date_range_error", "REQUESTED_DATE_GRANULARITY_NOT_SUPPORTED", "out_of_reach"),
    ("click_view_error", "EXPECTED_FILTER_ON_A_SINGLE_DAY", "single_days_only"),
    ("click_view_error", "DATE_TOO_OLD", "out_of_reach"),
    ("change_event_error", "START_DATE_TOO_OLD", "out_of_reach"),
    ("change_status_error", "START_DATE_TOO_OLD", "out_of_reach"),
    ("request_error", "UNSUPPORTED_VERSION", "version_ended"),
    ("internal_error", "TRANSIENT_ERROR", "transient"),
    ("internal_error", "INTERNAL_ERROR", "transient"),
    ("header_error", "INVALID_LINKED_CUSTOMER_ID", "google_ads_error"),
    ("field_error", "REQUIRED", "google_ads_error"),
]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("category", "name", "error_class"), EXPECTED)
def test_each_error_has_its_class(
    server: LoopbackServer, clients: Clients, category: str, name: str, error_class: str, code: str
) -> None:
    """Each error gives its class under every code, also those under which the client decodes no failure."""
    fault = provoke(server, clients, RequestFailure(code=code, errors=(google_error(category, name),)))
    assert fault.error_class == error_class
    assert fault.message.startswith(f"{category}.{name}: Text of Google.; request request-")
    assert fault.request_id is not None
    assert fault.request_id in fault.message
    assert (fault.wait is not None) == (error_class == "quota_exhausted")


def test_table_lists_only_errors_that_exist() -> None:
    """Every name without a wildcard in the table is an error of the newest version."""
    errors = import_module(f"google.ads.googleads.{installed_versions()[0]}.errors.types.errors")
    fields = errors.ErrorCode.pb().DESCRIPTOR.fields_by_name
    names = {category: set(fields[category].enum_type.values_by_name) for category, _ in listed_faults()}
    assert [(each, name) for each, name in listed_faults() if "*" not in name and name not in names[each]] == []


def test_each_class_has_a_gravity_and_a_next_move() -> None:
    """Every class that the table gives has a place in the order and tells what to do next."""
    given = {classify(category, name.replace("*", "X")) for category, name in listed_faults()}
    assert given <= set(GRAVITY)
    assert {*GRAVITY, ROWS_REFUSED} == set(NEXT_MOVES)


@pytest.mark.parametrize(
    ("first", "second", "error_class"),
    [
        (("query_error", "BAD_FIELD_NAME"), ("authorization_error", "USER_PERMISSION_DENIED"), "permission_denied"),
        (("quota_error", "RESOURCE_EXHAUSTED"), ("query_error", "BAD_VALUE"), "query_refused"),
        (("internal_error", "TRANSIENT_ERROR"), ("quota_error", "RESOURCE_EXHAUSTED"), "quota_exhausted"),
        (("customer_error", "ACCOUNT_NOT_SET_UP"), ("authentication_error", "NOT_ADS_USER"), "credentials_refused"),
        (("query_error", "DATE_RANGE_TOO_WIDE"), ("query_error", "BAD_VALUE"), "query_refused"),
    ],
)  # fmt: skip
def test_gravest_error_decides(
    server: LoopbackServer, clients: Clients, first: tuple[str, str], second: tuple[str, str], error_class: str
) -> None:
    """Of several errors in one failure the gravest decides, in any order, and the message names all."""
    for errors in ((first, second), (second, first)):
        failure = RequestFailure(code="INVALID_ARGUMENT", errors=tuple(google_error(*each) for each in errors))
        fault = provoke(server, clients, failure)
        assert fault.error_class == error_class
        assert all(f"{category}.{name}" in fault.message for category, name in errors)


@pytest.mark.parametrize(
    ("category", "number", "error_class"),
    [
        ("query_error", 9_999, "query_refused"),
        ("authorization_error", 9_999, "google_ads_error"),
        ("quota_error", 9_999, "google_ads_error"),
        ("internal_error", 9_999, "transient"),
    ],
)
def test_error_that_the_version_does_not_name(
    server: LoopbackServer, clients: Clients, category: str, number: int, error_class: str
) -> None:
    """An error with an unknown number gets the class of its category, and the message shows the number."""
    error = GoogleError(category=category, number=number)
    fault = provoke(server, clients, RequestFailure(code="INVALID_ARGUMENT", errors=(error,)))
    assert fault.error_class == error_class
    assert f"{category}.NUMBER_{number}" in fault.message


@pytest.mark.parametrize(
    ("code", "bare", "undecodable"),
    [
        ("UNAVAILABLE", "source_unavailable", "transient"),
        ("INTERNAL", "transient", "transient"),
        ("UNKNOWN", "transient", "transient"),
        ("ABORTED", "transient", "transient"),
        ("CANCELLED", "transient", "transient"),
        ("DEADLINE_EXCEEDED", "timed_out", "timed_out"),
        ("RESOURCE_EXHAUSTED", "quota_exhausted", "quota_exhausted"),
        ("UNAUTHENTICATED", "credentials_refused", "google_ads_error"),
        ("PERMISSION_DENIED", "credentials_refused", "google_ads_error"),
        ("UNIMPLEMENTED", "version_ended", "google_ads_error"),
        ("NOT_FOUND", "google_ads_error", "google_ads_error"),
    ],
)
@pytest.mark.parametrize("after_batches", [0, 2])
def test_status_without_readable_failure(
    server: LoopbackServer, clients: Clients, code: str, bare: str, undecodable: str, after_batches: int
) -> None:
    """Without a failure the gRPC status decides. With one that cannot be decoded it never refuses the source."""
    for error_class, is_undecodable in ((bare, False), (undecodable, True)):
        failure = RequestFailure(code=code, undecodable=is_undecodable, after_batches=after_batches)
        fault = provoke(server, clients, failure)
        assert fault.error_class == error_class
        assert code in fault.message
        assert fault.holds_customer == is_undecodable or error_class != "quota_exhausted"


@pytest.mark.invariant("L7")
@pytest.mark.parametrize(
    ("used", "advice"),
    [
        ("v24", "set api_version in the query file to one of v26, v25; "),
        (
            "v26",
            "install a newer version of google-ads, and set api_version in the query file to its newest version; ",
        ),
    ],
)
@pytest.mark.parametrize(
    "failure",
    [
        RequestFailure(code="UNIMPLEMENTED", message="GRPC target method can't be resolved."),
        RequestFailure(code="INVALID_ARGUMENT", errors=(GoogleError(category="request_error", number=38),)),
    ],
)
def test_advice_after_the_end_of_a_version(
    server: LoopbackServer, clients: Clients, failure: RequestFailure, used: str, advice: str
) -> None:
    """The next move after the end of a version names the newer ones only, or an upgrade, and how to go on."""
    newer_client = ("v26", "v25", "v24", "v23")
    fault = provoke(server, clients, failure)
    if failure.errors:
        assert fault.error_class == "version_ended"
        return
    fault = provoke(server, clients, failure, api_version=used, versions=newer_client)
    assert fault.error_class == "version_ended"
    assert fault.message.endswith(
        f"; {advice}check it with ads-pipeline queries check, "
        "then run ads-pipeline state release --source google_ads --reason TEXT"
    )


@pytest.mark.parametrize("status", [401, 403, 404, 407, 503])
def test_page_of_a_proxy_refuses_nothing(
    server: LoopbackServer, clients: Clients, tmp_path: Path, status: int
) -> None:
    """An HTTP status and a page come from something before Google: no credentials and no version are refused."""
    with refusing_proxy(server.folder, status) as port:
        configuration = read_configuration(str(server.configuration), {})
        values = {**configuration.values, "endpoint": f"127.0.0.1:{port}"}
        behind_proxy = Clients(replace(configuration, values=values), API_VERSION)
        fault = provoke(server, behind_proxy, RequestFailure(code="UNKNOWN"))
    assert (fault.error_class, fault.wait) == (SOURCE_UNAVAILABLE, None)
    assert str(status) in fault.message


@pytest.mark.parametrize("status", [403, 407, 200])
def test_page_before_the_token_server_refuses_nothing(server: LoopbackServer, status: int) -> None:
    """The page of a proxy in place of a token is no refusal of the credentials."""
    server.answer(Scenario(token_page=status))
    fresh = Clients(read_configuration(str(server.configuration), {}), API_VERSION)
    with pytest.raises(GoogleAuthError) as raised:
        fresh.search_stream(customer_id=CUSTOMER, login_customer_id=LOGIN, query=QUERY)
    assert read_fault(raised.value, fresh.request_context(LOGIN)).error_class == SOURCE_UNAVAILABLE


@pytest.mark.parametrize(
    ("seconds", "wait"),
    [
        (40_591, timedelta(seconds=40_591)),
        (40, timedelta(seconds=40)),
        (None, DEFAULT_WAIT),
        (-5, DEFAULT_WAIT),
        (2**62, LONGEST_WAIT),
        (10_000 * 365 * 86_400, LONGEST_WAIT),
    ],
)
@pytest.mark.parametrize(("rate_scope", "holds_customer"), [(2, True), (3, False), (0, False)])
@pytest.mark.parametrize("code", CODES)
def test_wait_and_scope_of_an_exhausted_quota(
    server: LoopbackServer,
    clients: Clients,
    seconds: int | None,
    wait: timedelta,
    rate_scope: int,
    holds_customer: bool,
    code: str,
) -> None:
    """The delay comes from the failure, or is an hour, and is at most a day. Only an account's own quota leaves the
    other accounts free."""
    error = google_error("quota_error", "RESOURCE_EXHAUSTED", retry_seconds=seconds, rate_scope=rate_scope)
    fault = provoke(server, clients, RequestFailure(code=code, errors=(error,)))
    assert (fault.wait, fault.holds_customer) == (wait, holds_customer)


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        (RefreshError("invalid_grant: Expired", {"error": "invalid_grant"}), "credentials_refused"),
        (
            RefreshError("Unable to acquire impersonated credentials", '{"error": {"code": 403}}'),
            "credentials_refused",
        ),
        (RefreshError("<html>Blocked</html>", retryable=False), "source_unavailable"),
        (RefreshError("try later", retryable=True), "source_unavailable"),
        (TransportError("no route"), "source_unavailable"),
        (DecodeError("Error parsing message"), "transient"),
    ],
)
def test_errors_of_the_token_server(error: Exception, error_class: str) -> None:
    """A refused refresh concerns the credentials; a failed connection to the token server does not."""
    assert read_fault(error, RequestContext(api_version=API_VERSION)).error_class == error_class


@pytest.mark.invariant("X1")
@pytest.mark.invariant("X2")
def test_message_has_no_secret_and_stays_on_one_line(server: LoopbackServer, clients: Clients) -> None:
    """A text of Google that repeats a configured secret, or breaks the line, reaches no message unchanged."""
    hostile = f"bad token {DEVELOPER_TOKEN}\nINFO: all is well\x1b[2J" + "x" * 5_000
    error = GoogleError(category="authorization_error", number=2, message=hostile)
    for code in CODES:
        fault = provoke(server, clients, RequestFailure(code=code, errors=(error,)))
        assert DEVELOPER_TOKEN not in fault.message
        assert "[secret]" in fault.message
        assert fault.message.isprintable()
        assert len(fault.message) <= 2_000
        release = f"ads-pipeline state release --customer {CUSTOMER} --reason TEXT"
        assert fault.message.endswith(f"run ads-pipeline accounts discover, then run {release}")
        assert f"sent login-customer-id {LOGIN}" in fault.message
