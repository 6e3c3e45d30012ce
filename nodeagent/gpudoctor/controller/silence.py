"""Which agents are silent: pure, from what each look at their Leases saw.

No clock but our own monotonic one counts: what is noted is when a Lease was last seen to change,
never what time stands in it. And only what was watched counts: after a look that failed, or came
late, every agent gets its whole time again, since while the API server did not answer us it may
not have answered them either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

TIMEOUT = 180.0
"""Seconds without a renewal after which an agent is silent: three periods of 60 s."""

LOOKS = 12
"""Looks within one timeout."""
_MISSED = 3
"""Looks that may be missing before what was seen no longer counts as watched."""


class _Seen(msgspec.Struct, frozen=True):
    """A Lease's renewTime, when we first saw it, and whether we saw another one before."""

    renewal: str
    at: float
    moved: bool = False


class Silence:
    """Follows the Leases by name. Times are seconds of our monotonic clock."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self.interval = timeout / LOOKS
        self._seen: dict[str, _Seen] = {}
        self._looked: float | None = None

    def saw(self, leases: Mapping[str, str], expected: Iterable[str], now: float) -> None:
        """Note one look at all Leases: name -> renewTime as it stands there.

        `expected` are the names for all nodes: one that is not there stands still as well, but
        from when it was first missed, as an agent's first labels may come before its Lease.
        """
        watched = self._looked is not None and now - self._looked <= _MISSED * self.interval
        before = self._seen if watched else {}
        self._looked = now
        renewals = dict.fromkeys(expected, "") | dict(leases)
        self._seen = {
            name: _next(before.get(name), renewal, now) for name, renewal in renewals.items()
        }

    def is_silent(self, lease: str, now: float) -> bool:
        """Whether the Lease of that name stood still, or was missing, for the whole timeout."""
        seen = self._seen.get(lease)
        return seen is not None and now - seen.at >= self.timeout

    def is_proved_alive(self, lease: str, now: float) -> bool:
        """Whether it was seen to be renewed, within the timeout: one that is there may be old."""
        seen = self._seen.get(lease)
        return seen is not None and seen.moved and now - seen.at < self.timeout

    def renewal(self, lease: str) -> str:
        """The renewTime that was last seen, empty if there is no such Lease."""
        seen = self._seen.get(lease)
        return seen.renewal if seen else ""

    def leases(self) -> tuple[str, ...]:
        """The Leases that were there at the last look."""
        return tuple(name for name, seen in self._seen.items() if seen.renewal)


def _next(before: _Seen | None, renewal: str, now: float) -> _Seen:
    if before is None:
        return _Seen(renewal, now)
    return before if before.renewal == renewal else _Seen(renewal, now, moved=bool(renewal))
