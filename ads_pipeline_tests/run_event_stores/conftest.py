"""Enables pytest's assertion messages in the conformance suite."""

import pytest

pytest.register_assert_rewrite("ads_pipeline_tests.run_event_stores.conformance")
