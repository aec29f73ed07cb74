"""The rules which module may import what, and a check of the code against them."""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "ads_pipeline"
PURE = frozenset({"errors", "quoting", "domain"})
FOLDERS = PURE | {"storage", "log_events"}
# The format of a sealed run and how its files are opened, for modules that read payloads.
SEAL = frozenset({"raw.seal", "raw.strict_json", "raw.reading"})

# package or module -> (allowed libraries, allowed packages and modules). A module without a rule is a violation.
RULES: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "__init__": (frozenset(), frozenset()),
    "__main__": (frozenset(), frozenset({"cli"})),
    "quoting": (frozenset(), frozenset()),
    "errors": (frozenset(), frozenset({"quoting"})),
    "domain": (frozenset(), frozenset({"errors", "quoting"})),
    "storage": (frozenset({"obstore", "tenacity"}), frozenset({"errors"})),
    "log_events": (frozenset(), frozenset({"quoting"})),
    "extraction_settings": (frozenset({"pydantic"}), PURE),
    "query_file": (frozenset({"pydantic", "yaml"}), PURE | {"extraction_settings"}),
    "settings": (frozenset({"sqlalchemy"}), PURE | {"query_file", "storage"}),
    "progress": (frozenset({"rich"}), frozenset()),
    # A session of the user's own comes from a module with a computed name.
    "spark_session": (
        frozenset({"pyspark", "a computed name"}),
        frozenset({"settings", "errors", "log_events", "engine"}),
    ),
    # Its Python workers load what judging needs before the first run.
    "engine": (frozenset({"pyspark", "py4j", "grpc"}), FOLDERS | {"settings", "spark_session", "pipeline"}),
    "metrics": (frozenset({"prometheus_client"}), FOLDERS | {"settings", "ledger", "pipeline"}),
    "raw": (frozenset(), FOLDERS),
    "ledger": (frozenset({"sqlalchemy", "psycopg2", "alembic", "tenacity", "pyarrow"}), FOLDERS),
    # Each version of Google's API is a module, whose name holds the version.
    "google_ads": (
        frozenset({"google", "grpc", "cryptography", "yaml", "a computed name"}),
        FOLDERS | {"query_file", "raw"},
    ),
    # The module that the query file names has a computed name.
    "contracts": (frozenset({"pandera", "pyspark", "a computed name"}), PURE | {"query_file"}),
    "validator": (frozenset({"pyspark", "py4j", "pyarrow", "numpy"}), FOLDERS | {"contracts"} | SEAL),
    "warehouse": (
        frozenset({"pyspark", "deltalake", "pyarrow", "numpy", "duckdb", "fsspec"}),
        FOLDERS,
    ),
    "pipeline": (
        frozenset({"pyspark", "pyarrow", "duckdb"}),
        FOLDERS | {"query_file", "progress", "raw", "contracts", "validator", "ledger", "warehouse", "google_ads"},
    ),
    "doctor": (
        frozenset({"sqlalchemy", "yaml"}),
        FOLDERS | {"settings", "raw", "ledger", "warehouse", "pipeline"},
    ),
    "notifications": (frozenset({"requests"}), FOLDERS | {"ledger", "pipeline"}),
    "report": (frozenset(), FOLDERS | {"settings", "raw", "ledger", "pipeline"}),
    "demo": (frozenset(), FOLDERS | {"query_file", "raw"}),
    "testing": (frozenset({"hypothesis"}), PURE),
    "cli": (
        frozenset({"typer", "rich", "duckdb", "pydantic"}),
        FOLDERS
        | {
            "settings",
            "progress",
            "spark_session",
            "engine",
            "raw",
            "ledger",
            "warehouse",
            "pipeline",
            "doctor",
            "metrics",
            "report",
            "demo",
            "contracts",
            "google_ads",
            "query_file",
        },
    ),
    # The private names of Dagster, and the module of a user's own code location, have computed names.
    "orchestration": (
        frozenset({"dagster", "dagster_pyspark", "dagster_postgres", "pyspark", "sqlalchemy", "a computed name"}),
        FOLDERS
        | {
            "query_file",
            "settings",
            "progress",
            "raw",
            "validator",
            "ledger",
            "warehouse",
            "contracts",
            "report",
            "notifications",
            "pipeline",
            "engine",
            "google_ads.configuration",
        },
    ),
    "definitions": (
        frozenset({"dagster", "dagster_pyspark", "sqlalchemy"}),
        FOLDERS
        | {
            "query_file",
            "settings",
            "spark_session",
            "contracts",
            "google_ads.configuration",
            "orchestration",
            "ledger",
        },
    ),
}


def find_violations(root: Path) -> list[str]:
    """Every import below the root that the rules do not allow, as 'module:line imports name'."""
    return [
        f"{path.relative_to(root)}:{line} imports {name}"
        for path in sorted(root.rglob("*.py"))
        for line, name in find_imports(path)
        if not is_allowed(top_level_name(path, root), name)
    ]


def top_level_name(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def is_allowed(importer: str, name: str) -> bool:
    """Whether a top-level package or module may import a dotted name."""
    top, *rest = name.split(".")
    if importer not in RULES:
        return False
    libraries, modules = RULES[importer]
    if top == PACKAGE:
        return bool(rest) and (rest[0] == importer or rest[0] in modules or ".".join(rest[:2]) in modules)
    return top in sys.stdlib_module_names or top in libraries


def find_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every import in a file with its line, also inside functions and through importlib."""
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
