"""Facts that an operator must know, grouped into few notices, and the message that carries them.

Pure functions. `finding` reads the facts from the ledger, `webhook` sends the message.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Final

from ads_pipeline.domain.batches import cut
from ads_pipeline.domain.days.conditions import CONDITIONS, NEEDS_OPERATOR, Condition
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import printable

MAX_NOTICES: Final = 40  # of one message, before facts of a query share a notice whatever their reasons
SHOWN_SUBJECTS: Final = 20  # customers, runs or accounts that a notice lists by name
SHOWN_IN_TEXT: Final = 3
MAX_REASON: Final = 300


class Incident(StrEnum):
    """The kinds of facts that are no condition of a day."""

    TERMINAL = "terminal"
    ON_HOLD = "on_hold"
    DISCOVERY_FAILED = "discovery_failed"
    RUN_DIED = "run_died"


Kind = Condition | Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class KindText:
    """The texts of a kind. `command` lists the selected partitions of several days, or explains a subject."""

    label: str
    meaning: str
    command: str


def _describe(condition: Condition) -> KindText:
    entry = CONDITIONS[condition]
    command = f"ads-pipeline state inspect --condition {condition} {{selection}}"
    return KindText(label=entry.label, meaning=entry.meaning, command=command)


# The most urgent first. An account or a query is parked, and not a single day.
KINDS: Final[Mapping[Kind, KindText]] = {
    Incident.TERMINAL: KindText(
        label="No more retries",
        meaning="The day failed too often, is too old, or was marked by an operator.",
        command="ads-pipeline state inspect --list terminal {selection}",
    ),
    **{condition: _describe(condition) for condition in NEEDS_OPERATOR},
    Condition.PARKED: replace(_describe(Condition.PARKED), command="ads-pipeline state inspect --list parked"),
    Incident.ON_HOLD: KindText(
        label="On hold",
        meaning="For an hour nothing of the source or of an account could be fetched. It goes on by itself, and a "
        "command lifts the hold.",
        command="ads-pipeline state inspect --list parked",
    ),
    Incident.DISCOVERY_FAILED: KindText(
        label="Discovery failed",
        meaning="No account could be read. Known accounts are fetched; new ones stay unknown. Further failures are "
        "silent.",
        command="ads-pipeline accounts discover",
    ),
    Condition.HIDDEN: _describe(Condition.HIDDEN),
    Incident.RUN_DIED: KindText(
        label="Run died",
        meaning="A Dagster run failed, or its machine was lost. Sensors request its partitions again.",
        command="ads-pipeline events runs",
    ),
}
_URGENCY: Final = {kind: number for number, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that happened to a subject: a partition, an account, a query or a run.

    `occurrence` tells it from the same thing at another time. `key` is the partition, if it is about one.
    """

    kind: Kind
    subject: str
    occurrence: str
    reason: str = ""
    operator: str = ""
    key: PartitionKey | None = None

    @classmethod
    def of_partition(
        cls, kind: Kind, key: PartitionKey, occurrence: str, *, reason: str = "", operator: str = ""
    ) -> "Fact":
        return cls(kind=kind, subject=str(key), occurrence=occurrence, reason=reason, operator=operator, key=key)

    @property
    def identity(self) -> str:
        return f"{self.kind}|{self.subject}|{self.occurrence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Facts of one kind that share a query, a reason and a range of days, or only a query when there are too many.

    `subjects` are customers, or accounts, queries or runs when the facts are not about partitions.
    """

    kind: Kind
    idempotency_key: str
    facts: int
    subjects: tuple[str, ...]
    query_name: str = ""
    first_day: date | None = None
    last_day: date | None = None
    reason: str = ""
    operator: str = ""
    invocation: str = ""  # before the command, as in the settings
    account_names: Mapping[str, str] = field(default_factory=dict)  # of the customers among the subjects

    @property
    def next_command(self) -> str:
        """The command that shows the facts with their reasons."""
        return f"{self.invocation}{self._command}"

    @property
    def _command(self) -> str:
        if self.first_day is None:
            return KINDS[self.kind].command
        if self.facts == 1:
            return f"ads-pipeline state why {self.subjects[0]}/{self.query_name}/{self.first_day}"
        customers = [f"--customer {each}" for each in self.subjects] if len(self.subjects) <= SHOWN_IN_TEXT else []
        days = f"--since {self.first_day} --until {self.last_day}"
        selection = " ".join(["--query", self.query_name, *customers, days])
        return KINDS[self.kind].command.format(selection=selection)

    @property
    def json(self) -> dict[str, Any]:
        """The fields of the notice, without those that are empty."""
        is_about_days = self.first_day is not None
        fields = {
            "idempotency_key": self.idempotency_key,
            "kind": self.kind.value,
            "count": self.facts,
            "query_name": self.query_name,
            "customers" if is_about_days else "subjects": len(self.subjects),
            "customer_ids" if is_about_days else "names": list(self.subjects[:SHOWN_SUBJECTS]),
            "account_names": {each: self.account_names[each] for each in self._named[:SHOWN_SUBJECTS]},
            "first_day": self.first_day and self.first_day.isoformat(),
            "last_day": self.last_day and self.last_day.isoformat(),
            "reason": self.reason,
            "operator": self.operator,
            "next_command": self.next_command,
        }
        return {name: value for name, value in fields.items() if value}

    @property
    def _named(self) -> list[str]:
        return [each for each in self.subjects if each in self.account_names]

    @property
    def text(self) -> str:
        """The notice as two lines of a chat message."""
        shown, more = self.subjects[:SHOWN_IN_TEXT], len(self.subjects) - SHOWN_IN_TEXT
        subjects = ", ".join(map(self._describe_subject, shown)) + (f" and {more:,} more" if more > 0 else "")
        if self.first_day is not None:
            days = f"{self.first_day}" + (f" to {self.last_day}" if self.last_day != self.first_day else "")
            noun = "customer" if len(self.subjects) == 1 else "customers"
            subjects = f"{escape(self.query_name)}, {noun} {subjects}, {days}"
        cause = f" by {as_code(self.operator)}" if self.operator else ""
        reason = f": {as_code(self.reason)}" if self.reason else ""
        count = f" ({self.facts:,} days)" if self.first_day is not None and self.facts > 1 else ""
        line = f"{subjects}{count}{cause}{reason}"
        return f"*{KINDS[self.kind].label}* {line}\n{as_code(self.next_command)}"

    def _describe_subject(self, subject: str) -> str:
        """The subject, with the name of the account, which is the text of somebody else."""
        name = self.account_names.get(subject)
        return f"{escape(subject)} {as_code(name)}" if name else escape(subject)


def group_facts(facts: Iterable[Fact], *, limit: int = MAX_NOTICES) -> list[Notice]:
    """Put each fact into one notice, the most urgent kind first.

    Customers with the same query, reason and consecutive days share a notice. With more than `limit` notices, all
    facts of one kind and query share one.
    """
    unique = {fact.identity: fact for fact in facts}
    ordered = sorted(unique.values(), key=lambda each: (_URGENCY[each.kind], each.subject, each.occurrence))
    groups = _group_exactly(ordered)
    if len(groups) > limit:
        groups = _group_coarsely(ordered)
    return [_make_notice(group) for group in groups]


def escape(text: str) -> str:
    """The text without Slack's own marks, such as <!channel>, and without code."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")


def as_code(text: str) -> str:
    """The text of somebody else as code, where Slack and Mattermost look for no mention, link or other markup."""
    return f"`{escape(printable(text)).strip() or ' '}`"


def compose_message(notices: Sequence[Notice], *, source: str, workspace: str, now: datetime) -> dict[str, Any]:
    """The body of a request: `text` for people, and the facts for programs."""
    counts = Counter[Kind]()
    for notice in notices:
        counts[notice.kind] += notice.facts
    summary = ", ".join(f"{counts[kind]:,} {KINDS[kind].label.lower()}" for kind in KINDS if counts[kind])
    place = source if workspace == source else f"{workspace}, {source}"
    return {
        "text": "\n".join([f"*{escape(place)}: {summary}*", *(notice.text for notice in notices)]),
        "source": source,
        "workspace": workspace,
        "composed_at": now.isoformat(timespec="seconds"),
        "facts": [notice.json for notice in notices],
    }


def _group_exactly(facts: Sequence[Fact]) -> list[list[Fact]]:
    """Group by kind, query, reason, operator and range of consecutive days."""
    by_cause = defaultdict[tuple[str, ...], list[Fact]](list)
    for fact in facts:
        by_cause[fact.kind, fact.key.query_name if fact.key else "", fact.reason, fact.operator].append(fact)
    groups: list[list[Fact]] = []
    for members in by_cause.values():
        by_range = defaultdict[tuple[date, ...], list[Fact]](list)
        for days in cut(members, _continues):
            by_range[tuple(fact.key.logical_date for fact in days if fact.key)] += days
        groups += by_range.values()
    return groups


def _group_coarsely(facts: Sequence[Fact]) -> list[list[Fact]]:
    groups = defaultdict[tuple[str, str], list[Fact]](list)
    for fact in facts:
        groups[fact.kind, fact.key.query_name if fact.key else ""].append(fact)
    return list(groups.values())


def _continues(facts: Sequence[Fact], fact: Fact) -> bool:
    """True if the fact is about the same customer and the same or the next day, or neither about a partition."""
    before = facts[-1]
    if before.key is None or fact.key is None:
        return before.key is fact.key
    days = (fact.key.logical_date - before.key.logical_date).days
    return before.key.customer_id == fact.key.customer_id and days in {0, 1}


def _make_notice(facts: Sequence[Fact]) -> Notice:
    first, days = facts[0], [fact.key.logical_date for fact in facts if fact.key]
    identities = "\n".join(sorted(fact.identity for fact in facts))
    reasons, operators = Counter(fact.reason for fact in facts), {fact.operator for fact in facts}
    (reason, _count), more = reasons.most_common(1)[0], len(reasons) - 1
    return Notice(
        kind=first.kind,
        idempotency_key=hashlib.sha256(identities.encode()).hexdigest(),
        facts=len(facts),
        subjects=tuple(dict.fromkeys(fact.key.customer_id if fact.key else fact.subject for fact in facts)),
        query_name=first.key.query_name if first.key else "",
        first_day=min(days, default=None),
        last_day=max(days, default=None),
        reason=printable(reason, limit=MAX_REASON) + (f" (and {more:,} other reasons)" if more else ""),
        operator=first.operator if len(operators) == 1 else "",
    )
