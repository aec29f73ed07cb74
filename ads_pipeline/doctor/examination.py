"""Looks at a whole house, check by check, and changes nothing: what is found, how bad it is, and what mends it.

What is looked at, and what counts as wrong, are the checks of `symptoms`. A check that cannot look is told as such
and holds up none of the others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from ads_pipeline.errors import AdsPipelineError, BadSettings, LedgerOutdated, Mistake
from ads_pipeline.ledger import database
from ads_pipeline.ledger.consistency.inspection import LedgerInspection
from ads_pipeline.quoting import printable
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings, read_settings

ENOUGH_ROOM: Final = 1 << 30  # bytes


class Severity(StrEnum):
    """How bad a finding is: something is wrong, or may be only on its way."""

    BAD = "bad"
    LOOK = "look"


class CheckStatus(StrEnum):
    """What a check came to."""

    OK = "ok"
    LOOK = "look"
    BAD = "bad"
    FAILED = "fail"
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be, where, and what to do next."""

    weight: Severity
    where: str
    problem: str
    step: str


def bad(where: object, problem: str, step: str) -> Finding:
    return Finding(weight=Severity.BAD, where=str(where), problem=problem, step=step)


def look(where: object, problem: str, step: str) -> Finding:
    return Finding(weight=Severity.LOOK, where=str(where), problem=problem, step=step)


def here() -> datetime:
    """What time it is on this machine."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What is examined: all that the settings name, at a moment of the database's clock."""

    settings: Settings
    ledger: LedgerInspection
    now: datetime
    clock: Callable[[], datetime] = here
    enough_room: int = ENOUGH_ROOM

    @property
    def raw(self) -> RawRuns:
        return RawRuns(self.settings.raw_root)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentCheck:
    """One thing to look at. `promise` is what holds where nothing is found.

    `slow`: it looks at every run or row there is. `absent` says why there is nothing to look at, where there is not.
    """

    name: str
    promise: str
    find: Callable[[Deployment], Iterable[Finding]]
    slow: bool = False
    absent: Callable[[Deployment], str | None] = lambda _site: None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check came to; `why` where it could not look, or was not asked to."""

    name: str
    promise: str
    findings: tuple[Finding, ...] = ()
    why: str | None = None
    skipped: bool = False

    @property
    def answer(self) -> CheckStatus:
        if self.why is not None:
            return CheckStatus.SKIPPED if self.skipped else CheckStatus.FAILED
        weights = {finding.weight for finding in self.findings}
        return CheckStatus.BAD if Severity.BAD in weights else CheckStatus.LOOK if weights else CheckStatus.OK


_SETTINGS: Final = ("settings", "the settings and the query file can be read")
_LEDGER: Final = ("ledger", "the ledger is there, and at this release's revision")


def examine(
    environ: Mapping[str, str], checks: Sequence[DeploymentCheck], *, quick: bool = False
) -> Iterator[CheckReport]:
    """Each check in order, as soon as it is done. Without settings or ledger the others are told as failed."""
    try:
        settings = read_settings(environ)
    except BadSettings as error:
        yield _examined(*_SETTINGS, [_mistake(each) for each in error.mistakes])
        yield from _not_looked_at(
            [_LEDGER, *((each.name, each.promise) for each in checks)], "the settings are wrong"
        )
        return
    yield _examined(*_SETTINGS, [])
    opened = _ledger_of(settings)
    yield opened
    if opened.answer is not CheckStatus.OK:
        yield from _not_looked_at([(each.name, each.promise) for each in checks], "the ledger could not be opened")
        return
    with LedgerInspection.opened(settings.database_url, tenancy=settings.tenancy) as ledger:
        site = Deployment(settings=settings, ledger=ledger, now=ledger.clock())
        for check in checks:
            yield examined(check, site, quick=quick)


def examined(check: DeploymentCheck, site: Deployment, *, quick: bool = False) -> CheckReport:
    """What one check finds. Only a defect of ours rises; what is out of reach is the check's own answer."""
    try:
        absent = "left out, because it looks at every run or row" if quick and check.slow else check.absent(site)
        if absent is not None:
            return CheckReport(name=check.name, promise=check.promise, why=absent, skipped=True)
        return _examined(check.name, check.promise, check.find(site))
    except (AdsPipelineError, OSError) as error:
        return CheckReport(name=check.name, promise=check.promise, why=_one_line(error))


def _ledger_of(settings: Settings) -> CheckReport:
    """Whether there is a ledger that this release can read."""
    name, promise = _LEDGER
    file = settings.home / "ledger.db"
    if settings.postgres_url is None and not file.exists():
        weight = bad if settings.raw_root.is_dir() else look
        step = "the first run of the pipeline creates one; restore a lost one from a backup or a copy"
        return _examined(name, promise, [weight(file, "there is no ledger", step)])
    try:
        with database.opened(settings.database_url, read_only=True):
            return _examined(name, promise, [])
    except LedgerOutdated as error:
        problem = f"it is at revision {error.found or 'none'}, this release needs {error.expected}"
        step = "ads-pipeline migrate, or run the release that wrote it"
        return _examined(name, promise, [bad("the ledger", problem, step)])
    except AdsPipelineError as error:
        return CheckReport(name=name, promise=promise, why=_one_line(error))


def _examined(name: str, promise: str, findings: Iterable[Finding]) -> CheckReport:
    return CheckReport(name=name, promise=promise, findings=tuple(findings))


def _not_looked_at(checks: Iterable[tuple[str, str]], why: str) -> Iterator[CheckReport]:
    return (CheckReport(name=name, promise=promise, why=why) for name, promise in checks)


def _one_line(error: Exception) -> str:
    return printable(" ".join(str(error).split()) or type(error).__name__)


def _mistake(mistake: Mistake) -> Finding:
    return bad(mistake.location, mistake.problem, "mend it and look again; the README lists all settings")
