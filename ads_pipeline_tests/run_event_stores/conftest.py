"""Lets the suite's asserts tell what they compared, as those of a test module do."""

import pytest

pytest.register_assert_rewrite("ads_pipeline_tests.run_event_stores.conformance")
