"""The HTML page: self-contained, safe with hostile text, small."""

import base64
import gzip
import json
import random
import re
from datetime import UTC, date, datetime
from typing import Any

from ads_pipeline.domain.days.conditions import Condition
from ads_pipeline.operations.report.content import LETTERS, CustomerContent, Note, QueryContent, ReportContent
from ads_pipeline.operations.report.document import COLORS, render, summarize

MAX_BYTES = 5_000_000


def content(**changes: Any) -> ReportContent:
    query = QueryContent(
        name="campaign_daily",
        cells=[LETTERS[Condition.READABLE] + LETTERS[Condition.REJECTED]],
        reports=["p"],
        notes={"0,1": Note(0, 0, 1, "", 1)},
        rows=[[3, None]],
        cost=None,
        restatements=[],
    )
    facts: dict[str, Any] = {
        "source": "google_ads",
        "generated_at": datetime(2026, 2, 3, 4, 5, tzinfo=UTC),
        "first_day": date(2026, 2, 1),
        "days": 2,
        "customers": [CustomerContent("1", "EUR", "Shop")],
        "queries": [query],
        "texts": ["clicks are negative", "ads-pipeline state retry {days} --reason TEXT"],
        "counts": dict.fromkeys(Condition, 0) | {Condition.READABLE: 1, Condition.REJECTED: 1},
    }
    return ReportContent(**(facts | changes))


def unpack(page: str) -> Any:
    (packed,) = re.findall(r'<script type="application/octet-stream" id="content">([^<]*)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_page_refers_to_nothing_outside_itself() -> None:
    """No address and no file is loaded; the content security policy forbids it too."""
    page = render(content())
    assert "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)\s*=\s*"(?!#)', page)
    assert "fetch(" not in page
    assert "/*" not in re.sub(r"/\* .*? \*/", "", page)


def test_text_of_the_data_cannot_end_the_script() -> None:
    """Hostile reasons come out as they went in, as text."""
    hostile = "</script><script>alert(1)</script><!-- & \u2028 /*SCRIPT*/"
    page = render(content(texts=[hostile], customers=[CustomerContent("<b>", "EUR", "</script>")]))
    assert hostile not in page
    assert unpack(page)["texts"] == [hostile]
    assert unpack(page)["customers"] == [{"id": "<b>", "currency": "EUR", "name": "</script>"}]
    assert page.count("</script>") == render(content()).count("</script>")


def test_summary_counts_the_days_that_need_an_operator() -> None:
    """One sentence for the top of the page, also for nothing to do."""
    assert summarize(content()) == (
        "1 day needs you. Readers see 1 of 2 expected days of google_ads, 1 of them provisional, "
        "as of 2026-02-03 04:05 UTC."
    )
    nothing = content(counts=dict.fromkeys(Condition, 0) | {Condition.READABLE: 2}, queries=[])
    assert summarize(nothing).startswith("No day needs you. Readers see 2 of 2 expected days of google_ads, as of")


def test_each_condition_has_colors() -> None:
    """The page shows all of them in the legend."""
    shown = unpack(render(content()))["conditions"]
    assert [each["name"] for each in shown] == list(Condition) == list(COLORS)
    assert all(each["light"] != each["dark"] for each in shown)


def test_page_of_200_customers_400_days_and_10_queries_is_small() -> None:
    """With different numbers every day, and a hundred reasons."""
    chance = random.Random(3)
    letters = [LETTERS[each] for each in Condition]

    def numbers() -> list[list[int | None]]:
        return [[chance.randrange(-999, 999) for _day in range(400)] for _customer in range(200)]

    common = {Condition.READABLE: 400, Condition.RESTATED: 40, Condition.NOT_EXPECTED: 4}
    weights = [common.get(condition, 1) for condition in LETTERS]
    queries = [
        QueryContent(
            name=f"query_{number}",
            cells=["".join(chance.choices(letters, weights, k=400)) for _ in range(200)],
            reports=["s" * 300 + "p" * 100 for _ in range(200)],
            notes={f"{n},{n}": Note(n, n % 100, n, "ana", n % 9) for n in range(500)},
            rows=numbers(),
            cost=numbers(),
            restatements=[(n % 200, n % 400, n, n, n) for n in range(4_000)],
        )
        for number in range(10)
    ]
    page = render(
        content(
            queries=queries, customers=[CustomerContent(str(n), "EUR", f"Shop {n}") for n in range(200)], days=400
        )
    )
    assert len(page.encode()) <= MAX_BYTES
