"""What YuniKorn says of a pod that waits: the quota of its queue or its user has no room for it.

Queues stand in YuniKorn's own configuration, not in objects of the cluster, so its events on the
pod are all there is. Quantities are numbers: bytes, thousandths of a CPU (vcore), devices.
Source: apache/yunikorn-core pkg/scheduler/objects/events/ask_events.go (from 1.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gpudoctor.facts.kubernetes.model import Event
from gpudoctor.report import Evidence

_SCHEDULER = "yunikorn"
_REFUSED = re.compile(
    r"Request '[^']*' (?:does not fit in queue '(?P<queue>[^']*)'|exceeds the available user quota)"
    r" \(requested map\[(?P<requested>[^\]]*)\], available map\[(?P<available>[^\]]*)\]\)"
)
_OVER = re.compile(
    r"Request '[^']*' (?:has become schedulable in queue|fits in the available user quota)"
)
_AMOUNT = re.compile(r"(?P<resource>\S+):(?P<amount>-?\d{1,18})(?= |$)")


class QuotaWait(msgspec.Struct, frozen=True):
    """A request that its quota has no room for; `queue` is None where it is the user's quota.

    `short` has what is asked for and what is left of each resource of which too little is left.
    """

    queue: str | None
    short: dict[str, tuple[int, int]]
    evidence: Evidence


def waits(events: Iterable[Event]) -> QuotaWait | None:
    """Return what the newest word of YuniKorn on quota says, None where it has let the pod in."""
    found: QuotaWait | None = None
    for event in events:
        if event.component != _SCHEDULER:
            continue
        match = _REFUSED.search(event.message)
        if match:
            asked, left = _amounts(match["requested"]), _amounts(match["available"])
            short = {r: (n, left[r]) for r, n in asked.items() if r in left and n > left[r]}
            shown = Evidence(event.path, f"{event.reason} (x{event.count})", event.message)
            found = QuotaWait(match["queue"], short, shown)
        elif _OVER.search(event.message):
            found = None
    return found


def _amounts(text: str) -> dict[str, int]:
    return {one["resource"]: int(one["amount"]) for one in _AMOUNT.finditer(text)}
