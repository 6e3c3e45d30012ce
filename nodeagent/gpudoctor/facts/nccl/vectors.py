"""Vector operations on a piece of a text: where its lines end, and which hold a word.

A piece is `bytes`; an array of places holds indices into it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_SEARCHED = (16, 64, 256)
"""Parts of a text shorter than these are searched together; longer ones are not searched."""
_UNTIL = {most: np.tri(most, most, -1, dtype=np.uint8) for most in _SEARCHED}
"""For each length, which bytes of a row belong to it."""
_NEWLINE = ord("\n")
_ONE = np.uint64(1)
_LOW_BITS = np.uint64(int.from_bytes(b"\x7f" * 8, "little"))


def newlines(piece: bytes) -> Array:
    """Where the newlines are; looked for eight bytes at a time, for most of those hold none."""
    is_newline = np.zeros(-(-len(piece) // 8) * 8, bool)
    np.equal(np.frombuffer(piece, np.uint8), _NEWLINE, out=is_newline[: len(piece)])
    words = is_newline.view("<u8")
    places = np.flatnonzero(words != 0)
    left = words.take(places)
    places *= 8
    found = []
    while len(places):
        lowest = left & (~left + _ONE)
        found.append(places + (np.bitwise_count(lowest - _ONE) >> 3))
        left ^= lowest
        more = np.flatnonzero(left)
        places, left = places.take(more), left.take(more)
    return found[0] if len(found) == 1 else np.sort(np.concatenate(found))


def windows(piece: bytes, width: int) -> Array:
    """The piece's bytes from every place on, to be picked from: as cheap as single bytes."""
    return np.ndarray((len(piece) - width + 1,), np.dtype(f"V{width}"), buffer=piece, strides=(1,))


def last_in(words: Array, char: str) -> Array:
    """Where this character stands last in the eight bytes of each word, -1 where it does not."""
    differing = words ^ np.uint64(int.from_bytes(char.encode() * 8, "little"))
    is_it = differing & _LOW_BITS
    is_it += _LOW_BITS
    is_it |= differing
    is_it |= _LOW_BITS
    np.invert(is_it, out=is_it)
    return (np.frexp(is_it.astype(np.float64))[1] - 1) >> 3


def hold(piece: bytes, starts: Array, ends: Array, word: bytes) -> Array:
    """Which of these parts of the piece hold the word, or are too long to be searched here."""
    lengths = ends - starts
    holding = lengths >= len(word)
    least = len(word)
    for most in _SEARCHED:
        rows = np.flatnonzero((lengths >= least) & (lengths < most))
        rows = rows[starts.take(rows) <= len(piece) - most]
        least = most
        if not len(rows):
            continue
        text = windows(piece, most)[starts.take(rows)].view(np.uint8).reshape(-1, most)
        text *= _UNTIL[most].take(lengths.take(rows), axis=0)
        holding[rows] = False
        holding[rows[_rows_with(word, text.tobytes(), most)]] = True
    return holding


def _rows_with(word: bytes, text: bytes, width: int) -> list[int]:
    """The rows of a text of this width in which the word stands; a row's end is a zero."""
    found = []
    at = text.find(word)
    while at >= 0:
        row = at // width
        found.append(row)
        at = text.find(word, (row + 1) * width)
    return found
