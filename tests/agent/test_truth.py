"""What stands after which rounds: two agree, what cannot be told goes, a flapper is calmed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.agent.truth import CALM, FLIPS, WINDOW, Track, advance, advance_all, standing


def played(values: Iterable[str | None], track: Track | None = None) -> list[str | None]:
    """What stands after each round."""
    track = Track() if track is None else track
    stood = []
    for number, value in enumerate(values, 1):
        track = advance(track, value, number)
        stood.append(track.stands)
    return stood


@pytest.mark.parametrize(
    ("seen", "stands"),
    [
        (["a", "a"], [None, "a"]),
        (["a", "a", "b", "b"], [None, "a", "a", "b"]),
        (["a", "a", "b", "a", "b", "a"], [None] + ["a"] * 5),
        (["a", "a", "b", "c", "b", "c"], [None] + ["a"] * 5),
        (["a", "a", None], [None, "a", None]),
        (["a", "a", None, "a", "a"], [None, "a", None, None, "a"]),
        (["a", None, "a", None, "a"], [None] * 5),
        ([None, None], [None, None]),
    ],
)
def test_two_agreeing_rounds_and_none_for_what_cannot_be_told(
    seen: list[str | None], stands: list[str | None]
) -> None:
    assert played(seen) == stands


@pytest.mark.parametrize(
    ("seen", "stands"),
    [
        (["a"], ["a"]),
        (["b"], [None]),
        (["b", "b"], [None, "b"]),
        ([None], [None]),
        (["a", "b", "b"], ["a", "a", "b"]),
    ],
)
def test_what_a_life_before_left_is_seen_at_once_or_goes(
    seen: list[str | None], stands: list[str | None]
) -> None:
    assert played(seen, Track("a")) == stands


def test_what_flips_again_and_again_has_to_be_calm_for_long() -> None:
    flapping = [value for value in "abab" for _ in range(2)]
    calm = ["c"] * CALM
    stood = played([*flapping, *calm])
    assert stood[len(flapping) - 1] == "b"
    assert stood[len(flapping) :] == ["b"] * (CALM - 1) + ["c"]
    assert len(flapping) // 2 == FLIPS


def test_a_flip_of_long_ago_does_not_count() -> None:
    flapping = [value for value in "abab" for _ in range(2)]
    stood = played([*flapping, *["b"] * WINDOW, "c", "c"])
    assert stood[-1] == "c"


@given(st.lists(st.sampled_from(["a", "b", None]), max_size=300))
def test_flips_are_bounded_and_nothing_stands_that_was_not_just_seen(
    seen: list[str | None],
) -> None:
    stood: list[str | None] = [None, *played(seen)]
    flips = [
        number
        for number, (before, after) in enumerate(itertools.pairwise(stood))
        if after is not None and after != before
    ]
    for number in flips:
        assert seen[number] == seen[number - 1] == stood[number + 1]
    for number, value in enumerate(seen):
        if value is None:
            assert stood[number + 1] is None
    # In any window: the free flips, and then one for each calm stretch.
    for start in flips:
        within = [number for number in flips if start <= number < start + WINDOW]
        assert len(within) <= FLIPS + WINDOW // CALM


def test_a_value_that_is_no_longer_told_goes_and_is_forgotten() -> None:
    tracks = advance_all({}, {"x": "1", "y": "2"}, 1)
    tracks = advance_all(tracks, {"x": "1", "y": "2"}, 2)
    assert standing(tracks) == {"x": "1", "y": "2"}
    tracks = advance_all(tracks, {"x": "1"}, 3)
    assert standing(tracks) == {"x": "1"}
    for number in range(4, 4 + WINDOW):
        tracks = advance_all(tracks, {"x": "1"}, number)
    assert set(tracks) == {"x"}
