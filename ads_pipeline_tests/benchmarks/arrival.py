"""Measures one arrival in `ads-pipeline dev`, from its seal until readers see it: the first, and later ones."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final

import dagster as dg

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.orchestration.resources import open_ledger_engine
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline_tests.benchmarks.ratios import Figure
from ads_pipeline_tests.pipeline.builders import FACTS, key, rows_for
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.ports import reserve_port

ROOT: Final = Path(__file__).parents[2]
COMMAND: Final = "from ads_pipeline.operations.cli.main import main; main()"
WARM_ARRIVALS: Final = 5
SECONDS: Final = 300.0
WARM_GOAL, SEAL_GOAL = 5.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The seconds of each part of one arrival."""

    tick_wait: float
    tick: float
    queue: float
    process: float
    raw: float
    judging: float
    loading: float

    @property
    def from_tick(self) -> float:
        return self.tick + self.queue + self.process + self.raw + self.judging + self.loading

    def __str__(self) -> str:
        parts = ("tick_wait", "tick", "queue", "process", "raw", "judging", "loading")
        return ", ".join(f"{name} {getattr(self, name):.1f}" for name in parts)


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory) / "home"
        settings = read_settings({"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": "local[2]"})
        day = datetime.now(UTC).date() - timedelta(days=30)
        with _dev(home), open_ledger_engine(settings) as engine:
            ledger = LedgerReader(engine, tenancy=settings.tenancy)
            arrivals = []
            for number in range(WARM_ARRIVALS + 1):
                found = _measure_one(settings, ledger, replace(key(1), logical_date=day + timedelta(days=number)))
                print(f"arrival {number + 1}: {found.from_tick:.1f} s from the tick; {found}", flush=True)
                arrivals.append(found)
        first, *warm = arrivals
        yield Figure(name="first arrival, from its tick", value=first.from_tick, unit="s", limit=60.0)
        from_tick = median(each.from_tick for each in warm)
        from_seal = median(each.from_tick + each.tick_wait for each in warm)
        yield Figure(name="arrival, warm, from its tick", value=from_tick, unit="s", limit=WARM_GOAL)
        yield Figure(name="arrival, warm, from its seal", value=from_seal, unit="s", limit=SEAL_GOAL)


def _measure_one(settings: Settings, ledger: LedgerReader, partition: PartitionKey) -> Arrival:
    run = Run(key=partition, run_id="r1")
    RawRuns(settings.raw_location).land(run, rows_for(partition, 100), FACTS)
    sealed = time.time()
    wait_for(lambda: ledger.publications.pointers([partition]), SECONDS, every=0.02)
    readable = time.time()
    with dg.DagsterInstance.from_config(str(settings.home / "dagster")) as instance:
        (found,) = instance.get_runs(dg.RunsFilter(tags={"ads_pipeline/days": partition.logical_date.isoformat()}))
        wait_for(lambda: _is_finished(instance, found.run_id), SECONDS)
        events = [each for each in instance.all_logs(found.run_id) if each.dagster_event]
        at = {_name(each): each.timestamp for each in events}
        tick = _find_tick(instance, found)
    return Arrival(
        tick_wait=tick - sealed,
        tick=at["PIPELINE_ENQUEUED"] - tick,
        queue=at["PIPELINE_STARTING"] - at["PIPELINE_ENQUEUED"],
        process=at["raw STEP_START"] - at["PIPELINE_STARTING"],
        raw=at["valid STEP_START"] - at["raw STEP_START"],
        judging=at["warehouse STEP_START"] - at["valid STEP_START"],
        loading=readable - at["warehouse STEP_START"],
    )


def _name(entry: dg.EventLogEntry) -> str:
    """The kind of an event, with the part of the pipeline that its step is."""
    event = entry.get_dagster_event()
    kind = event.event_type_value
    if kind != "STEP_START":
        return kind
    step = str(event.step_key)
    part = next((each for each in ("valid", "readable") if step.endswith(f"_{each}")), step.partition("__")[0])
    return f"{part} {kind}"


def _is_finished(instance: dg.DagsterInstance, run_id: str) -> bool:
    run = instance.get_run_by_id(run_id)
    return run is not None and run.is_finished


def _find_tick(instance: dg.DagsterInstance, run: dg.DagsterRun) -> float:
    """When the tick that requested the run began."""
    for state in instance.all_instigator_state():
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=500):
            if run.run_id in tick.run_ids:
                return tick.timestamp
    raise LookupError(run.run_id)


@contextmanager
def _dev(home: Path) -> Iterator[None]:
    """`ads-pipeline dev` of this checkout with its defaults, once its UI answers."""
    home.mkdir(parents=True)
    port = reserve_port()
    own = {"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": "local[2]", "PYTHONPATH": str(ROOT)}
    shell = {name: value for name, value in os.environ.items() if not name.startswith(("ADS_PIPELINE_", "DAGSTER_"))}
    os.environ.update(own)  # Dagster's storage reads the home from the environment
    with (home / "dev.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "dev", "--port", str(port)],
            cwd=ROOT,
            env=shell | own,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_for(lambda: _answers(port), SECONDS, is_alive=lambda: process.poll() is None)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _answers(port: int) -> bool:
    body = json.dumps({"query": "{ version }"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/graphql", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30):
            return True
    except OSError:
        return False
