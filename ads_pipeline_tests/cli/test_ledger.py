"""`ledger`: its export, its digest, and a lost one made anew."""

import json
import shutil
from pathlib import Path

from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.builders import tree
from ads_pipeline_tests.cli.running import Place, Shown
from ads_pipeline_tests.ledger.builders import accepted, keys


def test_a_lost_ledger_is_made_anew(shown: Shown, tmp_path: Path) -> None:
    """From the export and the sealed runs, to the same digest, with the same answers."""
    home, file = tmp_path / "home", tmp_path / "told.jsonl"
    exported = shown.run("ledger", "export", str(file))
    assert (exported.code, exported.lines) == (0, [f"exported {file.stat().st_size:,} bytes"])
    home.mkdir()
    (home / "raw").symlink_to(shown.home / "raw")
    place = Place(home=home)
    rebuilt = place.run("ledger", "rebuild", str(file))
    assert (rebuilt.code, rebuilt.err) == (0, "")
    assert rebuilt.lines[-1].startswith("took ")
    assert place.run("ledger", "digest").out == shown.run("ledger", "digest").out
    for words in (("state", "inspect"), ("raw", "list", "--json"), ("state", "inspect", "--status", "failed")):
        assert place.run(*words).out == shown.run(*words).out


def test_a_digest_is_one_line_under_its_parts(empty: Place) -> None:
    """For people within 80 columns, for programs with all digits."""
    before = empty.run("ledger", "digest")
    with Ledger.opened(f"sqlite:///{empty.home / 'ledger.db'}") as ledger:
        accepted(ledger, keys(2))
    after = empty.run("ledger", "digest")
    assert after.code == 0
    assert max(map(len, after.lines)) <= 80
    assert after.lines[1].split()[:2] == ["partition_state", "2"]
    assert len(after.lines[-1]) == 64
    assert after.lines[-1] != before.lines[-1]
    *parts, whole = empty.run("ledger", "digest", "--json").objects
    assert whole == {"part": None, "rows": 6, "sha256": after.lines[-1]}
    assert {each["part"]: each["rows"] for each in parts if each["rows"]} == {
        "partition_state": 2,
        "runs": 2,
        "attempts": 2,
    }


def test_a_file_that_is_there_is_kept(empty: Place, tmp_path: Path) -> None:
    """Unless it is said that it may go."""
    file = tmp_path / "told.jsonl"
    file.write_text("mine")
    refused = empty.run("ledger", "export", str(file))
    assert (refused.code, file.read_text()) == (64, "mine")
    assert "--replace" in refused.err
    assert empty.run("ledger", "export", str(file), "--replace").code == 0
    assert file.read_text().startswith('{"ledger_export":1')


def test_a_folder_that_cannot_be_written_to_is_told(empty: Place, tmp_path: Path) -> None:
    """As something out of reach, which may come back."""
    refused = empty.run("ledger", "export", str(tmp_path / "nowhere" / "told.jsonl"))
    assert refused.code == 69
    assert "No such file or directory" in refused.err


def test_a_ledger_in_use_is_not_rebuilt(shown: Shown, tmp_path: Path) -> None:
    """It is said where there is something, and what to do about it."""
    file = tmp_path / "told.jsonl"
    shown.run("ledger", "export", str(file))
    before = tree(shown.home / "raw"), shown.run("ledger", "digest").out
    refused = shown.run("ledger", "rebuild", str(file))
    assert (refused.code, refused.out) == (64, "")
    assert "the ledger is in use, there are rows in runs" in refused.err
    assert (tree(shown.home / "raw"), shown.run("ledger", "digest").out) == before


def test_what_is_no_export_is_refused(empty: Place, tmp_path: Path) -> None:
    """By the line at which that shows; a file that is not there is a wrong word."""
    file = tmp_path / "told.jsonl"
    assert empty.run("ledger", "rebuild", str(file)).code == 64
    empty.run("ledger", "export", str(file))
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([first.replace('"runs":0', '"runs":1'), *others, ""]))
    refused = empty.run("ledger", "rebuild", str(file))
    assert (refused.code, refused.out) == (65, "")
    assert refused.err.startswith("ads-pipeline: line 2 of the export: a row of runs must stand here")


def test_runs_that_raw_does_not_bear_out_are_named(shown: Shown, tmp_path: Path) -> None:
    """Each on its line, and by the code; the ledger is made all the same."""
    home, file = tmp_path / "home", tmp_path / "told.jsonl"
    shown.run("ledger", "export", str(file))
    shutil.copytree(shown.home / "raw", home / "raw")
    (run,) = [json.loads(line) for line in file.read_text().splitlines() if '"part":"runs"' in line][:1]
    folder = next((home / "raw").rglob(f"customer_id={run['customer_id']}/**/run_id={run['run_id']}"))
    shutil.rmtree(folder)
    place = Place(home=home)
    rebuilt = place.run("ledger", "rebuild", str(file))
    assert rebuilt.code == 1
    assert rebuilt.lines[0].endswith(f"/{run['run_id']}: its raw data is gone")
    assert rebuilt.lines[-1] == "raw does not bear out 1 run"
    assert place.run("ledger", "digest").out == shown.run("ledger", "digest").out
