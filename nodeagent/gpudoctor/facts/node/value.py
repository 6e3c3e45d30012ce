"""The value of a node label with the fact behind it."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True):
    """A label's value; None: none, and `because` says why."""

    value: str | None
    because: str


def known(value: str | int, because: str) -> Value:
    """Return a value with the fact behind it."""
    return Value(str(value), because)


def unknown(because: str) -> Value:
    """Return that there is no value, with the reason."""
    return Value(None, because)
