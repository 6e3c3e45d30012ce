"""The node condition: True well, False with the root cause, Unknown with what is not known.

Written only when it says something else than before; a heartbeat would be a write at rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from gpudoctor.publish import names, writes
from gpudoctor.publish.bounds import camel, cut
from gpudoctor.publish.writes import Write
from gpudoctor.report import Report, Verdict

MOST_BYTES = 1024
_STATUS = {Verdict.HEALTHY: "True", Verdict.WARNING: "True", Verdict.FAILING: "False"}


class Condition(msgspec.Struct, frozen=True):
    """What the condition says: "True", "False" or "Unknown", a word, and a sentence."""

    status: str
    reason: str
    message: str


def of(report: Report, *, note: str = "") -> Condition:
    """Return the condition of a node by its report. `note` is a sentence to go before
    the rest of the message."""
    status = _STATUS.get(report.verdict, "Unknown")
    if report.root_ids and status != "Unknown":
        reason, told = camel(report.roots[0]), _cause(report)
    elif status == "True":
        reason, told = "Healthy", "nothing of severity warning or above was found"
    else:
        reason, told = camel(report.verdict.value), _missing(report)
    return Condition(
        status, reason, cut(" ".join(part for part in (note, told) if part), MOST_BYTES)
    )


def write(
    node: str,
    report: Report,
    previous: Mapping[str, Any] | None,
    now: str,
    *,
    note: str = "",
) -> Write | None:
    """Return the write of a node's condition, None if `previous` says the same already.

    `previous` is the condition as it stands in the node's status; `now` is RFC 3339.
    """
    return _write(node, of(report, note=note), previous, now)


def unknown(
    node: str, reason: str, message: str, previous: Mapping[str, Any] | None, now: str
) -> Write | None:
    """Return the write of a condition that nobody can tell, such as while the agent starts."""
    found = Condition("Unknown", reason, cut(message, MOST_BYTES))
    return _write(node, found, previous, now)


def _write(
    node: str, found: Condition, previous: Mapping[str, Any] | None, now: str
) -> Write | None:
    before = previous or {}
    said = msgspec.to_builtins(found)
    if all(before.get(key) == value for key, value in said.items()):
        return None
    kept = before.get("lastTransitionTime") if before.get("status") == found.status else None
    condition = {
        "type": names.NODE_CONDITION,
        **said,
        "lastTransitionTime": kept or now,
        "lastHeartbeatTime": now,
    }
    fields = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node},
        "status": {"conditions": [condition]},
    }
    path = f"/api/v1/nodes/{quote(node, safe='')}/status"
    return writes.apply(f"condition of Node/{node}", path, fields, names.AGENT)


def _cause(report: Report) -> str:
    root = report.finding(report.root_ids[0])
    more = len(report.roots) - 1
    rest = f" Also: {', '.join(report.roots[1:])}." if more else ""
    return f"{root.runbook} {root.name}: {root.title}. {root.detail}{rest}"


def _missing(report: Report) -> str:
    told = "; ".join(f"{unknown.what}: {unknown.why}" for unknown in report.unknown)
    return f"not known: {told}" if told else f"the verdict is {report.verdict}"
