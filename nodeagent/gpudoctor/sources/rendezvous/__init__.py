"""The init containers of one job meet before the job starts: who is there, and can all connect?

Member 0 listens; the others connect to it, again and again until their time is over. It collects
what each says of itself, has each connect to the others, and sends the whole to all, so that
every member comes to the same verdict. `meet` does it for either; nothing of it raises.
"""

from __future__ import annotations

from typing import Any

import msgspec

PORT = 29499
"""Where member 0 listens: beside torchrun's own 29500, which the trainer binds afterwards."""

TIMEOUT_S = 300


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Who we are among how many, where member 0 is, and how long to wait, in seconds.

    `key` is what the shared secret stands for. `interface` is whose address the others shall
    try to reach us at; None for the one that we reach member 0 by.
    """

    rank: int
    members: int
    host: str
    key: bytes
    port: int = PORT
    timeout: float = TIMEOUT_S
    interface: str | None = None

    def __repr__(self) -> str:
        return f"Plan(rank={self.rank}, members={self.members}, host={self.host!r})"

    @property
    def grace(self) -> float:
        """Seconds after the time-out in which a member still comes in, late."""
        return min(30.0, max(5.0, self.timeout / 10))


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One member as member 0 saw it.

    `report` is what it says of itself, None if it never did. `came` is when, in seconds after
    member 0 began, and `late` whether that was after the time-out. `note` tells what became of
    it where it is not among those that met: gone again, failed by itself, or another token.
    `unreachable` maps the ranks that it could not connect to, to the reason; None: not known.
    """

    rank: int
    address: str | None = None
    report: dict[str, Any] | None = None
    came: float | None = None
    late: bool = False
    note: str = ""
    unreachable: dict[int, str] | None = None


class Refused(msgspec.Struct, frozen=True):
    """A caller that member 0 did not let in: its address, the rank it claims, and why."""

    address: str
    claims: int
    why: str


class Minutes(msgspec.Struct, frozen=True, kw_only=True):
    """What member 0 sends to all: one entry a member, and whom it refused."""

    timeout: float
    entries: tuple[Entry, ...]
    refused: tuple[Refused, ...] = ()


TOKEN, UNRESOLVED, UNREACHED, TURNED_AWAY, NO_PORT = (
    "token", "unresolved", "unreached", "turned away", "no port",
)  # fmt: skip
"""Why a member has no minutes."""

OTHER_TOKEN = "another token"  # noqa: S105 - a reason
RANK_TAKEN = "rank taken"
OTHER_SIZE = "another number of members"
"""Why a caller is refused."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The minutes, or why there are none, with the reason in words."""

    minutes: Minutes | None = None
    failed: str = ""
    why: str = ""


def parse_minutes(raw: bytes) -> Minutes | None:
    """Read minutes from the wire, None if they are none."""
    try:
        return msgspec.json.decode(raw, type=Minutes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
