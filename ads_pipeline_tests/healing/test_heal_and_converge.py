"""Weeks of simulated time under faults: afterwards everything is readable, or needs a person who has a command.

A seed makes a schedule of faults and acts. One that fails is printed, and shortened by leaving out acts while it
still fails. With SOAK, fresh seeds are simulated over three weeks each. Every simulation prints what it did.
"""

import random
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from ads_pipeline.domain.readability import READABLE_CONDITIONS
from ads_pipeline.google_ads.loopback.process import LoopbackServer, loopback_server
from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.google_ads.builders import API_VERSION
from ads_pipeline_tests.healing.convergence import Outcome, simulate
from ads_pipeline_tests.healing.schedules import Act, make_schedule, shorten
from ads_pipeline_tests.healing.world import simulated_world

DAYS, ACTS = (2, 5) if TIMES == 1 else (21, 40)  # of one simulation, before it heals for up to 60 hours
TRIES = 8  # to shorten a schedule that fails
SEEDS = (1, 2) if TIMES == 1 else tuple(random.SystemRandom().sample(range(1_000_000), TIMES))
# The kinds that the tests simulate. `schedules.KINDS` has more.
SIMULATED = (
    "clock_ahead",
    "command_killed",
    "data_file_missing",
    "disk_full",
    "killed_at_a_write",
    "killed_between_steps",
    "odd_seal",
    "rejected_run",
    "run_without_contract",
)
Simulation = Callable[[tuple[Act, ...]], Outcome]


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with loopback_server(tmp_path_factory.mktemp("loopback"), API_VERSION) as server:
        yield server


@pytest.fixture
def run(google: LoopbackServer, tmp_path: Path) -> Simulation:
    """Simulates a schedule in a world of its own."""
    numbers = count(1)

    def simulate_in_new_world(schedule: tuple[Act, ...]) -> Outcome:
        with simulated_world(tmp_path / f"world-{next(numbers)}", google) as world:
            return simulate(world, schedule, days=DAYS)

    return simulate_in_new_world


@pytest.mark.timeout(1800 * TIMES)
@pytest.mark.invariant("L1", "L2", "L6", "L7", "L8")
@pytest.mark.parametrize("seed", SEEDS)
def test_everything_heals_after_faults(run: Simulation, seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    """After faults have ended and printed commands were executed, every day is readable or names a command."""
    schedule = make_schedule(seed, kinds=SIMULATED, days=DAYS, acts=ACTS)
    outcome = run(schedule)
    with capfd.disabled():
        print(f"heal and converge, seed {seed}: {outcome}", file=sys.stderr)
    if outcome.failures:
        shortened = shorten(schedule, lambda each: bool(run(each).failures), tries=TRIES)
        failures = run(shortened).failures or outcome.failures
        pytest.fail(f"seed {seed}, shortened from {len(schedule)} acts: {shortened}\n" + "\n".join(failures))


@pytest.mark.timeout(1800)
@pytest.mark.invariant("L1", "L8")
def test_calm_weeks_need_nobody(run: Simulation) -> None:
    """Without faults, every day is readable, no command is printed, and all surfaces agree."""
    outcome = run(())
    assert outcome.failures == ()
    assert outcome.commands == 0
    assert set(outcome.conditions) <= READABLE_CONDITIONS
