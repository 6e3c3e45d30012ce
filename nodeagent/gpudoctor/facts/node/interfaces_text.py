"""Network interfaces as `ip -br link` prints them."""

from __future__ import annotations

import re

import msgspec

_LINE = re.compile(
    r"^(\S+)\s+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT|NOTPRESENT)\s+"
    r"(?:[0-9a-f]{2}(?::[0-9a-f]{2}){5,19}\s+)?<([A-Z0-9_,-]*)>\s*$",
    re.MULTILINE,
)


class Interface(msgspec.Struct, frozen=True):
    """A network interface and its operational state."""

    name: str
    state: str
    has_carrier: bool


def lines_seen(text: str) -> int:
    """Count the telling lines."""
    return len(_LINE.findall(text))


def parse(text: str) -> tuple[Interface, ...]:
    """Return the interfaces in their order."""
    return tuple(
        Interface(name.partition("@")[0], state, "LOWER_UP" in flags.split(","))
        for name, state, flags in _LINE.findall(text.replace("\r", ""))
    )
