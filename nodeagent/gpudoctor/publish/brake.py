"""The brake: when many nodes turn bad at once, the reason is seldom in the nodes.

A new driver, a wrong rule or a fabric manager that restarts can turn every verdict within a
minute, and with the labels the whole cluster would drain. So the controller counts: once more
than a share of the nodes has turned failing within one period, the brake goes on, and no agent
publishes a flip to failing while it is. It holds for HOLD periods and then lets go by itself, so
that truth comes late but comes: at worst one share of the nodes each HOLD periods. A person who
knows better removes the annotation, and for HOLD periods it stays away.
"""

from __future__ import annotations

import math
from datetime import datetime

import msgspec

SHARE = 0.3
PERIOD = 60.0
HOLD = 10
"""Periods for which the brake holds."""
FEWEST = 3
"""Nodes that have to turn, whatever their share: one of two nodes is no outbreak."""

BAD = "failing"
"""The verdict whose appearance counts."""


class Braked(msgspec.Struct, frozen=True):
    """The brake as it stands in the annotation, for agents and for people."""

    since: str
    why: str

    def text(self) -> str:
        """The annotation's value: `2026-11-29T19:15:00Z 4 of 12 nodes turned failing …`."""
        return f"{self.since} {self.why}"


def parse(text: str | None) -> Braked | None:
    """Read the annotation; None where there is none. Any value at all means that it is on."""
    if text is None:
        return None
    since, _, why = text.partition(" ")
    return Braked(since, why)


class Brake:
    """Counts nodes that turn failing. Times are seconds of one monotonic clock."""

    def __init__(self, share: float = SHARE, period: float = PERIOD) -> None:
        self._share = share
        self._period = period
        self._verdicts: dict[str, str | None] = {}
        self._turned: dict[str, float] = {}
        self._until: float | None = None
        self._braked: Braked | None = None
        self._free_until = -math.inf

    @property
    def braked(self) -> Braked | None:
        """The brake that is on, None if it is off."""
        return self._braked

    def saw(self, node: str, verdict: str | None, now: float) -> None:
        """Note a node's published verdict (None: none). The first one of a node is no turn."""
        known = node in self._verdicts
        before = self._verdicts.get(node)
        self._verdicts[node] = verdict
        if verdict != BAD:
            self._turned.pop(node, None)
        elif known and before != BAD:
            self._turned[node] = now

    def nodes(self) -> frozenset[str]:
        """The nodes whose verdict is known here."""
        return frozenset(self._verdicts)

    def gone(self, node: str) -> None:
        """Forget a node that is no longer in the cluster."""
        self._verdicts.pop(node, None)
        self._turned.pop(node, None)

    def judge(self, nodes: int, now: float, clock: datetime) -> Braked | None:
        """Put the brake on or let it go; `nodes` is how many have a living agent."""
        self._turned = {node: at for node, at in self._turned.items() if now - at <= self._period}
        if self._until is not None and now >= self._until:
            self._let_go()
        elif (
            self._until is None
            and now >= self._free_until
            and len(self._turned) > self.limit(nodes)
        ):
            self._until = now + HOLD * self._period
            self._braked = Braked(
                clock.strftime("%Y-%m-%dT%H:%M:%SZ"),
                f"{len(self._turned)} of {nodes} nodes turned {BAD} within {self._period:.0f} s"
                f" (limit {self.limit(nodes)})",
            )
        return self._braked

    def limit(self, nodes: int) -> int:
        """How many nodes may turn within one period."""
        return max(FEWEST - 1, math.floor(self._share * nodes))

    def adopt(self, braked: Braked | None, now: float) -> None:
        """Go on with the brake that the leader before left; it holds anew from now."""
        self._braked = braked
        self._until = None if braked is None else now + HOLD * self._period

    def lift(self, now: float) -> None:
        """Let go as a person wishes, who knows of the flips to come: it stays off for a while."""
        self._let_go()
        self._free_until = now + HOLD * self._period

    def _let_go(self) -> None:
        self._braked = self._until = None
        self._turned.clear()
