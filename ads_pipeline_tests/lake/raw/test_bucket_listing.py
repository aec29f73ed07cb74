"""Parts of a bucket's listing: together they show what one listing shows, and no day is split."""

from datetime import date

from hypothesis import example, given
from hypothesis import strategies as st

from ads_pipeline.lake.raw.bucket_listing import ListingPart, find_changed_days
from ads_pipeline.lake.raw.discovery import ChangedDay, DamagedRun
from ads_pipeline.lake.storage.store import FileInfo

# Sound runs, and invalid names at every level, also such that come before "/" in the order of names.
PARTS = [
    ["google_ads"],
    ["customer_id=1", "customer_id=12", "customer_id=1-2", "customer=1", "_tmp", "stray"],
    ["query_name=a", "query_name=ab", "query=a"],
    ["logical_date=2026-01-01", "logical_date=2026-01-02", "logical_date=2026-1-1", "logical_date=2026-01-010"],
    ["run_id=r1", "run_id=r.2", "run=1"],
    ["metadata.json", "payload.jsonl"],
]
QUERY = "google_ads/customer_id=1/query_name=a"
names = st.integers(2, 6).flatmap(lambda depth: st.tuples(*map(st.sampled_from, PARTS[:depth]))).map("/".join)


def search(listed: list[str], limit: int, after: str) -> tuple[list[ChangedDay | DamagedRun], ListingPart]:
    infos = (FileInfo(name=name, size=1, modified_at=0.0) for name in listed if name > after)
    part = ListingPart(infos, limit)
    return list(find_changed_days(part, since=date(2026, 1, 1), until=date(2026, 12, 31), seen={})), part


@given(st.sets(names, max_size=30), st.integers(1, 10))
@example(
    {f"{'/'.join(part[0] for part in PARTS[:3])}/{end}" for end in (f"{PARTS[3][0]}/{PARTS[4][0]}", PARTS[3][3])}, 1
)
def test_parts_show_what_the_whole_shows(drawn: set[str], limit: int) -> None:
    """Every changed day is in exactly one part with all its files, and every invalid name is in at least one."""
    listed = sorted(drawn)
    whole, _part = search(listed, len(listed) + 1, "")
    found, after = list[ChangedDay | DamagedRun](), ""
    for _ in range(len(listed) + 1):
        in_part, part = search(listed, limit, after)
        found += in_part
        if part.end is None:
            break
        assert part.end > after
        after = part.end
    assert part.end is None
    assert [each for each in found if isinstance(each, ChangedDay)] == [
        each for each in whole if isinstance(each, ChangedDay)
    ]
    assert set(found) == set(whole)
