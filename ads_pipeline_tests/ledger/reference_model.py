"""A reference model of one partition, written independently of the product's transition table."""

from dataclasses import dataclass, field


@dataclass
class ReferenceVerdict:
    ordinal: int
    accepted: bool
    message: str | None = None


@dataclass
class ReferencePartition:
    """Keeps the verdicts and actions on one partition, and derives its state from them."""

    recorded: bool = False
    status: str = "pending"
    current_ordinal: int | None = None
    message: str | None = None
    message_ordinal: int | None = None
    attempts_at_reprocess: int | None = None  # the attempt count at the last reprocess action
    verdicts: dict[tuple[int, str], bool] = field(default_factory=dict)

    @property
    def attempt_count(self) -> int:
        return len(self.verdicts)

    def record(self, verdict: ReferenceVerdict, validation_id: str) -> str:
        """Record a verdict, and return 'new', 'redelivered' or 'conflict'."""
        delivery = (verdict.ordinal, validation_id)
        if delivery in self.verdicts:
            return "redelivered" if self.verdicts[delivery] == verdict.accepted else "conflict"
        self.verdicts[delivery] = verdict.accepted
        if self.status == "success":
            self._record_on_success(verdict)
        elif verdict.accepted:
            self._promote(verdict.ordinal)
        else:
            self.status = "failed"
            if self.message_ordinal is None or verdict.ordinal >= self.message_ordinal:
                self._set_message(verdict)
        return "new"

    def _record_on_success(self, verdict: ReferenceVerdict) -> None:
        assert self.current_ordinal is not None
        if verdict.accepted and verdict.ordinal > self.current_ordinal:
            self._promote(verdict.ordinal)
        if not verdict.accepted and verdict.ordinal == self.current_ordinal:
            self.status = "failed"
            self._set_message(verdict)

    def _promote(self, ordinal: int) -> None:
        self.status, self.current_ordinal, self.message, self.message_ordinal = "success", ordinal, None, None

    def _set_message(self, verdict: ReferenceVerdict) -> None:
        self.message, self.message_ordinal = verdict.message, verdict.ordinal

    def requeue(self) -> str:
        if self.status == "success":
            return "refused"
        changed = self.status == "failed"
        self.status = "pending"
        return "changed" if changed else "unchanged"

    def withdraw(self) -> str:
        if self.status != "success":
            return "refused"
        self.status = "pending"
        return "changed"

    def enqueue(self) -> str:
        changed = not self.recorded
        self.recorded = True
        return "changed" if changed else "unchanged"

    def reprocess(self) -> str:
        if self.status != "success":
            return "refused"
        is_requested = self.attempts_at_reprocess == self.attempt_count
        self.attempts_at_reprocess = self.attempt_count
        return "unchanged" if is_requested else "changed"
