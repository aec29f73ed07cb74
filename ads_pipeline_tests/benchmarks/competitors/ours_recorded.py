"""This project as a command uses it, with its ledger in SQLite. It imports no more than a command does."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deltalake import DeltaTable
from pyarrow import compute as pc
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import Run, parse_run_path
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.pipeline.registered_seals import SealRegister
from ads_pipeline.settings.environment import read_settings
from ads_pipeline.spark.session import start_spark
from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline_tests.benchmarks.competitors.serving import Batch, serve

SOURCE, QUERY = "google_ads", "campaign_daily"


class Steps:
    """The seconds of each step of one load."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


class WithLedger:
    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._open, self._ledgers = spark, ExitStack(), dict[Path, Ledger]()

    def load(self, batch: Batch) -> Mapping[str, float]:
        """What the steps of a Dagster run do: register, judge what has no verdict, load."""
        steps, runs, ledger = Steps(), find_runs(batch), self._find_ledger(batch.home)
        raw, warehouse = RawRuns(batch.root), Warehouse(warehouse_location(batch.home))
        seals = SealRegister(raw=raw, registrations=ledger.registrations)
        pipeline = Pipeline(
            start_spark=lambda: self._spark,
            raw=raw,
            ledger=ledger,
            warehouse=warehouse,
            contracts=SHIPPED,
            tables=CompletenessTables(ledger=ledger, settings=read_settings({"ADS_PIPELINE_HOME": str(batch.home)})),
            seals=seals,
        )
        keys = [run.key for run in runs]
        with steps.step("register"):
            seals.register(raw.read_seal(run) for run in runs)
        with steps.step("judge and stage"):
            unjudged = ledger.runs.unjudged(keys)
            if unjudged:
                pipeline.validation.judge(unjudged)
        with steps.step("publish"):
            pipeline.loader.load(keys)
        return steps.seconds

    def read_totals(self, home: Path) -> tuple[int, int]:
        return count_rows(home)

    def _find_ledger(self, home: Path) -> Ledger:
        if home not in self._ledgers:
            home.mkdir(parents=True, exist_ok=True)
            self._ledgers[home] = self._open.enter_context(Ledger.opened(f"sqlite:///{home / 'ledger.db'}"))
        return self._ledgers[home]


def find_runs(batch: Batch) -> list[Run]:
    return [parse_run_path(str(Path(path).parent.relative_to(batch.root))) for path in batch.payloads]


def warehouse_location(home: Path) -> str:
    return str(home / "warehouse")


def count_rows(home: Path) -> tuple[int, int]:
    uri = Warehouse(warehouse_location(home)).table(SOURCE, QUERY).uri
    clicks = DeltaTable(uri).to_pyarrow_table(columns=["clicks"])["clicks"]
    return len(clicks), pc.sum(clicks).as_py()


def command_spark() -> SparkSession:
    """The session that a command starts, in a home without an engine."""
    return start_spark(read_settings({"ADS_PIPELINE_HOME": tempfile.mkdtemp(), "ADS_PIPELINE_SPARK": "local[2]"}))


if __name__ == "__main__":
    serve(WithLedger(command_spark()))
