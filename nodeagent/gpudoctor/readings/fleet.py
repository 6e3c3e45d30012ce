"""The reports of all nodes as their agents published them, from Diagnosis objects."""

from __future__ import annotations

from datetime import datetime

import msgspec

from gpudoctor import diagnosis
from gpudoctor.errors import InputError
from gpudoctor.facts import fleet
from gpudoctor.facts.fleet import NodeRow
from gpudoctor.facts.kubernetes import diagnoses, fields, parse, resources
from gpudoctor.facts.kubernetes.diagnoses import Book, Published
from gpudoctor.facts.kubernetes.model import Node
from gpudoctor.report import Report, ReportSubject, Unknown, Verdict
from gpudoctor.sources.bundle import Bundle

_SILENT = "no agent has published a Diagnosis of it"


class _Kind(msgspec.Struct):
    kind: str = ""


def read(bundle: Bundle) -> Report:
    """Return the report on a fleet, with those of its nodes as children.

    InputError where neither a Diagnosis of a node nor a node with GPUs is in the bundle.
    """
    book, gpu_nodes = _sorted(bundle)
    now = fields.moment(bundle.now)
    published = sorted((one for key, one in book.published.items() if key[0] == "Node"), key=_name)
    stale = {_name(one): why for one in published if (why := book.why_stale(one, now))}
    silent = dict.fromkeys(gpu_nodes - set(map(_name, published)), _SILENT)
    if not published and not silent:
        denied = f" ({'; '.join(bundle.scope.denied)})" if bundle.scope.denied else ""
        raise InputError(
            f"no Diagnosis of a node is in the input{denied}: do agents run, and in the namespace"
            " that -n says?"
        )
    children = tuple(_member(one, stale.get(_name(one))) for one in published)
    rows = [_row(one) for one in published if _name(one) not in stale]
    nobody = silent | {name: f"its Diagnosis is stale: {why}" for name, why in stale.items()}
    return diagnosis.report(
        diagnosis.Diagnosis(
            findings=(),
            root_ids=(),
            unknown=tuple(Unknown(what, "denied") for what in bundle.scope.denied),
        ),
        ReportSubject("Fleet", "all nodes"),
        observed_at=bundle.now,
        # Without the Leases an old report counts as fresh, without the nodes none is missing.
        needed_unknown=bool(silent or bundle.scope.denied),
        facts={"fleet": fleet.published(rows, nobody)},
        children=children,
    )


def _sorted(bundle: Bundle) -> tuple[Book, set[str]]:
    """Return the Diagnoses and Leases of a bundle, and the names of its nodes that have GPUs."""
    published: dict[tuple[str, str | None, str], Published] = {}
    renewed: dict[str, datetime] = {}
    gpu_nodes: set[str] = set()
    for raw in bundle.objects:
        kind = _kind(raw)
        if kind == "Diagnosis" and (found := diagnoses.decode(raw)) is not None:
            subject = found.report.subject
            published[subject.kind, subject.namespace, subject.name or ""] = found
        elif kind == "Lease":
            renewed |= diagnoses.read_all([msgspec.json.decode(raw)]).renewed
        elif kind == "Node":
            node = parse.node(msgspec.json.decode(raw))
            if _has_gpus(node):
                gpu_nodes.add(node.name)
    return Book(published, renewed), gpu_nodes


def _has_gpus(node: Node) -> bool:
    """Also where none is advertised: that node needs an agent most."""
    offered = any(resources.is_gpu(key) and amount for key, amount in node.capacity.items())
    return offered or any(vendor.shown_by(node.labels) for vendor in resources.VENDORS)


def _kind(raw: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=_Kind).kind
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _name(published: Published) -> str:
    return published.node or ""


def _member(published: Published, stale: str | None) -> Report:
    """A node's report; one that nobody renews says nothing any more."""
    if stale is None:
        return published.report
    return msgspec.structs.replace(
        published.report,
        verdict=Verdict.UNKNOWN,
        roots=(),
        root_ids=(),
        findings=(),
        unknown=(Unknown(published.path, stale),),
    )


def _row(published: Published) -> NodeRow:
    labels = {one.name: one.value for one in published.labels if one.value is not None}
    report = published.report
    return NodeRow(_name(published), report.verdict.value, report.roots, labels)
