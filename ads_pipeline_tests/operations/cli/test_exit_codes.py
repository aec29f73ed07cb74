"""How commands end: exit codes, one line on stderr, closed pipes, colours, imports."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ads_pipeline.domain import errors
from ads_pipeline.domain.errors import (
    AdsPipelineError,
    BadCommand,
    BadEvent,
    BadName,
    BadSettings,
    ContractMissing,
    CopyDiffers,
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
from ads_pipeline.operations.cli.command_line.exit_codes import exit_code, one_line
from ads_pipeline_tests.operations.cli.running import MAIN_SCRIPT, WEEK, CommandLine, DemoCommandLine

COMMANDS = (
    (),
    ("migrate",),
    ("doctor",),
    ("ledger",),
    *(("ledger", name) for name in ("copy", "roles", "retire-events")),
    ("state",),
    ("state", "inspect"),
    ("state", "why"),
    *(("state", name) for name in ("acknowledge", "retry", "terminal", "reprocess", "withdraw")),
    *(("state", name) for name in ("acknowledge", "enqueue", "demote", "restore", "due", "park", "release")),
    ("audit",),
    ("raw",),
    ("raw", "list"),
    ("raw", "verify"),
    ("reconcile",),
    ("warehouse",),
    ("warehouse", "query"),
    *(("warehouse", name) for name in ("gaps", "loads", "restatements")),
    *(("queries", name) for name in ("check", "new")),
    ("backfill",),
    ("events",),
    *(("events", name) for name in ("runs", "tail")),
)
HEAVY = ("dagster", "pyspark", "duckdb", "pandas", "pyarrow", "pandera")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadName("customer_id", "1-2", "digits"), 64),
        (BadCommand("exchange them"), 64),
        (EventsNotFound("r1", "none"), 64),
        (RunOpen("r1", "RUNNING"), 64),
        (BadEvent("engine_run_id", "odd"), 65),
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
def test_each_kind_of_failure_has_its_exit_code(error: AdsPipelineError, code: int) -> None:
    """The exit code shows a script whether arguments, settings or data are wrong, or a retry may help."""
    assert exit_code(error) == code


def test_transient_failures_exit_with_69() -> None:
    """Exactly the transient failures exit with 69."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AdsPipelineError)]
    codes = {kind: exit_code(kind.__new__(kind)) for kind in kinds}
    assert {kind for kind, code in codes.items() if code == 69} == {kind for kind in kinds if kind.is_transient}
    assert set(codes.values()) == {64, 65, 69, 70, 78}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            BadSettings((Mistake(location="A", problem="odd"), Mistake(location="B", problem="even"))),
            "the settings have 2 mistakes; correct and start again: A: odd; B: even",
        ),
        (LedgerUnavailable("busy"), "busy; the same command may succeed later"),
        (BadCommand("a\x1b[31m"), r"a\x1b[31m"),
        (VerdictsRefused((), {}), "0 verdicts are recorded, 0 were refused:"),
        (BadCommand(), "BadCommand"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_failure_is_one_line(error: AdsPipelineError, line: str) -> None:
    """A message of several lines becomes one printable line, with a hint when a retry may help."""
    assert one_line(error) == line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("state", "inspect", "--customer", "123-456-789"),
            "customer_id: '123-456-789' is refused: 1 to 20 digits",
        ),
        (("state", "inspect", "--query", "Campaign"), "query_name: 'Campaign' is refused"),
        (("state", "inspect", "--since", "2026-3-1"), "'2026-3-1' is refused: a real day written YYYY-MM-DD"),
        (("state", "inspect", "--since", "2026-02-02", "--until", "2026-02-01"), "exchange them"),
        (("state", "inspect", "--after", "campaign_daily"), "it must be source/customer_id/query_name/YYYY-MM-DD"),
        (("warehouse", "gaps", *WEEK, "--query", "campaign"), "defines only ad_group_daily, campaign_daily"),
        (("warehouse", "gaps", *WEEK, "--customer", "x\x1b"), r"'x\x1b' is refused"),
    ],
)
def test_invalid_argument_is_explained(empty_cli: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    """The exit code is 64, standard output is empty, and one line has the valid spelling."""
    result = empty_cli.run(*arguments)
    assert (result.code, result.out) == (64, "")
    assert result.err.startswith("ads-pipeline: ")
    assert message in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("state", "inspekt"),
        ("state", "inspect", "--limit", "0"),
        ("state", "inspect", "--limit", "10001"),
        ("state", "inspect", "--status", "good"),
        ("warehouse", "query"),
        ("events", "tail"),
        ("events", "tail", "r1", "--after", "-1"),
        ("events", "runs", "--limit", "1001"),
    ],
)
def test_invalid_options_exit_with_2(empty_cli: CommandLine, arguments: tuple[str, ...]) -> None:
    """Unknown, missing and out-of-range options are reported with a pointer to --help."""
    result = empty_cli.run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "--help" in result.err


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_help_is_whole_sentences(empty_cli: CommandLine, arguments: tuple[str, ...]) -> None:
    """Every help text fits 80 columns, and every sentence ends with a full stop."""
    result = empty_cli.run(*arguments, "--help")
    assert result.code == 0
    assert max(map(len, result.lines)) <= 80
    options = " ".join(result.out.partition("Options:\n")[2].partition("\nCommands:")[0].split())
    assert all(re.search(r"\.( \[.*\])?$", each) for each in re.split(r"(?<!,) (?=(?:-[a-z], )?--[a-z]+ )", options))
    assert result.out.split("\n\n")[1].strip().endswith(".")


def test_the_help_names_every_code(empty_cli: CommandLine) -> None:
    """The help of the program names every exit code, and a command's help its own."""
    output = empty_cli.run("--help").out
    assert all(f" {code} " in " ".join(output.split()) for code in (0, 1, 2, 64, 65, 69, 70, 78))
    own = " ".join(empty_cli.run("warehouse", "gaps", "--help").out.split())
    assert "Exit code: 0 without gaps, 1 with gaps" in own


def test_a_process_answers_in_json(demo_cli: DemoCommandLine) -> None:
    """Standard output holds JSON lines only, and the exit code is 0."""
    result = demo_cli.process("state", "inspect", "--json", "--limit", "3")
    assert (result.code, len(result.objects)) == (0, 3)


def test_gaps_exit_with_1(demo_cli: DemoCommandLine) -> None:
    """A missing day makes the process exit with 1."""
    assert demo_cli.process("warehouse", "gaps", *WEEK, "--query", "campaign_daily").code == 1


@pytest.mark.parametrize(
    ("environ", "code", "message"),
    [
        ({"ADS_PIPELINE_HOME": "relative", "ADS_PIPELINE_HOM": "/x"}, 78, "did you mean ADS_PIPELINE_HOME?"),
        ({"ADS_PIPELINE_HOME": "/nowhere"}, 78, "There is no data below /nowhere yet. Start with: ads-pipeline dev."),
        ({"ADS_PIPELINE_DATABASE_URL": "postgresql+psycopg2://u:secret@127.0.0.1:1/x"}, 69, "may succeed later"),
    ],
    ids=["settings", "no-ledger", "no-database"],
)
def test_startup_failure_is_one_line_without_secrets(
    empty_cli: CommandLine, environ: dict[str, str], code: int, message: str
) -> None:
    """A failing start writes one line to standard error, without traceback or password."""
    result = empty_cli.process("state", "inspect", **environ)
    assert (result.code, result.out) == (code, "")
    (line,) = result.err.splitlines()
    assert message in line
    assert "secret" not in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("warehouse", "query", "SELECT * FROM range(300000)", "--csv"),
        ("warehouse", "query", "SELECT * FROM range(6000)", "--limit", "6000"),
        ("state", "inspect", "--json"),
        ("events", "runs"),
        ("--help",),
    ],
    ids=["csv", "table", "json", "runs", "help"],
)
def test_closed_pipe_exits_with_141(demo_cli: DemoCommandLine, arguments: tuple[str, ...]) -> None:
    """When the reader closes the pipe, the command exits with 141 and prints no error."""
    reader, writer = os.pipe()
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN_SCRIPT, *arguments], env=demo_cli.environ(), stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    os.close(reader)
    _out, err = started.communicate(timeout=600)
    assert (started.returncode, err) == (141, b"")


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=["colour", "no-colour"])
def test_terminal_gets_colours_unless_no_color(
    demo_cli: DemoCommandLine, more: dict[str, str], coloured: bool
) -> None:
    """A terminal gets colours; with NO_COLOR it gets the same text at the same width."""
    screen = on_terminal(
        demo_cli.environ(TERM="xterm-256color", COLUMNS="80", **more),
        *("state", "inspect", "--status", "success", "--limit", "30"),
    )
    colours = re.findall(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38)(?:;[0-9]+)*m", screen)
    assert bool(colours) is coloured
    arguments = re.sub(r"\x1b\[[0-9;]*m", "", screen)
    assert "success" in arguments
    assert max(map(len, arguments.splitlines())) <= 80


def test_pipe_gets_plain_text(demo_cli: DemoCommandLine) -> None:
    """Output to a pipe is plain text, at most 80 columns wide."""
    result = demo_cli.process("state", "inspect", "--status", "success", TERM="xterm-256color")
    assert "\x1b" not in result.out
    assert max(map(len, result.lines)) <= 80


def test_ascii_terminal_gets_escapes(demo_cli: DemoCommandLine) -> None:
    """An ASCII terminal gets other characters as escapes."""
    sql = "SELECT DISTINCT campaign_name FROM campaign_daily ORDER BY 1"
    result = demo_cli.process("warehouse", "query", sql, PYTHONIOENCODING="ascii")
    assert result.code == 0
    assert r"Fahrr\xe4der | Marke" in result.out


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("--help",), set()),
        (("state", "inspect"), set()),
        (("state", "why", "1180250317/campaign_daily/2026-03-03"), set()),
        (("state", "retry", "--all", "--reason", "x", "--dry-run"), set()),
        (("state", "due"), set()),
        (("audit",), set()),
        (("raw", "list"), set()),
        (("raw", "verify"), set()),
        (("events", "runs"), set()),
        (("ledger", "copy", "--verify"), set()),
        (("doctor", "--quick"), set()),
        (("doctor",), {"pyspark", "duckdb", "pandas", "pyarrow", "pandera"}),
        (("warehouse", "gaps", *WEEK), set()),
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
        "copy",
        "quick doctor",
        "doctor",
        "gaps",
        "query",
    ],
)
def test_commands_import_only_what_they_need(
    demo_cli: DemoCommandLine, arguments: tuple[str, ...], allowed: set[str]
) -> None:
    """No command imports Dagster, and ledger commands import neither Spark nor DuckDB."""
    script = (
        "import sys\nfrom ads_pipeline.operations.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=demo_cli.environ(), capture_output=True, text=True, check=True
    )
    assert set(done.stderr.split()) <= allowed


def test_no_cli_module_imports_dagster() -> None:
    """Modules that commands import lazily do not import Dagster either."""
    root = Path(errors.__file__).parents[2]
    paths = (root / "ads_pipeline" / "operations" / "cli").rglob("[a-z]*.py")
    modules = [".".join(path.relative_to(root).with_suffix("").parts) for path in paths]
    script = f"import sys, {', '.join(modules)}; print('dagster' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert len(modules) >= 6
    assert done.stdout == "False\n"


def on_terminal(environ: dict[str, str], *arguments: str) -> str:
    """Run a command on a pseudo-terminal and return its output."""
    screen, keyboard = pty.openpty()
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN_SCRIPT, *arguments], env=environ, stdout=keyboard, stderr=keyboard
    )
    os.close(keyboard)
    written = b""
    try:
        while chunk := os.read(screen, 1 << 16):
            written += chunk
    except OSError:  # Linux raises it when the other end is closed
        pass
    finally:
        os.close(screen)
        started.wait(timeout=600)
    return written.decode()
