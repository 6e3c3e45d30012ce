"""When a new answer is published: pure, from what each round saw to what stands.

A value that differs stands after two rounds in a row have seen it, so that one odd reading
writes nothing. What could not be read goes at once: no label outlives its truth. And what this
process finds on its node and never saw itself, from a life before, is not believed either: the
first round that sees another value takes it away.

Something that flips again and again would still be written every second round: after FLIPS flips
within WINDOW rounds it takes CALM agreeing rounds.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

AGREEING = 2
"""Rounds in a row that must see another value before it stands."""

FLIPS, WINDOW, CALM = 4, 60, 10


class Track(msgspec.Struct, frozen=True):
    """One value: what stands (None: nothing), and what was last seen in its place, how often.

    `seen` says whether this process saw the standing value itself; `flips` are the rounds in
    which another value began to stand.
    """

    stands: str | None = None
    seen: bool = False
    rival: str | None = None
    times: int = 0
    flips: tuple[int, ...] = ()


def advance(track: Track, value: str | None, number: int) -> Track:
    """Return the track after round `number` saw `value`; None: it could not be told."""
    if value == track.stands:
        return Track(track.stands, seen=True, flips=_recent(track, number))
    if value is None or (track.stands is not None and not track.seen):
        times = 0 if value is None else 1
        return Track(None, seen=True, rival=value, times=times, flips=_recent(track, number))
    times = track.times + 1 if value == track.rival else 1
    recent = _recent(track, number)
    needed = CALM if len(recent) >= FLIPS else AGREEING
    if times >= needed:
        return Track(value, seen=True, flips=(*recent, number))
    return msgspec.structs.replace(track, rival=value, times=times, flips=recent)


def advance_all(
    tracks: Mapping[str, Track], values: Mapping[str, str], number: int
) -> dict[str, Track]:
    """Advance each of several values by its name; one that is not among `values` is unknown."""
    advanced = {
        name: advance(tracks.get(name, Track()), values.get(name), number)
        for name in {**tracks, **values}
    }
    return {name: track for name, track in advanced.items() if track != Track(seen=True)}


def standing(tracks: Mapping[str, Track]) -> dict[str, str]:
    """Return name -> value of what stands."""
    return {name: track.stands for name, track in tracks.items() if track.stands is not None}


def _recent(track: Track, number: int) -> tuple[int, ...]:
    return tuple(flip for flip in track.flips if number - flip < WINDOW)
