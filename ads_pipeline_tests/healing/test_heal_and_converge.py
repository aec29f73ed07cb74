"""Weeks of simulated time under faults: afterwards everything is readable, or needs a person who has a command.

A seed makes a schedule of faults and acts. One that fails is printed and shortened. SOAK runs fresh seeds.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from ads_pipeline.domain.readability import READABLE_CONDITIONS
from ads_pipeline.google_ads.loopback.process import LoopbackServer, loopback_server
from ads_pipeline_tests.google_ads.builders import API_VERSION
from ads_pipeline_tests.healing.convergence import Outcome, simulate
from ads_pipeline_tests.healing.schedules import Act
from ads_pipeline_tests.healing.world import simulated_world

DAYS = 4  # of one simulation, before it heals for another two and a half days
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


@pytest.mark.timeout(1800)
@pytest.mark.invariant("L1", "L8")
def test_calm_weeks_need_nobody(run: Simulation) -> None:
    """Without faults, every day is readable, no command is printed, and all surfaces agree."""
    outcome = run(())
    assert outcome.failures == ()
    assert outcome.commands == 0
    assert set(outcome.conditions) <= READABLE_CONDITIONS
