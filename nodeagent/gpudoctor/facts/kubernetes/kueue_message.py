"""Why Kueue did not reserve quota, read from the message of the condition QuotaReserved.

`couldn't assign flavors to pod set P: <reason>, <reason>; couldn't assign flavors to pod set Q: …`
has one reason for each flavor and resource that was tried. A pod set is held by the flavor that
comes nearest to a fit, a workload by its worst pod set. The condition's own reason (fine from
0.19, `Pending` or `Inadmissible` before) names the worst flavor instead: a workload that waits
for one flavor and does not tolerate the taint of another is `NoMatchingFlavor` there, so the
message is asked first.
Source: kueue pkg/scheduler/flavorassigner, pkg/cache/scheduler/tas_flavor_snapshot.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum

import msgspec

_MAX_CHARS = 64 * 1024
_POD_SET = re.compile(r"(?:couldn't|failed to) assign flavors to pod set (?P<name>[^\s:]+):")


class Hold(IntEnum):
    """What stands between a workload and its quota; a greater one is further from a fit."""

    UNKNOWN = 0
    IN_USE = 1
    TOPOLOGY = 2
    TOPOLOGY_LABEL = 3
    NO_FLAVOR = 4
    OVER_MAXIMUM = 5
    NOT_OFFERED = 6


class Refusal(msgspec.Struct, frozen=True):
    """One reason of the message. Amounts are as Kueue prints them; `what` is the taint, label
    or topology concerned.
    """

    hold: Hold
    text: str
    pod_set: str = ""
    resource: str = ""
    flavor: str = ""
    wanted: str = ""
    limit: str = ""
    more: str = ""
    what: str = ""


_PATTERNS: tuple[tuple[Hold, re.Pattern[str]], ...] = (
    (
        Hold.OVER_MAXIMUM,
        re.compile(
            r"insufficient quota for (?P<resource>\S+) in flavor (?P<flavor>[^\s,]+), previously "
            r"considered podsets requests \((?P<before>[^)]*)\) \+ current podset request "
            r"\((?P<request>[^)]*)\) > maximum capacity \((?P<limit>[^)]*)\)"
        ),
    ),
    (
        Hold.OVER_MAXIMUM,
        re.compile(
            r"insufficient quota for (?P<resource>\S+) in flavor (?P<flavor>[^\s,]+), request > "
            r"maximum capacity \((?P<request>[^\s>)]+) > (?P<limit>[^)]+)\)"
        ),
    ),
    (
        Hold.OVER_MAXIMUM,
        re.compile(
            r"insufficient quota for (?P<resource>\S+?)(?: in)? flavor (?P<flavor>[^\s,]+) in "
            r"ClusterQueue"
        ),
    ),
    (
        Hold.IN_USE,
        re.compile(
            r"insufficient unused quota (?:in cohort )?for (?P<resource>\S+?)(?: in)? flavor "
            r"(?P<flavor>[^\s,]+), (?P<more>[^\s,;]+) more needed"
        ),
    ),
    (
        Hold.IN_USE,
        re.compile(
            r"borrowing limit for (?P<resource>\S+?)(?: in)? flavor (?P<flavor>[^\s,]+) exceeded"
        ),
    ),
    (
        Hold.NO_FLAVOR,
        re.compile(r"untolerated taint (?P<what>\{[^}]*\}|\S+) in flavor (?P<flavor>[^\s,;]+)"),
    ),
    (
        Hold.NO_FLAVOR,
        re.compile(r"flavor (?P<flavor>[^\s,;]+) (?P<what>doesn't match node affinity)"),
    ),
    (
        Hold.NO_FLAVOR,
        re.compile(
            r'Flavor "?(?P<flavor>[^"\s]+)"? (?P<what>does not support TopologyAwareScheduling'
            r"|does not contain the requested level|supports only TopologyAwareScheduling)"
        ),
    ),
    (
        Hold.NO_FLAVOR,
        re.compile(r"no requested topology level(?: for [a-z ]+)?: (?P<what>[^\s,;]+)"),
    ),
    (Hold.NOT_OFFERED, re.compile(r"resource (?P<resource>\S+) unavailable in ClusterQueue")),
    (Hold.TOPOLOGY_LABEL, re.compile(r"no topology domains at level: (?P<what>[^\s,;]+)")),
    (
        Hold.TOPOLOGY,
        re.compile(
            r'topology "?(?P<what>[^"\s]+)"? (?:doesn\'t allow to fit any of (?P<wanted>\d+)'
            r"|allows to fit only (?P<limit>\d+) out of (?P<some>\d+)) (?:pod|slice)\(s\)"
            r"(?:\. Total nodes: \d+; excluded: [^;]*)?"
        ),
    ),
    (
        Hold.TOPOLOGY,
        re.compile(
            r'topology "?(?P<what>[^"\s]+)"? doesn\'t allow to fit'
            r"(?:; \d+/\d+ slice\(s\) fit on level [^\s;.]+)*"
        ),
    ),
)


def parse(message: str) -> tuple[Refusal, ...]:
    """Return the reasons of a message; none for a text of another form."""
    text = message[:_MAX_CHARS]
    starts = list(_POD_SET.finditer(text))
    if not starts:
        return tuple(_refusals(text, ""))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return tuple(
        refusal
        for start, end in zip(starts, ends, strict=True)
        for refusal in _refusals(text[start.end() : end], start["name"])
    )


def _refusals(text: str, pod_set: str) -> Iterator[Refusal]:
    taken: list[range] = []
    for hold, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            if any(match.start() in span for span in taken):
                continue
            taken.append(range(match.start(), match.end()))
            groups = {key: value for key, value in match.groupdict().items() if value}
            yield Refusal(
                hold=hold,
                text=match.group().strip(),
                pod_set=pod_set,
                resource=groups.get("resource", ""),
                flavor=groups.get("flavor", ""),
                wanted=_wanted(groups),
                limit=groups.get("limit", ""),
                more=groups.get("more", ""),
                what=groups.get("what", ""),
            )


def _wanted(groups: dict[str, str]) -> str:
    """The whole request: earlier pod sets of the workload count into it."""
    before, request = groups.get("before", "0"), groups.get("request", "")
    if request and before not in ("", "0"):
        return f"{before} + {request}"
    return request or groups.get("wanted", "") or groups.get("some", "")


def decisive(
    refusals: Iterable[Refusal], groups: Iterable[frozenset[str]] = ()
) -> tuple[Refusal, ...]:
    """Return the reasons that hold the workload, of one kind, first that of the worst pod set.

    `groups` are the sets of flavors of the ClusterQueue's resource groups: a pod set needs one
    flavor of each group. Without them all flavors count as one group.
    """
    listed = tuple(groups)
    by_group: dict[tuple[str, int], dict[str, list[Refusal]]] = {}
    for refusal in refusals:
        group = _group(refusal, listed)
        flavors = by_group.setdefault((refusal.pod_set, group), {})
        flavors.setdefault(refusal.flavor, []).append(refusal)
    holds = [_nearest(flavors.values()) for flavors in by_group.values()]
    worst = max((found[0].hold for found in holds), default=None)
    return tuple(refusal for found in holds if found[0].hold == worst for refusal in found)


def _group(refusal: Refusal, groups: tuple[frozenset[str], ...]) -> int:
    """The resource group; a topology is printed without its flavor and belongs to the only one."""
    if refusal.hold in (Hold.TOPOLOGY, Hold.TOPOLOGY_LABEL) and len(groups) == 1:
        return 0
    return next((i for i, names in enumerate(groups) if refusal.flavor in names), -1)


def _nearest(flavors: Iterable[list[Refusal]]) -> list[Refusal]:
    """Return the worst reasons of the flavor that comes nearest to a fit."""
    worst_of = [
        [refusal for refusal in listed if refusal.hold == max(r.hold for r in listed)]
        for listed in flavors
    ]
    nearest = min(found[0].hold for found in worst_of)
    return [refusal for found in worst_of if found[0].hold == nearest for refusal in found]
