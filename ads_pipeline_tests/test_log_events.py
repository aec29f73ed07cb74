"""Log records: their two forms, where they go, and that each event is emitted somewhere."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.log_lines import LOG_EVENTS, ROOT, EventFormatter, LogEvent, configure_logging, log_event
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline_tests.ledger.builders import accepted_runs, key
from ads_pipeline_tests.operations.cli.running import CommandLine

PACKAGE = Path(__file__).parents[1] / "ads_pipeline"
LOG = logging.getLogger(f"{ROOT}.test")
fields = st.dictionaries(
    st.from_regex(r"[a-z][a-z_]{0,9}", fullmatch=True),
    st.none() | st.integers() | st.booleans() | st.text(),
    max_size=4,
)


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """A test starts and ends without a handler on standard error, and without a level."""
    configure_logging(None)
    yield
    configure_logging(None)
    logging.getLogger(ROOT).setLevel(logging.NOTSET)


def make_record(event: LogEvent, given: dict[str, object]) -> logging.LogRecord:
    records: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    collector = Collector()
    LOG.addHandler(collector)
    try:
        log_event(LOG, event, **given)
    finally:
        LOG.removeHandler(collector)
    return records[0]


@given(st.sampled_from(LogEvent), fields)
def test_record_is_one_line_in_each_form(event: LogEvent, given: dict[str, object]) -> None:
    """JSON has every field that is not None with its type. No value breaks a line or hides a field."""
    configure_logging(None)
    record = make_record(event, given)
    expected = {name: value for name, value in given.items() if value is not None}
    as_json = json.loads(EventFormatter(as_json=True).format(record))
    assert {name: as_json[name] for name in ("level", "logger")} == {"level": record.levelname, "logger": LOG.name}
    for name, value in expected.items():
        if name not in {"time", "level", "logger", "event"} and not isinstance(value, str):
            assert as_json[name] == value
    for line in (EventFormatter(as_json=each).format(record) for each in (False, True)):
        assert line.isprintable()
        assert event in line


def test_text_quotes_values_with_spaces() -> None:
    """So that a line can be split again."""
    configure_logging(None)
    record = make_record(LogEvent.NOTIFICATION_FAILED, {"problem": 'answered "500"', "failures": 2, "more": None})
    line = EventFormatter(as_json=False).format(record)
    assert re.fullmatch(r"\S+Z WARNING notification.failed problem=\"answered \\\"500\\\"\" failures=2", line)


def test_records_of_others_keep_their_message() -> None:
    """A logger below ours may be used with a message, as any logger."""
    record = logging.LogRecord(LOG.name, logging.INFO, __file__, 1, "%s rows\n", (3,), None)
    assert EventFormatter(as_json=False).format(record).endswith("INFO 3 rows\\n")
    assert json.loads(EventFormatter(as_json=True).format(record))["message"] == "3 rows\\n"


def test_configuring_again_replaces_the_form(capsys: pytest.CaptureFixture[str]) -> None:
    """One line per record, however often an entry point configures it."""
    for form in ("text", "json", "json"):
        configure_logging(form)
    log_event(LOG, LogEvent.RUN_OPENED, run="r1")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "run.opened"


@pytest.mark.parametrize("form", [None, "text", "json"])
def test_commands_log_only_when_asked(tmp_path: Path, sqlite_url: str, form: str | None) -> None:
    """On standard error, below nothing else of the command."""
    more = {} if form is None else {"ADS_PIPELINE_LOG": form}
    with Ledger.opened(sqlite_url) as ledger:
        accepted_runs(ledger, [key()])
    cli = CommandLine(home=tmp_path / "home", more=more)
    done = cli.process("state", "withdraw", str(key()), "--reason", "wrong", "--yes")
    assert done.code == 0, done.err
    assert ("action.executed" in done.err) == (form is not None)
    assert "action.executed" not in done.out
    if form == "json":
        record = json.loads(done.err.splitlines()[-1])
        assert (record["event"], record["action"], record["changed"]) == ("action.executed", "withdraw", 1)


def test_library_is_silent_without_configuration() -> None:
    """Python would otherwise print warnings of a library on standard error."""
    code = "import logging; from ads_pipeline.domain.log_lines import *; "
    code += "log_event(logging.getLogger('ads_pipeline.x'), LogEvent.LEASE_LOST, run='r')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")


def test_log_of_a_dagster_run_has_the_records() -> None:
    """With the python_logs of our dagster.yaml."""
    settings = yaml.safe_load((PACKAGE / "settings" / "config" / "dagster.yaml").read_text())

    @dg.op
    def work() -> None:
        log_event(LOG, LogEvent.LOAD_PUBLISHED, query="campaign_daily", partitions=3)

    @dg.job
    def job() -> None:
        work()

    with dg.instance_for_test(overrides={"python_logs": settings["python_logs"]}) as instance:
        result = job.execute_in_process(instance=instance)
        logged = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert "load.published query=campaign_daily partitions=3" in logged


def test_retried_transaction_is_logged(caplog: pytest.LogCaptureFixture, sqlite_url: str) -> None:
    """With the class of the error, and without its text."""
    engine, failures = database.open_engine(sqlite_url), [database.ConcurrentWrite("canary")]

    def work(_connection: object) -> int:
        if failures:
            raise failures.pop()
        return 1

    assert database.transact(engine, work) == 1
    engine.dispose()
    assert [record.getMessage() for record in caplog.records] == [
        "transaction.retried attempt=1 error=ConcurrentWrite"
    ]


def test_every_event_is_described_and_emitted() -> None:
    """No event is listed that nothing emits."""
    assert set(LOG_EVENTS) == set(LogEvent)
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "log_events.py")
    assert {event.name for event in LogEvent} == set(re.findall(r"LogEvent\.([A-Z_]+)", sources))
