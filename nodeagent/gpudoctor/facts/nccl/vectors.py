"""Vector operations on a piece of a text: where its lines end, and which hold a word.

A piece is `bytes`, or a part of it; places are counted from the piece's begin. What is as long
as the piece goes into buffers that are kept from piece to piece, because the kernel clears
memory that it gives out anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_SEARCHED = (128, 256)
"""Parts of a text shorter than these are searched together; longer ones are not searched."""
_UNTIL = {most: np.tri(most, most, -1, dtype=np.uint8) for most in _SEARCHED}
"""For each length, which bytes of a row belong to it."""
_LOW_BITS = np.uint64(int.from_bytes(b"\x7f" * 8, "little"))
_EXPONENT, _BIAS = 52, 1023
# Times one byte that is 1, the highest byte of this is the byte's number.
_NUMBER, _HIGHEST = np.uint64(0x0001020304050607), np.uint64(56)


class Places:
    """Finds where two characters stand in pieces of up to `most` bytes."""

    def __init__(self, most: int, first: bytes, second: bytes) -> None:
        self._first, self._second = first[0], second[0]
        most = -(-most // 8) * 8
        self._is_any, self._is_second = np.zeros(most, bool), np.zeros(most, bool)
        self._is_word = np.zeros(most // 8, bool)
        self._count = np.arange(most // 8)

    def find(self, text: Array) -> tuple[Array, Array, Array]:
        """The places of the first character, those of the second, and for each of these how many
        of the first stand before it. Eight bytes are looked at together, for most hold none.
        """
        size = len(text)
        rounded = -(-size // 8) * 8
        is_any, is_second = self._is_any[:rounded], self._is_second[:rounded]
        np.equal(text, self._first, out=is_any[:size])
        np.equal(text, self._second, out=is_second[:size])
        is_any[size:] = is_second[size:] = False
        np.logical_or(is_any, is_second, out=is_any)
        words = is_any.view("<u8")
        is_word = np.not_equal(words, 0, out=self._is_word[: len(words)])
        numbers = np.flatnonzero(is_word)
        words = words.take(numbers)
        several = np.flatnonzero(np.bitwise_count(words) > 1)
        if len(several):
            places = np.flatnonzero(is_any)
        else:
            words *= _NUMBER
            words >>= _HIGHEST
            places = numbers
            places *= 8
            places += words.view(np.int64)
        is_other = is_second.take(places)
        others = np.flatnonzero(is_other)
        firsts = places.take(np.flatnonzero(~is_other))
        before = others - self._count[: len(others)]
        return firsts, places.take(others), before


def windows(text: Array, width: int) -> Array:
    """The bytes from every place on, to be picked from: as cheap as single bytes."""
    return np.ndarray((len(text) - width + 1,), f"V{width}", buffer=text, strides=(1,))


def last_in(words: Array, char: str) -> Array:
    """Where this character stands last in the eight bytes of each word, below 0 where it does
    not stand.
    """
    differing = words ^ np.uint64(int.from_bytes(char.encode() * 8, "little"))
    is_it = differing & _LOW_BITS
    is_it += _LOW_BITS
    is_it |= differing
    is_it |= _LOW_BITS
    np.invert(is_it, out=is_it)
    # The exponent of a number tells its highest bit.
    places = is_it.astype(np.float64).view(np.int64)
    places >>= _EXPONENT
    places -= _BIAS
    places >>= 3
    return places


def hold(text: Array, starts: Array, ends: Array, *words: bytes) -> Array:
    """Which of these parts of the text hold one of the words, or are too long to be searched
    here.
    """
    lengths = ends - starts
    least = min(len(word) for word in words)
    holding = lengths >= least
    for most in _SEARCHED:
        rows = np.flatnonzero((lengths >= least) & (lengths < most) & (starts <= len(text) - most))
        least = most
        if not len(rows):
            continue
        part = windows(text, most)[starts.take(rows)].view(np.uint8).reshape(-1, most)
        part *= _UNTIL[most].take(lengths.take(rows), axis=0)
        holding[rows] = False
        searched = part.tobytes()
        for word in words:
            holding[rows[_rows_with(word, searched, most)]] = True
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
