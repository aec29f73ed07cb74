"""`ledger`: copying it into another database, and its digest."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from ads_pipeline.ledger.consistency.digest import digest_ledger
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.builders import accepted_runs, keys
from ads_pipeline_tests.operations.cli.running import CommandLine, DemoCommandLine

PASSWORD = "hunter2"


def with_password(url: str) -> str:
    return sa.make_url(url).set(password=PASSWORD).render_as_string(hide_password=False)


def test_a_copied_ledger_gives_the_same_answers(
    demo_cli: DemoCommandLine, unmigrated_postgres_url: str, tmp_path: Path
) -> None:
    """From SQLite to Postgres and back: digest, states and runs are the same."""
    target = with_password(unmigrated_postgres_url)
    copied = demo_cli.process("ledger", "copy", "--to", target)
    assert copied.code == 0, copied.err
    assert copied.lines[0].startswith("copied ")
    assert copied.lines[0].endswith("; all digests match")
    assert "set ADS_PIPELINE_DATABASE_URL" in copied.lines[1]
    assert any("nothing may write to the old ledger" in line for line in copied.lines)
    assert any(line.startswith("copying run_events: ") and line.endswith(" rows") for line in copied.err.splitlines())
    assert PASSWORD not in copied.out + copied.err

    home = tmp_path / "home"
    home.mkdir()
    (home / "raw").symlink_to(demo_cli.home / "raw")
    on_postgres = CommandLine(home=home, more={"ADS_PIPELINE_DATABASE_URL": target})
    back = on_postgres.run("ledger", "copy", "--to", f"sqlite:///{home / 'ledger.db'}")
    assert back.code == 0, back.err
    assert "unset ADS_PIPELINE_DATABASE_URL" in back.lines[1]
    assert PASSWORD not in back.out + back.err
    for cli in (on_postgres, CommandLine(home=home)):
        for words in (("ledger", "copy", "--verify"), ("state", "inspect"), ("raw", "list", "--json")):
            assert cli.run(*words).out == demo_cli.run(*words).out


def test_copy_writes_the_digest_as_json(empty_cli: CommandLine, tmp_path: Path) -> None:
    """One object for each table and one for the ledger; the next steps go to standard error."""
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, keys(2))
    copied = empty_cli.run("ledger", "copy", "--to", f"sqlite:///{tmp_path / 'copy.db'}", "--json")
    assert copied.code == 0
    whole = copied.objects[-1]
    assert (whole["table"], whole["sha256"]) == (None, digest_ledger(f"sqlite:///{tmp_path / 'copy.db'}").sha256)
    assert {each["table"]: each["rows"] for each in copied.objects}["runs"] == 2
    assert "next: move the copy to ledger.db in ADS_PIPELINE_HOME" in copied.err


def test_copy_refuses_a_database_with_rows(empty_cli: CommandLine, tmp_path: Path) -> None:
    """The message names the table; source and target stay as they are."""
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, keys(2))
    target = f"sqlite:///{tmp_path / 'copy.db'}"
    assert empty_cli.run("ledger", "copy", "--to", target).code == 0
    before = digest_ledger(target)
    refused = empty_cli.run("ledger", "copy", "--to", target)
    assert (refused.code, refused.out) == (64, "")
    assert "the target database has rows in table runs" in refused.err
    assert digest_ledger(target) == before


@pytest.mark.parametrize(
    ("url", "code"),
    [
        (f"postgresql+psycopg2://ada:{PASSWORD}@127.0.0.1:1/ads", 69),
        (f"postgresql+psycopg2://ada:{PASSWORD}/x@db:y/ads", 64),
        (f"postgresql+psycopg2://db/ads?password={PASSWORD}&nonsense={PASSWORD}", 70),
        (f"postgresql://ada:{PASSWORD}@127.0.0.1:1/ads", 64),
        (f"mysql://ada:{PASSWORD}@127.0.0.1/ads", 64),
        (PASSWORD, 64),
        ("sqlite:///", 64),
        ("sqlite:////proc/nowhere/ledger.db", 69),
    ],
)
def test_a_failing_copy_never_prints_the_password(empty_cli: CommandLine, url: str, code: int) -> None:
    """Unreachable targets and malformed URLs end with one line and an exit code."""
    ended = empty_cli.run("ledger", "copy", "--to", url)
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith("ads-pipeline: ")
    assert PASSWORD not in ended.err


def test_copy_needs_a_ledger(tmp_path: Path) -> None:
    """Without one, the settings are wrong, and no target is created."""
    refused = CommandLine(home=tmp_path).run("ledger", "copy", "--to", f"sqlite:///{tmp_path / 'copy.db'}")
    assert refused.code == 78
    assert not (tmp_path / "copy.db").exists()


def test_copy_is_compared_with_its_source(empty_cli: CommandLine, tmp_path: Path) -> None:
    """Equal ledgers exit with 0. Otherwise the tables that differ are named, and the exit code is 1."""
    target = f"sqlite:///{tmp_path / 'copy.db'}"
    assert empty_cli.run("ledger", "copy").code == 64
    assert empty_cli.run("ledger", "copy", "--to", target).code == 0
    same = empty_cli.run("ledger", "copy", "--verify", "--to", target)
    assert (same.code, same.lines[-1]) == (0, "all digests match")
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, keys(2))
    different = empty_cli.run("ledger", "copy", "--verify", "--to", target)
    assert different.code == 1
    assert "partition_state" in different.out.partition("differing tables: ")[2]


def test_digest_prints_one_line_for_each_table(empty_cli: CommandLine) -> None:
    """The table fits 80 columns; --json has all digits."""
    before = empty_cli.run("ledger", "copy", "--verify")
    with Ledger.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as ledger:
        accepted_runs(ledger, keys(2))
    after = empty_cli.run("ledger", "copy", "--verify")
    assert after.code == 0
    assert max(map(len, after.lines)) <= 80
    assert any(line.split()[:2] == ["partition_state", "2"] for line in after.lines)
    assert len(after.lines[-1]) == 64
    assert after.lines[-1] != before.lines[-1]
    *tables, whole = empty_cli.run("ledger", "copy", "--verify", "--json").objects
    assert (whole["table"], whole["sha256"]) == (None, after.lines[-1])
    assert whole["rows"] == sum(each["rows"] for each in tables)
    assert {"runs": 2, "attempts": 2}.items() <= {each["table"]: each["rows"] for each in tables}.items()
