"""Prints the journeys that the tests recorded."""

import pytest

from ads_pipeline_tests.browser.journeys import Journey, format_journeys


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if Journey.all:
        terminalreporter.section("journeys")
        terminalreporter.write_line("\n".join(format_journeys()))
