"""Every command that the README or a page in docs/ shows runs with the exit code it should have."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from ads_pipeline.operations.cli.groups import GROUPS
from ads_pipeline.operations.cli.main import app
from ads_pipeline_tests.operations.cli.running import DemoCommandLine

ROOT = Path(__file__).parents[3]
# The demo has gaps and a damaged payload, and its failures are too old to be retried.
SERVERS = {"engine"}  # end only when they are stopped; tests of their own start them
FOUND_SOMETHING = {
    "warehouse gaps": 1,
    "raw verify": 1,
    "ledger copy --to": 69,
    "state retry": 3,
    "state acknowledge": 3,
}


def documented_commands() -> list[str]:
    """Every `ads-pipeline` line in a shell block, without its comment.

    The page on adding a query is left out: `orchestration/test_own_queries` follows it step by step.
    """
    paths = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")) if path.name != "adding-a-query.md"]
    pages = [path.read_text() for path in paths]
    blocks = [block for page in pages for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)]
    lines = [line for block in blocks for line in re.findall(r"^ads-pipeline (.+)$", block, re.MULTILINE)]
    commands = {shlex.join(shlex.split(line, comments=True)) for line in lines}
    return sorted(each for each in commands if each.partition(" ")[0] not in SERVERS)


def test_pages_show_commands() -> None:
    """The pages show at least the commands of the command-line page."""
    assert len(documented_commands()) >= 13


def test_groups_match_the_code() -> None:
    """docs/command-line.md has each group with its commands, and those without a group."""
    page = (ROOT / "docs" / "command-line.md").read_text()
    rows = re.findall(r"^\| (`[a-z]+`|none) \| (`.*) \|$", page.partition("## Groups")[2], re.MULTILINE)
    shown = {name.strip("`"): set(re.findall(r"`([a-z-]+)`", commands)) for name, commands in rows[: len(GROUPS) + 1]}
    program: Any = typer.main.get_command(app)
    groups = {name: set(group.commands) for name, group in GROUPS.items()}
    assert shown == groups | {"none": set(program.list_commands(None)) - set(GROUPS)}


@pytest.mark.parametrize("command", documented_commands())
def test_documented_command_runs(demo_cli: DemoCommandLine, command: str) -> None:
    """The command runs on the demo data; an example host is replaced by a port where nothing listens."""
    arguments = shlex.split(command.replace("@host/", "@127.0.0.1:1/"))
    result = demo_cli.run(*arguments)
    expected = next((code for start, code in FOUND_SOMETHING.items() if command.startswith(start)), 0)
    assert result.code == expected, result.err
