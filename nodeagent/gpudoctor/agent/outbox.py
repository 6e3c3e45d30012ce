"""What still has to reach the API server: of each object only the latest state, so it is bounded.

An outage (unreachable, overloaded) stops everything, and all of it is tried again with growing
pauses. A refusal (conflict, forbidden, invalid) concerns its own object and waits for that alone:
the state stays wanted, and the pauses keep it from being a write at rest. The first of them is
short, for a server that has just started refuses what it will allow once it has read its roles.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.publish.writes import Write
from gpudoctor.sources.kubernetes.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)

FIRST_DELAY_S = 1.0
MOST_REFUSED_DELAY_S = 900.0
_PASSING = frozenset({429, 500, 502, 503, 504})


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The writes that bring one object to its state, in order.

    `refused` is told what the server said where it refuses one of them, and may return writes to
    send in place of all of them; `done` is called once they are through. An Event is `minor`: one
    that is refused, or whose object is gone, is dropped.
    """

    writes: tuple[Write, ...]
    refused: Callable[[InputError], tuple[Write, ...]] = lambda _error: ()
    done: Callable[[], None] = lambda: None
    minor: bool = False


class _Pause(msgspec.Struct):
    delay: float = 0.0
    until: float = 0.0

    def longer(self, now: float, first: float, most: float) -> None:
        self.delay = min(self.delay * 2 or first, most)
        self.until = now + self.delay * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


class Outbox:
    """Entries by the key of their object. `send` sends one write; errors as of `Client.send`.

    `most_delay_s` bounds the pauses of an outage, and the first after a refusal. `said` hears of
    each refusal and of the start and end of an outage, once. `counts` are writes by what became
    of them.
    """

    def __init__(
        self,
        send: Callable[[Write], object],
        *,
        most_delay_s: float,
        said: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._most_delay_s = most_delay_s
        self._said = said
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._pauses: dict[str, _Pause] = {}
        self._complaints: dict[str, str] = {}
        self._outage = _Pause()
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: str, entry: Entry) -> None:
        """Want the object's state to be this, whatever was wanted before."""
        self._entries[key] = entry

    def drop(self, keys: Iterable[str]) -> None:
        """Want nothing of these objects any more: they are gone, or are as they should be."""
        for key in list(keys):
            self._entries.pop(key, None)
            self._pauses.pop(key, None)
            self._complaints.pop(key, None)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The keys of what waits."""
        return tuple(self._entries)

    def wait_s(self) -> float | None:
        """Return in how many seconds something may be tried; None where nothing waits."""
        if not self._entries:
            return None
        now = self._clock()
        paused = min(self._until(key) for key in self._entries)
        return max(0.0, self._outage.until - now, paused - now)

    def flush(self) -> None:
        """Send what is due; stops at the first sign of an outage."""
        now = self._clock()
        if now < self._outage.until:
            return
        for key in [key for key in self._entries if now >= self._until(key)]:
            try:
                self._deliver(key, self._entries[key])
            except InputError as error:
                if _is_outage(error):
                    self.counts["unreachable"] += 1
                    self._outage.longer(self._clock(), FIRST_DELAY_S, self._most_delay_s)
                    self._complain("", f"what is to be published waits: {error}")
                    return
                self._refused(key, error)
            else:
                self.drop([key])
            self._recovered()

    def _deliver(self, key: str, entry: Entry) -> None:
        try:
            self._send_all(entry.writes)
        except InputError as error:
            instead = () if _is_outage(error) else entry.refused(error)
            if not instead:
                raise
            self._complain(key, str(error))
            self._send_all(instead)
        entry.done()

    def _send_all(self, writes: tuple[Write, ...]) -> None:
        for write in writes:
            self._send(write)
            self.counts["ok"] += 1

    def _refused(self, key: str, error: InputError) -> None:
        self.counts[_word(error)] += 1
        self._complain(key, f"not published: {error}")
        if self._entries[key].minor:
            self._entries.pop(key)
            return
        pause = self._pauses.setdefault(key, _Pause())
        pause.longer(self._clock(), self._most_delay_s, MOST_REFUSED_DELAY_S)

    def _complain(self, key: str, text: str) -> None:
        if self._complaints.get(key) != text:
            self._complaints[key] = text
            self._said(text)

    def _recovered(self) -> None:
        self._outage = _Pause()
        if self._complaints.pop("", None) is not None:
            self._said("the API server takes writes again")

    def _until(self, key: str) -> float:
        pause = self._pauses.get(key)
        return pause.until if pause else 0.0


def _is_outage(error: InputError) -> bool:
    """Whether everything else would fail as well: also where credentials are not accepted."""
    if isinstance(error, RefusedError):
        return error.status in _PASSING
    return isinstance(error, UnreachableError | UnauthorizedError) or not isinstance(
        error, ForbiddenError | NotFoundError
    )


def _word(error: InputError) -> str:
    """One word for a metric."""
    if isinstance(error, ConflictError):
        return "conflict"
    if isinstance(error, ForbiddenError):
        return "forbidden"
    return "gone" if isinstance(error, NotFoundError) else "refused"
