"""Node labels: what the scheduler may rely on. What is not known has no label.

`report.facts["labels"]` holds, by the label's name, its value with the fact behind it, or None
with the reason why there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import msgspec

from gpudoctor.publish import names, writes
from gpudoctor.publish.writes import Write
from gpudoctor.report import Report, Verdict

VERDICT = "verdict"
FACTS = "labels"
_PUBLISHED = (Verdict.HEALTHY, Verdict.WARNING, Verdict.FAILING)
_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_CONTESTED = re.compile(rf"\.metadata\.labels\.({re.escape(names.GROUP)}/[A-Za-z0-9._-]+)")


class Label(msgspec.Struct, frozen=True):
    """A label by its name without prefix; `value` None: not published, `because` says why."""

    name: str
    value: str | None
    because: str


def of(report: Report) -> tuple[Label, ...]:
    """Return what a node's report says of each label, in the order of the names."""
    return tuple(sorted((_verdict(report), *_facts(report)), key=lambda label: label.name))


def desired(report: Report) -> dict[str, str]:
    """Return whole key -> value of the labels that the node should have by its report."""
    return {names.label(label.name): label.value for label in of(report) if label.value is not None}


def write(node: str, desired: Mapping[str, str]) -> Write:
    """Declare these labels as all of ours on the node: the agent's others go away."""
    fields = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node, "labels": dict(desired)},
    }
    path = f"/api/v1/nodes/{quote(node, safe='')}"
    return writes.apply(f"labels of Node/{node}", path, fields, names.AGENT)


def contested(refusal: str) -> frozenset[str]:
    """Return the keys that another owns with another value, by the words of the server's 409.

    They stay as they are; the rest of ours is applied without them.
    """
    return frozenset(_CONTESTED.findall(refusal))


def _verdict(report: Report) -> Label:
    if report.verdict in _PUBLISHED:
        because = ", ".join(report.roots) or "nothing of severity warning or above was found"
        return Label(VERDICT, report.verdict.value, because)
    missing = "; ".join(f"{unknown.what}: {unknown.why}" for unknown in report.unknown)
    return Label(VERDICT, None, f"the verdict is {report.verdict}: {missing}".rstrip(": "))


def _facts(report: Report) -> Iterator[Label]:
    facts = report.facts.get(FACTS)
    for name, entry in facts.items() if isinstance(facts, dict) else ():
        if isinstance(name, str) and _NAME.fullmatch(name) and name != VERDICT:
            yield _label(name, entry)


def _label(name: str, entry: object) -> Label:
    value = entry.get("value") if isinstance(entry, dict) else None
    because = str(entry.get("because", "")) if isinstance(entry, dict) else ""
    if value is None or (isinstance(value, str) and _VALUE.fullmatch(value)):
        return Label(name, value, because)
    return Label(name, None, f"{value!r} ({because}) cannot be the value of a label")
