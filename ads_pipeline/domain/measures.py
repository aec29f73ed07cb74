"""The figures that are kept with each attempt, so that a restatement can be stated in numbers."""

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Final

from ads_pipeline.domain.partition import PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Sums over the rows of a run; None for a column that the contract does not have, or that was not read."""

    cost_micros: int | None = None
    conversions: float | None = None
    conversions_value: float | None = None


NO_MEASURES: Final = Measures()
MEASURED_COLUMNS: Final = tuple(field.name for field in fields(Measures))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The number of rows of an accepted run, and its sums."""

    run_id: str
    rows: int
    measures: Measures

    def differs(self, other: "Figures") -> bool:
        return (self.rows, self.measures) != (other.rows, other.measures)

    def is_restated_by(self, newer: "Figures") -> bool:
        """True if another run with other figures got authority after this one."""
        return self.run_id != newer.run_id and self.differs(newer)

    @property
    def fields(self) -> dict[str, Any]:
        """The figures as events and JSON have them, without those that are not known."""
        known = {name: value for name, value in asdict(self.measures).items() if value is not None}
        return {"run_id": self.run_id, "rows": self.rows} | known


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRestatement:
    """An accepted run beside the accepted run that had authority before it."""

    key: PartitionKey
    attempt_no: int
    judged_at: datetime
    before: Figures
    after: Figures
