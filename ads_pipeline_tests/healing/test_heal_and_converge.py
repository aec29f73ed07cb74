"""Weeks of simulated time under faults: afterwards everything is readable, or needs a person who has a command.

A seed makes a schedule of faults and acts. One that fails is printed, and shortened by leaving out acts while it
still fails. With SOAK, fresh seeds are simulated over three weeks each. Every simulation prints what it did.
"""

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from ads_pipeline.domain.conditions import READABLE_CONDITIONS
from ads_pipeline.google_ads.loopback.process import LoopbackServer, loopback_server
from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.google_ads.builders import API_VERSION
from ads_pipeline_tests.healing.convergence import Outcome, simulate
from ads_pipeline_tests.healing.schedules import Act, make_schedule, shorten
from ads_pipeline_tests.healing.world import simulated_world

TRIES = 8  # to shorten a schedule that fails
MACHINE = ("killed_at_a_write", "killed_between_steps", "command_killed", "clock_ahead")
SOURCE = ("source_away", "quota_exhausted", "account_disabled", "account_cancelled")
PEERS = ("webhook_drips", "webhook_away", "token_refused", "token_endpoint_away", "account_denied")
FILES = ("rejected_run", "run_without_contract", "odd_seal", "data_file_missing", "disk_full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """How a schedule is drawn: its seed, and what may happen in so many days, before it heals for up to 60 hours.

    Without a seed, the test takes a fresh one: each worker of the tests must collect the same tests.
    """

    seed: int | None
    kinds: tuple[str, ...]
    days: int
    acts: int

    def make_schedule(self, seed: int) -> tuple[Act, ...]:
        return make_schedule(seed, kinds=self.kinds, days=self.days, acts=self.acts)


FIXED = (
    Drawn(seed=1, kinds=MACHINE, days=2, acts=4),
    Drawn(seed=2, kinds=SOURCE, days=2, acts=4),
    Drawn(seed=3, kinds=FILES, days=1, acts=5),
)
FRESH = (Drawn(seed=None, kinds=(*MACHINE, *SOURCE, *FILES, *PEERS), days=21, acts=40),) * (TIMES if TIMES > 1 else 0)
Simulation = Callable[[tuple[Act, ...], int], Outcome]


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with loopback_server(tmp_path_factory.mktemp("loopback"), API_VERSION) as server:
        yield server


@pytest.fixture
def run(google: LoopbackServer, tmp_path: Path) -> Simulation:
    """Simulates a schedule in a world of its own."""
    numbers = count(1)

    def simulate_in_new_world(schedule: tuple[Act, ...], days: int) -> Outcome:
        with simulated_world(tmp_path / f"world-{next(numbers)}", google) as world:
            return simulate(world, schedule, days=days)

    return simulate_in_new_world


@pytest.mark.timeout(1800 * TIMES)
@pytest.mark.invariant("L1", "L2", "L6", "L7", "L8")
@pytest.mark.parametrize("drawn", [*FIXED, *FRESH], ids=lambda drawn: f"{drawn.days}-days")
def test_everything_heals_after_faults(run: Simulation, drawn: Drawn, capfd: pytest.CaptureFixture[str]) -> None:
    """After faults have ended and printed commands were executed, every day is readable or names a command."""
    seed = random.SystemRandom().randrange(1_000_000) if drawn.seed is None else drawn.seed
    schedule = drawn.make_schedule(seed)
    outcome = run(schedule, drawn.days)
    with capfd.disabled():
        print(f"heal and converge, seed {seed}: {outcome}", file=sys.stderr)
    if outcome.failures:
        shortened = shorten(schedule, lambda each: bool(run(each, drawn.days).failures), tries=TRIES)
        failures = run(shortened, drawn.days).failures or outcome.failures
        pytest.fail(f"seed {seed} of {drawn}, of which these acts fail: {shortened}\n" + "\n".join(failures))


@pytest.mark.timeout(1800)
@pytest.mark.invariant("L1", "L8")
def test_calm_weeks_need_nobody(run: Simulation) -> None:
    """Without faults, every day is readable, no command is printed, and all surfaces agree."""
    outcome = run((), 2)
    assert outcome.failures == ()
    assert outcome.commands == 0
    assert set(outcome.conditions) <= READABLE_CONDITIONS
