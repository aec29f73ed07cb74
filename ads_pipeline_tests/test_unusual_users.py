"""A home that can only be read, a user without a name, and a user without a home directory."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from ads_pipeline.domain.errors import BadSettings, LedgerUnavailable
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.ledger.builders import accepted_runs, key, keys
from ads_pipeline_tests.operations.cli.running import MAIN_SCRIPT, CommandLine, CommandResult
from ads_pipeline_tests.spark.servers import build_environment

NAMELESS = "12345"
READ_CAPABILITY = "+dac_read_search"  # the interpreter may be below a home directory of root
SPARK_SCRIPT = """
import sys
from ads_pipeline.settings.environment import read_settings
from ads_pipeline.spark.session import spark_session
with spark_session(read_settings({"ADS_PIPELINE_HOME": sys.argv[1], "ADS_PIPELINE_SPARK": "local[1]"})) as spark:
    print("rows", spark.range(3).mapInArrow(lambda batches: batches, "id long").count())
"""


def can_mount() -> bool:
    return (
        shutil.which("unshare") is not None and not subprocess.run(["unshare", "-m", "true"], check=False).returncode
    )


def run_on_read_only_mount(home: Path, *arguments: str) -> CommandResult:
    """Run a command where the home is mounted read-only, as a process."""
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, str(home), sys.executable, "-c", MAIN_SCRIPT, *arguments],
        env=CommandLine(home=home).environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    return CommandResult(code=done.returncode, out=done.stdout, err=done.stderr)


needs_mounts = pytest.mark.skipif(not can_mount(), reason="mounts need the rights of root")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a closed ledger."""
    home = tmp_path / "home"
    with Ledger.opened(read_settings({"ADS_PIPELINE_HOME": str(home)}).database_url) as ledger:
        accepted_runs(ledger, keys(2))
    assert [path.name for path in home.iterdir()] == ["ledger.db"]
    return home


READ_COMMANDS: Sequence[tuple[str, ...]] = (
    ("state", "inspect", "--status", "success"),
    ("state", "due"),
    ("state", "why", "--attempts"),
    ("audit",),
    ("warehouse", "query", "SELECT 1 AS one"),
    ("ledger", "copy", "--verify"),
    ("metrics",),
    ("reconcile", "--plan"),
)


@needs_mounts
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_home_on_a_read_only_mount_can_be_read(home: Path, is_open: bool) -> None:
    """Commands that only read give the same answer, also while a writer elsewhere has the ledger open."""
    assert_same_answers(home) if not is_open else _with_open_ledger(home)


def _with_open_ledger(home: Path) -> None:
    with Ledger.opened(read_settings({"ADS_PIPELINE_HOME": str(home)}).database_url) as ledger:
        accepted_runs(ledger, [key("77")])
        assert_same_answers(home)
        (newest,) = run_on_read_only_mount(home, "state", "why", "77/campaign_daily/2026-02-01", "--json").objects[:1]
        assert json.dumps(newest).count("77")


def assert_same_answers(home: Path) -> None:
    for arguments in READ_COMMANDS:
        expected, found = CommandLine(home=home).process(*arguments), run_on_read_only_mount(home, *arguments)
        assert (found.code, found.err) == (expected.code, expected.err), arguments
        assert arguments == ("metrics",) or found.out == expected.out


@needs_mounts
@pytest.mark.parametrize(
    "arguments",
    [
        ("state", "enqueue", "1000/campaign_daily/2026-02-02", "--reason", "x", "--operator", "ada"),
        ("migrate",),
        ("reconcile",),
        ("report",),
        ("queries", "new"),
    ],
)
def test_command_that_writes_says_that_the_home_is_read_only(home: Path, arguments: tuple[str, ...]) -> None:
    """One line names the directory. It does not say that the command may succeed later."""
    result = run_on_read_only_mount(home, *arguments)
    (line,) = result.err.splitlines()
    assert result.code == 78
    assert f"{home} cannot be written: it is mounted read-only" in line
    assert "later" not in line


@needs_mounts
def test_doctor_says_that_the_home_is_read_only(home: Path) -> None:
    """The next step is about the mount, because no chmod helps."""
    shown = run_on_read_only_mount(home, "doctor", "--json").out
    assert "it is on a read-only file system, so it can only be read" in shown
    assert "chmod u+rwx" not in shown


def test_ledger_that_changes_while_it_is_read_is_an_outage(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed ledger that cannot be written is read as a file that does not change. A change is found and said."""
    url = read_settings({"ADS_PIPELINE_HOME": str(home)}).database_url
    monkeypatch.setattr(os, "access", lambda *_arguments, **_options: False)
    with LedgerReader.opened(url) as reader:
        assert reader.states.get(keys(2)[0]).current_run_id == "r1"
        monkeypatch.undo()
        with Ledger.opened(url) as ledger:
            accepted_runs(ledger, [key("77")])
        with pytest.raises(LedgerUnavailable, match="changed the ledger while it was read"):
            reader.states.get(key("77"))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="changes the user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv changes the user")
def test_user_without_a_name_can_run_spark() -> None:
    """Java finds neither the name nor the home of a user without an entry in the passwd database."""
    capabilities = [f"--{kind}={READ_CAPABILITY}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
    user = ["setpriv", f"--reuid={NAMELESS}", f"--regid={NAMELESS}", "--clear-groups", *capabilities]
    environment = {
        name: text for name, text in build_environment().items() if name not in {"HOME", "USER", "LOGNAME"}
    }
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder)
        temporary.chmod(0o777)
        done = subprocess.run(
            [*user, sys.executable, "-c", SPARK_SCRIPT, str(temporary / "home")],
            env=environment | {"TMPDIR": folder, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "rows 3\n"), done.stderr[-3000:]
        assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("home", [None, "relative"])
def test_user_without_a_home_directory_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    """The default home is below the home directory of the user. It is never a directory named ~."""
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)
    if home is None:
        monkeypatch.setattr("pwd.getpwuid", _raise_key_error)
    with pytest.raises(BadSettings, match="ADS_PIPELINE_HOME: is not set, and this user has no home directory"):
        read_settings({})
    assert read_settings({"ADS_PIPELINE_HOME": "/srv/ads"}).home == Path("/srv/ads")


def test_home_directory_that_the_default_cannot_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the characters."""
    monkeypatch.setenv("HOME", "/home/why?")
    with pytest.raises(
        BadSettings, match=r"is not set, and the default cannot be used; set it to .* without %, \? or"
    ):
        read_settings({})


def _raise_key_error(_uid: int) -> None:
    raise KeyError
