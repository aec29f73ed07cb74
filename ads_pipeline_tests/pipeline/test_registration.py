"""Comparing registered runs with their seals on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import RegisteredRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.registered_seals import RAW_DATA_MISSING, SEAL_CHANGED, SealRegister, check_seal
from ads_pipeline_tests.builders import ROWS, run, seal_facts, write_sealed_run

SEALED, DAMAGED = run("r1"), run("r2")


def register_run(sealed: Run, raw: RawRuns, ledger: Ledger) -> RegisteredRun:
    SealRegister(raw=raw, registrations=ledger.registrations).get_or_register([sealed])
    (registered,) = ledger.runs.registered(sealed.key)
    return registered


def delete_run(folder: Path) -> None:
    (folder / PAYLOAD).unlink()
    (folder / METADATA).unlink()


def change_seal(folder: Path) -> None:
    path = folder / METADATA
    path.chmod(0o644)
    path.write_text(path.read_text().replace('"schema_version": "1"', '"schema_version": "2"'))


def delete_payload(folder: Path) -> None:
    (folder / PAYLOAD).unlink()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (delete_run, RAW_DATA_MISSING),
        (change_seal, SEAL_CHANGED),
        (delete_payload, "the run has a seal but no payload"),
        (lambda _folder: None, None),
    ],
)
def test_changed_raw_data_is_a_problem(
    ledger: Ledger, tmp_path: Path, change: Callable[[Path], None], problem: str | None
) -> None:
    """A missing run, a changed seal and a missing payload are named. An unchanged run has no problem."""
    raw = RawRuns(tmp_path / "raw")
    raw.land(SEALED, ROWS, seal_facts())
    registered = register_run(SEALED, raw, ledger)
    change(tmp_path / "raw" / SEALED.path)
    assert check_seal(registered, raw) == problem


def test_registered_damage_is_no_problem(ledger: Ledger, tmp_path: Path) -> None:
    """A run that was registered as damaged, and still is, matches its registration."""
    raw = RawRuns(tmp_path / "raw")
    write_sealed_run(tmp_path / "raw", DAMAGED, b"{}\n", payload_bytes=7)
    registered = register_run(DAMAGED, raw, ledger)
    assert check_seal(registered, raw) is None
