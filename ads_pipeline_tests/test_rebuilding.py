"""A lost ledger beside the raw runs it told of: made anew, with a word on every run that raw does not bear out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ads_pipeline.domain.freshness import Tenancy
from ads_pipeline.domain.transitions import Outcome, Verdict
from ads_pipeline.errors import ArchiveUnavailable, BadArchive
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.rebuilding import digest, export
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.pipeline.registration import register
from ads_pipeline.progress import Advance
from ads_pipeline.raw.landing import METADATA, PAYLOAD, RawRuns
from ads_pipeline.rebuilding import CHANGED, GONE, rebuild
from ads_pipeline_tests.builders import ROWS, facts, run, seal_by_hand

RUNS = [run(f"r{number}") for number in range(1, 6)]


@pytest.fixture
def raw(tmp_path: Path) -> RawRuns:
    return RawRuns(tmp_path / "raw")


@pytest.fixture
def told(raw: RawRuns, url: str, tmp_path: Path) -> Path:
    """The export of a ledger with five sealed runs, one of them damaged when it was registered; two are judged."""
    for each in RUNS[:4]:
        raw.land(each, ROWS, facts())
    seal_by_hand(tmp_path / "raw", RUNS[4], b"{}\n", payload_bytes=7)
    with Ledger.opened(url) as ledger:
        register(RUNS, raw=raw, ledger=ledger)
        ledger.record_verdicts(
            [Verdict(run=each, outcome=Outcome.ACCEPTED, rows_read=len(ROWS)) for each in RUNS[:2]]
        )
    export(url, tmp_path / "told.jsonl")
    return tmp_path / "told.jsonl"


@pytest.mark.invariant("L1")
def test_a_ledger_that_raw_bears_out_is_made_without_a_word(
    raw: RawRuns, url: str, told: Path, tmp_path: Path
) -> None:
    """Also of a run that was damaged before and still is; and the steps are told as they go."""
    steps: list[tuple[str, int, int]] = []

    @contextmanager
    def tell(words: str, total: int) -> Iterator[Advance]:
        counts: list[int] = []
        yield counts.append
        steps.append((words, total, sum(counts)))

    other = f"sqlite:///{tmp_path / 'new' / 'ledger.db'}"
    done = rebuild(other, told, raw=raw, space=Tenancy(), tell=tell)
    assert done.remarks == ()
    assert digest(other) == digest(url)
    assert [(words, total == counted) for words, total, counted in steps] == [
        ("holding runs to their seals", True),
        ("writing the ledger", True),
    ]


@pytest.mark.invariant("L1")
def test_what_raw_does_not_bear_out_is_named_and_the_log_believed(
    raw: RawRuns, url: str, told: Path, tmp_path: Path
) -> None:
    """A run that is gone, one under another seal and one whose payload was cut are each told; the ledger is whole."""
    folders = [tmp_path / "raw" / each.path for each in RUNS]
    for name in (PAYLOAD, METADATA):
        (folders[0] / name).unlink()
    (folders[1] / METADATA).chmod(0o644)
    sealed = (folders[1] / METADATA).read_text()
    (folders[1] / METADATA).write_text(sealed.replace('"schema_version": "1"', '"schema_version": "2"'))
    (folders[2] / PAYLOAD).unlink()
    other = f"sqlite:///{tmp_path / 'new' / 'ledger.db'}"
    done = rebuild(other, told, raw=raw, space=Tenancy())
    assert [(each.run, each.problem) for each in done.remarks] == [
        (RUNS[0], GONE),
        (RUNS[1], CHANGED),
        (RUNS[2], "sealed, but there is no payload"),
    ]
    assert str(done.remarks[0]) == f"{RUNS[0]}: its raw data is gone"
    assert digest(other) == digest(url)


@pytest.mark.invariant("L2")
def test_nothing_is_made_before_the_export_was_read_to_its_end(raw: RawRuns, told: Path, tmp_path: Path) -> None:
    """Not even an empty ledger, where the export is cut or cannot be read."""
    other = tmp_path / "new" / "ledger.db"
    told.write_bytes(told.read_bytes()[:-10])
    with pytest.raises(BadArchive, match="cut off"):
        rebuild(f"sqlite:///{other}", told, raw=raw, space=Tenancy())
    told.unlink()
    with pytest.raises(ArchiveUnavailable, match="No such file"):
        rebuild(f"sqlite:///{other}", told, raw=raw, space=Tenancy())
    assert not other.parent.exists()


def test_the_space_of_the_statuses_is_the_settings(raw: RawRuns, told: Path, tmp_path: Path) -> None:
    """They are made for whoever makes them."""
    other = f"sqlite:///{tmp_path / 'new' / 'ledger.db'}"
    rebuild(other, told, raw=raw, space=Tenancy(tenant_id="acme"))
    with StatusTable.opened(other) as book:
        assert {status.tenant_id for status in book.every()} == {"acme"}
