"""How a command is found: suggestions for unknown names, and completion in the shell."""

import subprocess
import sys

import pytest

from ads_pipeline.operations.cli.groups import GROUPS
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.test_exit_codes import HEAVY

COMPLETE = (
    "import sys\nfrom ads_pipeline.operations.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
    f"print(*[name for name in {(*HEAVY, 'deltalake', 'google')!r} if name in sys.modules], file=sys.stderr)"
)


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (("gaps",), "Did you mean ads-pipeline warehouse gaps?"),
        (("why",), "Did you mean ads-pipeline state why?"),
        (("whi",), "Did you mean ads-pipeline state why?"),
        (("doctr",), "Did you mean ads-pipeline doctor?"),
        (("stat", "inspect"), "Did you mean ads-pipeline state inspect?"),
        (("stat",), "Did you mean ads-pipeline state?"),
        (("list",), "Did you mean ads-pipeline raw list or ads-pipeline accounts list?"),
        (("state", "inspekt"), "Did you mean ads-pipeline state inspect?"),
        (("state", "gaps"), "Did you mean ads-pipeline warehouse gaps?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_unknown_command_is_answered_with_its_full_name(
    empty_cli: CommandLine, arguments: tuple[str, ...], suggestion: str
) -> None:
    """Also without its group, with another one, and misspelt."""
    result = empty_cli.process(*arguments)
    assert (result.code, result.out) == (2, "")
    assert suggestion in " ".join(result.err.split())


def test_unlike_name_gets_no_suggestion(empty_cli: CommandLine) -> None:
    """Nothing is near."""
    assert "Did you mean" not in empty_cli.run("xyzzy").err


def complete(cli: CommandLine, line: str) -> tuple[list[str], str]:
    """The completions of a line in bash, and the heavy modules that were imported for them."""
    words = line.split(" ")
    environ = {
        "_ADS_PIPELINE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE], env=cli.environ(**environ), capture_output=True, text=True, check=True
    )
    return done.stdout.split(), done.stderr.strip()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ads-pipeline wa", {"warehouse"}),
        ("ads-pipeline re", {"report", "reconcile"}),
        ("ads-pipeline state ", set(GROUPS["state"].commands)),
        ("ads-pipeline warehouse ", set(GROUPS["warehouse"].commands)),
        ("ads-pipeline queries ", set(GROUPS["queries"].commands)),
        ("ads-pipeline state inspect --condition rej", {"rejected", "rejected_rerun"}),
    ],
)
def test_commands_are_completed_without_heavy_imports(empty_cli: CommandLine, line: str, expected: set[str]) -> None:
    """The names of commands and the fixed values of options, without Spark, DuckDB, Dagster or a client."""
    found, heavy = complete(empty_cli, line)
    assert (set(found), heavy) == (expected, "")
