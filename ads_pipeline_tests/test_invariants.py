"""Every listed invariant has a test, every marked test a listed invariant, and every test a docstring."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ads_pipeline.testing.run_event_stores import CHECKS, INVARIANTS

HERE = Path(__file__).parent


def listed_codes() -> list[str]:
    return re.findall(r"^\| ([A-Z][0-9]+) \|", (HERE / "invariants.md").read_text(), re.MULTILINE)


def marked_tests() -> Iterator[tuple[str, str]]:
    """Each marked code with its test, and the codes of the published conformance suite."""
    for path in sorted(HERE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    yield from ((code, f"{path.name}::{node.name}") for code in _codes(mark))
    yield from ((code, check) for check, codes in INVARIANTS.items() for code in codes)


def _codes(mark: ast.expr) -> list[str]:
    match mark:
        case ast.Call(func=ast.Attribute(attr="invariant"), args=args):
            return [str(arg.value) for arg in args if isinstance(arg, ast.Constant)]
    return []


def test_invariants_and_marks_agree() -> None:
    """Every listed invariant has a marked test, and every mark names a listed invariant."""
    codes = listed_codes()
    assert len(codes) == len(set(codes))
    tested = {code for code, _test in marked_tests()}
    assert set(codes) - tested == set(), "listed, but no test has the mark"
    assert tested - set(codes) == set(), "marked in a test, but not listed"


def test_every_test_has_a_docstring() -> None:
    """Each test function states its rule in a docstring."""
    missing = [
        f"{path.name}::{node.name}"
        for path in sorted(HERE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    missing += [check.__name__ for check in CHECKS if not check.__doc__]
    assert missing == []
