"""How commands end, mostly as processes of their own: exit codes, one line on stderr, pipes, colours, imports."""

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ads_pipeline import errors
from ads_pipeline.cli.exit_codes import exit_code, one_line
from ads_pipeline.errors import (
    AdsPipelineError,
    CopyDiffers,
    BadCommand,
    BadEvent,
    BadName,
    BadSettings,
    ContractMissing,
    EventsNotFound,
    LedgerOutdated,
    LedgerRefused,
    LedgerUnavailable,
    LogContradicted,
    Mistake,
    RawUnavailable,
    RunClosed,
    RunDamaged,
    RunOpen,
    TargetNotEmpty,
    VerdictsRefused,
    WarehouseUnavailable,
)
from ads_pipeline_tests.cli.running import MAIN_SCRIPT, WEEK, CommandLine, DemoCommandLine

COMMANDS = (
    (),
    ("migrate",),
    ("doctor",),
    ("ledger",),
    *(("ledger", name) for name in ("export", "digest", "rebuild")),
    ("state",),
    ("state", "inspect"),
    ("state", "why"),
    *(("state", name) for name in ("retry", "mark-terminal", "clear-terminal", "reprocess", "withdraw")),
    *(("state", name) for name in ("enqueue", "demote", "restore", "due", "park", "release")),
    ("audit",),
    *(("audit", name) for name in ("acts", "terminal", "attempts", "parked")),
    ("raw",),
    ("raw", "list"),
    ("raw", "verify"),
    ("reconcile",),
    ("warehouse",),
    ("warehouse", "query"),
    ("warehouse", "gaps"),
    ("events",),
    *(("events", name) for name in ("runs", "tail", "snapshot", "follow", "retire")),
)
HEAVY = ("dagster", "pyspark", "duckdb", "pandas", "pyarrow", "pandera")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadName("customer_id", "1-2", "digits"), 64),
        (BadCommand("exchange them"), 64),
        (EventsNotFound("r1", "none"), 64),
        (RunOpen("r1", "RUNNING"), 64),
        (BadEvent("run_id", "odd"), 65),
        (RunClosed("r1", "retired"), 65),
        (RunDamaged("x", "short"), 65),
        (CopyDiffers("runs", rows=1, expected=2), 65),
        (LogContradicted("x", "odd"), 65),
        (TargetNotEmpty("runs"), 64),
        (RawUnavailable("x", "full"), 69),
        (LedgerUnavailable("busy"), 69),
        (WarehouseUnavailable("x", "gone"), 69),
        (LedgerRefused("no"), 70),
        (BadSettings(()), 78),
        (ContractMissing("q", "1", ()), 78),
        (LedgerOutdated(None, "r1"), 78),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_failure_has_its_code(error: AdsPipelineError, code: int) -> None:
    """Scripts tell by the code whether to mend words, settings or data, or to wait."""
    assert exit_code(error) == code


def test_waiting_decides_before_anything_else() -> None:
    """Every failure that waiting cures ends with 69, and no other does."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AdsPipelineError)]
    codes = {kind: exit_code(kind.__new__(kind)) for kind in kinds}
    assert {kind for kind, code in codes.items() if code == 69} == {kind for kind in kinds if kind.is_transient}
    assert set(codes.values()) == {64, 65, 69, 70, 78}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            BadSettings((Mistake(location="A", problem="odd"), Mistake(location="B", problem="even"))),
            "the settings hold 2 mistakes; mend and start again: A: odd; B: even",
        ),
        (LedgerUnavailable("busy"), "busy; the same command may succeed later"),
        (BadCommand("a\x1b[31m"), r"a\x1b[31m"),
        (VerdictsRefused((), ()), "0 verdicts are recorded, 0 were refused:"),
        (BadCommand(), "BadCommand"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_failure_is_one_line(error: AdsPipelineError, line: str) -> None:
    """However much a message lists, it is one printable line, and says when waiting may help."""
    assert one_line(error) == line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("state", "inspect", "--customer", "123-456-7890"),
            "customer_id: '123-456-7890' is refused: 1 to 20 digits",
        ),
        (("state", "inspect", "--query", "Campaign"), "query_name: 'Campaign' is refused"),
        (("state", "inspect", "--since", "2026-3-1"), "'2026-3-1' is refused: a real day written YYYY-MM-DD"),
        (("state", "inspect", "--since", "2026-02-02", "--until", "2026-02-01"), "exchange them"),
        (("state", "inspect", "--after", "campaign_daily"), "it is written source/customer_id/query_name/YYYY-MM-DD"),
        (("warehouse", "gaps", *WEEK, "--query", "campaign"), "defines only ad_group_daily, campaign_daily"),
        (("warehouse", "gaps", *WEEK, "--customer", "x\x1b"), r"'x\x1b' is refused"),
    ],
)
def test_a_wrong_word_is_told_with_what_is_right(empty_cli: CommandLine, words: tuple[str, ...], said: str) -> None:
    """The code is 64, nothing is written to standard output, and one line says how it is spelt."""
    ended = empty_cli.run(*words)
    assert (ended.code, ended.out) == (64, "")
    assert ended.err.startswith("ads-pipeline: ")
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("state", "inspekt"),
        ("state", "inspect", "--limit", "0"),
        ("state", "inspect", "--limit", "10001"),
        ("state", "inspect", "--status", "good"),
        ("warehouse", "gaps", "--since", "2026-02-01"),
        ("warehouse", "query"),
        ("events", "tail"),
        ("events", "tail", "r1", "--after", "-1"),
        ("events", "runs", "--limit", "1001"),
    ],
)
def test_options_that_typer_refuses_end_with_two(empty_cli: CommandLine, words: tuple[str, ...]) -> None:
    """What is unknown, missing or out of bounds is told with the way to the help."""
    ended = empty_cli.run(*words)
    assert (ended.code, ended.out) == (2, "")
    assert "--help" in ended.err


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_is_whole_sentences(empty_cli: CommandLine, words: tuple[str, ...]) -> None:
    """Every command says what it does, and every option ends with a full stop, within 80 columns."""
    ended = empty_cli.run(*words, "--help")
    assert ended.code == 0
    assert max(map(len, ended.lines)) <= 80
    options = " ".join(ended.out.partition("Options:\n")[2].partition("\nCommands:")[0].split())
    assert all(re.search(r"\.( \[.*\])?$", each) for each in re.split(r"(?<!,) (?=(?:-[a-z], )?--[a-z]+ )", options))
    assert ended.out.split("\n\n")[1].strip().endswith(".")


def test_the_help_names_every_code(empty_cli: CommandLine) -> None:
    """Whoever writes a script finds the codes where the command is explained."""
    told = empty_cli.run("--help").out
    assert all(f" {code} " in " ".join(told.split()) for code in (0, 1, 2, 64, 65, 69, 70, 78))
    assert "0 when there are no gaps and 1" in " ".join(empty_cli.run("warehouse", "gaps", "--help").out.split())


def test_the_readmes_commands_run(demo_cli: DemoCommandLine) -> None:
    """What the README tells people to type is understood and answered."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    lines = re.findall(r"^ads-pipeline (.+)$", readme, re.MULTILINE)
    codes = [demo_cli.run(*shlex.split(line, comments=True)).code for line in lines]
    assert codes == [*[0] * 6, 1, 1, *[0] * 5]


def test_a_process_answers_in_json(demo_cli: DemoCommandLine) -> None:
    """Standard output is JSON lines and nothing else, and the code is nought."""
    ended = demo_cli.process("state", "inspect", "--json", "--limit", "3")
    assert (ended.code, len(ended.objects)) == (0, 3)


def test_a_process_tells_of_gaps_by_its_code(demo_cli: DemoCommandLine) -> None:
    """A script that only looks at the code learns that a day is missing."""
    assert demo_cli.process("warehouse", "gaps", *WEEK, "--query", "campaign_daily").code == 1


@pytest.mark.parametrize(
    ("environ", "code", "said"),
    [
        ({"ADS_PIPELINE_HOME": "relative", "ADS_PIPELINE_HOM": "/x"}, 78, "did you mean ADS_PIPELINE_HOME?"),
        ({"ADS_PIPELINE_HOME": "/nowhere"}, 78, "there is no ledger at /nowhere/ledger.db"),
        ({"ADS_PIPELINE_DATABASE_URL": "postgresql+psycopg2://u:secret@127.0.0.1:1/x"}, 69, "may succeed later"),
    ],
    ids=["settings", "no-ledger", "no-database"],
)
def test_a_process_that_cannot_begin_says_why(empty_cli: CommandLine, environ: dict[str, str], code: int, said: str) -> None:
    """One line on standard error and a code, with neither a traceback nor a password."""
    ended = empty_cli.process("state", "inspect", **environ)
    assert (ended.code, ended.out) == (code, "")
    (line,) = ended.err.splitlines()
    assert said in line
    assert "secret" not in line


@pytest.mark.parametrize(
    "words",
    [
        ("warehouse", "query", "SELECT * FROM range(300000)", "--csv"),
        ("warehouse", "query", "SELECT * FROM range(6000)", "--limit", "6000"),
        ("state", "inspect", "--json"),
        ("events", "runs"),
        ("--help",),
    ],
    ids=["csv", "table", "json", "runs", "help"],
)
def test_a_closed_pipe_ends_quietly(demo_cli: DemoCommandLine, words: tuple[str, ...]) -> None:
    """Whoever reads the first lines and goes away hears no complaint, and no code that means something else."""
    reader, writer = os.pipe()
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN_SCRIPT, *words], env=demo_cli.environ(), stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    os.close(reader)
    _out, err = started.communicate(timeout=60)
    assert (started.returncode, err) == (141, b"")


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=["colour", "no-colour"])
def test_colours_are_for_terminals_that_want_them(demo_cli: DemoCommandLine, more: dict[str, str], coloured: bool) -> None:
    """On a terminal a failure is red; NO_COLOR leaves the same words at the same width."""
    screen = on_terminal(
        demo_cli.environ(TERM="xterm-256color", COLUMNS="80", **more), "state", "inspect", "--limit", "30"
    )
    colours = re.findall(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38)(?:;[0-9]+)*m", screen)
    assert bool(colours) is coloured
    words = re.sub(r"\x1b\[[0-9;]*m", "", screen)
    assert "success" in words
    assert max(map(len, words.splitlines())) <= 80


def test_no_terminal_gets_no_colours(demo_cli: DemoCommandLine) -> None:
    """What goes to a file is plain text, 80 columns wide."""
    ended = demo_cli.process("state", "inspect", TERM="xterm-256color")
    assert "\x1b" not in ended.out
    assert max(map(len, ended.lines)) <= 80


def test_a_narrow_alphabet_is_no_failure(demo_cli: DemoCommandLine) -> None:
    """A terminal that knows only ASCII gets the other letters as escapes."""
    sql = "SELECT DISTINCT campaign_name FROM campaign_daily ORDER BY 1"
    ended = demo_cli.process("warehouse", "query", sql, PYTHONIOENCODING="ascii")
    assert ended.code == 0
    assert r"Fahrr\xe4der | Marke" in ended.out


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (("--help",), set()),
        (("state", "inspect"), set()),
        (("state", "why", "1180250317/campaign_daily/2026-03-03"), set()),
        (("state", "retry", "--all", "--reason", "x", "--dry-run"), set()),
        (("state", "due"), set()),
        (("audit", "acts"), set()),
        (("raw", "list"), set()),
        (("raw", "verify"), set()),
        (("events", "runs"), set()),
        (("ledger", "digest"), set()),
        (("doctor", "--quick"), set()),
        (("doctor",), {"pyspark", "duckdb", "pandas", "pyarrow", "pandera"}),
        (("warehouse", "gaps", *WEEK), {"pyspark", "duckdb", "pyarrow"}),
        (("warehouse", "query", "SELECT 1"), {"pyspark", "duckdb", "pyarrow", "pandas"}),
    ],
    ids=[
        "help",
        "inspect",
        "why",
        "retry",
        "due",
        "audit",
        "raw list",
        "raw verify",
        "runs",
        "digest",
        "quick doctor",
        "doctor",
        "gaps",
        "query",
    ],
)
def test_a_command_loads_what_it_needs(demo_cli: DemoCommandLine, words: tuple[str, ...], allowed: set[str]) -> None:
    """No command loads Dagster, and the ledger is asked without Spark and DuckDB, which take long to load."""
    script = (
        "import sys\nfrom ads_pipeline.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], env=demo_cli.environ(), capture_output=True, text=True, check=True
    )
    assert set(done.stderr.split()) <= allowed


def test_importing_every_module_loads_no_dagster() -> None:
    """Not even the modules that a command loads late bring Dagster in."""
    root = Path(errors.__file__).parents[1]
    paths = (root / "ads_pipeline" / "cli").rglob("[a-z]*.py")
    modules = [".".join(path.relative_to(root).with_suffix("").parts) for path in paths]
    script = f"import sys, {', '.join(modules)}; print('dagster' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert len(modules) >= 6
    assert done.stdout == "False\n"


def on_terminal(environ: dict[str, str], *words: str) -> str:
    """Everything that a command writes to a terminal."""
    screen, keyboard = pty.openpty()
    started = subprocess.Popen([sys.executable, "-c", MAIN_SCRIPT, *words], env=environ, stdout=keyboard, stderr=keyboard)
    os.close(keyboard)
    written = b""
    try:
        while some := os.read(screen, 1 << 16):
            written += some
    except OSError:  # how Linux says that nobody holds the other end
        pass
    finally:
        os.close(screen)
        started.wait(timeout=60)
    return written.decode()
