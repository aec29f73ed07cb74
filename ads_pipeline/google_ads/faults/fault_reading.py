"""Reads the exceptions of the client, of gRPC and of google.auth into `Fault` values.

Google's failure arrives in two shapes. The client raises GoogleAdsException with the failure, except under the codes
RESOURCE_EXHAUSTED and INTERNAL: there google-api-core's exception has it, undecoded, in the trailing metadata.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

import grpc
from google.ads.googleads.errors import GoogleAdsException
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.protobuf.message import DecodeError

from ads_pipeline.domain.fetching.outages import SOURCE_UNAVAILABLE, TRANSIENT
from ads_pipeline.domain.fetching.quota import QUOTA_EXHAUSTED
from ads_pipeline.domain.fetching.retry_policy import ERROR_POLICIES, PARKING_SCOPES, ErrorPolicy
from ads_pipeline.domain.quoting import printable
from ads_pipeline.google_ads.faults.fault_table import (
    CREDENTIALS_REFUSED,
    GOOGLE_ADS_ERROR,
    GRAVITY,
    NEXT_MOVES,
    QUERY_REFUSED,
    RANGE_TOO_WIDE,
    RETRIED,
    SINGLE_DAYS_ONLY,
    classify,
    classify_status,
)

# The expected exceptions of a call. A call that this process cancelled raises FutureCancelledError, which is no
# RpcError.
CALL_ERRORS: Final = (
    GoogleAdsException,
    GoogleAPICallError,
    grpc.RpcError,
    grpc.FutureCancelledError,
    grpc.FutureTimeoutError,
    GoogleAuthError,
    DecodeError,
)
DEFAULT_WAIT: Final = timedelta(hours=1)  # for an exhausted quota that names no delay
LONGEST_WAIT: Final = timedelta(hours=24)  # of any delay that Google names: its quotas count 24 hours
_ACCOUNT_SCOPE: Final = 2  # QuotaRateScope.ACCOUNT; the other scope is the whole project
_MESSAGE_TOO_LARGE: Final = "larger than max"  # of this client, not a quota
_REQUEST_ID_LENGTH: Final = 96
# gRPC makes a status from an HTTP status when the answer is no answer of gRPC, such as the page of a proxy. Then it
# writes this text and there is no trailing metadata.
_HTTP_STATUS: Final = "Received http2 header with status: "
_FAILURE_KEY: Final = "googleadsfailure-bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The meaning of an exception: our error class, the message for people, and what the source is to wait for.

    `holds_customer`: an exhausted quota concerns this account only, not the whole source.
    """

    error_class: str
    message: str
    request_id: str | None = None
    wait: timedelta | None = None
    holds_customer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The facts of the request for a message: the version, the login id that was sent, the versions there are.

    `is_single_day`: a request that Google finds too wide cannot be narrowed, so its query is refused. `parked_names`
    maps the scopes of parkings to what a fault of this request parks. `repeat` is the command that makes a call again
    that is no fetch.
    """

    api_version: str
    login_customer_id: str | None = None
    versions: tuple[str, ...] = ()
    scrub: Callable[[str], str] = str
    is_single_day: bool = False
    parked_names: Mapping[str, str] = field(default_factory=dict)
    repeat: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Error:
    error_class: str
    text: str
    retry_delay: timedelta | None = None
    is_of_account: bool = False


def read_fault(error: Exception, request: RequestContext, request_id: str | None = None) -> Fault:
    """The fault that an exception of a call means. `request_id` is that of the batches, if any arrived.

    Any exception gives a fault. One that nobody expects, such as the client's for an answer that it cannot read, is
    GOOGLE_ADS_ERROR, which concerns only what was requested.
    """
    try:
        return _read_fault(error, request, request_id)
    except Exception as defect:  # noqa: BLE001 - an odd answer must not stop the accounts behind it
        text = f"{type(error).__name__}, which cannot be read: {type(defect).__name__}: {defect}"
        return make_fault(GOOGLE_ADS_ERROR, text, request, request_id)


def make_fault(error_class: str, text: str, request: RequestContext, request_id: str | None) -> Fault:
    """A fault that this package found itself."""
    clean = clean_request_id(request_id)
    return Fault(
        error_class=error_class, message=describe_fault(error_class, [text], request, clean), request_id=clean
    )


def clean_request_id(text: str | None) -> str | None:
    """The request id, safe to store and of bounded length; None for an empty one."""
    return printable(text, limit=_REQUEST_ID_LENGTH) if text else None


def _read_fault(error: Exception, request: RequestContext, request_id: str | None) -> Fault:
    failure, has_failure = _find_failure(error, request.api_version)
    errors = [_read_error(each) for each in failure.errors] if failure is not None else []
    if not errors:
        errors = [_read_bare(error, has_failure=has_failure)]
    error_class = min((each.error_class for each in errors), key=GRAVITY.index)
    if request.is_single_day and error_class in (RANGE_TOO_WIDE, SINGLE_DAYS_ONLY):
        error_class = QUERY_REFUSED
    found_id = (failure.request_id if failure is not None else "") or getattr(error, "request_id", None) or request_id
    clean_id = clean_request_id(found_id)
    wait = None
    if error_class == QUOTA_EXHAUSTED:
        wait = max((each.retry_delay for each in errors if each.retry_delay), default=DEFAULT_WAIT)
    return Fault(
        error_class=error_class,
        message=describe_fault(error_class, [each.text for each in errors], request, clean_id),
        request_id=clean_id,
        wait=wait,
        holds_customer=all(each.is_of_account for each in errors if each.error_class == QUOTA_EXHAUSTED),
    )


def describe_fault(error_class: str, texts: list[str], request: RequestContext, request_id: str | None) -> str:
    """The message: Google's names and texts, the request id and the next command, without any secret."""
    said = request.scrub("; ".join(dict.fromkeys(texts)))
    move = _describe_next_move(error_class, request)
    return printable(f"{printable(said, limit=1500)}; request {request_id or 'without id'}; {move}")


def _describe_next_move(error_class: str, request: RequestContext) -> str:
    move = NEXT_MOVES[error_class].format(
        login=request.login_customer_id or "none",
        customer=request.parked_names.get("customer", "CUSTOMER"),
        upgrade=_describe_upgrade(request.api_version, request.versions),
    )
    scope = PARKING_SCOPES.get(ERROR_POLICIES.get(error_class, ErrorPolicy.RETRY))
    if scope is not None and scope in request.parked_names:
        return f"{move}, then run ads-pipeline state release --{scope} {request.parked_names[scope]} --reason TEXT"
    if request.repeat:  # no fetch, so the retry policy does nothing
        again = f"then ask again: {request.repeat}"
        return again if move == RETRIED else f"{move}; {again}"
    return move


def _describe_upgrade(ended: str, versions: tuple[str, ...]) -> str:
    """Say how to leave a version that has ended. Versions end in their order, so older ones have ended too."""
    newer = [each for each in versions if int(each[1:]) > int(ended[1:])]
    if newer:
        return f"set api_version in the query file to one of {', '.join(newer)}"
    return "install a newer version of google-ads, and set api_version in the query file to its newest version"


def _find_failure(error: Exception, api_version: str) -> tuple[Any, bool]:
    """The decoded GoogleAdsFailure, or None; and whether there is one, decoded or not."""
    if isinstance(error, GoogleAdsException):
        return type(error.failure).pb(error.failure), True
    failure = import_module(f"google.ads.googleads.{api_version}.errors.types.errors").GoogleAdsFailure
    key = f"google.ads.googleads.{api_version}.errors.{_FAILURE_KEY}"
    has_failure = False
    for name, value in _read_trailing_metadata(error):
        has_failure = has_failure or name.endswith(_FAILURE_KEY)
        if name == key:
            try:
                return failure.pb(failure.deserialize(value)), True
            except DecodeError:
                return None, True
    return None, has_failure


def _read_trailing_metadata(error: Exception) -> Iterator[tuple[str, bytes]]:
    """The metadata of the call, also when the client failed to make its own exception of it."""
    call = getattr(error, "response", None) or error
    if not hasattr(call, "trailing_metadata") and isinstance(error.__context__, grpc.RpcError):
        call = error.__context__
    read = getattr(call, "trailing_metadata", None)
    yield from (read() or ()) if read is not None else ()


def _read_error(error: Any) -> _Error:
    """One error of a failure. A number that this version does not name is shown as the number."""
    category = error.error_code.WhichOneof("error_code")
    if category is None:
        return _Error(error_class=GOOGLE_ADS_ERROR, text=f"an error without a code: {error.message}")
    number = getattr(error.error_code, category)
    named = error.error_code.DESCRIPTOR.fields_by_name[category].enum_type.values_by_number.get(number)
    name = named.name if named is not None else f"NUMBER_{number}"
    quota = error.details.quota_error_details
    return _Error(
        error_class=classify(category, name),
        text=f"{category}.{name}: {error.message}",
        retry_delay=_read_delay(quota.retry_delay) if quota.HasField("retry_delay") else None,
        is_of_account=quota.rate_scope == _ACCOUNT_SCOPE,
    )


def _read_delay(delay: Any) -> timedelta:
    """The delay, at most LONGEST_WAIT. Its message may hold any integer, and protobuf's own conversion overflows."""
    seconds = min(max(delay.seconds, 0), int(LONGEST_WAIT.total_seconds()))
    return timedelta(seconds=seconds)


def _read_bare(error: Exception, *, has_failure: bool) -> _Error:
    """An exception without a failure of Google that can be read."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, GoogleAuthError):
        return _Error(error_class=_classify_auth_error(error), text=text)
    if isinstance(error, grpc.FutureCancelledError | grpc.FutureTimeoutError | DecodeError):
        return _Error(error_class=TRANSIENT, text=text)
    if not isinstance(error, CALL_ERRORS):
        return _Error(error_class=GOOGLE_ADS_ERROR, text=f"an answer that the client cannot read: {text}")
    status, details = _read_status(error), _read_details(error)
    if details.startswith(_HTTP_STATUS) and not any(_read_trailing_metadata(error)):
        return _Error(
            error_class=SOURCE_UNAVAILABLE, text=f"{status}: no answer of Google, but of a proxy: {details}"
        )
    if status == "RESOURCE_EXHAUSTED" and _MESSAGE_TOO_LARGE in str(error):
        return _Error(error_class=GOOGLE_ADS_ERROR, text=text)
    error_class = classify_status(status, has_failure=has_failure)
    return _Error(error_class=error_class, text=f"{status}: {details}", is_of_account=has_failure)


def _classify_auth_error(error: GoogleAuthError) -> str:
    """A token server refuses with a JSON object that has an `error`. A page is the answer of something before it."""
    if isinstance(error, TransportError) or error.retryable:
        return SOURCE_UNAVAILABLE
    if isinstance(error, RefreshError) and not any(map(_is_refusal, error.args)):
        return SOURCE_UNAVAILABLE
    return CREDENTIALS_REFUSED


def _is_refusal(answer: object) -> bool:
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError):
            return False
    return isinstance(answer, Mapping) and "error" in answer


def _read_status(error: Exception) -> str:
    code = getattr(error, "grpc_status_code", None)
    if code is None and callable(read := getattr(error, "code", None)):
        code = read()
    return str(getattr(code, "name", "UNKNOWN"))


def _read_details(error: Exception) -> str:
    """The text of the status, without gRPC's own debug lines."""
    message = getattr(error, "message", None)
    if message is None and callable(read := getattr(error, "details", None)):
        message = read()
    return str(message or type(error).__name__)
