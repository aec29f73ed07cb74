"""README and docs: tables are generated from the code, and every command, path, link and test they name exists."""

import ast
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from ads_pipeline.domain.days.conditions import CONDITIONS, GapReason
from ads_pipeline.domain.log_lines import LOG_EVENTS
from ads_pipeline.domain.transitions import TRANSITIONS, Action, Status, Transition
from ads_pipeline.operations.metrics import METRICS
from ads_pipeline.operations.notifications.notices import KINDS
from ads_pipeline.settings.environment import VARIABLES, read_settings
from ads_pipeline_tests.import_rules import RULES

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md"))
}
PARSERS: dict[str, Callable[[str], object]] = {"python": ast.parse, "json": json.loads, "yaml": yaml.safe_load}
STATUSES = (None, Status.PENDING, Status.FAILED, Status.SUCCESS)


def transition_table() -> str:
    """The transition table as Markdown."""
    lines = ["| | absent | pending | failed | success |", "|---|---|---|---|---|"]
    for action in Action:
        cells = [transition_cell(TRANSITIONS.get((status, action)), status) for status in STATUSES]
        lines.append(f"| {action.value} | {' | '.join(cells)} |")
    return "\n".join(lines).replace("|  |", "| |").replace("|  |", "| |")


def transition_cell(transition: Transition | None, status: Status | None) -> str:
    if transition is None:
        return ""
    if transition.effect is not None:
        effect = transition.effect.replace("_", " ")
        return str(transition.target) if effect == transition.target else f"{transition.target}, {effect}"
    return "stays" if transition.target is status else str(transition.target)


def marked_section(page: str, name: str) -> str:
    """The text between the two comments that mark a generated section."""
    return PAGES[page].partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0].strip()


def test_transition_table_matches_the_code() -> None:
    """The table in docs/concepts.md is TRANSITIONS."""
    assert marked_section("docs/concepts.md", "transitions") == transition_table()


def test_settings_table_matches_the_code() -> None:
    """The table in docs/settings.md has every variable with its description in the code."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    expected = "\n".join(["| variable | meaning (default) |", "|---|---|", *rows])
    assert marked_section("docs/settings.md", "settings").replace("`", "") == expected.replace("`", "")


def test_every_gap_reason_is_explained() -> None:
    """docs/operating.md explains each reason that `warehouse gaps` prints."""
    explained = re.findall(r"^\| ([^|]+) \|", PAGES["docs/operating.md"], re.MULTILINE)
    assert [reason.value for reason in GapReason if reason.value not in explained] == []


def test_conditions_table_matches_the_code() -> None:
    """docs/operating.md has each condition of a day with its meaning, and whether it needs an operator."""
    rows = [
        f"| {text.label} | {'yes' if text.needs_operator else 'no'} | {text.meaning} |"
        for text in CONDITIONS.values()
    ]
    assert "\n".join(rows) in PAGES["docs/operating.md"]


def test_kinds_of_notifications_match_the_code() -> None:
    """docs/notifications.md has each kind with its meaning."""
    rows = [f"| `{kind}` | {text.meaning} |" for kind, text in KINDS.items()]
    assert "\n".join(rows) in PAGES["docs/notifications.md"]


def test_metrics_table_matches_the_code() -> None:
    """docs/notifications.md has each metric with its meaning and its labels."""
    rows = [
        f"| `{name}` | {meaning} | {', '.join(f'`{label}`' for label in labels)} |".replace("|  |", "| |")
        for name, (meaning, labels) in METRICS.items()
    ]
    assert "\n".join(rows) in PAGES["docs/notifications.md"]


def test_log_events_match_the_code() -> None:
    """docs/notifications.md has each log event with its level and its meaning."""
    rows = [
        f"| `{event}` | {logging.getLevelName(level).lower()} | {meaning} |"
        for event, (level, meaning) in LOG_EVENTS.items()
    ]
    assert "\n".join(rows) in PAGES["docs/notifications.md"]


def test_make_targets_exist() -> None:
    """Each make target that a page names is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for text in PAGES.values() for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)}
    assert {"demo", "dev", "test", "check"} <= named <= targets


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_and_paths_exist(page: str) -> None:
    """Relative links, and paths in backticks that look like files of this project, exist."""
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", PAGES[page]) if "://" not in link]
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    paths = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|yaml|md))`", PAGES[page])
    missing += [path for path in paths if not (ROOT / path).exists() and not (ROOT / "ads_pipeline" / path).exists()]
    assert missing == []


@pytest.mark.parametrize("page", sorted(PAGES))
def test_code_blocks_can_be_parsed(page: str) -> None:
    """Each block of code names its language. Python, JSON and YAML can be parsed; other tests run them.

    In a list, Python-Markdown needs four spaces.
    """
    assert re.findall(r"^ {1,3}```", PAGES[page], re.MULTILINE) == []
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", PAGES[page], re.MULTILINE | re.DOTALL)
    assert [language for language, _text in blocks if language not in {*PARSERS, "sh", "sql", "text"}] == []
    for language, text in blocks:
        PARSERS.get(language, str)(dedent(text))


def test_query_file_of_the_page_is_accepted(tmp_path: Path) -> None:
    """The two blocks of docs/settings.md are a valid query file."""
    query_file = tmp_path / "queries.yaml"
    query_file.write_text("\n".join(re.findall(r"```yaml\n(.*?)```", PAGES["docs/settings.md"], re.DOTALL)))
    (tmp_path / "contracts.py").write_text("CONTRACTS = {}\n")
    settings = read_settings({"ADS_PIPELINE_HOME": str(tmp_path), "ADS_PIPELINE_QUERIES": str(query_file)})
    assert settings.google_apis.google_ads.daily_operations == 15_000


def list_pages(navigation: list[dict[str, Any]]) -> Iterator[str]:
    """The pages of the website's navigation, in order."""
    for entry in navigation:
        for each in entry.values():
            yield from [each] if isinstance(each, str) else list_pages(each)


def test_website_navigation_has_every_page_once() -> None:
    """Each page of docs/, and each page that the website takes from elsewhere or generates, is listed once.

    `make docs` checks the links between the pages.
    """
    website = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    elsewhere = website["extra"]["pages_from_elsewhere"]
    assert [source for source in elsewhere if not (ROOT / source).is_file()] == []
    more = [*elsewhere.values(), *website["extra"]["generated_pages"]]
    pages = [path.name for path in (ROOT / "docs").glob("*.md")] + [name for name in more if name.endswith(".md")]
    assert sorted(list_pages(website["nav"])) == sorted(pages)


def folder_table() -> str:
    """Each folder of the package with the first line of its docstring, as Markdown."""
    package = ROOT / "ads_pipeline"
    folders = sorted(path.parent for path in package.rglob("__init__.py") if path.parent != package)
    lines = [
        (ast.get_docstring(ast.parse((each / "__init__.py").read_text())) or "").partition("\n")[0]
        for each in folders
    ]
    rows = [
        f"| `{each.relative_to(package).as_posix()}` | {line} |" for each, line in zip(folders, lines, strict=True)
    ]
    return "\n".join(["| folder | responsibility |", "|---|---|", *rows])


def import_table() -> str:
    """The rules of imports as Markdown."""
    rows = [
        f"| `{name}` | {', '.join(f'`{each}`' for each in sorted(modules))} | {', '.join(sorted(libraries))} |"
        for name, (libraries, modules) in RULES.items()
        if libraries or modules
    ]
    table = "\n".join(["| package or module | may import | libraries |", "|---|---|---|", *rows])
    return table.replace("|  |", "| |").replace("|  |", "| |")


def test_folders_match_the_code() -> None:
    """docs/architecture.md lists every folder with what its docstring says."""
    assert marked_section("docs/architecture.md", "folders") == folder_table()


def test_import_rules_match_the_code() -> None:
    """docs/architecture.md lists the rules that `test_every_import_is_allowed` holds."""
    assert marked_section("docs/architecture.md", "imports") == import_table()


def test_tests_behind_promises_exist() -> None:
    """Each test that a page names is defined."""
    named = {test for text in PAGES.values() for test in re.findall(r"`(test_[a-z0-9_]+)`", text)}
    sources = "".join(path.read_text() for path in (ROOT / "ads_pipeline_tests").rglob("test_*.py"))
    assert named
    assert {test for test in named if f"def {test}(" not in sources} == set()


def test_licences_of_all_installed_packages_are_listed() -> None:
    """The page names exactly the packages that the product's lock file installs."""
    locked = re.findall(r"^([a-z0-9][a-z0-9._-]*)==", (ROOT / "product.lock").read_text(), re.MULTILINE)
    listed = re.findall(r"^\| ([a-z0-9][a-z0-9._-]*) .*\| \S.* \|$", PAGES["docs/licences.md"], re.MULTILINE)
    assert [name for name in listed if name != "package"] == sorted(locked)
