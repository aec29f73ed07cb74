"""What a report is based on: it changes with everything that a report shows, and with nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.report.basis import find_basis
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PARKING = Parking(source="google_ads", scope="customer", name="77", error_class="permission_denied", why="no")
ACCOUNT = Account(source="google_ads", customer_id="77", status="ENABLED", name="Ada", currency_code="EUR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A ledger and settings with a clock, a little after the deadline of yesterday."""

    ledger: Ledger
    settings: Settings
    clock: FakeClock

    def basis(self) -> str:
        return find_basis(self.ledger, self.settings, now=self.clock.now)


@pytest.fixture
def deployment(url: str, tmp_path: Path, clock: FakeClock) -> Iterator[Deployment]:
    clock.now = NOON + timedelta(minutes=20)
    with Ledger.opened(url, clock=clock) as ledger:
        yield Deployment(ledger=ledger, settings=read_settings({"ADS_PIPELINE_HOME": str(tmp_path)}), clock=clock)


def _seal(ledger: Ledger) -> None:
    registered_runs(ledger, key(day=2), "r1")


def _reject(ledger: Ledger) -> None:
    record_verdict(ledger, rejection(registered_runs(ledger, key(day=2), "r1")[0], "a line is cut off"))


def _load(ledger: Ledger) -> None:
    accepted_runs(ledger, [key(day=2)])
    publish_runs(ledger, run(key(day=2), "r1"))


def _withdraw(ledger: Ledger) -> None:
    accepted_runs(ledger, [key(day=2)])
    ledger.actions.execute(Action.WITHDRAW, [key(day=2)], action_request("withdraw"))


def _park(ledger: Ledger) -> None:
    ledger.actions.park(PARKING, action_request("park"))


def _name(ledger: Ledger) -> None:
    ledger.accounts.record("google_ads", [ACCOUNT])


@pytest.mark.parametrize("change", [_seal, _reject, _load, _withdraw, _park, _name])
def test_every_change_gives_another_basis(deployment: Deployment, change: Callable[[Ledger], None]) -> None:
    """A run, a verdict, a load, an action, a parking, and the name of an account."""
    before = deployment.basis()
    change(deployment.ledger)
    assert deployment.basis() != before


def test_verdict_after_a_seal_gives_another_basis(deployment: Deployment) -> None:
    """Each step of a day is shown."""
    (sealed,) = registered_runs(deployment.ledger, key(day=2), "r1")
    before = deployment.basis()
    record_verdict(deployment.ledger, acceptance(sealed))
    assert deployment.basis() != before


def test_unchanged_day_keeps_the_basis(deployment: Deployment) -> None:
    """From the deadline of yesterday until midnight, whatever happened before."""
    _load(deployment.ledger)
    deployment.clock.tick(timedelta(hours=6, minutes=15))
    before = deployment.basis()
    deployment.clock.tick(timedelta(hours=5, minutes=20))
    assert deployment.basis() == before


@pytest.mark.parametrize("passed", [timedelta(hours=12), timedelta(days=1)], ids=["midnight", "deadline"])
def test_new_day_and_passed_deadline_give_another_basis(deployment: Deployment, passed: timedelta) -> None:
    """At midnight the report has one day more, and at the deadline this day is late."""
    midnight = deployment.clock.now + timedelta(hours=12)
    if passed > timedelta(hours=12):
        deployment.clock.now = midnight
    before = deployment.basis()
    deployment.clock.now = NOON + passed + timedelta(minutes=20)
    assert deployment.basis() != before


def test_run_that_waits_for_too_long_gives_another_basis(deployment: Deployment) -> None:
    """Its day is blocked after six hours; the report shows it within a quarter of an hour."""
    _seal(deployment.ledger)
    before = deployment.basis()
    deployment.clock.tick(timedelta(hours=5, minutes=50))
    assert deployment.basis() == before
    deployment.clock.tick(timedelta(minutes=25))
    assert deployment.basis() != before


def test_other_query_file_gives_another_basis(deployment: Deployment, tmp_path: Path) -> None:
    """It decides which days are expected."""
    other = tmp_path / "queries.yaml"
    other.write_bytes(deployment.settings.queries_file.read_bytes() + b"# changed")
    changed = replace(deployment, settings=replace(deployment.settings, queries_file=other))
    assert changed.basis() != deployment.basis()
