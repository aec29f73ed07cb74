"""Runs the checks of a deployment and reports their findings. It changes nothing.

The checks themselves are in `deployment_checks`. A check that fails does not stop the others. Each has a limit of
time, because a database or a bucket may never answer.
"""

import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from ads_pipeline.domain.errors import AdsPipelineError, BadSettings, LedgerOutdated
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.consistency.inspection import LedgerInspection
from ads_pipeline.settings.environment import DAGSTER_SETTINGS, Settings, has_ledger, read_settings

MIN_FREE_BYTES: Final = 1 << 30  # bytes
NO_DATA: Final = "there is no data yet"
FIRST_STEP: Final = "ads-pipeline dev, or ads-pipeline demo for made-up data"
CORRECT: Final = "correct it and run doctor again; docs/settings.md lists all settings"
LIMIT: Final = timedelta(seconds=15)  # of one check
SLOW_LIMIT: Final = timedelta(minutes=30)  # of one that reads every run or row
_T = TypeVar("_T")


class CheckTimedOut(Exception):
    """A check did not end within its limit."""

    def __init__(self, limit: timedelta) -> None:
        super().__init__(f"no answer within {limit.total_seconds():g} s")


class Severity(StrEnum):
    """An error needs an action. A warning may resolve without one. A note is no problem."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class CheckStatus(StrEnum):
    """The result of one check. FAILED: the check itself could not run."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    FAILED = "failed"
    SKIPPED = "skipped"


class Peer(StrEnum):
    """A part of the deployment that may never answer."""

    DATABASE = "database"
    LAKE = "lake"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem, its location and the next step."""

    severity: Severity
    location: str
    problem: str
    next_step: str


def make_error(where: object, problem: str, step: str) -> Finding:
    return Finding(severity=Severity.ERROR, location=str(where), problem=problem, next_step=step)


def make_warning(where: object, problem: str, step: str) -> Finding:
    return Finding(severity=Severity.WARNING, location=str(where), problem=problem, next_step=step)


def make_note(where: object, text: str, step: str) -> Finding:
    return Finding(severity=Severity.NOTE, location=str(where), problem=text, next_step=step)


def format_time(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def quote_path(path: Path) -> str:
    return printable(shlex.quote(str(path)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The deployment to check. `now` is the time of the database.

    `dagster_home` is the directory of Dagster's configuration; by default that of `ads-pipeline dev`.
    """

    settings: Settings
    ledger: LedgerInspection
    now: datetime
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    min_free_bytes: int = MIN_FREE_BYTES
    dagster_home: Path | None = None

    @property
    def raw(self) -> RawRuns:
        return RawRuns(self.settings.raw_location, is_in_use=self.ledger.runs.exist)

    @property
    def dagster_settings(self) -> Path:
        """The dagster.yaml of this deployment, which may not exist."""
        return (self.dagster_home or self.settings.home / "dagster") / DAGSTER_SETTINGS.name


@dataclass(frozen=True, slots=True)
class Check:
    """A check by its name. `condition` is the statement that holds when nothing is found."""

    name: str
    condition: str

    def report(self, *findings: Finding) -> "CheckReport":
        return CheckReport(name=self.name, condition=self.condition, findings=findings)

    def report_without_result(
        self, reason: str, *, skipped: bool = False, has_no_answer: bool = False
    ) -> "CheckReport":
        return CheckReport(
            name=self.name, condition=self.condition, reason=reason, skipped=skipped, has_no_answer=has_no_answer
        )


@dataclass(frozen=True, slots=True)
class DeploymentCheck(Check):
    """A check of the whole deployment.

    A slow check reads every run or row. `find_skip_reason` returns why there is nothing to check, if so. The line of
    a check has the text of `describe`, if it has one. When a check gets no answer from its
    peer, later checks of the same peer are not tried.
    """

    find: Callable[[Deployment], Iterable[Finding]]
    slow: bool = False
    peer: Peer | None = Peer.DATABASE
    limit: timedelta | None = None  # None: 15 seconds, or 30 minutes for a slow check
    find_skip_reason: Callable[[Deployment], str | None] = lambda _deployment: None
    describe: Callable[[Deployment], str] | None = None


@dataclass(frozen=True, slots=True)
class MachineCheck(Check):
    """A check that needs the settings only, so that it also runs in a home without a ledger."""

    find: Callable[[Settings, Mapping[str, str]], Iterable[Finding]]
    describe: Callable[[Settings, Mapping[str, str]], str] = lambda _settings, _environ: ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The result of one check. `reason` is why it failed or was skipped, `summary` what it counted, if it counts."""

    name: str
    condition: str
    findings: tuple[Finding, ...] = ()
    reason: str | None = None
    summary: str = ""
    skipped: bool = False
    has_no_answer: bool = False

    @property
    def status(self) -> CheckStatus:
        if self.reason is not None:
            return CheckStatus.SKIPPED if self.skipped else CheckStatus.FAILED
        severities = {finding.severity for finding in self.findings}
        return (
            CheckStatus.ERROR
            if Severity.ERROR in severities
            else CheckStatus.WARNING
            if Severity.WARNING in severities
            else CheckStatus.OK
        )


_SETTINGS: Final = Check("settings", "the settings and the query file are valid")
_LEDGER: Final = Check("ledger", "the ledger exists and has the schema of this release")


def run_checks(
    environ: Mapping[str, str],
    checks: Sequence[DeploymentCheck],
    *,
    machine_checks: Sequence[MachineCheck] = (),
    quick: bool = False,
) -> Iterator[CheckReport]:
    """Yield the report of each check as it finishes. Without settings or ledger, the other checks are FAILED.

    A home in which nothing has run yet has no other checks.
    """
    try:
        settings = read_settings(environ)
    except BadSettings as error:
        yield _SETTINGS.report(*(make_error(each.location, each.problem, CORRECT) for each in error.mistakes))
        for unchecked in (*machine_checks, _LEDGER, *checks):
            yield unchecked.report_without_result("the settings are invalid")
        return
    yield _SETTINGS.report()
    for each in machine_checks:
        found = each.report(*each.find(settings, environ))
        yield found if found.findings else replace(found, summary=each.describe(settings, environ))
    with ExitStack() as stack:
        ledger_report, opened = _open_ledger(settings, stack)
        yield ledger_report
        if opened is None and ledger_report.status is CheckStatus.OK:
            return
        if opened is None:
            for check in checks:
                yield check.report_without_result("the ledger could not be opened")
            return
        dagster_home = Path(environ["DAGSTER_HOME"]) if environ.get("DAGSTER_HOME") else None
        ledger, now = opened
        deployment = Deployment(settings=settings, ledger=ledger, now=now, dagster_home=dagster_home)
        silent = dict[Peer, str]()
        for check in checks:
            if check.peer in silent:
                yield check.report_without_result(silent[check.peer])
                continue
            report = run_check(check, deployment, quick=quick)
            if check.peer and report.has_no_answer:
                silent[check.peer] = f"the check {check.name} got no answer from the {check.peer}"
            yield report


def run_check(
    check: DeploymentCheck, deployment: Deployment, *, quick: bool = False, limit: timedelta | None = None
) -> CheckReport:
    """Run one check. Errors of the deployment and a passed limit become a FAILED report; bugs raise."""

    def run() -> CheckReport:
        skip_reason = "skipped by --quick" if quick and check.slow else check.find_skip_reason(deployment)
        if skip_reason is not None:
            return check.report_without_result(skip_reason, skipped=True)
        found = check.report(*check.find(deployment))
        return found if check.describe is None else replace(found, summary=check.describe(deployment))

    try:
        return run_within(limit or check.limit or (SLOW_LIMIT if check.slow else LIMIT), run)
    except (AdsPipelineError, OSError, CheckTimedOut) as error:
        return check.report_without_result(_one_line(error), has_no_answer=isinstance(error, CheckTimedOut))


def run_within(limit: timedelta, work: Callable[[], _T]) -> _T:
    """Return the result of the work or raise its exception; raise CheckTimedOut after the limit.

    The work's thread goes on then, and ends with the process at the latest.
    """
    results, errors = list[_T](), list[BaseException]()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            errors.append(error)

    thread = threading.Thread(target=run, name="check", daemon=True)
    thread.start()
    thread.join(limit.total_seconds())
    if thread.is_alive():
        raise CheckTimedOut(limit)
    if errors:
        raise errors[0]
    return results[0]


def _open_ledger(
    settings: Settings, stack: ExitStack
) -> tuple[CheckReport, tuple[LedgerInspection, datetime] | None]:
    """Open the ledger until the stack is closed and read its clock, and report whether that was possible."""

    def open_and_read() -> tuple[LedgerInspection, datetime]:
        opened = LedgerInspection.opened(settings.database_url, tenancy=settings.tenancy)
        ledger = stack.enter_context(opened)
        return ledger, ledger.read_clock()

    if not has_ledger(settings):
        file = settings.home / "ledger.db"
        if Path(settings.raw_location).is_dir():
            step = "restore it from a backup, or start with an empty one: ads-pipeline dev"
            return _LEDGER.report(make_error(file, "there is no ledger", step)), None
        return _LEDGER.report(make_note(settings.home, NO_DATA, FIRST_STEP)), None
    try:
        return _LEDGER.report(), run_within(LIMIT, open_and_read)
    except LedgerOutdated as error:
        if error.found is None:
            return _LEDGER.report(make_note("the database", NO_DATA, FIRST_STEP)), None
        problem = f"its schema is at revision {error.found}; this release needs {error.expected}"
        step = "run ads-pipeline migrate, or use the release that wrote it"
        return _LEDGER.report(make_error("the ledger", problem, step)), None
    except (AdsPipelineError, CheckTimedOut) as error:
        return _LEDGER.report_without_result(_one_line(error)), None


def _one_line(error: Exception) -> str:
    return printable(" ".join(str(error).split()) or type(error).__name__)
