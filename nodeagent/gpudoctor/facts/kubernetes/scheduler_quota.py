"""Quotas that schedulers keep themselves: YuniKorn's queues, ElasticQuotas of others.

YuniKorn's queues stand in its own configuration, not in objects of the cluster, so its events on
the pod are all there is. Koordinator and the CapacityScheduling plugin refuse in PreFilter, with
one sentence in place of the histogram of nodes. Quantities are as they print them.
Sources: apache/yunikorn-core pkg/scheduler/objects/events/ask_events.go (from 1.5), koordinator
pkg/scheduler/plugins/elasticquota, scheduler-plugins pkg/capacityscheduling.
"""

from __future__ import annotations

import re

import msgspec

from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Evidence

_YUNIKORN = "yunikorn"
# As text: re compiles, once, what there is a message for.
_REFUSED = (
    r"Request '[^']*' (?:does not fit in queue '(?P<queue>[^']*)'|exceeds the available user quota)"
    r" \(requested map\[(?P<requested>[^\]]*)\], available map\[(?P<available>[^\]]*)\]\)"
)
_OVER = r"Request '[^']*' (?:has become schedulable in queue|fits in the available user quota)"
_AMOUNT = r"(?P<resource>\S+):(?P<amount>-?\d{1,18})(?= |$)"
_ELASTIC = (
    r"Insufficient quotas, quotaName: (?P<quota>[^\s,]+), "
    r".*?exceedDimensions: (?P<short>\[[^\]]*\])"
    r"|ElasticQuota Used is more than Runtime, quotaName ?:(?P<old>[^\s,]+)"
    r"|rejected in Pre[Ff]ilter because (?:(?P<total>total ElasticQuota used)"
    r"|(?:ElasticQuota|quota|queue) (?P<name>\S+)) is (?:more than|at quota)"
)


class QuotaWait(msgspec.Struct, frozen=True):
    """A pod that its quota has no room for, in the scheduler's words; `queue` names the quota.

    `short` says of what too little is left, as far as that is told.
    """

    queue: str
    short: str
    evidence: Evidence


def read(situation: PodSituation) -> QuotaWait | None:
    """Return the quota that the newest word of the pod's scheduler speaks of, None without."""
    if situation.pod.scheduler == _YUNIKORN:
        return _of_yunikorn(situation)
    failure = situation.failure
    match = re.search(_ELASTIC, failure.raw) if failure else None
    if failure is None or match is None:
        return None
    named = match["quota"] or match["old"] or match["name"]
    queue = f"ElasticQuota {named}" if named else "all ElasticQuotas together"
    return QuotaWait(queue, (match["short"] or "").strip("[]"), failure.evidence)


def _of_yunikorn(situation: PodSituation) -> QuotaWait | None:
    found: QuotaWait | None = None
    for event in situation.events:
        if event.component != _YUNIKORN:
            continue
        match = re.search(_REFUSED, event.message)
        if match:
            asked, left = _amounts(match["requested"]), _amounts(match["available"])
            short = ", ".join(
                f"{resource}: {amount} asked, {left[resource]} left"
                for resource, amount in asked.items()
                if resource in left and amount > left[resource]
            )
            shown = Evidence(event.path, f"{event.reason} (x{event.count})", event.message)
            found = QuotaWait(match["queue"] or "the quota of its user", short, shown)
        elif re.search(_OVER, event.message):
            found = None
    return found


def _amounts(text: str) -> dict[str, int]:
    return {one["resource"]: int(one["amount"]) for one in re.finditer(_AMOUNT, text)}
