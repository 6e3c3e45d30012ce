"""What a node's agent published about a pod or node that is looked at from outside.

The API does not show the node's files, its driver or its kernel log; the agent there has read
them. Of its Diagnosis those findings are relayed that rest on such a thing. What it made of the
API's objects alone is left out: they are in the input, and newer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

import msgspec

from gpudoctor.facts.kubernetes.diagnoses import Book, Published
from gpudoctor.facts.kubernetes.model import Node, Pod
from gpudoctor.facts.kubernetes.resources import is_gpu, is_rdma
from gpudoctor.publish import names
from gpudoctor.report import Certainty, Evidence, Finding, Layer, Severity, Subject, Unknown

_OF_THE_CLUSTER = re.compile(r"^(?:log |[A-Z][A-Za-z]+/)")
_NETWORK = (Layer.NETWORK, Layer.TOPOLOGY)


class Relayed(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of a Diagnosis as they stand for `about`, a pod or a node.

    `where` is the Diagnosis as evidence. `unknown` says what of it could not be used and why.
    `judged` are the names of all findings of the pod's own Diagnosis, None where it is not used.
    """

    about: Subject
    node: Subject
    findings: tuple[Finding, ...] = ()
    where: Evidence | None = None
    unknown: tuple[Unknown, ...] = ()
    judged: frozenset[str] | None = None


def of_node(book: Book, node: Node, now: datetime | None) -> Relayed | None:
    """Return what the agent of a node published about it, None if there is no agent."""
    published = book.of_node(node.name)
    if published is None:
        return _without(node.subject, node.subject, node)
    return _relayed(book, published, node.subject, node.subject, node, now) or Relayed(
        about=node.subject,
        node=node.subject,
        findings=tuple(_seen_there(published.report.findings)),
        where=_where(published),
    )


def of_pod(
    book: Book, pod: Pod, node: Node | None, now: datetime | None, *, is_well: bool
) -> Relayed | None:
    """Return what the agent of its node published about a pod, None if there is no agent.

    The pod's own Diagnosis knows which devices the pod has; without it the node's is asked.
    """
    if pod.node is None:
        return None
    about, place = pod.subject, Subject("Node", pod.node)
    own = book.of_pod(pod.meta.namespace, pod.meta.name)
    if own is not None and own.uid not in (None, pod.meta.uid):
        own = None  # of a pod of that name before this one
    published = own or book.of_node(pod.node)
    if published is None:
        return _without(about, place, node) if _wants_gpus(pod) else None
    found = tuple(_seen_there(published.report.findings))
    judged = None
    if own is not None and not own.not_read:
        judged = frozenset(finding.name for finding in own.report.findings)
    elif own is None:
        found = tuple(_concerning(pod, node, found)) if _wants_gpus(pod) and not is_well else ()
    return _relayed(book, published, about, place, node, now) or Relayed(
        about=about, node=place, findings=found, where=_where(published), judged=judged
    )


def _relayed(
    book: Book,
    published: Published,
    about: Subject,
    place: Subject,
    node: Node | None,
    now: datetime | None,
) -> Relayed | None:
    """Return that a Diagnosis is not used, with the reason; None where it is."""
    said = node.condition(names.NODE_CONDITION) if node is not None else None
    stale = book.why_stale(published, now)
    if stale is None and said is not None and said.reason == names.AGENT_SILENT:
        stale = said.message or said.reason
    if stale is None:
        return None
    why = f"stale, so not used: {stale}"
    return Relayed(about=about, node=place, unknown=(Unknown(published.path, why),))


def _without(about: Subject, place: Subject, node: Node | None) -> Relayed | None:
    """Return what the node's condition alone tells, where the Diagnosis behind it is not there."""
    said = node.condition(names.NODE_CONDITION) if node is not None else None
    if said is None or said.status != "False":
        return None
    why = f"not in the input; the node's condition {said.type} is False: {said.message}"
    return Relayed(about=about, node=place, unknown=(Unknown(f"Diagnosis of {place}", why),))


def _where(published: Published) -> Evidence:
    report = published.report
    since = f", seen so since {report.observed_at}" if report.observed_at else ""
    return Evidence(
        published.path, "status.findings", f"{report.verdict}{since}", "published by its agent"
    )


def _seen_there(findings: tuple[Finding, ...]) -> Iterator[Finding]:
    """Yield the findings that rest on something the API does not show."""
    for finding in findings:
        if any(not _OF_THE_CLUSTER.match(one.object) for one in finding.evidence):
            yield finding


def _wants_gpus(pod: Pod) -> bool:
    return any(map(is_gpu, pod.requests))


def _concerning(pod: Pod, node: Node | None, findings: tuple[Finding, ...]) -> Iterator[Finding]:
    """Yield a node's findings as they stand for a pod on it that is not well."""
    for finding in findings:
        if finding.severity is Severity.INFO:
            continue
        if finding.layer in _NETWORK and not any(map(is_rdma, pod.requests)):
            continue
        if finding.subject.device is None or _has_all(pod, node):
            yield finding
        else:
            yield msgspec.structs.replace(
                finding,
                certainty=Certainty.POSSIBLE,
                detail=f"{finding.detail} Which devices the pod was given is not known here.",
            )


def _has_all(pod: Pod, node: Node | None) -> bool:
    """Whether the pod asks for all GPUs of the node: then every device there is its affair."""
    offered = node.capacity if node is not None else {}
    return any(
        is_gpu(name) and amount > 0 and amount == offered.get(name)
        for name, amount in pod.requests.items()
    )
