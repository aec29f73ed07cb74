"""The list of invariants and the tests that hold them are the same list."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent


def listed() -> list[str]:
    return re.findall(r"^\| ([A-Z][0-9]+) \|", (HERE / "invariants.md").read_text(), re.MULTILINE)


def marked() -> Iterator[tuple[str, str]]:
    """Each code in a marker, with the test that carries it."""
    for path in sorted(HERE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    yield from ((code, f"{path.name}::{node.name}") for code in _codes(mark))


def _codes(mark: ast.expr) -> list[str]:
    match mark:
        case ast.Call(func=ast.Attribute(attr="invariant"), args=args):
            return [str(arg.value) for arg in args if isinstance(arg, ast.Constant)]
    return []


def test_every_invariant_has_a_test_and_every_mark_an_invariant() -> None:
    """No promise is listed without a test that holds it, and no test claims a promise that is not listed."""
    codes = listed()
    assert len(codes) == len(set(codes))
    held = {code for code, _test in marked()}
    assert set(codes) - held == set(), "listed but held by no test"
    assert held - set(codes) == set(), "claimed by a test but not listed"


def test_every_test_says_its_rule() -> None:
    """Each test states the rule it checks in its docstring."""
    silent = [
        f"{path.name}::{node.name}"
        for path in sorted(HERE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []
