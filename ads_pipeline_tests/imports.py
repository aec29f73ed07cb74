"""Which module may import what, as data, and the reader of imports that holds the code to it."""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "ads_pipeline"
WORDS = frozenset(
    {"errors", "partition", "transitions", "retry", "run_events", "run_snapshots", "freshness", "strict_json", "seal"}
)

# room -> (the libraries it may use, the words and rooms it may use). What is not listed may not exist.
LAW: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "errors": (frozenset(), frozenset()),
    "partition": (frozenset(), frozenset({"errors"})),
    "transitions": (frozenset(), frozenset({"errors", "partition"})),
    "retry": (frozenset(), frozenset({"errors", "partition", "transitions"})),
    "freshness": (frozenset(), frozenset({"errors", "partition"})),
    "strict_json": (frozenset(), frozenset({"errors"})),
    "seal": (frozenset(), frozenset({"errors", "partition", "strict_json"})),
    "run_events": (frozenset(), frozenset({"errors"})),
    "run_snapshots": (frozenset(), frozenset({"run_events"})),
    "raw": (frozenset(), WORDS),
    "settings": (frozenset({"pydantic", "yaml"}), WORDS),
    "whole_files": (frozenset(), frozenset()),
    "ledger": (frozenset({"sqlalchemy", "alembic", "tenacity"}), WORDS | {"whole_files"}),
    "contracts": (frozenset({"pandera", "pyspark"}), WORDS),
    "validator": (frozenset({"pyspark", "py4j", "pyarrow"}), WORDS | {"contracts"}),
    "warehouse": (frozenset({"pyspark", "py4j", "deltalake", "pyarrow", "duckdb", "duckdb_extension_delta"}), WORDS),
    "currency": (frozenset(), WORDS | {"ledger"}),
    "status_file": (frozenset({"pyarrow"}), WORDS | {"whole_files"}),
    "progress": (frozenset({"rich"}), frozenset()),
    "registration": (frozenset(), WORDS | {"raw", "ledger"}),
    "arrivals": (frozenset(), WORDS | {"raw", "ledger"}),
    "rebuilding": (frozenset(), WORDS | {"raw", "ledger", "progress"}),
    "pipeline": (
        frozenset({"pyspark"}),
        WORDS | {"contracts", "raw", "ledger", "registration", "validator", "warehouse", "progress"},
    ),
    "gaps": (frozenset(), WORDS | {"ledger"}),
    "reading": (frozenset({"pyspark", "duckdb"}), WORDS | {"ledger", "warehouse", "gaps"}),
    "sessions": (frozenset({"pyspark"}), frozenset({"settings"})),
    "reconciliation": (frozenset(), WORDS | {"ledger", "warehouse", "pipeline"}),
    "control": (frozenset(), WORDS | {"raw", "ledger", "progress"}),
    "overruling": (frozenset(), WORDS | {"ledger", "pipeline"}),
    "dagster_records": (frozenset({"sqlalchemy"}), WORDS | {"ledger"}),
    "examination": (frozenset(), WORDS | {"raw", "ledger", "settings"}),
    "symptoms": (
        frozenset(),
        WORDS
        | {"raw", "ledger", "settings", "warehouse", "reconciliation", "rebuilding"}
        | {"dagster_records", "examination"},
    ),
    "demo": (frozenset(), WORDS | {"raw", "settings"}),
    "cli": (
        frozenset({"typer", "rich", "duckdb"}),
        WORDS
        | {"demo", "ledger", "raw", "reading", "gaps", "settings", "currency", "status_file", "progress"}
        | {"sessions", "warehouse", "pipeline", "reconciliation", "control", "overruling", "rebuilding"}
        | {"examination", "symptoms"},
    ),
    "orchestration": (
        frozenset({"dagster", "dagster_pyspark", "dagster_postgres", "pyspark"}),
        WORDS
        | {"settings", "raw", "ledger", "validator", "warehouse", "registration", "arrivals", "pipeline"}
        | {"reading", "gaps", "reconciliation", "progress", "currency", "status_file", "control"},
    ),
    "definitions": (
        frozenset({"dagster", "dagster_pyspark"}),
        WORDS | {"settings", "sessions", "orchestration", "ledger"},
    ),
}


def violations(root: Path) -> list[str]:
    """Every import below the package's folder that the law does not allow, as 'module:line imports name'."""
    return [
        f"{path.relative_to(root)}:{line} imports {name}"
        for path in sorted(root.rglob("*.py"))
        for line, name in imported(path)
        if not allowed(room_of(path, root), name)
    ]


def room_of(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def allowed(room: str, name: str) -> bool:
    """Whether a room may import a dotted name."""
    top, *rest = name.split(".")
    if room == "__init__":
        return False
    if room not in LAW:
        return False
    libraries, rooms = LAW[room]
    if top == PACKAGE:
        return bool(rest) and (rest[0] == room or rest[0] in rooms)
    return top in sys.stdlib_module_names or top in libraries


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Every import in a file with its line: at the top, inside functions, and by name through importlib."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=0) if module == PACKAGE:
                yield from ((node.lineno, f"{PACKAGE}.{alias.name}") for alias in names)
            case ast.ImportFrom(module=module, level=0):
                yield node.lineno, str(module)
            case ast.ImportFrom(lineno=line):
                yield line, "a relative name"
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__")):
                yield node.lineno, _called_name(node)


def _called_name(call: ast.Call) -> str:
    match call.args:
        case [ast.Constant(value=str(name)), *_]:
            return name
    return "a computed name"
