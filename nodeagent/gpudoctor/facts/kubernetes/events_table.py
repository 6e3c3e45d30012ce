"""The table of `kubectl get events` (also `-A`, `-o wide`) and `kubectl events` to Event objects.

Columns are taken by the header's positions, since messages hold runs of blanks; a table that lost
its alignment on the way is read by the look of its words. Ages become times before `now`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from gpudoctor.facts.kubernetes import ages
from gpudoctor.facts.kubernetes.fields import JsonObject

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TITLES = (
    "NAMESPACE", "LAST SEEN", "FIRST SEEN", "TYPE", "REASON", "OBJECT", "SUBOBJECT", "SOURCE",
    "MESSAGE", "COUNT", "NAME",
)  # fmt: skip
_HEADER = re.compile(
    r"^\s*(?:NAMESPACE\s+)?LAST SEEN\s+TYPE\s+REASON\s+OBJECT(?:\s+SUBOBJECT\s+SOURCE)?\s+MESSAGE\b"
)
_TITLE = re.compile(r"\b(?:" + "|".join(_TITLES) + r")\b")
_LOOSE_ROW = re.compile(
    rf"^\s*(?:(?P<namespace>[a-z0-9][a-z0-9-]*)\s+)?(?P<seen>{ages.SEEN})\s+"
    r"(?P<type>Normal|Warning)\s+(?P<reason>\S+)\s+(?P<object>[A-Za-z][\w.]*/\S+)\s+(?P<message>\S.*)$"
)
_KINDS = {
    kind.lower(): kind
    for kind in (
        "Pod", "Node", "Job", "CronJob", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet",
        "PodGroup", "Workload", "ClusterQueue", "LocalQueue", "ResourceClaim", "JobSet",
        "PyTorchJob", "MPIJob", "TrainJob", "RayCluster", "RayJob", "LeaderWorkerSet", "Service",
        "PersistentVolumeClaim", "HorizontalPodAutoscaler", "ClusterPolicy",
    )
}  # fmt: skip
_CLUSTER_WIDE = ("Node", "ClusterQueue", "ClusterPolicy")


def matches(text: str) -> int:
    """Count the lines that only an events table has."""
    lines = text.split("\n")
    rows = sum(1 for line in lines if _LOOSE_ROW.match(line))
    return rows + 5 * sum(1 for line in lines if _HEADER.match(line))


def read(text: str, now: datetime | None = None) -> list[JsonObject]:
    """Read the events of any text; what is no row, or goes on with none, is passed over.

    `now` None gives times that only tell the order of the events.
    """
    found: list[dict[str, str]] = []
    columns: list[tuple[str, int]] = []
    for raw_line in text.split("\n"):
        line = _ANSI.sub("", raw_line).rstrip("\r")
        if _HEADER.match(line):
            columns = [(match[0], match.start()) for match in _TITLE.finditer(line)]
            continue
        row = _aligned(line, columns) or _loose(line)
        if row is not None:
            found.append(row)
        elif found and line.strip():
            found[-1]["MESSAGE"] += f"\n{line.rstrip()}"
    return list(_events(found, now or ages.EPOCH))


def _aligned(line: str, columns: list[tuple[str, int]]) -> dict[str, str] | None:
    """Cut a row at the header's columns; None if it does not keep to them."""
    row: dict[str, str] = {}
    ends = [start for _, start in columns[1:]] + [len(line)]
    for (title, start), end in zip(columns, ends, strict=False):
        if start and not line[start - 1 : start].isspace():
            # Only the columns after the message may be gone, cut off by a narrow terminal.
            return _whole(row | {title: ""}) if title in ("COUNT", "NAME", "FIRST SEEN") else None
        row[title] = line[start:end].strip()
    return _whole(row)


def _whole(row: dict[str, str]) -> dict[str, str] | None:
    is_row = (
        re.fullmatch(ages.SEEN, row.get("LAST SEEN", "")) is not None
        and row.get("TYPE") in ("Normal", "Warning")
        and "/" in row.get("OBJECT", "")
        and "MESSAGE" in row
    )
    return row if is_row else None


def _loose(line: str) -> dict[str, str] | None:
    match = _LOOSE_ROW.match(line)
    if match is None:
        return None
    return {
        "NAMESPACE": match["namespace"] or "",
        "LAST SEEN": match["seen"],
        "TYPE": match["type"],
        "REASON": match["reason"],
        "OBJECT": match["object"],
        "MESSAGE": match["message"].rstrip(),
    }


def _events(rows: list[dict[str, str]], now: datetime) -> Iterator[JsonObject]:
    for number, row in enumerate(rows):
        word, _, name = row["OBJECT"].partition("/")
        kind = _KINDS.get(word.lower().partition(".")[0], word.capitalize())
        namespace = row.get("NAMESPACE") or None
        last = ages.seen(row["LAST SEEN"])
        first = ages.age_seconds(row.get("FIRST SEEN", ""))
        count = row.get("COUNT", "")
        yield {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": row.get("NAME") or f"{name}.{number}", "namespace": namespace},
            "involvedObject": {
                "kind": kind,
                "name": name,
                "namespace": None if kind in _CLUSTER_WIDE else namespace,
                "fieldPath": row.get("SUBOBJECT", ""),
            },
            "type": row["TYPE"],
            "reason": row["REASON"],
            "message": row["MESSAGE"],
            "source": {"component": row.get("SOURCE", "").split(",")[0]},
            "count": int(count) if re.fullmatch(r"[0-9]{1,9}", count) else last.count,
            "firstTimestamp": ages.before(now, last.first if first is None else first),
            "lastTimestamp": ages.before(now, last.last),
        }
