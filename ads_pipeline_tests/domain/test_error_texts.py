"""Tests the texts of the error classes."""

from ads_pipeline.domain.fetching.error_texts import ERROR_TEXTS, describe_error
from ads_pipeline.domain.fetching.retry_policy import ERROR_POLICIES


def test_every_class_of_the_policy_has_a_text() -> None:
    """The texts are those of the retry policy's classes. Other classes are shown as they are."""
    assert ERROR_TEXTS.keys() == ERROR_POLICIES.keys()
    assert describe_error("vendor_error") == "vendor_error"
    assert describe_error(None) == "the cause is not known"
