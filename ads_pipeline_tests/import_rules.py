"""The rules which module may import what, and a check of the code against them."""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "ads_pipeline"
# package or module -> (allowed libraries, allowed packages and modules). The rule with the longest name holds. A
# module without a rule is a violation.
RULES: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "__init__": (frozenset(), frozenset()),
    "__main__": (frozenset(), frozenset({"operations.cli"})),
    "domain": (frozenset(), frozenset()),
    "settings": (frozenset({"pydantic", "yaml", "sqlalchemy"}), frozenset({"domain", "lake.storage"})),
    "lake.storage": (frozenset({"obstore", "tenacity"}), frozenset({"domain"})),
    "lake.raw": (frozenset(), frozenset({"domain", "lake.storage"})),
    "lake.warehouse": (
        frozenset({"pyspark", "deltalake", "pyarrow", "numpy", "duckdb", "fsspec"}),
        frozenset({"domain", "lake.storage"}),
    ),
    "lake.readers": (
        frozenset({"pyspark", "pyarrow", "duckdb"}),
        frozenset({"domain", "lake.storage", "lake.warehouse"}),
    ),
    "lake.completeness": (
        frozenset({"pyarrow", "deltalake"}),
        frozenset({"domain", "lake.storage", "lake.warehouse"}),
    ),
    # A payload is read as the format of a sealed run says. The module that the query file names has a computed name.
    "validation": (
        frozenset({"pyspark", "py4j", "pyarrow", "numpy", "pandera", "a computed name"}),
        frozenset({"domain", "settings.query_file", "lake.raw.seal", "lake.raw.strict_json", "lake.raw.reading"}),
    ),
    "ledger": (
        frozenset({"sqlalchemy", "psycopg2", "alembic", "tenacity", "pyarrow"}),
        frozenset({"domain", "lake.storage"}),
    ),
    # Each version of Google's API is a module, whose name holds the version.
    "google_ads": (
        frozenset({"google", "grpc", "cryptography", "yaml", "a computed name"}),
        frozenset({"domain", "settings.query_file", "lake.raw", "lake.storage"}),
    ),
    "pipeline": (
        frozenset({"pyspark", "pyarrow", "duckdb", "rich"}),
        frozenset({"domain", "settings.query_file", "lake", "validation", "ledger", "google_ads"}),
    ),
    # A session of the user's own comes from a module with a computed name. The Python workers of the engine load what
    # judging needs before the first run.
    "spark": (
        frozenset({"pyspark", "py4j", "pyarrow", "grpc", "a computed name"}),
        frozenset({"domain", "settings", "lake.storage", "pipeline.staged_runs"}),
    ),
    "operations.doctor": (
        frozenset({"sqlalchemy", "yaml"}),
        frozenset({"domain", "settings", "lake", "ledger", "pipeline"})
        | {"spark.archive_trial", "spark.class_archive", "spark.jvm_options"},
    ),
    "operations.metrics": (
        frozenset({"prometheus_client"}),
        frozenset({"domain", "settings", "ledger", "pipeline"}),
    ),
    "operations.notifications": (frozenset({"requests"}), frozenset({"domain", "ledger", "pipeline"})),
    "operations.report": (
        frozenset(),
        frozenset({"domain", "settings", "lake.raw", "lake.storage", "ledger", "pipeline"}),
    ),
    # The command line loads the module of a command by its name when the command is used.
    "operations.cli": (
        frozenset({"typer", "rich", "duckdb", "pydantic", "a computed name"}),
        frozenset({"domain", "settings", "lake", "validation", "google_ads", "ledger", "pipeline", "spark", "demo"})
        | {"operations.doctor", "operations.metrics", "operations.report"},
    ),
    "operations": (frozenset(), frozenset()),
    # The private names of Dagster, and the module of a user's own code location, have computed names.
    "orchestration": (
        frozenset({"dagster", "dagster_pyspark", "dagster_postgres", "pyspark", "sqlalchemy", "a computed name"}),
        frozenset({"domain", "settings", "lake", "validation", "ledger", "pipeline", "spark"})
        | {"google_ads.configuration", "operations.notifications", "operations.report"},
    ),
    "demo": (frozenset(), frozenset({"domain", "settings.query_file", "lake.raw", "lake.storage"})),
    "testing": (frozenset({"hypothesis"}), frozenset({"domain"})),
    "lake": (frozenset(), frozenset()),
    "api": (
        frozenset({"a computed name"}),
        frozenset({"domain", "settings", "lake.raw", "validation", "ledger", "pipeline", "orchestration"}),
    ),
    "definitions": (frozenset(), frozenset({"settings", "orchestration"})),
}


def find_violations(root: Path) -> list[str]:
    """Every import below the root that the rules do not allow, as 'module:line imports name'."""
    return [
        f"{path.relative_to(root)}:{line} imports {name}"
        for path in sorted(root.rglob("*.py"))
        for line, name in find_imports(path)
        if not is_allowed(dotted_name(path, root), name)
    ]


def dotted_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def find_rule(importer: str) -> str | None:
    """The name of the rule for a module: the longest that is the module or a package above it."""
    parts = importer.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in RULES), None)


def is_allowed(importer: str, name: str) -> bool:
    """Whether a module may import a dotted name."""
    rule = find_rule(importer)
    if rule is None:
        return False
    libraries, modules = RULES[rule]
    top, _, rest = name.partition(".")
    if top == PACKAGE:
        return any(rest == each or rest.startswith(f"{each}.") for each in {rule, *modules})
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
