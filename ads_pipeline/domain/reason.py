"""The reason of a rejection: the value that goes from the validator to the screen, its JSON, and its text.

The validator decides which values of a payload a sample may show. `str(reason)` is the only text of a reason.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from ads_pipeline.domain.partition import validate_name
from ads_pipeline.domain.quoting import printable

DEMOTED: Final = "demoted"  # the error class of an operator's demotion
WITHDRAWN: Final = "withdrawn"  # of a withdrawal that has begun
MAX_SAMPLES: Final = 5
MAX_FIELD_LENGTH, MAX_VALUE_LENGTH = 80, 40
MAX_PROBLEMS: Final = 50
MAX_JSON_LENGTH: Final = 30_000  # an event holds the reason as JSON and as text


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One row with a problem: its line in the payload, and the values of the problem's fields, as shown to people."""

    line: int
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(printable(value, limit=MAX_VALUE_LENGTH) for value in self.values))

    def __str__(self) -> str:
        return f"line {self.line}: {', '.join(self.values)}" if self.values else f"line {self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A rule that a run breaks, such as "must be at least 0", with the fields, the number of rows and some samples.

    `rows` is 0 for a rule about the run as a whole.
    """

    error_class: str
    rule: str
    fields: tuple[str, ...] = ()
    rows: int = 0
    samples: tuple[Sample, ...] = ()

    def __post_init__(self) -> None:
        validate_name("error_class", self.error_class)
        if not self.rule:
            raise ValueError(f"a problem of class {self.error_class} needs a rule")
        object.__setattr__(self, "rule", printable(self.rule))
        object.__setattr__(self, "fields", tuple(printable(name, limit=MAX_FIELD_LENGTH) for name in self.fields))

    @property
    def text(self) -> str:
        """The problem without its rows: "clicks must be at least 0"."""
        return f"{' and '.join(self.fields)} {self.rule}" if self.fields else self.rule

    @property
    def samples_text(self) -> str:
        """The samples, and an ellipsis when more rows have the problem."""
        more = ("…",) if self.rows > len(self.samples) else ()
        return "; ".join((*map(str, self.samples), *more)) if self.samples else ""

    def __str__(self) -> str:
        if not self.rows:
            return self.text
        samples = f" ({self.samples_text})" if self.samples else ""
        return f"{self.text} in {self.rows} {'row' if self.rows == 1 else 'rows'}{samples}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """The reason of a rejection. With `operator`, a person demoted or withdrew the run, and the rule is that text.

    Problems beyond the limits are left out.
    """

    run_id: str
    problems: tuple[Problem, ...]
    operator: str | None = None

    def __post_init__(self) -> None:
        validate_name("run_id", self.run_id)
        if not self.problems:
            raise ValueError(f"{self.run_id}: a reason needs a problem")
        if self.operator is not None:
            object.__setattr__(self, "operator", printable(self.operator, limit=MAX_FIELD_LENGTH))
        object.__setattr__(self, "problems", tuple(self.problems[:MAX_PROBLEMS]))
        while len(self.problems) > 1 and len(self.json) > MAX_JSON_LENGTH:
            object.__setattr__(self, "problems", self.problems[:-1])

    @classmethod
    def of_demotion(cls, run_id: str, *, operator: str, text: str) -> Self:
        """The reason of a demotion by an operator."""
        return cls(run_id=run_id, problems=(Problem(error_class=DEMOTED, rule=text),), operator=operator)

    @classmethod
    def of_withdrawal(cls, run_id: str, *, operator: str, text: str) -> Self:
        """The reason why rows are being withdrawn by an operator."""
        return cls(run_id=run_id, problems=(Problem(error_class=WITHDRAWN, rule=text),), operator=operator)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The reason that `json` encoded."""
        document = json.loads(text)
        return cls(**document | {"problems": tuple(map(_parse_problem, document["problems"]))})

    @property
    def json(self) -> str:
        """Canonical JSON, as the ledger stores it."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def error_class(self) -> str:
        """The class of the first problem. It decides whether the partition is retried."""
        return self.problems[0].error_class

    @property
    def rows_failed(self) -> int:
        """The number of rows with the most frequent problem."""
        return max(problem.rows for problem in self.problems)

    @property
    def text(self) -> str:
        """The reason without its run."""
        text = "; ".join(map(str, self.problems))
        return printable(text if self.operator is None else f"{self.error_class} by {self.operator}: {text}")

    def __str__(self) -> str:
        return printable(f"{self.run_id}: {self.text}")


def _parse_problem(document: dict[str, Any]) -> Problem:
    samples = tuple(Sample(line=each["line"], values=tuple(each["values"])) for each in document["samples"])
    return Problem(**document | {"fields": tuple(document["fields"]), "samples": samples})
