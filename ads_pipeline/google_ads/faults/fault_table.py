"""Which of Google's errors belongs to which of our error classes, as data. `faults` reads the exceptions.

`retry_policy` decides what an error class means for a partition: try again, wait, or park the account, the query or
the whole source.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

from ads_pipeline.domain.fetching.outages import SOURCE_UNAVAILABLE, TIMED_OUT, TRANSIENT
from ads_pipeline.domain.fetching.quota import QUOTA_EXHAUSTED

CREDENTIALS_REFUSED: Final = "credentials_refused"
VERSION_ENDED: Final = "version_ended"
CUSTOMER_NOT_ENABLED: Final = "customer_not_enabled"
PERMISSION_DENIED: Final = "permission_denied"
MANAGER_ACCOUNT: Final = "manager_account"
UNRECOGNIZED_FIELD: Final = "unrecognized_field"
QUERY_REFUSED: Final = "query_refused"
OUT_OF_REACH: Final = "out_of_reach"
# Never failures of a partition: the extraction asks again for fewer days. A single day is QUERY_REFUSED.
RANGE_TOO_WIDE: Final = "range_too_wide"
SINGLE_DAYS_ONLY: Final = "single_days_only"
GOOGLE_ADS_ERROR: Final = "google_ads_error"
ROWS_REFUSED: Final = "rows_refused"  # found by this package, not by Google

RETRIED: Final = "it is fetched again by itself"
FEWER_DAYS: Final = "requested again for fewer days"

# From the gravest to the least: what concerns the source, the account, the query, and one request. One answer may
# have several errors.
GRAVITY: Final = (
    CREDENTIALS_REFUSED,
    VERSION_ENDED,
    CUSTOMER_NOT_ENABLED,
    PERMISSION_DENIED,
    MANAGER_ACCOUNT,
    UNRECOGNIZED_FIELD,
    QUERY_REFUSED,
    OUT_OF_REACH,
    QUOTA_EXHAUSTED,
    SINGLE_DAYS_ONLY,
    RANGE_TOO_WIDE,
    SOURCE_UNAVAILABLE,
    TIMED_OUT,
    TRANSIENT,
    GOOGLE_ADS_ERROR,
)

# category -> pattern of the name -> error class. The first pattern that matches counts; otherwise GOOGLE_ADS_ERROR.
_FAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "quota_error": {
        "RESOURCE_EXHAUSTED": QUOTA_EXHAUSTED,
        "RESOURCE_TEMPORARILY_EXHAUSTED": QUOTA_EXHAUSTED,
        "EXCESSIVE_*": QUOTA_EXHAUSTED,
        "ACCESS_PROHIBITED": CREDENTIALS_REFUSED,
    },
    "authorization_error": {
        "PROJECT_DISABLED": CREDENTIALS_REFUSED,
        "CLOUD_PROJECT_NOT_APPROVED_FOR_PRODUCTION": CREDENTIALS_REFUSED,
        "CLOUD_PROJECT_NOT_UNDER_ORGANIZATION": CREDENTIALS_REFUSED,
        "MISSING_TOS": CREDENTIALS_REFUSED,
        "DEVELOPER_TOKEN_*": CREDENTIALS_REFUSED,
        "SERVICE_ACCESS_DENIED": CREDENTIALS_REFUSED,
        "CUSTOMER_NOT_ENABLED": CUSTOMER_NOT_ENABLED,
        "ACTION_NOT_PERMITTED_FOR_SUSPENDED_ACCOUNT": CUSTOMER_NOT_ENABLED,
        "INCOMPLETE_SIGNUP": CUSTOMER_NOT_ENABLED,
        "USER_PERMISSION_DENIED": PERMISSION_DENIED,
        "INVALID_LOGIN_CUSTOMER_ID_SERVING_*": PERMISSION_DENIED,
        "ACTION_NOT_PERMITTED": PERMISSION_DENIED,
        "AUTHORIZATION_ERROR": PERMISSION_DENIED,
        "ACCESS_DENIED_FOR_ACCOUNT_TYPE": PERMISSION_DENIED,
        "METRIC_ACCESS_DENIED": QUERY_REFUSED,
    },
    "authentication_error": {
        "CUSTOMER_NOT_FOUND": PERMISSION_DENIED,
        "CLIENT_CUSTOMER_ID_INVALID": PERMISSION_DENIED,
        "*": CREDENTIALS_REFUSED,
    },
    "customer_error": {"ACCOUNT_NOT_SET_UP": CUSTOMER_NOT_ENABLED},
    "header_error": {"INVALID_LOGIN_*": PERMISSION_DENIED},
    "request_error": {
        "LOGIN_CUSTOMER_ID_PARAMETER_MISSING": PERMISSION_DENIED,
        "INVALID_CUSTOMER_ID": PERMISSION_DENIED,
        "CANNOT_BE_EXECUTED_BY_MANAGER_ACCOUNT": MANAGER_ACCOUNT,
        "UNSUPPORTED_VERSION": VERSION_ENDED,
    },
    "query_error": {
        "REQUESTED_METRICS_FOR_MANAGER": MANAGER_ACCOUNT,
        "UNRECOGNIZED_FIELD": UNRECOGNIZED_FIELD,
        "BAD_FIELD_NAME": UNRECOGNIZED_FIELD,
        "DATE_RANGE_TOO_WIDE": RANGE_TOO_WIDE,
        "*": QUERY_REFUSED,
    },
    "date_range_error": {"REQUESTED_DATE_GRANULARITY_NOT_SUPPORTED": OUT_OF_REACH},
    "click_view_error": {"EXPECTED_FILTER_ON_A_SINGLE_DAY": SINGLE_DAYS_ONLY, "DATE_TOO_OLD": OUT_OF_REACH},
    "change_event_error": {"START_DATE_TOO_OLD": OUT_OF_REACH},
    "change_status_error": {"START_DATE_TOO_OLD": OUT_OF_REACH},
    "internal_error": {"*": TRANSIENT},
}

# gRPC's own status, where the answer has no failure of Google Ads. It then comes from Google's front end: a project
# without the API, a missing scope, or a version that has ended.
_STATUS: Final[Mapping[str, str]] = {
    "UNAUTHENTICATED": CREDENTIALS_REFUSED,
    "PERMISSION_DENIED": CREDENTIALS_REFUSED,
    "UNIMPLEMENTED": VERSION_ENDED,
    "RESOURCE_EXHAUSTED": QUOTA_EXHAUSTED,
    "UNAVAILABLE": SOURCE_UNAVAILABLE,
    "INTERNAL": TRANSIENT,
    "UNKNOWN": TRANSIENT,
    "ABORTED": TRANSIENT,
    "CANCELLED": TRANSIENT,
    "DEADLINE_EXCEEDED": TIMED_OUT,
}

# The class of a status that speaks of the source, when it came with a failure.
_OF_ONE_ACCOUNT: Final[Mapping[str, str]] = {
    CREDENTIALS_REFUSED: GOOGLE_ADS_ERROR,
    VERSION_ENDED: GOOGLE_ADS_ERROR,
    SOURCE_UNAVAILABLE: TRANSIENT,
}

# What to do next. `faults` appends the command that lifts the parking or makes the call again.
NEXT_MOVES: Final[Mapping[str, str]] = {
    CREDENTIALS_REFUSED: "correct the credentials or the Cloud project, and enable the Google Ads API in it",
    VERSION_ENDED: "{upgrade}; check it with ads-pipeline queries check",
    CUSTOMER_NOT_ENABLED: "enable the account in Google Ads",
    PERMISSION_DENIED: "sent login-customer-id {login}; grant access or run ads-pipeline accounts discover",
    MANAGER_ACCOUNT: "a manager account has no metrics; delete its customer partition",
    UNRECOGNIZED_FIELD: "run ads-pipeline queries check and correct the query file",
    QUERY_REFUSED: "run ads-pipeline queries check --online {customer} and correct the query file",
    OUT_OF_REACH: "Google no longer serves this day",
    QUOTA_EXHAUSTED: "possible again after the wait",
    RANGE_TOO_WIDE: FEWER_DAYS,
    SINGLE_DAYS_ONLY: FEWER_DAYS,
    TIMED_OUT: RETRIED,
    SOURCE_UNAVAILABLE: "one call at a time tries again; check the network, the proxy and the token endpoint",
    TRANSIENT: RETRIED,
    GOOGLE_ADS_ERROR: RETRIED,
    ROWS_REFUSED: f"{RETRIED}; if it repeats, report the request id to Google",
}


def classify(category: str, name: str) -> str:
    """The error class of one of Google's errors, such as `quota_error` and `RESOURCE_EXHAUSTED`."""
    patterns = _FAULTS.get(category, {})
    return next((each for pattern, each in patterns.items() if fnmatchcase(name, pattern)), GOOGLE_ADS_ERROR)


def classify_status(status: str, *, has_failure: bool = False) -> str:
    """The error class of a gRPC status. `has_failure`: a failure came with it that says nothing readable.

    Such an answer concerns its own account only: the source is there, and refuses neither credentials nor version.
    """
    error_class = _STATUS.get(status, GOOGLE_ADS_ERROR)
    return _OF_ONE_ACCOUNT.get(error_class, error_class) if has_failure else error_class


def listed_faults() -> list[tuple[str, str]]:
    """Every category and name, or pattern of names, that the table lists."""
    return [(category, name) for category, names in _FAULTS.items() for name in names]
