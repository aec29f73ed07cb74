"""A second opinion: what a partition must be after a history, written without a look at the product's table."""

from dataclasses import dataclass, field


@dataclass
class Judged:
    """One verdict in the oracle's words."""

    ordinal: int
    good: bool
    message: str | None = None


@dataclass
class OraclePartition:
    """Remembers everything that happened to one partition and derives its state from that."""

    known: bool = False
    status: str = "pending"
    current: int | None = None
    message: str | None = None
    speaker: int | None = None
    asked_after: int | None = None  # attempts that it had when it was last to be reprocessed
    heard: dict[tuple[int, str], bool] = field(default_factory=dict)

    @property
    def attempts(self) -> int:
        return len(self.heard)

    def judge(self, verdict: Judged, validation: str) -> str:
        """Hear a verdict: 'new', 'known' or 'conflict'."""
        place = (verdict.ordinal, validation)
        if place in self.heard:
            return "known" if self.heard[place] == verdict.good else "conflict"
        self.heard[place] = verdict.good
        if self.status == "success":
            self._judge_a_success(verdict)
        elif verdict.good:
            self._serve(verdict.ordinal)
        else:
            self.status = "failed"
            if self.speaker is None or verdict.ordinal >= self.speaker:
                self._explain(verdict)
        return "new"

    def _judge_a_success(self, verdict: Judged) -> None:
        assert self.current is not None
        if verdict.good and verdict.ordinal > self.current:
            self._serve(verdict.ordinal)
        if not verdict.good and verdict.ordinal == self.current:
            self.status = "failed"
            self._explain(verdict)

    def _serve(self, ordinal: int) -> None:
        self.status, self.current, self.message, self.speaker = "success", ordinal, None, None

    def _explain(self, verdict: Judged) -> None:
        self.message, self.speaker = verdict.message, verdict.ordinal

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
        changed = not self.known
        self.known = True
        return "changed" if changed else "unchanged"

    def reprocess(self) -> str:
        if self.status != "success":
            return "refused"
        waits, self.asked_after = self.asked_after == self.attempts, self.attempts
        return "unchanged" if waits else "changed"
