"""Verdicts by an operator's order: what readers get is taken back, or an earlier run is given to them again."""

from typing import Any

import pytest

from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Action, Effect, Status
from ads_pipeline.ledger.values import ActionRequest
from ads_pipeline.pipeline.demote_and_restore import NEWER, demote, earlier_accepted, restore
from ads_pipeline_tests.ledger.builders import order
from ads_pipeline_tests.pipeline.builders import House, key, land, land_bad, tamper, visible
from ads_pipeline_tests.warehouse.builders import by_duckdb


def demoting(act_id: str = "act-1") -> ActionRequest:
    return ActionRequest(act_id=act_id, operator="ada", command="state demote", reason="wrong account")


@pytest.mark.invariant("W3", "W4", "S16")
def test_what_is_demoted_is_gone_for_every_reader(each_house: House) -> None:
    """Nobody reads it any more, its neighbour stays, the verdict counts, and the act stands in the log once."""
    house = each_house
    bad, good = land(house, key(1)), land(house, key(2))
    house.pipeline.carry([bad, good])
    done = demote(house.pipeline, [bad], demoting())
    assert ([each.effect for each in done.recorded], done.refusals) == ([Effect.DEMOTED], ())
    assert visible(house) == {good.key: "r1"}
    assert set(by_duckdb(house.home / "warehouse")) == {good.key}
    state = house.ledger.state(bad.key)
    assert (state.status, state.attempt_count, state.current_run_id) == (Status.FAILED, 2, "r1")
    assert state.error_message == f"{bad}: taken back by ada: wrong account"
    (act,) = house.ledger.acts(bad.key)
    assert (act.act, act.reason, act.status_before) == ("demote", "wrong account", Status.SUCCESS)
    assert house.differences() == []
    again = demote(house.pipeline, [bad], demoting())
    assert [each.redelivered for each in again.recorded] == [True]
    assert len(house.ledger.acts(bad.key)) == 1
    assert house.ledger.state(bad.key) == state


@pytest.mark.invariant("W3", "W4")
def test_a_demotion_that_died_is_finished_by_the_next_reconciliation(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden in the transaction that logged the act; what is left to remove and to record is a difference."""
    bad = land(house, key(1))
    house.pipeline.carry([bad])
    pipeline = house.pipeline

    def die(*_: Any, **__: Any) -> None:
        raise RuntimeError("died")

    monkeypatch.setattr(pipeline, "take_out", die)
    with pytest.raises(RuntimeError):
        demote(pipeline, [bad], demoting())
    assert visible(house) == {}
    assert [act.act for act in house.ledger.acts(bad.key)] == ["demote"]
    assert house.ledger.state(bad.key).status is Status.SUCCESS
    house.reconciliation.mend(source=key().source, query_name=key().query_name)
    assert house.ledger.state(bad.key).status is Status.FAILED
    assert by_duckdb(house.home / "warehouse") == {}
    assert house.differences() == []


@pytest.mark.invariant("W5", "S10", "S11")
def test_an_earlier_run_is_given_back(each_house: House) -> None:
    """The newest accepted run before the current one; the one that was taken back never comes again by itself."""
    house = each_house
    first, second = land(house, key(1), "r1", count=1), land(house, key(1), "r2", count=2)
    third = land_bad(house, key(1), "r3")
    last = land(house, key(1), "r4", count=4)
    house.pipeline.carry([first])
    house.pipeline.carry([second])
    house.pipeline.judge([third])
    house.pipeline.carry([last])
    state = house.ledger.state(key(1))
    assert earlier_accepted(house.ledger, state) == second
    done = restore(house.pipeline, house.ledger, [second], demoting("restore-1"))
    assert ([each.effect for each in done.recorded], done.problems) == ([Effect.PROMOTED], {})
    assert visible(house) == {key(1): "r2"}
    state = house.ledger.state(key(1))
    assert (state.status, state.current_run_id, state.record_count) == (Status.SUCCESS, "r2", 2)
    assert [act.act for act in house.ledger.acts(key(1))] == ["restore"]
    assert house.differences() == []
    house.pipeline.carry([last])  # its verdict is known; hearing it again gives it nothing back
    assert visible(house) == {key(1): "r2"}
    assert earlier_accepted(house.ledger, state) == first


def test_what_would_be_rejected_today_is_not_given_back(house: House) -> None:
    """The earlier run is judged again first; if it does not pass, readers keep what they have."""
    first, second = land(house, key(1), "r1"), land(house, key(1), "r2")
    house.pipeline.carry([first])
    house.pipeline.carry([second])
    tamper(house, first)
    before = house.ledger.state(key(1))
    done = restore(house.pipeline, house.ledger, [first], demoting("restore-1"))
    assert "it would be rejected today" in done.problems[key(1)]
    assert (house.ledger.state(key(1)), visible(house)) == (before, {key(1): "r2"})
    assert house.ledger.acts(key(1)) == []
    gone = Run(key=key(2), run_id="r1")
    done = restore(house.pipeline, house.ledger, [gone], demoting("restore-2"))
    assert list(done.problems) == [key(2)]


@pytest.mark.parametrize("lost_by", ["demote", "withdraw"])
def test_what_was_taken_back_can_be_given_back_by_order(house: House, lost_by: str) -> None:
    """A withdrawn run needs no other; one that was demoted was rejected, so only one before it comes by itself."""
    first, second = land(house, key(1), "r1"), land(house, key(1), "r2")
    house.pipeline.carry([first])
    house.pipeline.carry([second])
    if lost_by == "demote":
        demote(house.pipeline, [second], demoting())
    else:
        house.ledger.carry_out(Action.WITHDRAW, [key(1)], order())
    assert visible(house) == {}
    found = earlier_accepted(house.ledger, house.ledger.state(key(1)))
    assert found == (first if lost_by == "demote" else second)
    restore(house.pipeline, house.ledger, [second], demoting("restore-1"))  # named, it is the operator's word
    assert visible(house) == {key(1): "r2"}
    assert house.ledger.state(key(1)).status is Status.SUCCESS


@pytest.mark.invariant("S10")
def test_a_newer_run_that_comes_in_between_stays(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not what the operator took back: readers get it, and the operator is told to look again."""
    for run_id in ("r1", "r2"):
        house.pipeline.carry([land(house, key(1), run_id)])
    pipeline, record = house.pipeline, house.pipeline.record

    def late(*words: Any, **how: Any) -> Any:
        house.pipeline.carry([land(house, key(1), "r3")])
        return record(*words, **how)

    monkeypatch.setattr(pipeline, "record", late)
    first = Run(key=key(1), run_id="r1")
    done = restore(pipeline, house.ledger, [first], demoting("restore-1"))
    assert (done.recorded, done.problems) == ([], {key(1): NEWER})
    assert visible(house) == {key(1): "r3"}
    assert house.differences() == []
