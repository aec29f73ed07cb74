"""Which module may import what, as data, and the reader of imports that holds the code to it."""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "ads_pipeline"
PURE = frozenset({"errors", "quoting", "domain"})
FOLDERS = PURE | {"storage"}
# The seal is what raw promises to whoever reads a payload: plain values, standard library only.
SEAL = frozenset({"raw.seal", "raw.strict_json"})

# folder or module -> (libraries it may use, folders and modules it may use). What is not listed may not exist.
LAW: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "quoting": (frozenset(), frozenset()),
    "errors": (frozenset(), frozenset({"quoting"})),
    "domain": (frozenset(), frozenset({"errors", "quoting"})),
    "storage": (frozenset(), frozenset({"errors"})),
    "settings": (frozenset({"pydantic", "yaml"}), PURE),
    "progress": (frozenset({"rich"}), frozenset()),
    "spark_session": (frozenset({"pyspark"}), frozenset({"settings"})),
    "raw": (frozenset(), FOLDERS),
    "ledger": (frozenset({"sqlalchemy", "alembic", "tenacity", "pyarrow"}), FOLDERS),
    "contracts": (frozenset({"pandera", "pyspark"}), PURE),
    "validator": (frozenset({"pyspark", "py4j", "pyarrow"}), FOLDERS | {"contracts"} | SEAL),
    "warehouse": (
        frozenset({"pyspark", "py4j", "deltalake", "pyarrow", "duckdb", "duckdb_extension_delta"}),
        FOLDERS,
    ),
    "pipeline": (
        frozenset({"pyspark", "duckdb"}),
        FOLDERS | {"progress", "raw", "contracts", "validator", "ledger", "warehouse"},
    ),
    "doctor": (
        frozenset({"sqlalchemy"}),
        FOLDERS | {"settings", "raw", "ledger", "warehouse", "pipeline"},
    ),
    "demo": (frozenset(), FOLDERS | {"settings", "raw"}),
    "cli": (
        frozenset({"typer", "rich", "duckdb"}),
        FOLDERS
        | {
            "settings",
            "progress",
            "spark_session",
            "raw",
            "ledger",
            "warehouse",
            "pipeline",
            "doctor",
            "demo",
        },
    ),
    "orchestration": (
        frozenset({"dagster", "dagster_pyspark", "dagster_postgres", "pyspark"}),
        FOLDERS | {"settings", "progress", "raw", "validator", "ledger", "warehouse", "pipeline"},
    ),
    "definitions": (
        frozenset({"dagster", "dagster_pyspark"}),
        FOLDERS | {"settings", "spark_session", "orchestration", "ledger"},
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
        return bool(rest) and (rest[0] == room or rest[0] in rooms or ".".join(rest[:2]) in rooms)
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
