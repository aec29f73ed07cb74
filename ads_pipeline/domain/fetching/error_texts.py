"""Says in words what the error classes of the retry policy mean. A class without a text is shown as it is."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ERROR_TEXTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "damaged": "the files differ from the seal",
        "count_mismatch": "row count differs from the seal",
        "unreadable_line": "a line cannot be read",
        "wrong_type": "a value has the wrong type",
        "contract": "rows violate the contract",
        "quota_exhausted": "the quota is used up",
        "source_unavailable": "the source is not available",
        "run_too_long": "the run reached its time limit before this day",
        "credentials_refused": "the credentials were refused",
        "version_ended": "the API version has ended",
        "customer_not_enabled": "the account is not enabled",
        "permission_denied": "access to the account was refused",
        "manager_account": "the account is a manager account",
        "unrecognized_field": "the query has an unknown field",
        "query_refused": "the query was refused",
        "out_of_reach": "the source no longer has this day",
        "transient": "temporary fault of the source",
        "timed_out": "the answer took too long",
        "google_ads_error": "Google Ads reported an error",
        "rows_refused": "rows of the answer were refused",
        "demoted": "an operator demoted the run",
    }
)


def describe_error(error_class: str | None) -> str:
    """Describe the meaning of the class in words."""
    return ERROR_TEXTS.get(error_class, error_class) if error_class else "the cause is not known"
