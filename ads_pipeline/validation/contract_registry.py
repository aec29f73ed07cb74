"""Which contract judges which query and schema version: the shipped ones, and those of the user's own module.

The query file names the module with `contracts:`, a Python file beside it or an installed module. It declares a
mapping `CONTRACTS` like that of `contract_models`. Only such a module needs pandera, whose import takes longer than
Dagster's: `shipped_rules.json` holds what the shipped models declare.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final

from ads_pipeline.domain.errors import BadSettings, ContractMissing, Mistake
from ads_pipeline.domain.quoting import printable
from ads_pipeline.settings.query_file import GoogleApis, line_of
from ads_pipeline.validation.contract_rules import Rules, decode_rules

SHIPPED_RULES: Final = Path(__file__).parent / "shipped_rules.json"  # written by `rule_reading`
MODULE_NAME: Final = "ads_pipeline_own_contracts"  # of a Python file beside the query file


@dataclass(frozen=True, slots=True)
class Contracts:
    """The contracts of a deployment as plain data, by query name and schema version."""

    declared: Mapping[tuple[str, str], Rules]

    def rules(self, query_name: str, schema_version: str) -> Rules:
        """The contract of these rows. Raises ContractMissing, which lists the declared versions."""
        rules = self.declared.get((query_name, schema_version))
        if rules is None:
            versions = tuple(version for name, version in self.declared if name == query_name)
            raise ContractMissing(query_name, schema_version, versions)
        return rules


SHIPPED: Final = Contracts(decode_rules(SHIPPED_RULES.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class DeclaredVersions:
    """Tells which schema versions have a contract.

    It imports the module of the query file only for a version without a shipped contract. A module that cannot be
    imported declares nothing here.
    """

    queries_file: Path
    apis: GoogleApis

    def has_contract(self, query_name: str, schema_version: str) -> bool:
        if (query_name, schema_version) in SHIPPED.declared:
            return True
        if self.apis.contracts is None:
            return False
        try:
            return (query_name, schema_version) in _read_own(self.queries_file, self.apis.contracts)
        except BadSettings:
            return False


def read_contracts(queries_file: Path, apis: GoogleApis) -> Contracts:
    """The shipped contracts and those of the module that the query file names.

    Raises BadSettings when the module cannot be used, or when a query has no contract or one that its GAQL does not
    fit.
    """
    contracts = SHIPPED
    if apis.contracts is not None:
        own = _read_own(queries_file, apis.contracts)
        contracts = Contracts({**SHIPPED.declared, **own})
    mistakes = [
        Mistake(location=_locate(queries_file, "queries", name), problem=problem)
        for name, query in apis.queries.items()
        for problem in _find_problems(contracts, name, query.schema_version, query.columns)
    ]
    if mistakes:
        raise BadSettings(tuple(mistakes))
    return contracts


def _locate(queries_file: Path, *path_in_file: str) -> str:
    return printable(f"{queries_file}:{line_of(queries_file, *path_in_file)} {'.'.join(path_in_file)}")


def _find_problems(contracts: Contracts, name: str, version: str, columns: Collection[str]) -> Iterator[str]:
    try:
        rules = contracts.rules(name, version)
    except ContractMissing as error:
        yield str(error)
        return
    missing = [column.name for column in rules.columns if column.name not in columns]
    if missing:
        yield (
            f"the contract of schema_version {version} needs {', '.join(missing)}, which the GAQL does not select. "
            "Select the fields, or raise schema_version and declare a contract without them"
        )


def _read_own(queries_file: Path, name: str) -> dict[tuple[str, str], Rules]:
    location = _locate(queries_file, "contracts")
    try:
        own = _import_own(queries_file, name).CONTRACTS
    except Exception as error:
        raise BadSettings((Mistake(location=location, problem=_describe(error, name)),)) from error
    rules, problems = _read_models(own)
    if problems:
        mistakes = tuple(Mistake(location=location, problem=f"{printable(name)}: {each}") for each in problems)
        raise BadSettings(mistakes)
    return rules


def _import_own(queries_file: Path, name: str) -> ModuleType:
    """Import the module. A file is imported again once it has changed."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = queries_file.parent / name
    stat = path.stat()
    return _import_file(path, (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=4)
def _import_file(path: Path, _fingerprint: tuple[int, int]) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module  # pandera resolves annotations in the module of the class
    spec.loader.exec_module(module)
    return module


def _read_models(own: object) -> tuple[dict[tuple[str, str], Rules], list[str]]:
    """The rules of the user's models, and the problems of those that cannot be used."""
    from ads_pipeline.validation.contract_models import Row  # noqa: PLC0415 - loads pandera
    from ads_pipeline.validation.rule_reading import read_rules  # noqa: PLC0415 - the same

    if not isinstance(own, Mapping):
        return {}, ["CONTRACTS must be a mapping of (query name, schema version) to a model"]
    rules, problems = dict[tuple[str, str], Rules](), list[str]()
    for key, model in own.items():
        if problem := _find_key_problem(key):
            problems.append(problem)
        elif not (isinstance(model, type) and issubclass(model, Row)):
            class_name = "ads_pipeline.api.Row"
            problems.append(f"the contract of {key[0]} {key[1]} must be a class derived from {class_name}")
        else:
            try:
                rules[key] = read_rules(model, schema_version=key[1])
            except TypeError as error:
                problems.append(str(error))
    return rules, problems


def _find_key_problem(key: object) -> str | None:
    if not (isinstance(key, tuple) and [type(part) for part in key] == [str, str]):
        return f"the key {printable(repr(key))} of CONTRACTS must be (query name, schema version), both as text"
    if key in SHIPPED.declared:
        return f"CONTRACTS declares {key[0]} {key[1]}, which has a shipped contract; use another schema version"
    return None


def _describe(error: Exception, name: str) -> str:
    """The error and its line in the user's module."""
    if isinstance(error, AttributeError) and "CONTRACTS" in str(error):
        return f"{printable(name)} declares no CONTRACTS"
    if isinstance(error, SyntaxError):
        line: int | None = error.lineno
    else:
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename.endswith(name)]
        line = lines[-1] if lines else None
    place = printable(name) if line is None else printable(f"{name}:{line}")
    return f"{place} cannot be imported: {type(error).__name__}: {printable(str(error))}"
