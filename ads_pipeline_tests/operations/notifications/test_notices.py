"""Grouping facts into notices, and the text and fields of a message."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ads_pipeline.domain.days.conditions import NEEDS_OPERATOR, Condition
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.operations.notifications.notices import (
    KINDS,
    MAX_NOTICES,
    Fact,
    Incident,
    Kind,
    Notice,
    compose_message,
    group_facts,
)

DAY = date(2026, 3, 1)
NOW = datetime(2026, 3, 9, tzinfo=UTC)
MARKDOWN = MarkdownIt("commonmark").enable(["strikethrough", "table"])


def fact(
    customer: int = 1, day: int = 0, *, kind: Kind = Condition.REJECTED, query: str = "campaign_daily", **more: str
) -> Fact:
    key = PartitionKey(
        source="google_ads",
        customer_id=str(customer),
        query_name=query,
        logical_date=DAY + timedelta(days=day),
    )
    return Fact.of_partition(kind, key, more.pop("occurrence", "o"), **more)


def other(subject: str, kind: Kind = Condition.PARKED, reason: str = "") -> Fact:
    return Fact(kind=kind, subject=subject, occurrence="o", reason=reason)


# A fact has one reason, which follows from its occurrence.
partition_facts = st.sampled_from(["", "bad", "worse"]).flatmap(
    lambda reason: st.builds(
        fact,
        st.integers(1, 4),
        st.integers(0, 9),
        kind=st.sampled_from([Condition.REJECTED, Condition.LATE, Condition.HIDDEN]),
        query=st.sampled_from(["campaign_daily", "search_terms"]),
        reason=st.just(reason),
        occurrence=st.just(f"because {reason}"),
    )
)
other_facts = st.builds(
    other, st.sampled_from(["account 1", "account 2"]), st.sampled_from([Condition.PARKED, Incident.RUN_DIED])
)
many_facts = st.lists(st.one_of(partition_facts, other_facts), max_size=40)
limits = st.sampled_from([0, 3, MAX_NOTICES])


@given(many_facts, limits)
def test_every_fact_is_in_one_notice(facts: list[Fact], limit: int) -> None:
    """The notices count each distinct fact once, and name its query, its customer and its day."""
    notices = group_facts(facts, limit=limit)
    distinct = {each.identity: each for each in facts}.values()
    counted = Counter[tuple[str, str]]()
    for notice in notices:
        counted[notice.kind, notice.query_name] += notice.facts
    assert counted == Counter((each.kind, each.key.query_name if each.key else "") for each in distinct)
    for each in distinct:
        assert any(covers(notice, each) for notice in notices)


def covers(notice: Notice, each: Fact) -> bool:
    if each.key is None:
        return notice.kind is each.kind and each.subject in notice.subjects
    if notice.first_day is None or notice.last_day is None:
        return False
    named = (notice.kind, notice.query_name) == (each.kind, each.key.query_name)
    return (
        named
        and each.key.customer_id in notice.subjects
        and notice.first_day <= each.key.logical_date <= notice.last_day
    )


@given(many_facts, limits, st.randoms(use_true_random=False))
def test_notices_and_keys_do_not_depend_on_order_or_repetition(facts: list[Fact], limit: int, random: Random) -> None:
    """The same facts give the same notices. Different notices have different keys."""
    notices = group_facts(facts, limit=limit)
    again = [*facts, *facts]
    random.shuffle(again)
    assert group_facts(again, limit=limit) == notices
    assert len({notice.idempotency_key for notice in notices}) == len(notices)


@given(st.lists(partition_facts, max_size=30))
def test_range_holds_exactly_its_days(facts: list[Fact]) -> None:
    """Below the limit, a notice of n customers and d days has these n times d partitions and no gap."""
    distinct = {(each.kind, each.reason, each.subject): each for each in facts}.values()
    for notice in group_facts(distinct, limit=1_000):
        assert notice.first_day is not None
        assert notice.last_day is not None
        assert notice.facts == len(notice.subjects) * ((notice.last_day - notice.first_day).days + 1)


@given(st.lists(partition_facts, min_size=1, max_size=10), partition_facts)
def test_another_occurrence_has_another_key(facts: list[Fact], more: Fact) -> None:
    """A notice about other facts never has the key of an earlier one."""
    keys = {notice.idempotency_key for notice in group_facts(facts, limit=0)}
    known = {each.identity for each in facts}
    grown = group_facts([*facts, more], limit=0)
    changed = [
        each for each in grown if each.kind is more.kind and each.query_name == getattr(more.key, "query_name", "")
    ]
    assert all((each.idempotency_key in keys) == (more.identity in known) for each in changed)


def test_customers_with_the_same_days_share_a_notice() -> None:
    """A day that is missing in between cuts the range; another reason is another notice."""
    facts = [fact(customer, day) for customer in (1, 2) for day in (0, 1, 3)]
    notices = group_facts([*facts, fact(1, 4, reason="x")])
    shown = [(each.subjects, each.first_day, each.last_day, each.reason) for each in notices]
    days = [DAY + timedelta(days=number) for number in range(5)]
    assert shown == [
        (("1", "2"), days[0], days[1], ""),
        (("1", "2"), days[3], days[3], ""),
        (("1",), days[4], days[4], "x"),
    ]


def test_too_many_notices_become_one_per_kind_and_query() -> None:
    """A day on which everything fails is a short message, which still counts everything."""
    facts = [fact(customer, day, reason=f"reason {customer}") for customer in range(1, 1_001) for day in (0, 2)]
    (notice,) = group_facts(facts)
    assert (notice.facts, len(notice.subjects)) == (2_000, 1_000)
    assert notice.reason == "reason 1 (and 999 other reasons)"
    assert len(json.dumps(compose_message([notice], source="google_ads", workspace="google_ads", now=NOW))) < 2_000


def test_message_has_text_and_facts() -> None:
    """One summary line, then the label, what it is about, why and the next command."""
    notices = group_facts(
        [fact(1, 0, reason="clicks must be at least 0"), fact(1, 1, reason="clicks must be at least 0")]
    )
    message = compose_message(notices, source="google_ads", workspace="prod", now=NOW)
    command = "ads-pipeline state inspect --condition rejected --query campaign_daily --customer 1"
    command += " --since 2026-03-01 --until 2026-03-02"
    assert message["text"].splitlines() == [
        "*prod, google_ads: 2 rejected*",
        "*Rejected* campaign_daily, customer 1, 2026-03-01 to 2026-03-02 (2 days): `clicks must be at least 0`",
        f"`{command}`",
    ]
    (shown,) = message["facts"]
    assert shown.pop("idempotency_key") == notices[0].idempotency_key
    assert shown == {
        "kind": "rejected",
        "count": 2,
        "query_name": "campaign_daily",
        "customers": 1,
        "customer_ids": ["1"],
        "first_day": "2026-03-01",
        "last_day": "2026-03-02",
        "reason": "clicks must be at least 0",
        "next_command": command,
    }


HOSTILE = (
    *("@channel", "@all ", "<!channel>", "<@U1>", "http://evil.example", "www.evil.example", "a@evil.example"),
    *("[here](http://evil.example)", "![x](http://evil.example/p)", "**b**", "*b*", "_i_", "~~s~~", "`", "``` "),
    *("\\", "\n# heading", "\r", "\n", "> quote", "| a | b |", "&lt;", "<b>", ":smile:", "#tag", "\x1b[31m"),
    *("\u202e", "\u2028"),
)
hostile_texts = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=3), max_size=8).map("".join)


@pytest.mark.invariant("X2")
@given(reason=hostile_texts, operator=hostile_texts, name=hostile_texts)
@example(reason="@channel see [this](http://evil.example)", operator="<@U1>", name="[this](http://evil.example)")
@example(reason="` @channel `", operator="`", name="` @channel `")
def test_text_of_somebody_else_is_shown_as_code(reason: str, operator: str, name: str) -> None:
    """Whatever an operator writes, or is the name of an account, the message has two lines a notice, and the text is
    nothing but code in it: no mention, no link, no picture, no emphasis and no mark of Slack."""
    (notice,) = group_facts([fact(reason=reason, operator=operator)])
    notices = [replace(notice, account_names={"1": name})]
    text = compose_message(notices, source="google_ads", workspace="google_ads", now=NOW)["text"]
    (summary, line, command) = text.split("\n")
    assert (summary + line + command).isprintable()
    assert not {"<", ">"} & set(text)
    (paragraph,) = [each for each in MARKDOWN.parse(line) if each.type == "inline"]
    kinds = [each.type for each in paragraph.children or ()]
    shown = "".join(each.content for each in paragraph.children or () if each.type == "text")
    assert set(kinds) <= {"em_open", "text", "em_close", "code_inline"}
    assert shown in {
        f"Rejected campaign_daily, customer 1{' ' if name else ''}, 2026-03-01{cause}{why}"
        for cause in ("", " by ")
        for why in ("", ": ")
    }
    assert command == "`ads-pipeline state why 1/campaign_daily/2026-03-01`"


def test_message_names_the_accounts() -> None:
    """In the text behind the id, and for programs by id."""
    (notice,) = group_facts([fact(1), fact(2)])
    message = compose_message(
        [replace(notice, account_names={"1": "Tea & Co", "3": "Other"})], source="s", workspace="s", now=NOW
    )
    assert "campaign_daily, customers 1 `Tea &amp; Co`, 2, 2026-03-01" in message["text"]
    assert message["facts"][0]["account_names"] == {"1": "Tea & Co"}


def test_text_of_an_operator_stays_readable() -> None:
    """Control characters and backticks are replaced; the facts for programs have the reason as it is."""
    notices = group_facts([fact(reason="<!channel> `rm` & \x1b[31m", operator="ada")])
    message = compose_message(notices, source="google_ads", workspace="google_ads", now=NOW)
    assert "by `ada`: `&lt;!channel&gt; 'rm' &amp; \\x1b[31m`" in message["text"]
    assert message["facts"][0]["reason"] == "<!channel> `rm` & \\x1b[31m"


def test_every_condition_that_needs_an_operator_is_a_kind() -> None:
    """The most urgent first. Every incident has a text too."""
    assert [kind for kind in KINDS if kind in NEEDS_OPERATOR] == list(NEEDS_OPERATOR)
    assert {*NEEDS_OPERATOR, *Incident} < set(KINDS)


@pytest.mark.parametrize(
    "kind", sorted(set(KINDS) - {Condition.PARKED, Incident.ON_HOLD, Incident.RUN_DIED, Incident.DISCOVERY_FAILED})
)
def test_next_command_names_the_days(kind: Kind) -> None:
    """One day is explained. Several are listed, of all customers when they are many."""
    (single,), (several,) = (
        group_facts([fact(kind=kind)]),
        group_facts([fact(each, kind=kind) for each in range(1, 6)]),
    )
    assert single.next_command == "ads-pipeline state why 1/campaign_daily/2026-03-01"
    assert several.next_command.endswith(" --query campaign_daily --since 2026-03-01 --until 2026-03-01")


@pytest.mark.parametrize("kind", [Condition.PARKED, Incident.ON_HOLD, Incident.RUN_DIED])
def test_notices_about_other_subjects_name_them(kind: Kind) -> None:
    """Accounts, queries and runs have no days."""
    (notice,) = group_facts([other(subject, kind) for subject in ("x", "y")])
    assert (notice.json["subjects"], notice.json["names"]) == (2, ["x", "y"])
    assert notice.text.startswith(f"*{KINDS[kind].label}* x, y\n`ads-pipeline ")
