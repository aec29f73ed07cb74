"""Runs a schedule, ends its faults, executes what is printed, and lists what has not converged."""

import json
import re
import shlex
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from ads_pipeline.domain.days.conditions import CONDITIONS, READABLE_CONDITIONS, Condition, NextActor
from ads_pipeline_tests.healing.faults import NEED_A_PERSON, Faults
from ads_pipeline_tests.healing.schedules import HOURS_OF_QUIET, Act
from ads_pipeline_tests.healing.surfaces import Advice, Surfaces
from ads_pipeline_tests.healing.world import CUSTOMERS, FIRST_DAY, QUERIES, START, World

# A step ends at the latest then, or where an act begins or ends.
STEP: Final = timedelta(hours=12)
# A retry waits for two hours, discovery comes once a day, and the longest hold of the faults is half a day.
HOURS_TO_HEAL: Final = (3, 3, 12, 12)  # in these steps
ROUNDS: Final = 2  # of the printed commands: a failure may show only after the first ones
LEASE: Final = timedelta(hours=1)  # longer than any lease of a run that works
# Blocked days are found after six hours, and a day that is late at its deadline. The webhook may have been away.
TOLD_WITHIN: Final = timedelta(hours=12)
MORNING: Final = 30  # the first hour at which an operator executes what is printed; then daily
INTERNAL_ERROR: Final = 70  # the exit code, which no state justifies
MAX_TICK_SECONDS: Final = 60.0  # Dagster ends a tick then


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a simulation did, and each rule that does not hold at its end."""

    failures: tuple[str, ...]
    days: float
    runs: int
    deaths: int
    fired: Counter[str]
    conditions: Counter[str]
    commands: int  # after the faults
    morning_commands: int  # while they lasted

    def __str__(self) -> str:
        fired = ", ".join(f"{name} {number}" for name, number in sorted(self.fired.items())) or "none"
        conditions = ", ".join(f"{number} {name}" for name, number in sorted(self.conditions.items()))
        return (
            f"{self.days:.0f} simulated days, {self.runs} runs, {self.deaths} deaths of the machine, "
            f"{self.morning_commands} printed commands executed during the faults and {self.commands} after them; "
            f"faults that took effect: {fired}; partitions: {conditions}"
        )


def simulate(world: World, schedule: tuple[Act, ...], *, days: int, has_operator: bool = False) -> Outcome:
    """Run the schedule over so many days, let the deployment heal, and judge it.

    With an operator, the printed commands are also executed each morning while the faults last.
    """
    faults = Faults(world)
    failures = list(_judge_quiet(world, faults))
    morning_commands = _play(world, faults, schedule, days=days, has_operator=has_operator)
    faults.restore()
    commands = 0
    for _ in range(ROUNDS):
        executed = _execute_printed(world)
        failures += executed.failures
        commands += executed.number
        world.problems.clear()  # a run may fail while faults are active, and soon after
        for hours in HOURS_TO_HEAL:
            _advance_to(world, faults, world.now + timedelta(hours=hours))
        if not executed.number:
            break
    world.machine.ask("run_hourly_jobs")  # after the loads of the last step
    surfaces = read(world)
    waiting = surfaces.who_needs_an_operator()
    failures += [
        *world.crashes,
        *world.problems,
        *judge(world, surfaces),
        *_try_commands(world, waiting),
        *_try_steps(world, waiting),
    ]
    failures += [
        f"L1: {name} needs an operator, though no fault remains: {waiting[name]}"
        for name in sorted(waiting.keys() - world.touched)
    ]
    if not {act.kind for act in schedule} & NEED_A_PERSON:
        failures += [f"L1: {command} is printed, though no fault remains" for command in surfaces.next_commands()]
    if world.slowest_tick > MAX_TICK_SECONDS:
        failures.append(f"L5: a tick took {world.slowest_tick:.0f} s")
    return Outcome(
        failures=tuple(failures),
        days=(world.now - START) / timedelta(days=1),
        runs=world.runs,
        deaths=world.deaths,
        fired=faults.fired,
        conditions=Counter(surfaces.conditions.values()),
        commands=commands,
        morning_commands=morning_commands,
    )


def _play(world: World, faults: Faults, schedule: tuple[Act, ...], *, days: int, has_operator: bool) -> int:
    """Begin and end each act at its time. Returns the number of commands that the operator executed meanwhile."""
    ends = {act.at + act.hours for act in schedule if act.at + act.hours < days * 24}
    mornings = {*range(MORNING, days * 24, 24)} if has_operator else set[int]()
    morning_commands = 0
    for moment in sorted({act.at for act in schedule} | ends | mornings):
        _advance_to(world, faults, START + timedelta(hours=moment))
        for act in [each for each in faults.active if each.at + each.hours <= moment]:
            faults.end(act)
        for act in schedule:
            if act.at == moment:
                faults.begin(act)
        if moment in mornings:
            morning_commands += _execute_in_the_morning(world)
    _advance_to(world, faults, START + timedelta(days=days))
    return morning_commands


def _judge_quiet(world: World, faults: Faults) -> Iterator[str]:
    """Each difference from a deployment without faults: all days are readable, and no command is printed."""
    _advance_to(world, faults, START + timedelta(hours=HOURS_OF_QUIET))
    world.machine.ask("run_hourly_jobs")
    surfaces = read(world)
    yield from judge(world, surfaces)
    yield from (f"quiet: {problem}" for problem in world.problems)
    yield from (f"quiet: {command} is printed" for command in surfaces.next_commands())
    unreadable = {name: each for name, each in surfaces.conditions.items() if each not in READABLE_CONDITIONS}
    yield from (f"quiet: {name} is {condition}" for name, condition in unreadable.items())


def _try_commands(world: World, waiting: Mapping[str, str]) -> Iterator[str]:
    """Each command that is printed of a day at the end must succeed."""
    for name, command in waiting.items():
        done = world.command(*_arguments(command))
        if done["code"] != 0:
            yield f"L1: {name}: {command}: exit {done['code']}: {_last_lines(done)}"


def _try_steps(world: World, names: Iterable[str]) -> Iterator[str]:
    """Each command in the steps that `state why` prints of a day must succeed, or not be printed any more."""
    for name in names:
        for command in _read_steps(world, name):
            done = world.command(*_arguments(command))
            if done["code"] not in _accepted(command) and command in _read_steps(world, name):
                yield f"L7: {name}: why prints {command}: exit {done['code']}: {_last_lines(done)}"


def _read_steps(world: World, name: str) -> list[str]:
    """The commands in the steps that `state why` prints of a day."""
    query, customer, day = name.split()
    explained = world.command("state", "why", f"{customer}/{query}/{day}", "--json")
    assert explained["code"] == 0, f"state why of {name}: exit {explained['code']}: {_last_lines(explained)}"
    document = json.loads(explained["out"])
    return [each.strip() for step in document["next"] for each in _COMMAND.findall(step)]


def _accepted(command: str) -> set[int]:
    return {0, 1} if command == "ads-pipeline doctor" else {0}


def read(world: World) -> Surfaces:
    return Surfaces(**world.machine.ask("surfaces"))


def read_advice(world: World) -> Advice:
    return Advice(**world.machine.ask("advice"))


def judge(world: World, surfaces: Surfaces) -> Iterator[str]:
    """Each rule that does not hold."""
    conditions = surfaces.conditions
    for name in _expected(world.now):
        if name not in conditions:
            yield f"L1: {name} is expected, and no surface lists it"
    for name, condition in sorted(conditions.items()):
        is_decided = CONDITIONS[condition].next_actor is NextActor.DECIDED and name in world.quieted
        if is_decided or condition in READABLE_CONDITIONS or condition is Condition.UNRECOVERABLE:
            continue
        fields = surfaces.listed.get(name) or surfaces.recorded[name]
        shown = f"{name} is {condition} ({fields['because']}: {fields['detail']}), since {fields['since']}"
        if not CONDITIONS[condition].needs_operator:
            yield f"L2: {shown}, which needs nobody"
        elif not fields["next_command"]:
            yield f"L1: {shown}, and no command is printed"
    yield from (f"L8: {each}" for each in surfaces.find_differences())
    yield from (f"L6: {each}" for each in _find_open(world))
    yield from (f"L9: {each}" for each in _find_untold(world, surfaces))


def _find_untold(world: World, surfaces: Surfaces) -> Iterator[str]:
    """The days that have needed an operator for longer than notices take, and that none of them names."""
    findings = " ".join(f"{finding['location']} {finding['problem']}" for finding in surfaces.doctor)
    for name, since in surfaces.needing_since().items():
        query, customer, day = name.split()
        is_told = any(_names(fact, query, customer, day) for fact in world.webhook.facts)
        if world.now - since > TOLD_WITHIN and not is_told and f"{customer}/{query}/{day}" not in findings:
            yield f"{name} needs an operator since {since}, and no notice or finding names it"


def _names(fact: Mapping[str, Any], query: str, customer: str, day: str) -> bool:
    """Whether a notice is about the day, or about the account, the query or the source that is parked."""
    if "first_day" in fact:
        is_in_range = fact["first_day"] <= day <= fact["last_day"]
        return fact["query_name"] == query and customer in fact["customer_ids"] and is_in_range
    return bool({f"account {customer}", f"query {query}", "source google_ads"} & {*fact.get("names", ())})


def _expected(now: datetime) -> Iterator[str]:
    """The days of every customer that have been over for a day and a half everywhere."""
    last = (now - timedelta(hours=36)).date() - timedelta(days=1)
    for query in QUERIES:
        for customer in CUSTOMERS:
            for number in range((last - FIRST_DAY).days + 1):
                yield f"{query} {customer} {FIRST_DAY + timedelta(days=number)}"


def _find_open(world: World) -> Iterator[str]:
    """What was started and is not closed, though nothing runs."""
    yield from (f"Dagster's run {each} is open" for each in world.machine.ask("open_runs"))
    with closing(sqlite3.connect(f"file:{world.home / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        for table, open_rows in _OPEN_ROWS.items():
            later = (world.now + LEASE).isoformat()
            yield from (f"{table}: {row}" for row in ledger.execute(open_rows, {"later": later}))
    for path in (world.home / "raw").rglob("_tmp.*"):
        yield f"unsealed directory {path.name}"


# A command in a sentence: its words, then options with their values and partitions.
_COMMAND: Final = re.compile(
    r"ads-pipeline [a-z]+(?: (?!says\b|lists\b|loads\b)[a-z][a-z-]*)?(?: --[a-z-]+(?: [\w./-]+)?| \d+/[\w./-]+)*"
)
_OPEN_ROWS: Final = {
    "leases": "SELECT engine_run_id, expires_at FROM leases WHERE ended_at IS NULL AND expires_at > :later",
    "demotions": "SELECT customer_id, query_name, logical_date, started_at FROM demotions",
    "open runs": "SELECT engine_run_id, status, started_at FROM run_head WHERE ended_at IS NULL",
    "run_head": "SELECT engine_run_id, last_seq, projected_seq FROM run_head WHERE last_seq > projected_seq",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Executed:
    number: int
    failures: tuple[str, ...]


def _execute_printed(world: World) -> _Executed:
    """Execute each printed next command once. One that fails must not be printed any more."""
    failures, commands = list[str](), read_advice(world).next_commands()
    for command in commands:
        done = world.command(*_arguments(command))
        if done["code"] != 0 and command in read_advice(world).next_commands():
            failures.append(f"L7: {command}: exit {done['code']}: {_last_lines(done)}")
    return _Executed(number=len(commands), failures=tuple(failures))


def _execute_in_the_morning(world: World) -> int:
    """Execute each printed command once. Some fail, because faults last; none may have an internal error."""
    commands = read_advice(world).next_commands()
    for command in commands:
        done = world.command(*_arguments(command))
        if done["code"] >= INTERNAL_ERROR:
            world.crashes.append(f"{world.now:%m-%d %H:%M} {command}: exit {done['code']}: {_last_lines(done)}")
    return len(commands)


def _arguments(command: str) -> list[str]:
    """The arguments of a printed command. An operator who has read the preview confirms it."""
    program, *arguments = shlex.split(command)
    assert program == "ads-pipeline", command
    return [*arguments, "--yes"] if arguments[0] == "state" and "--reason" in arguments else arguments


def _last_lines(done: dict[str, Any]) -> str:
    return " / ".join((done["out"] + done["err"]).strip().splitlines()[-4:])


def _advance_to(world: World, faults: Faults, target: datetime) -> None:
    while world.now < target:
        world.advance(min(STEP, target - world.now))
        faults.count()
