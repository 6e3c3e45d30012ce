"""What the labels of a node are, by its facts, and what they are now in the cluster."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

from gpudoctor import diagnosis
from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import diagnoses, fields
from gpudoctor.facts.kubernetes.diagnoses import Book
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.readings import Reading, host, host_labels, judge
from gpudoctor.registry import Registry
from gpudoctor.report import Report, ReportSubject, Unknown, Verdict
from gpudoctor.sources.bundle import Bundle

_NEAR_NAMES = 5


def of_host(host_root: str | None, checks: Registry) -> Report:
    """Return the report of this host, with its labels."""
    return judge(host.read_live(host_root), checks)


def of_bundle(bundle: Bundle, node: str | None, checks: Registry) -> Report:
    """Return the report of a recorded host, or of all, with what its Node object adds.

    InputError where the node is not in the bundle, or neither a host nor a node is.
    """
    objects = [_decoded(raw) for raw in bundle.objects]
    nodes = {
        fields.text(item, "metadata", "name") or "": item
        for item in objects
        if isinstance(item, dict) and item.get("kind") == "Node"
    }
    if node is not None and node not in bundle.hosts:
        if node not in nodes:
            raise InputError(f"node {node} is not in the input; {_near(node, nodes)}")
        return of_objects(node, nodes[node], diagnoses.read_all(objects), bundle)
    if node is not None:
        bundle = msgspec.structs.replace(bundle, hosts={node: bundle.hosts[node]})
    if not bundle.hosts:
        raise InputError("no host is in the input: say --node NAME, or record one with `bundle`")
    reading = host.read_recorded(bundle)
    children = tuple(
        _with_node(child, nodes.get(child.subject.name or "")) for child in reading.children
    )
    if reading.subject.kind == "Hosts":
        reading = msgspec.structs.replace(reading, children=children)
    else:
        reading = _with_node(reading, nodes.get(reading.subject.name or ""))
    return judge(reading, checks)


def _with_node(reading: Reading, node: JsonObject | None) -> Reading:
    if node is None:
        return reading
    of_node = fields.text_map(node, "metadata", "labels")
    return msgspec.structs.replace(
        reading, published=host_labels.with_node(reading.published, of_node)
    )


def of_objects(name: str, node: JsonObject, book: Book, bundle: Bundle) -> Report:
    """Return what a node's agent published: its Diagnosis, beside the labels of the Node object."""
    found = book.of_node(name)
    now_there = host_labels.ours(fields.text_map(node, "metadata", "labels"))
    denied = tuple(Unknown(what, "denied") for what in bundle.scope.denied)
    if found is None:
        missing = Unknown(f"Diagnosis of Node/{name}", "no agent has published one")
        return diagnosis.report(
            diagnosis.Diagnosis(findings=(), root_ids=(), unknown=(missing, *denied)),
            ReportSubject("Node", name),
            observed_at=bundle.now,
            needed_unknown=True,
            facts={host_labels.NOW: now_there},
        )
    report = msgspec.structs.replace(
        found.report,
        facts={**found.report.facts, host_labels.NOW: now_there},
        observed_at=bundle.now,
        unknown=(*found.report.unknown, *denied),
    )
    stale = book.why_stale(found, fields.moment(bundle.now))
    if stale is None:
        return report
    unknown = (Unknown(found.path, stale), *report.unknown)
    return msgspec.structs.replace(report, verdict=Verdict.UNKNOWN, unknown=unknown)


def _decoded(raw: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _near(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, _NEAR_NAMES)
    return f"near it: {', '.join(near)}" if near else f"it holds {len(names)} nodes"
