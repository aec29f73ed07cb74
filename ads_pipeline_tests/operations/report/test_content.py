"""The facts of the report, read from a ledger with one day in each condition."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ads_pipeline.domain.days.conditions import CONDITIONS, Condition
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.measures import Measures
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.report.content import (
    LETTERS,
    CustomerContent,
    QueryContent,
    ReportContent,
    ReportReader,
)
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline.pipeline.days.next_steps import DAYS
from ads_pipeline.settings.arguments import read_arguments
from ads_pipeline.settings.environment import read_settings
from ads_pipeline.settings.extraction_section import ExtractionSettings
from ads_pipeline_tests.builders import sealed_run
from ads_pipeline_tests.ledger.builders import (
    ROWS,
    acceptance,
    action_request,
    key,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
)

FIRST, LAST = key(day=1).logical_date, key(day=12).logical_date
NOW = datetime(2026, 2, 13, 13, tzinfo=UTC)
CUSTOMER, PARKED = "1234567890", "77"


def accept(ledger: Ledger, partition: PartitionKey, *run_ids: str) -> None:
    for each in registered_runs(ledger, partition, *run_ids):
        record_verdict(ledger, acceptance(each))


def fill(ledger: Ledger) -> dict[int, Condition]:
    """Bring one day of the customer into each condition, and return the conditions by day."""
    readable, restated, rerun, rejected, demoted, withdrawn, unjudged, unloaded = (key(day=n) for n in range(1, 9))
    for partition in (readable, restated, rerun, demoted, withdrawn):
        accept(ledger, partition, "r1")
        publish_runs(ledger, run(partition, "r1"))
    accept(ledger, restated, "r2")
    publish_runs(ledger, run(restated, "r2"))
    record_verdict(ledger, rejection(registered_runs(ledger, rerun, "r2")[0], "clicks are negative"))
    record_verdict(ledger, rejection(registered_runs(ledger, rejected, "r1")[0], "a line is cut off"))
    demotion = rejection(run(demoted, "r1"), "demoted by ana", validation_id="d", error_class="demoted")
    record_verdict(ledger, demotion)
    ledger.actions.execute(Action.WITHDRAW, [withdrawn], action_request("withdraw"))
    registered_runs(ledger, unjudged, "r1")
    accept(ledger, unloaded, "r1")
    registered_runs(ledger, key(PARKED, day=1), "r1")
    parking = Parking(source="google_ads", scope="customer", name=PARKED, error_class="permission_denied", why="no")
    ledger.actions.park(parking, action_request("park"))
    return {
        1: Condition.READABLE,
        2: Condition.RESTATED,
        3: Condition.REJECTED_RERUN,
        4: Condition.REJECTED,
        5: Condition.HIDDEN,
        6: Condition.HIDDEN,
        7: Condition.IN_PROGRESS,
        8: Condition.IN_PROGRESS,
        9: Condition.MISSING,
        10: Condition.LATE,
        11: Condition.LATE,
        12: Condition.LATE,
    }


def read(
    ledger: Ledger, now: datetime = NOW, rules: DayRules | None = None, command: Callable[[str], str] = str
) -> ReportContent:
    reader = ReportReader(
        ledger=ledger,
        source="google_ads",
        rules=rules or DayRules(due_after={"campaign_daily": timedelta(hours=12)}, now=now),
        retry_policy=RetryPolicy(max_age=timedelta(days=9_999)),
        sum_per_day=lambda _query, _column, _since, _until: {(CUSTOMER, FIRST): 2_500_000},
        currency_of=lambda partition: f"currency of {partition}",
        command=command,
    )
    return reader.read(since=FIRST - timedelta(days=30), until=LAST)


def conditions(content: QueryContent, customer: int) -> list[Condition]:
    letters = {letter: condition for condition, letter in LETTERS.items()}
    return [letters[letter] for letter in content.cells[customer]]


def test_each_day_has_the_condition_that_the_ledger_records(ledger: Ledger) -> None:
    """Days before the first sealed day are left out, and the counts add up."""
    expected = fill(ledger)
    content = read(ledger)
    assert (content.first_day, content.days) == (FIRST, 12)
    assert [customer.id for customer in content.customers] == [CUSTOMER, PARKED]
    assert conditions(content.queries[0], 0) == [expected[day] for day in range(1, 13)]
    assert conditions(content.queries[0], 1) == [Condition.IN_PROGRESS, *[Condition.PARKED] * 11]
    assert sum(content.counts.values()) == 24
    assert content.counts[Condition.PARKED] == 11


def test_day_is_restated_once_the_newer_run_is_loaded(ledger: Ledger) -> None:
    """Until then readers see the earlier run."""
    accept(ledger, key(day=1), "r1")
    publish_runs(ledger, run(key(day=1), "r1"))
    accept(ledger, key(day=1), "r2")
    assert conditions(read(ledger).queries[0], 0)[0] is Condition.READABLE
    publish_runs(ledger, run(key(day=1), "r2"))
    assert conditions(read(ledger).queries[0], 0)[0] is Condition.RESTATED


def test_each_day_that_somebody_asks_about_has_a_note(ledger: Ledger) -> None:
    """The note has the reason, the time, the number of attempts and the operator. Hidden and unfinished ones too."""
    fill(ledger)
    content = read(ledger)
    query = content.queries[0]
    described = {
        f"{customer},{day}"
        for customer in (0, 1)
        for day, condition in enumerate(conditions(query, customer))
        if not CONDITIONS[condition].is_fine
    }
    assert query.notes.keys() == described
    reasons = {day: content.texts[query.notes[f"0,{day - 1}"].reason] for day in (3, 4, 5, 6, 9)}
    assert reasons == {
        3: "clicks are negative in 1 row",
        4: "a line is cut off in 1 row",
        5: "demoted by ana in 1 row",
        6: "withdrawn by ada: on request",
        9: "no run arrived",
    }
    assert (query.notes["0,5"].operator, query.notes["0,2"].attempts) == (action_request().operator, 2)
    assert query.notes["0,8"].since == int(datetime(2026, 2, 10, 12, tzinfo=UTC).timestamp())
    assert content.texts[query.notes["1,5"].reason] == f"customer {PARKED} is parked: no"


def test_commands_name_the_deployment(ledger: Ledger) -> None:
    """A deployment of arguments has its variables before each command of the page, and none before no command."""
    fill(ledger)
    settings = read_arguments({"home": "/var/lib/ads"})
    plain, named = read(ledger), read(ledger, command=settings.command)
    commands = {content.texts[note.command] for content in (named,) for note in content.queries[0].notes.values()}
    expected = {plain.texts[note.command] for note in plain.queries[0].notes.values()}
    assert commands == {f"ADS_PIPELINE_HOME=/var/lib/ads {each}" if each else "" for each in expected}
    assert len(commands - {""}) > 3


def test_each_described_day_has_the_next_command(ledger: Ledger) -> None:
    """It is the first command of the steps that `state why` shows. The page fills in the days."""
    fill(ledger)
    content = read(ledger)
    query = content.queries[0]
    commands = {day: content.texts[query.notes[f"0,{day - 1}"].command] for day in (3, 4, 5, 6, 9, 10)}
    assert commands == {
        3: "ads-pipeline state reprocess {days} --reason TEXT",
        4: "ads-pipeline state retry {days} --reason TEXT",
        5: "ads-pipeline state restore {days} --reason TEXT --run r1",
        6: "ads-pipeline state restore {days} --reason TEXT",
        9: "ads-pipeline state enqueue {days} --reason TEXT",
        10: "ads-pipeline state enqueue {days} --reason TEXT",
    }
    assert (
        content.texts[query.notes["1,5"].command] == f"ads-pipeline state release --customer {PARKED} --reason TEXT"
    )


def test_days_of_known_accounts_are_provisional_settled_or_unrecoverable(ledger: Ledger) -> None:
    """The reports of an unknown account have no letter. An unrecoverable day has a reason and needs nobody."""
    old, first, early, late = (key(day=n) for n in (1, 2, 3, 4))
    for partition, extracted_at in ((old, NOW), (early, NOW), (late, NOW + timedelta(days=60))):
        registration = sealed_run(run(partition, "r1"), ROWS, extracted_at=extracted_at)
        ledger.registrations.register([registration])
        record_verdict(ledger, acceptance(registration.run))
        publish_runs(ledger, registration.run)
    rules = DayRules(due_after={"campaign_daily": timedelta(hours=12)}, now=NOW)
    assert read(ledger, rules=rules).queries[0].reports == [""]
    account = Account(source="google_ads", customer_id=CUSTOMER, status="ENABLED", time_zone="UTC")
    reach = ExtractionSettings(reach_days=(NOW.date() - early.logical_date).days)
    apis = read_settings({}).google_apis.model_copy(update={"google_ads": reach})
    days = AccountDays(apis=apis, accounts={CUSTOMER: account}, now=NOW)
    content = read(ledger, rules=replace(rules, accounts=days))
    (query,) = content.queries
    assert query.reports == ["p ps"]
    assert conditions(query, 0)[1] is Condition.UNRECOVERABLE
    assert content.texts[query.notes["0,1"].reason].startswith("the source no longer serves it")
    assert content.texts[query.notes["0,1"].command] == f"ads-pipeline state why {DAYS}"
    assert first.logical_date == content.first_day + timedelta(days=1)


def test_rows_and_cost_are_those_that_readers_see(ledger: Ledger) -> None:
    """They are differences from the day before. A day without readable rows has none."""
    fill(ledger)
    query = read(ledger).queries[0]
    assert query.rows == [[3, 0, 0] + [None] * 9, [None] * 12]
    assert query.cost == [[2] + [None] * 11, [None] * 12]


def test_restatements_show_the_figures_before_and_after(ledger: Ledger) -> None:
    """Only days of which another run was accepted later are listed. Figures that are not known are left empty."""
    fill(ledger)
    ((customer, day, _at, *figures),) = read(ledger).queries[0].restatements
    assert (customer, day, figures) == (0, 1, [3, 3, None, None, None, None])
    (newer,) = registered_runs(ledger, key(day=2), "r9")
    measures = Measures(cost_micros=12_345_678, conversions=2.125)
    record_verdict(ledger, replace(acceptance(newer), measures=measures))
    *_, (customer, day, _at, *figures) = read(ledger).queries[0].restatements
    assert (customer, day, figures) == (0, 1, [3, 3, None, 12.35, None, 2.12])


def test_currency_is_that_of_the_newest_readable_day(ledger: Ledger) -> None:
    """A customer without readable days has none."""
    fill(ledger)
    assert [each[:2] for each in read(ledger).customers] == [(CUSTOMER, f"currency of {key(day=3)}"), (PARKED, "")]


def test_customers_have_the_names_and_currencies_of_their_accounts(ledger: Ledger) -> None:
    """What discovery found wins over the seals. An account that is not known has no name."""
    fill(ledger)
    account = Account(source="google_ads", customer_id=CUSTOMER, status="ENABLED", name="Shop", currency_code="JPY")
    apis = read_settings({}).google_apis
    rules = DayRules(due_after={"campaign_daily": timedelta(hours=12)}, now=NOW)
    days = AccountDays(apis=apis, accounts={CUSTOMER: account}, now=NOW)
    content = read(ledger, rules=replace(rules, accounts=days))
    assert content.customers == [CustomerContent(CUSTOMER, "JPY", "Shop"), CustomerContent(PARKED, "", "")]


def test_empty_ledger_has_an_empty_report(ledger: Ledger) -> None:
    """It has no customers and no days that need anybody."""
    content = read(ledger)
    assert content.customers == []
    assert sum(content.counts.values()) == 0
