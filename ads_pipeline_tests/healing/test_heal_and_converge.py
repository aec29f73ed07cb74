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

from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer, loopback_server
from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.google_ads.builders import API_VERSION
from ads_pipeline_tests.healing.convergence import Outcome, simulate
from ads_pipeline_tests.healing.faults import NEED_A_PERSON
from ads_pipeline_tests.healing.schedules import KINDS, Act, make_schedule, shorten
from ads_pipeline_tests.healing.world import simulated_world

TRIES = 8  # to shorten a schedule that fails
MACHINE = ("killed_at_a_write", "killed_between_steps", "command_killed", "clock_ahead", "clock_behind", "disk_full")
SOURCE = ("source_away", "token_refused", "token_endpoint_away", "quota_exhausted")
ACCOUNTS = (
    "account_disabled",
    "account_denied",
    "account_cancelled",
    "undecodable_failure",
    "odd_rows",
    "stream_breaks",
    "stream_times_out",
)
PEERS = ("webhook_drips", "webhook_away")
WAITING = ("webhook_hangs",)  # each tick waits for its 20 seconds, so only the soak has it
FILES = ("data_file_missing", "data_file_cut")
PERSONS = tuple(sorted(NEED_A_PERSON))
HEALING = (*MACHINE, *SOURCE, *ACCOUNTS, *PEERS, *WAITING, *FILES)  # afterwards no command is printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """How a schedule is drawn: its seed, and what may happen in so many days, before it heals for up to 60 hours.

    Without a seed, the test takes a fresh one: each worker of the tests must collect the same tests. Over weeks an
    operator executes the printed commands daily. Otherwise one refused token would hide all later faults.
    """

    seed: int | None
    kinds: tuple[str, ...]
    days: int
    acts: int
    has_operator: bool = False

    def make_schedule(self, seed: int) -> tuple[Act, ...]:
        return make_schedule(seed, kinds=self.kinds, days=self.days, acts=self.acts)


# Seeds in which faults do not hide each other: nothing is fetched of an account while the source is away, and nothing
# at all after a refused token until an operator releases the source.
FIXED = (
    Drawn(seed=539672, kinds=(*MACHINE, *SOURCE, *PEERS, *FILES), days=2, acts=14),
    Drawn(seed=59323, kinds=(*ACCOUNTS, *PERSONS, "data_file_cut"), days=1, acts=14),
)
FRESH = (
    Drawn(seed=None, kinds=HEALING, days=21, acts=30, has_operator=True),
    Drawn(seed=None, kinds=(*HEALING, *PERSONS), days=21, acts=30, has_operator=True),
) * (TIMES if TIMES > 1 else 0)
Simulation = Callable[[tuple[Act, ...], Drawn], Outcome]


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with loopback_server(tmp_path_factory.mktemp("loopback"), API_VERSION) as server:
        yield server


@pytest.fixture
def run(google: LoopbackServer, tmp_path: Path) -> Simulation:
    """Simulates a schedule in a world of its own."""
    numbers = count(1)

    def simulate_in_new_world(schedule: tuple[Act, ...], drawn: Drawn) -> Outcome:
        with simulated_world(tmp_path / f"world-{next(numbers)}", google) as world:
            return simulate(world, schedule, days=drawn.days, has_operator=drawn.has_operator)

    return simulate_in_new_world


@pytest.mark.timeout(1800 * TIMES)
@pytest.mark.invariant("L1", "L2", "L6", "L7", "L8", "L9")
@pytest.mark.parametrize("drawn", [*FIXED, *FRESH], ids=lambda drawn: f"{drawn.days}-days-seed-{drawn.seed}")
def test_everything_heals_after_faults(run: Simulation, drawn: Drawn, capfd: pytest.CaptureFixture[str]) -> None:
    """After faults have ended and printed commands were executed, every day is readable or names a command.

    Before the first fault, every day is readable and no command is printed. Each fault of a fixed seed takes effect.
    """
    seed = random.SystemRandom().randrange(1_000_000) if drawn.seed is None else drawn.seed
    schedule = drawn.make_schedule(seed)
    outcome = run(schedule, drawn)
    with capfd.disabled():
        print(f"heal and converge, seed {seed}: {outcome}", file=sys.stderr)
    if outcome.failures:
        shortened = shorten(schedule, lambda each: bool(run(each, drawn).failures), tries=TRIES)
        failures = run(shortened, drawn).failures or outcome.failures
        pytest.fail(f"seed {seed} of {drawn}, of which these acts fail: {shortened}\n" + "\n".join(failures))
    if drawn in FIXED:
        assert {act.kind for act in schedule} <= (+outcome.fired).keys()  # others took no effect


def test_fixed_seeds_have_every_kind() -> None:
    """Each kind of fault is in a schedule of every test run, except the one that only waits."""
    drawn = {act.kind for each in FIXED for act in each.make_schedule(each.seed or 0)}
    assert drawn == KINDS.keys() - {*WAITING}
