"""The brake: on when many turn bad at once, off by itself, and never for one or two nodes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.publish import brake
from gpudoctor.publish.brake import Brake, Braked

CLOCK = datetime(2026, 11, 29, 19, 15, tzinfo=UTC)


def known(nodes: int) -> Brake:
    fresh = Brake(share=0.3, period=60)
    for number in range(nodes):
        fresh.saw(f"n{number}", "healthy", 0)
    return fresh


def turn(one: Brake, count: int, at: float, verdict: str = "failing") -> None:
    for number in range(count):
        one.saw(f"n{number}", verdict, at)


def test_more_than_the_share_within_one_period_puts_it_on_and_says_why() -> None:
    one = known(12)
    turn(one, 3, 10)
    assert one.judge(12, 10, CLOCK) is None
    turn(one, 4, 11)
    braked = one.judge(12, 11, CLOCK)
    assert braked == Braked(
        "2026-11-29T19:15:00Z", "4 of 12 nodes turned failing within 60 s (limit 3)"
    )
    assert brake.parse(braked.text()) == braked


def test_the_same_number_over_a_longer_time_does_not() -> None:
    one = known(12)
    for number in range(12):
        one.saw(f"n{number}", "failing", 25.0 * number)
        assert one.judge(12, 25.0 * number, CLOCK) is None


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_two_nodes_are_no_outbreak(nodes: int) -> None:
    one = known(nodes)
    turn(one, min(nodes, 2), 1)
    assert one.judge(nodes, 1, CLOCK) is None


def test_three_of_three_are() -> None:
    one = known(3)
    turn(one, 3, 1)
    assert one.judge(3, 1, CLOCK) is not None


def test_a_node_that_was_failing_when_it_was_first_seen_did_not_turn() -> None:
    one = Brake()
    turn(one, 10, 1)
    assert one.judge(10, 1, CLOCK) is None


def test_a_node_that_comes_back_or_goes_away_counts_no_more() -> None:
    one = known(10)
    turn(one, 5, 1)
    turn(one, 2, 2, verdict="healthy")
    assert one.judge(10, 2, CLOCK) is None
    one.saw("n5", "failing", 3)
    assert one.judge(10, 3, CLOCK) is not None
    another = known(10)
    turn(another, 4, 1)
    another.gone("n0")
    assert another.judge(9, 2, CLOCK) is not None, "3 of 9 are over a limit of 2"
    another.gone("n1")


def test_it_lets_go_by_itself_and_then_counts_anew() -> None:
    one = known(10)
    turn(one, 4, 1)
    on = one.judge(10, 1, CLOCK)
    assert on is not None
    assert one.judge(10, 600, CLOCK) == on
    assert one.judge(10, 601, CLOCK) is None
    one.saw("n8", "failing", 602)
    assert one.judge(10, 602, CLOCK) is None


def test_the_next_leader_goes_on_with_it() -> None:
    left = Braked("2026-11-29T19:15:00Z", "4 of 12 nodes")
    one = Brake()
    one.adopt(left, 1000)
    assert one.judge(12, 1599, CLOCK) == left
    assert one.judge(12, 1600, CLOCK) is None


def test_a_person_takes_it_off_and_it_stays_off_for_as_long_as_it_would_have_held() -> None:
    one = known(12)
    turn(one, 4, 1)
    assert one.judge(12, 1, CLOCK) is not None
    one.lift(2)
    turn(one, 12, 3)
    assert one.judge(12, 3, CLOCK) is None
    turn(one, 12, 590, verdict="healthy")
    turn(one, 12, 601)
    assert one.judge(12, 601, CLOCK) is None
    assert one.judge(12, 602, CLOCK) is not None


@settings(deadline=None)
@given(st.none() | st.text(max_size=40))
def test_whatever_stands_in_the_annotation_is_a_brake(text: str | None) -> None:
    parsed = brake.parse(text)
    assert (parsed is None) is (text is None)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([f"n{n}" for n in range(12)]),
            st.sampled_from(["healthy", "warning", "failing", None]),
            st.floats(0, 50),
        ),
        max_size=60,
    )
)
def test_it_is_on_only_after_more_than_the_limit_turned(
    events: list[tuple[str, str | None, float]],
) -> None:
    one, now, turned = known(12), 0.0, 0
    for node, verdict, step in events:
        now += step
        turned += verdict == "failing"
        one.saw(node, verdict, now)
        if one.judge(12, now, CLOCK):
            assert turned > one.limit(12)
            return
