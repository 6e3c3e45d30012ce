"""Events for what changed on a node or pod: a root cause that came, or one that went.

What comes and goes is one Event whose count grows, as kubectl shows them (`x5 over 10m`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gpudoctor.publish import names, writes
from gpudoctor.publish.bounds import camel, cut
from gpudoctor.publish.targets import Target
from gpudoctor.publish.writes import Write
from gpudoctor.report import Finding, Report, Verdict

MOST_BYTES = 1024
MOST_AT_ONCE = 8
"""Events of one report and one round; what is over it is in the condition and the Diagnosis."""
_MOST_SERIES = 512
_NODE_EVENTS = "default"
"""The namespace of Events about objects that have none."""
_WORST_NAME = 200


class Series(msgspec.Struct, frozen=True):
    """One Event: when it was first seen (RFC 3339) and how often since."""

    first: str
    count: int


class Changes(msgspec.Struct, frozen=True):
    """The writes, and the tally for the next call: name of the series -> its Event so far."""

    writes: tuple[Write, ...]
    tally: dict[str, Series]


class _Change(msgspec.Struct, frozen=True):
    finding: Finding
    came: bool


def changes(
    before: Report | None,
    after: Report,
    *,
    target: Target,
    node: str,
    now: str,
    tally: Mapping[str, Series],
) -> Changes:
    """Return the Events of what changed from one report on `target` to the next.

    `before` is the last report that could tell, None if there was none: then every root cause is
    new. While it cannot be told how things are, nothing is said to be gone. `node` is where the
    agent runs.
    """
    kept = dict(tally)
    sent = []
    for change in list(_changes(before, after))[:MOST_AT_ONCE]:
        key = f"{target}#{target.uid}#{change.finding.id}#{change.came}"
        so_far = kept.pop(key, Series(now, 0))
        kept[key] = series = Series(so_far.first, so_far.count + 1)
        sent.append(_write(change, series, key, target, node, now))
    newest = list(kept.items())[-_MOST_SERIES:]
    return Changes(tuple(sent), dict(newest))


def _changes(before: Report | None, after: Report) -> Iterator[_Change]:
    old = {} if before is None else {key: before.finding(key) for key in before.root_ids}
    new = {key: after.finding(key) for key in after.root_ids}
    yield from (_Change(finding, came=True) for key, finding in new.items() if key not in old)
    if after.verdict is Verdict.UNKNOWN:
        return
    still = {finding.id for finding in after.findings}
    yield from (_Change(finding, came=False) for key, finding in old.items() if key not in still)


def _write(change: _Change, series: Series, key: str, target: Target, node: str, now: str) -> Write:
    finding = change.finding
    namespace = target.namespace or _NODE_EVENTS
    end = hashlib.sha256(f"{key}#{series.first}".encode("utf-8", "replace")).hexdigest()[:16]
    name = f"{target.name[:_WORST_NAME].rstrip('.-')}.{end}"
    involved: dict[str, Any] = {"kind": target.kind, "name": target.name, "apiVersion": "v1"}
    if target.namespace is not None:
        involved["namespace"] = target.namespace
    if target.uid is not None:
        involved["uid"] = target.uid
    fields = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": involved,
        "type": "Warning" if change.came else "Normal",
        "reason": camel(finding.name) + ("" if change.came else "Gone"),
        "message": cut(_message(change), MOST_BYTES),
        "source": {"component": names.AGENT, "host": node},
        "reportingComponent": names.AGENT,
        "reportingInstance": node,
        "firstTimestamp": series.first,
        "lastTimestamp": now,
        "count": series.count,
    }
    path = f"/api/v1/namespaces/{namespace}/events/{name}"
    return writes.apply(f"Event {fields['reason']} about {target}", path, fields, names.AGENT)


def _message(change: _Change) -> str:
    finding = change.finding
    if not change.came:
        return f"{finding.runbook} {finding.name} is gone: {finding.title}"
    fix = f" Fix ({finding.audience}): {finding.fix}" if finding.fix else ""
    return f"{finding.runbook} {finding.name}: {finding.title}. {finding.detail}{fix}"
