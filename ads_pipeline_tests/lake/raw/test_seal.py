"""Parsing of metadata.json (R1, R6): missing, mistyped, contradictory and non-strict content makes a run damaged."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.errors import AdsPipelineError, RunDamaged
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import MAX_COUNT, SealedRun, SealFacts
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import MAX_SEAL_BYTES, METADATA, encode_seal, hash_gaql, parse_seal
from ads_pipeline_tests.builders import (
    PAYLOAD_OF_ROWS,
    ROWS,
    assert_listed_as_damaged,
    assert_unreadable,
    key,
    raw_before_first_use,
    run,
    seal_document,
    seal_facts,
    write_sealed_run,
)

REQUIRED = ["extracted_at", "schema_version", "api_version", "query_hash", "record_count"]
OPTIONAL = ["time_zone", "currency_code", "payload_bytes", "payload_sha256"]
NAMES = ["source", "customer_id", "query_name", "logical_date", "run_id"]
NOT_COUNTS: list[Any] = [True, False, -1, 2.0, 1e3, MAX_COUNT + 1, "2", "", [], {}]
NOT_TEXTS: list[Any] = [True, 1, 2.5, "", [], {}, "a b", "a\nb", "é", "\ud800", "٣", "x" * 5000]
SECRET = "1//refresh-token-of-an-account"


def content(**changes: Any) -> bytes:
    return json.dumps(seal_document(run(), PAYLOAD_OF_ROWS, **changes)).encode()


def without(*names: str) -> bytes:
    document = seal_document(run(), PAYLOAD_OF_ROWS)
    return json.dumps({name: value for name, value in document.items() if name not in names}).encode()


def refusal(hostile: bytes) -> str:
    with pytest.raises(RunDamaged) as refused:
        parse_seal(hostile, run())
    assert refused.value.path == run().path
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600
    return refused.value.problem


class TestFields:
    @pytest.mark.invariant("R1")
    def test_complete_seal_is_parsed(self) -> None:
        """Every field of a seal is parsed; the instant is in UTC."""
        text = content(extracted_at="2026-02-04T07:06:07+02:00", time_zone="Europe/Paris", currency_code="EUR")
        assert parse_seal(text, run()) == SealedRun(
            run=run(),
            facts=replace(seal_facts(), extracted_at=datetime(2026, 2, 4, 5, 6, 7, tzinfo=UTC)),
            record_count=2,
            payload_bytes=len(PAYLOAD_OF_ROWS),
            payload_sha256=seal_document(run(), PAYLOAD_OF_ROWS)["payload_sha256"],
        )

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize("name", [*REQUIRED, *NAMES])
    def test_missing_field_is_damage(self, name: str) -> None:
        """A seal without a required field is refused with the field's name; null counts as missing."""
        assert name in refusal(without(name))
        assert name in refusal(content(**{name: None}))

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("record_count", value) for value in NOT_COUNTS),
            *(("payload_bytes", value) for value in NOT_COUNTS),
            *((name, value) for name in ("schema_version", "api_version", "query_hash") for value in NOT_TEXTS),
            *((name, value) for name in ("time_zone", "currency_code", "payload_sha256") for value in NOT_TEXTS),
            *(("extracted_at", value) for value in NOT_TEXTS),
            *(("schema_version", value) for value in ("x" * 33, "-1", "_1", "1\n")),
            *(("currency_code", value) for value in ("eur", "EURO", "ÉUR")),
            *(("payload_sha256", value) for value in ("0" * 63, "0" * 65, "A" * 64, "g" * 64)),
        ],
    )
    def test_mistyped_field_is_damage(self, name: str, value: object) -> None:
        """A value of the wrong type or shape is refused with the field's name and never converted."""
        assert name in refusal(content(**{name: value}))

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize(
        "instant",
        [
            "2026-02-04",
            "2026-02-04T05:06:07",
            "2026-02-30T05:06:07+00:00",
            "2026-02-04T25:06:07+00:00",
            "2026-02-04T05:06:07 Europe/Paris",
            "2026-02-04T05:06:07+00:00\n",
            "0001-01-01T00:00:00+01:00",
            "9999-12-31T23:59:59-01:00",
            "1770181567",
        ],
    )
    def test_instant_without_offset_is_damage(self, instant: str) -> None:
        """A time without an offset, and a day that does not exist, are refused."""
        assert "extracted_at" in refusal(content(extracted_at=instant))

    @pytest.mark.parametrize("value", [0, MAX_COUNT])
    def test_count_limits(self, value: int) -> None:
        """Counts from 0 to the largest 64-bit integer are accepted."""
        seal = parse_seal(content(record_count=value, payload_bytes=value), run())
        assert (seal.record_count, seal.payload_bytes) == (value, value)

    @pytest.mark.invariant("R6")
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("source", "other_ads"),
            ("source", "Google_Ads"),
            ("customer_id", "1234567891"),
            ("customer_id", 1234567890),
            ("customer_id", "123-456-7890"),
            ("query_name", "campaign_daily "),
            ("logical_date", "2026-02-04"),
            ("logical_date", "20260203"),
            ("run_id", "R1"),
            ("run_id", ["r1"]),
        ],
    )
    def test_seal_of_another_run_is_damage(self, name: str, value: object) -> None:
        """A seal whose names differ from its path is refused with the field that differs."""
        assert f"says {name} is" in refusal(content(**{name: value}))

    @pytest.mark.invariant("R6")
    def test_run_copied_to_another_partition_is_damage(self, tmp_path: Path) -> None:
        """A sealed run that was copied to another customer's directory is damage there."""
        raw = RawRuns(tmp_path)
        raw.land(run(partition=key("999")), ROWS, seal_facts())
        (tmp_path / key().path).mkdir(parents=True)
        (tmp_path / run(partition=key("999")).path).rename(tmp_path / run().path)
        assert_listed_as_damaged(raw)
        assert_unreadable(raw, RunDamaged)


class TestText:
    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize(
        "hostile",
        [
            pytest.param(b"", id="empty"),
            pytest.param(content()[:-1], id="cut off"),
            pytest.param(content() + b"}", id="trailing junk"),
            pytest.param(content() + content(), id="two objects"),
            pytest.param(b"[" + content() + b"]", id="array"),
            pytest.param(b"null", id="scalar"),
            pytest.param(content()[:-1] + b', "record_count": 2}', id="equal keys"),
            pytest.param(content()[:-1] + b', "x": {"y": 1, "\\u0079": 1}}', id="equal keys below"),
            pytest.param(content().replace(b'"record_count": 2', b'"record_count": NaN'), id="NaN"),
            pytest.param(content(extra=float("inf")), id="infinity in an extra field"),
            pytest.param(content()[:-1] + b', "x": 1e400}', id="1e400"),
            pytest.param(content().replace(b'"v20"', b'"v\xff"'), id="not UTF-8"),
            pytest.param(b"\xef\xbb\xbf" + content(), id="byte order mark"),
            pytest.param(content().decode().encode("utf-16"), id="UTF-16"),
            pytest.param(content()[:-1] + b', "x": "\x00"}', id="NUL"),
            pytest.param(content()[:-1] + b', "x": "a\nb"}', id="line break in a string"),
            pytest.param(content()[:-1] + b', "x": ' + b"[" * 64 + b"]" * 64 + b"}", id="65 deep"),
            pytest.param(content()[:-1] + b', "x": ' + b"[" * 30_000, id="30000 deep"),
            pytest.param(content()[:-1] + b', "x": ' + b"9" * 5000 + b"}", id="5000 digits"),
            pytest.param(content().ljust(MAX_SEAL_BYTES + 1), id="too large"),
        ],
    )
    def test_non_strict_json_is_damage(self, tmp_path: Path, hostile: bytes) -> None:
        """A metadata.json that is not one strict JSON object of limited size makes its run damaged, not absent."""
        refusal(hostile)
        metadata = write_sealed_run(tmp_path, run(), PAYLOAD_OF_ROWS) / METADATA
        assert RawRuns(tmp_path).verify(run()).record_count == 2
        metadata.write_bytes(hostile)
        assert_listed_as_damaged(RawRuns(tmp_path))
        assert_unreadable(RawRuns(tmp_path), RunDamaged)

    @pytest.mark.parametrize(
        "lenient",
        [
            pytest.param(content().ljust(MAX_SEAL_BYTES), id="of the largest size"),
            pytest.param(content() + b"\r\n", id="Windows line end"),
            pytest.param(json.dumps(seal_document(run(), PAYLOAD_OF_ROWS), indent=4).encode() + b"\n", id="indented"),
            pytest.param(b"\n " + content(), id="white space first"),
            pytest.param(content()[:-1] + b', "x": ' + b"[" * 63 + b"]" * 63 + b"}", id="64 deep"),
        ],
    )
    def test_layout_does_not_matter(self, lenient: bytes) -> None:
        """Whitespace and nesting within the limits do not change the seal."""
        assert parse_seal(lenient, run()) == parse_seal(content(), run())

    @pytest.mark.parametrize("extra", [{"x": "\ud800"}, {"x": [{"y": "\udfff"}]}, {"\ud800": 1}], ids=ascii)
    def test_unknown_field_with_lone_surrogate_is_damage(self, extra: dict[str, Any]) -> None:
        """Half a surrogate pair is refused in fields of other extractors too, and the field is named."""
        problem = refusal(content(**extra))
        assert "contains half a surrogate pair" in problem
        assert ascii(next(iter(extra))).strip("'") in problem

    @pytest.mark.parametrize(
        "extra",
        [{"refresh_token": SECRET}, {SECRET: 1}, {"x": {"y": [SECRET]}}, {"x": SECRET * 100}],
        ids=["value", "name", "nested", "long"],
    )
    def test_unknown_field_is_ignored(self, extra: dict[str, Any]) -> None:
        """Unknown fields change nothing and appear in no value and no message."""
        assert parse_seal(content(**extra), run()) == parse_seal(content(), run())
        assert SECRET not in repr(parse_seal(content(**extra), run()))
        text = content(**extra)
        broken = [text[:-1], text + text, text[:-1] + b', "source": ""}', text.replace(b"v20", b"\xff")]
        broken += [
            content(**extra, **wrong) for wrong in ({"record_count": -1}, {"run_id": "r2"}, {"api_version": ""})
        ]
        assert [problem for problem in map(refusal, broken) if SECRET in problem] == []


class TestOutsideSeals:
    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize("payload", [PAYLOAD_OF_ROWS, PAYLOAD_OF_ROWS[:-1]], ids=["with last end", "without"])
    def test_count_without_digest_is_checked(self, tmp_path: Path, payload: bytes) -> None:
        """A seal may leave out the payload's size and digest; its record_count is still checked."""
        directory = write_sealed_run(tmp_path, run(), payload, record_count=2)
        (directory / METADATA).write_bytes(without(*OPTIONAL))
        seal = RawRuns(tmp_path).verify(run())
        assert (seal.record_count, seal.payload_bytes, seal.payload_sha256) == (2, None, None)

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize("changes", [0, 1, 3])
    @pytest.mark.parametrize("digest", [{}, {"payload_bytes": None, "payload_sha256": None}], ids=["ours", "outside"])
    def test_wrong_count_is_refused(self, tmp_path: Path, changes: int, digest: dict[str, None]) -> None:
        """A seal with another row count than the payload is refused, even when size and digest match."""
        write_sealed_run(tmp_path, run(), PAYLOAD_OF_ROWS, record_count=changes, **digest)
        assert_unreadable(RawRuns(tmp_path), RunDamaged)

    @pytest.mark.invariant("R1")
    @pytest.mark.parametrize("changes", [{"payload_bytes": 7}, {"payload_sha256": "0" * 64}], ids=["size", "digest"])
    def test_size_and_digest_are_checked_separately(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        """A size or digest that is given without the other is checked against the payload."""
        given_alone: dict[str, Any] = {"payload_bytes": None, "payload_sha256": None, **changes}
        write_sealed_run(tmp_path, run(), PAYLOAD_OF_ROWS, **given_alone)
        assert_unreadable(RawRuns(tmp_path), RunDamaged)


class TestRoundTrip:
    @given(
        st.builds(
            SealedRun,
            run=st.builds(
                Run,
                key=st.builds(
                    PartitionKey,
                    source=st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True),
                    customer_id=st.from_regex(r"[0-9]{1,20}", fullmatch=True),
                    query_name=st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True),
                    logical_date=st.dates(),
                ),
                run_id=st.from_regex(r"[0-9A-Za-z][0-9A-Za-z._-]{0,95}", fullmatch=True),
            ),
            facts=st.builds(
                SealFacts,
                extracted_at=st.datetimes(
                    min_value=datetime(1, 1, 3),  # noqa: DTZ001 - the zone is drawn beside it
                    max_value=datetime(9999, 12, 29),  # noqa: DTZ001
                    timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
                ),
                schema_version=st.from_regex(r"[0-9A-Za-z][0-9A-Za-z._-]{0,31}", fullmatch=True),
                api_version=st.from_regex(r"[0-9A-Za-z._-]{1,32}", fullmatch=True),
                query_hash=st.text(max_size=50).map(hash_gaql),
                time_zone=st.sampled_from([None, "UTC", "America/Port-au-Prince", "Etc/GMT+5"]),
                currency_code=st.none() | st.from_regex(r"[A-Z]{3}", fullmatch=True),
            ),
            record_count=st.integers(0, MAX_COUNT),
            payload_bytes=st.none() | st.integers(0, MAX_COUNT),
            payload_sha256=st.none() | st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
        )
    )
    def test_every_seal_is_parsed_back(self, seal: SealedRun) -> None:
        """`parse_seal` of `encode_seal` gives an equal seal, with its instant in UTC."""
        again = parse_seal(encode_seal(seal), seal.run)
        assert again == seal
        assert again.facts.extracted_at.tzinfo is UTC

    @given(st.data())
    def test_damaged_seal_raises_only_run_damaged(self, data: st.DataObject) -> None:
        """A seal with inserted or replaced bytes is parsed or raises RunDamaged, nothing else."""
        whole = content()
        start = data.draw(st.integers(0, len(whole)))
        end = data.draw(st.integers(start, min(len(whole), start + 40)))
        noise = data.draw(st.binary(max_size=20) | st.sampled_from([b"null", b'"', b"{", b"1e999", b"\\ud800"]))
        with suppress(RunDamaged):
            assert parse_seal(whole[:start] + noise + whole[end:], run()).run == run()

    @pytest.mark.parametrize(
        "change",
        [
            {"schema_version": "x" * 33},
            {"query_hash": ""},
            {"query_hash": "\ud800"},
            {"api_version": "a b"},
            {"currency_code": "euro"},
            {"extracted_at": datetime(2026, 2, 4)},  # noqa: DTZ001 - a time without its offset is the point
            {"extracted_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))},
        ],
        ids=["schema", "no hash", "surrogate", "api", "currency", "naive", "before the calendar"],
    )
    def test_invalid_facts_are_refused(self, tmp_path: Path, change: dict[str, Any]) -> None:
        """Facts that could not be parsed back are refused on construction, and nothing is sealed."""
        with pytest.raises(AdsPipelineError):
            RawRuns(tmp_path).land(run(), ROWS, replace(seal_facts(), **change))
        assert raw_before_first_use(tmp_path).list_runs(key()) == ()
