"""What the README says of the code is what the code says."""

import inspect
import re
import textwrap
from pathlib import Path

import pytest

from ads_pipeline.domain.transitions import TRANSITIONS, Action, Status, Transition
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.settings import VARIABLES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
STATES = (None, Status.PENDING, Status.FAILED, Status.SUCCESS)


def drawn_table() -> str:
    """The transition table as the README shows it."""
    lines = ["| | absent | pending | failed | success |", "|---|---|---|---|---|"]
    lines += [
        f"| {act.value} | {' | '.join(drawn(TRANSITIONS.get((state, act)), state) for state in STATES)} |"
        for act in Action
    ]
    return "\n".join(lines).replace("|  |", "| |").replace("|  |", "| |")


def drawn(move: Transition | None, state: Status | None) -> str:
    if move is None:
        return ""
    if move.effect is not None:
        return str(move.to) if str(move.effect) == str(move.to) else f"{move.to}, {move.effect.replace('_', ' ')}"
    return "stays" if move.to is state else str(move.to)


def test_the_transition_table_is_the_codes() -> None:
    """The table in the README is drawn from TRANSITIONS."""
    shown = README.partition("<!-- transitions -->\n")[2].partition("\n<!-- /transitions -->")[0]
    assert shown == drawn_table()


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_every_setting_is_explained(name: str) -> None:
    """Each variable stands in the README with the words the code has for it."""
    assert f"| `{name}` | {VARIABLES[name]} |".replace("`", "") in README.replace("`", "")


def test_every_command_exists() -> None:
    """Each make target that the README names is in the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE)) <= targets


def test_the_pipeline_is_quoted_to_the_letter() -> None:
    """The methods shown are the ones that run."""
    quoted = r"<!-- pipeline ([a-z ]+) -->\n```python\n(.*?)```\n<!-- /pipeline -->"
    ((names, shown),) = re.findall(quoted, README, re.DOTALL)
    sources = [textwrap.dedent(inspect.getsource(getattr(Pipeline, name))) for name in names.split()]
    assert shown == "\n\n".join(sources)


def test_every_module_named_exists() -> None:
    """Each module in the README's table is there."""
    named = re.findall(r"^\| (`[a-z_`, ]+`) \|", README, re.MULTILINE)
    modules = [name for cell in named for name in re.findall(r"`([a-z_]+)`", cell)]
    assert modules
    for name in modules:
        assert (ROOT / "ads_pipeline" / f"{name}.py").exists() or (ROOT / "ads_pipeline" / name).is_dir(), name


def test_every_test_named_exists() -> None:
    """The tests that are said to hold a promise are there."""
    named = set(re.findall(r"`(test_[a-z_]+)`", README))
    assert named
    written = "".join(path.read_text() for path in (ROOT / "ads_pipeline_tests").rglob("test_*.py"))
    assert {name for name in named if f"def {name}(" not in written} == set()
