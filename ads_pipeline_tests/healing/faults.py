"""What each kind of act does to the simulated deployment. A lasting one is ended by `restore`."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from ads_pipeline.domain.partition import parse_run_path
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, GoogleError, RequestFailure, Scenario
from ads_pipeline.lake.raw.landing import UNSEALED_KEPT
from ads_pipeline_tests.builders import write_sealed_run
from ads_pipeline_tests.google_ads.builders import LOGIN, failing
from ads_pipeline_tests.healing.schedules import Act
from ads_pipeline_tests.healing.world import CUSTOMERS, QUERIES, World, usual_scenario
from ads_pipeline_tests.operations.cli.running import MAIN_SCRIPT
from ads_pipeline_tests.webhook_server import Answer, WebhookServer, answer_with

CANCELED: Final = 3  # Google's number of the status
# After these, a day may need a decision that no printed command makes by itself, such as a contract.
NEED_A_PERSON: Final = frozenset(
    {"operator", "rejected_run", "run_without_contract", "odd_seal", "raw_changed", "raw_missing"}
)
ODD_ROWS: Final = ("foreign_day", "foreign_customer", "missing_day", "nan")
CLOCK_ERRORS: Final = {"clock_ahead": timedelta(hours=26), "clock_behind": -timedelta(hours=2)}


@dataclass
class Faults:
    """The faults of a world: which are active, and how often each kind took effect."""

    world: World
    active: list[Act] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    _failed: Counter[str | None] = field(default_factory=Counter)
    _disk_errors: int = 0
    _messages: int = 0

    def begin(self, act: Act) -> None:
        if act.kind in _OF_THE_SOURCE or act.kind == "killed_at_a_write":
            _request_fetch(self.world, act)
        if act.hours:
            self.active.append(act)
            self._apply()
        elif _MOMENTS[act.kind](self.world, act):
            self.fired[act.kind] += 1

    def end(self, act: Act) -> None:
        self.active.remove(act)
        self._apply()

    def restore(self) -> None:
        """End all faults."""
        self.active.clear()
        self._apply()
        _age_unsealed(self.world)

    def count(self) -> None:
        """Count the active faults that something met since the last call."""
        failed = self._count_failed_operations()
        new, self._failed = failed - self._failed, failed
        sent, self._messages = len(self.world.webhook.bodies) > self._messages, len(self.world.webhook.bodies)
        errors, self._disk_errors = self.world.disk_errors - self._disk_errors, self.world.disk_errors
        for act in self.active:
            if act.kind == "disk_full":
                self.fired[act.kind] += errors
            elif act.kind in _WEBHOOKS:
                self.fired[act.kind] += sent
            elif act.kind in _OF_THE_SOURCE and act.kind != "account_cancelled":
                self.fired[act.kind] += new[CUSTOMERS[act.customer]] if act.kind in _OF_ACCOUNTS else new.total()
            else:
                self.fired[act.kind] += 1

    def _count_failed_operations(self) -> Counter[str | None]:
        """The calls of the source that failed, by customer, as the ledger has them."""
        path = self.world.home / "ledger.db"
        if not path.exists():
            return Counter()
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
            failed = "SELECT customer_id, count(*) FROM api_operations WHERE error_message IS NOT NULL GROUP BY 1"
            return Counter(dict(ledger.execute(failed).fetchall()))

    def _apply(self) -> None:
        """Let the server, the webhook, the disk and the clock be as the active faults say."""
        world, kinds = self.world, {act.kind for act in self.active}
        scenario = usual_scenario()
        for act in self.active:
            if (change := _OF_THE_SOURCE.get(act.kind)) is not None:
                scenario = change(scenario, act)
        if scenario != world.scenario:
            world.answer(scenario)
        answers = [_WEBHOOKS[kind](world.webhook) for kind in sorted(kinds & _WEBHOOKS.keys())]
        world.webhook.answer = answers[0] if answers else answer_with(200)
        world.disk_is_full = "disk_full" in kinds
        error = sum((CLOCK_ERRORS[kind] for kind in kinds & CLOCK_ERRORS.keys()), timedelta(0))
        if error != world.clock_error:
            world.clock_error = error
            world.set_clock()


def _age_unsealed(world: World) -> None:
    """Let the files of killed landings be old enough for maintenance, because files keep the machine's time."""
    old = time.time() - (UNSEALED_KEPT + timedelta(days=1)).total_seconds()
    for directory in (world.home / "raw").rglob("_tmp.*"):
        for path in (*directory.rglob("*"), directory):
            os.utime(path, (old, old))


def _behave(scenario: Scenario, customers: Iterable[str], **behaviour: Any) -> Scenario:
    changed = {each: replace(scenario.customers.get(each, Behaviour()), **behaviour) for each in customers}
    return replace(scenario, customers={**scenario.customers, **changed})


def _cancel(scenario: Scenario, act: Act) -> Scenario:
    accounts = tuple(
        replace(each, status=CANCELED) if each.customer_id == CUSTOMERS[act.customer] else each
        for each in scenario.clients[LOGIN]
    )
    return replace(scenario, clients={LOGIN: accounts})


def _exhaust(act: Act) -> RequestFailure:
    error = GoogleError(category="quota_error", number=2, retry_seconds=900 + 40 * act.choice, rate_scope=2)
    return RequestFailure(code="RESOURCE_EXHAUSTED", errors=(error,))


_DISABLED: Final = failing("authorization_error", "CUSTOMER_NOT_ENABLED", code="PERMISSION_DENIED")
_DENIED: Final = failing("authorization_error", "USER_PERMISSION_DENIED", code="PERMISSION_DENIED")
_OF_THE_SOURCE: Final[dict[str, Callable[[Scenario, Act], Scenario]]] = {
    "source_away": lambda one, _act: replace(one, away="UNAVAILABLE"),
    "token_endpoint_away": lambda one, act: replace(one, token_page=(403, 502, 503)[act.choice % 3]),
    "token_refused": lambda one, _act: replace(one, refuse_token=True),
    "quota_exhausted": lambda one, act: _behave(one, CUSTOMERS, failure=_exhaust(act)),
    "account_disabled": lambda one, act: _behave(one, [CUSTOMERS[act.customer]], failure=_DISABLED),
    "account_denied": lambda one, act: _behave(one, [CUSTOMERS[act.customer]], failure=_DENIED),
    "account_cancelled": _cancel,
    "odd_rows": lambda one, act: _behave(one, [CUSTOMERS[act.customer]], odd_row=ODD_ROWS[act.choice % 4]),
    "undecodable_failure": lambda one, act: _behave(
        one, [CUSTOMERS[act.customer]], failure=RequestFailure(code="INTERNAL", undecodable=True)
    ),
    "stream_breaks": lambda one, act: _behave(
        one, [CUSTOMERS[act.customer]], failure=RequestFailure(code="UNAVAILABLE", after_batches=1)
    ),
    "stream_times_out": lambda one, act: _behave(
        one, [CUSTOMERS[act.customer]], failure=RequestFailure(code="DEADLINE_EXCEEDED", after_batches=act.choice % 2)
    ),
}

_WEBHOOKS: Final[dict[str, Callable[[WebhookServer], Answer]]] = {
    "webhook_away": lambda _server: answer_with(503),
    "webhook_drips": lambda server: server.drip,
    "webhook_hangs": lambda server: server.hang,
}

_OF_ACCOUNTS: Final = frozenset(
    {"account_disabled", "account_denied", "odd_rows", "undecodable_failure", "stream_breaks", "stream_times_out"}
)


def _kill_at_a_write(world: World, act: Act) -> bool:
    before = world.deaths
    world.die_after(act.choice % 40)
    for _ in range(4):
        world.advance(timedelta(hours=1))
        if world.deaths > before:
            return True
    world.machine.kill()  # nothing was written
    return False


def _kill(world: World, _act: Act) -> bool:
    world.machine.kill()
    world.deaths += 1
    return True


def _kill_command(world: World, act: Act) -> bool:
    """Kill a command of an operator some moments after its start."""
    key = _choose_partition(world, act)
    if key is None:
        return False
    command = ["state", "reprocess", key, "--reason", "killed", "--yes"]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN_SCRIPT, *command],
        env=world.machine.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(0.5 + act.choice / 500)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return True


def _find_sealed(world: World, act: Act) -> Path | None:
    """The directory of some run that the product has sealed. Its day may need a person when the act does."""
    found = sorted(each.parent for each in (world.home / "raw").rglob("run_id=2*/metadata.json"))
    if not found:
        return None
    directory = random.Random(act.choice).choice(found)
    if act.kind in NEED_A_PERSON:
        world.touched.add(_name_day(directory))
    return directory


def _name_day(directory: Path) -> str:
    """The day of a directory of a run, as the surfaces name it."""
    customer, query, day = (part.partition("=")[2] for part in directory.parent.parts[-3:])
    return f"{query} {customer} {day}"


def _choose_partition(world: World, act: Act) -> str | None:
    """Some partition of which there is a run, as commands name it."""
    directory = _find_sealed(world, act)
    if directory is None:
        return None
    query, customer, day = _name_day(directory).split()
    return f"{customer}/{query}/{day}"


def _request_fetch(world: World, act: Act) -> None:
    """Let an operator request another run of a day of the act's customer, so that something meets the fault."""
    runs = (world.home / "raw").glob(f"*/customer_id={CUSTOMERS[act.customer]}/*/*/run_id=2*")
    if days := sorted({each.parent for each in runs}):
        _customer, query, day = (part.partition("=")[2] for part in random.Random(act.choice).choice(days).parts[-3:])
        key = f"{CUSTOMERS[act.customer]}/{query}/{day}"
        world.command("state", "reprocess", key, "--reason", "needed again", "--yes")


def _seal(world: World, act: Act, *, run_id: str, change: Callable[[bytes], bytes], **fields: Any) -> bool:
    """Seal a run beside an earlier one, with its rows and its seal changed."""
    directory = _find_sealed(world, act)
    if directory is None:
        return False
    earlier = parse_run_path(directory.relative_to(world.home / "raw").as_posix())
    document = json.loads((directory / "metadata.json").read_text())
    kept = ("schema_version", "api_version", "query_hash", "time_zone", "currency_code")
    payload = change((directory / "payload.jsonl").read_bytes())
    write_sealed_run(
        world.home / "raw",
        replace(earlier, run_id=f"{run_id}-{act.at}-{act.choice}"),
        payload,
        **{"extracted_at": world.now.isoformat()} | {name: document[name] for name in kept} | fields,
    )
    return True


def _break_seal(world: World, act: Act) -> bool:
    directory = _find_sealed(world, act)
    if directory is None:
        return False
    prefix = ("run_id=odd", "odd")[act.choice % 2]  # the second one is no name of a run
    odd = directory.with_name(f"{prefix}-{act.at}-{act.choice}")
    odd.mkdir()
    (odd / "payload.jsonl").write_bytes(b"")
    texts = (b"", b"{", b'{"source": 7}', b"\xff\xfe", b"[" * 100_000)
    (odd / "metadata.json").write_bytes(texts[act.choice % len(texts)])
    return True


def _find_data_file(world: World, act: Act) -> Path | None:
    """A data file that the newest version of some table has."""
    files = [
        Path(uri)
        for query in QUERIES
        if DeltaTable.is_deltatable(str(table := world.home / "warehouse" / "google_ads" / query))
        for uri in sorted(DeltaTable(str(table)).file_uris())
    ]
    return random.Random(act.choice).choice(files) if files else None


def _remove_data_file(world: World, act: Act) -> bool:
    path = _find_data_file(world, act)
    if path is None or not path.exists():
        return False
    path.unlink()
    return True


def _cut_data_file(world: World, act: Act) -> bool:
    path = _find_data_file(world, act)
    if path is None or not path.exists():
        return False
    os.truncate(path, path.stat().st_size // 2)
    return True


def _change_raw(world: World, act: Act) -> bool:
    directory = _find_sealed(world, act)
    if directory is None:
        return False
    payload = directory / "payload.jsonl"
    payload.write_bytes(payload.read_bytes() + b'{"customer_id": "1"}\n')
    return True


def _remove_raw(world: World, act: Act) -> bool:
    directory = _find_sealed(world, act)
    if directory is not None:
        shutil.rmtree(directory)
    return directory is not None


_COMMANDS: Final = (
    "state withdraw {key} --reason nonsense --yes",
    "state demote {key} --reason nonsense --yes",
    "state terminal {key} --reason nonsense --yes",
    "state retry {key} --reason nonsense --yes",
    "state reprocess {key} --reason nonsense --yes",
    "state enqueue {key} --reason nonsense --yes",
    "state restore {key} --reason nonsense --yes",
    "state terminal {key} --clear --reason nonsense --yes",
    "state release --customer 2000000004 --reason nonsense",
    "state release --source google_ads --reason nonsense",
    "accounts discover",
    "reconcile",
    "doctor",
)
_QUIETING: Final = frozenset({"withdraw", "demote", "terminal"})


def _operate(world: World, act: Act) -> bool:
    """A command of an operator, whatever it answers."""
    key = _choose_partition(world, act)
    if key is None:
        return False
    command = _COMMANDS[act.choice % len(_COMMANDS)].format(key=key)
    done = world.command(*command.split())
    if _QUIETING & {*command.split()} and "--clear" not in command and done["code"] == 0:
        customer, query, day = key.split("/")
        world.quieted.add(f"{query} {customer} {day}")
    if done["code"] >= 70:  # an internal error, which no state justifies
        world.crashes.append(f"{world.now:%m-%d %H:%M} {command}: exit {done['code']}: {done['err'][-600:]}")
    return True


def _keep(payload: bytes) -> bytes:
    return payload


_MOMENTS: Final[dict[str, Callable[[World, Act], bool]]] = {
    "killed_at_a_write": _kill_at_a_write,
    "killed_between_steps": _kill,
    "command_killed": _kill_command,
    "rejected_run": lambda world, act: _seal(world, act, run_id="bad", change=lambda one: one + b"{}\n"),
    "run_without_contract": lambda world, act: _seal(world, act, run_id="future", change=_keep, schema_version="99"),
    "odd_seal": _break_seal,
    "data_file_missing": _remove_data_file,
    "data_file_cut": _cut_data_file,
    "raw_changed": _change_raw,
    "raw_missing": _remove_raw,
    "operator": _operate,
}
