"""Reads the exceptions of the client, of gRPC and of google.auth into `Fault` values.

Google's failure arrives in two shapes. The client raises GoogleAdsException with the failure, except under the codes
RESOURCE_EXHAUSTED and INTERNAL: there google-api-core's exception has it, undecoded, in the trailing metadata.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

import grpc
from google.ads.googleads.errors import GoogleAdsException
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError, TransportError
from google.protobuf.message import DecodeError

from ads_pipeline.google_ads.fault_table import (
    CREDENTIALS_REFUSED,
    GOOGLE_ADS_ERROR,
    GRAVITY,
    NEXT_MOVES,
    QUOTA_EXHAUSTED,
    TRANSIENT,
    classify,
    classify_status,
)
from ads_pipeline.quoting import printable

# Every exception of a call. A call that this process cancelled raises FutureCancelledError, which is no RpcError.
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
_ACCOUNT_SCOPE: Final = 2  # QuotaRateScope.ACCOUNT; the other scope is the whole project
_MESSAGE_TOO_LARGE: Final = "larger than max"  # of this client, not a quota


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What an exception means: our error class, the message for people, and what the source is to wait for.

    `holds_customer`: an exhausted quota concerns this account only, not the whole source.
    """

    error_class: str
    message: str
    request_id: str | None = None
    wait: timedelta | None = None
    holds_customer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What a message needs from the request: the version, the login id that was sent, the versions there are."""

    api_version: str
    login_customer_id: str | None = None
    versions: tuple[str, ...] = ()
    scrub: Callable[[str], str] = str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Error:
    error_class: str
    text: str
    retry_delay: timedelta | None = None
    is_of_account: bool = False


def read_fault(error: Exception, request: RequestContext, request_id: str | None = None) -> Fault:
    """The fault that an exception of a call means. `request_id` is that of the batches, if any arrived."""
    failure = _find_failure(error, request.api_version)
    errors = [_read_error(each) for each in failure.errors] if failure is not None else []
    if not errors:
        errors = [_read_bare(error)]
    gravest = min(errors, key=lambda each: GRAVITY.index(each.error_class))
    found_id = (failure.request_id if failure is not None else "") or getattr(error, "request_id", None) or request_id
    wait = None
    if gravest.error_class == QUOTA_EXHAUSTED:
        wait = max((each.retry_delay for each in errors if each.retry_delay), default=DEFAULT_WAIT)
    return Fault(
        error_class=gravest.error_class,
        message=describe_fault(gravest.error_class, [each.text for each in errors], request, found_id),
        request_id=printable(found_id, limit=96) if found_id else None,
        wait=wait,
        holds_customer=all(each.is_of_account for each in errors if each.error_class == QUOTA_EXHAUSTED),
    )


def describe_fault(error_class: str, texts: list[str], request: RequestContext, request_id: str | None) -> str:
    """The message: Google's names and texts, the request id and the next move, without any secret."""
    move = NEXT_MOVES[error_class].format(
        login=request.login_customer_id or "none", versions=", ".join(request.versions) or "those of the client"
    )
    said = request.scrub("; ".join(dict.fromkeys(texts)))
    return printable(f"{printable(said, limit=1500)}; request {request_id or 'without id'}; {move}")


def _find_failure(error: Exception, api_version: str) -> Any:
    """The decoded GoogleAdsFailure; None when there is none, or none that can be decoded."""
    if isinstance(error, GoogleAdsException):
        return type(error.failure).pb(error.failure)
    failure = import_module(f"google.ads.googleads.{api_version}.errors.types.errors").GoogleAdsFailure
    key = f"google.ads.googleads.{api_version}.errors.googleadsfailure-bin"
    for name, value in _read_trailing_metadata(error):
        if name == key:
            try:
                return failure.pb(failure.deserialize(value))
            except DecodeError:
                return None
    return None


def _read_trailing_metadata(error: Exception) -> Iterator[tuple[str, bytes]]:
    call = getattr(error, "response", None) or error
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
        retry_delay=quota.retry_delay.ToTimedelta() if quota.HasField("retry_delay") else None,
        is_of_account=quota.rate_scope == _ACCOUNT_SCOPE,
    )


def _read_bare(error: Exception) -> _Error:
    """An exception without Google's failure."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, GoogleAuthError):
        is_transient = isinstance(error, TransportError) or error.retryable
        return _Error(error_class=TRANSIENT if is_transient else CREDENTIALS_REFUSED, text=text)
    if isinstance(error, grpc.FutureCancelledError | grpc.FutureTimeoutError | DecodeError):
        return _Error(error_class=TRANSIENT, text=text)
    status = _read_status(error)
    if status == "RESOURCE_EXHAUSTED" and _MESSAGE_TOO_LARGE in str(error):
        return _Error(error_class=GOOGLE_ADS_ERROR, text=text)
    return _Error(error_class=classify_status(status), text=f"{status}: {_read_details(error)}")


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
