"""Diagnosis objects that gpudoctor's agents published: the findings of a node or pod.

An agent writes its Diagnosis only when something changes, and renews its Lease each period. So a
Diagnosis is as old as the Lease, not as its own time stamp; without the Lease only the
controller's mark tells that it is stale. Form: `gpudoctor.publish.status`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from gpudoctor.facts.kubernetes import fields
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.publish import names
from gpudoctor.publish.status import FindingForm, LabelForm, Status
from gpudoctor.report import (
    Audience,
    Blame,
    Certainty,
    Evidence,
    Finding,
    Fixes,
    Layer,
    Report,
    ReportSubject,
    Severity,
    Subject,
    Tool,
    Unknown,
    Verdict,
)

PERIODS = 3
"""A Lease not renewed for so many periods is that of an agent that no longer looks."""
_OWNERS = ("metadata", "ownerReferences")
E = TypeVar("E", bound=StrEnum)


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One Diagnosis. `report` is what it says, in the form of a report of our own.

    `stale` is why the controller marked it, None where it did not. `not_read` counts findings
    that this version does not understand, and those for which there was no room. `uid` is that of
    the pod.
    """

    namespace: str
    name: str
    report: Report
    labels: tuple[LabelForm, ...] = ()
    period_seconds: int = 60
    node_diagnosis: str | None = None
    stale: str | None = None
    not_read: int = 0
    uid: str | None = None

    @property
    def node(self) -> str | None:
        """The node whose agent published it."""
        subject = self.report.subject
        return subject.name if subject.kind == "Node" else subject.node

    @property
    def path(self) -> str:
        """The object as evidence names it."""
        return f"Diagnosis/{self.namespace}/{self.name}"


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Object(msgspec.Struct, frozen=True):
    kind: str = ""
    metadata: _Meta = _Meta()
    status: Status | None = None


def decode(raw: bytes | msgspec.Raw) -> Published | None:
    """Return a node's Diagnosis straight from its JSON: for fleets, where speed counts."""
    try:
        found = msgspec.json.decode(raw, type=_Object)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_any(raw)
    if found.kind != names.DIAGNOSIS or found.status is None:
        return None
    return _published(found.metadata.namespace, found.metadata.name, None, found.status)


def _decode_any(raw: bytes | msgspec.Raw) -> Published | None:
    """As `decode`, field by field: a null or an odd value costs that field, not the object."""
    try:
        item = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return read(item) if isinstance(item, dict) and item.get("kind") == names.DIAGNOSIS else None


def read(item: Any) -> Published | None:
    """Return a Diagnosis of the API as far as it can be read; None if it says nothing yet."""
    status = item.get("status")
    if not isinstance(status, dict):
        return None
    try:
        form = msgspec.convert(_known(status), Status)
    except (msgspec.ValidationError, RecursionError):
        return None
    namespace = fields.text(item, "metadata", "namespace") or ""
    uid = next((fields.text(o, "uid") for o in fields.objects(item, *_OWNERS)), None)
    return _published(namespace, fields.text(item, "metadata", "name") or "", uid, form)


def _published(namespace: str, name: str, uid: str | None, form: Status) -> Published | None:
    verdict = _member(Verdict, form.verdict)
    if verdict is None:
        return None
    findings = tuple(f for f in map(_finding, form.findings) if f is not None)
    ids = {finding.id: finding for finding in findings}
    root_ids = tuple(key for key in form.root_ids if key in ids)
    subject = form.subject
    stale = form.stale
    return Published(
        namespace=namespace,
        name=name,
        report=Report(
            tool=Tool(version=form.version),
            subject=ReportSubject(subject.kind, subject.name, subject.namespace, form.node),
            observed_at=form.observed_at,
            verdict=verdict,
            roots=tuple(dict.fromkeys(ids[root].name for root in root_ids)),
            root_ids=root_ids,
            findings=findings,
            unknown=tuple(Unknown(one.what, one.why) for one in form.unknown),
            facts={"labels": {one.name: _told(one) for one in form.labels}} if form.labels else {},
        ),
        labels=form.labels,
        period_seconds=form.period_seconds,
        node_diagnosis=form.node_diagnosis,
        stale=f"{stale.why} (since {stale.since})" if stale is not None else None,
        not_read=form.left_out + len(form.findings) - len(findings),
        uid=uid,
    )


class Book(msgspec.Struct, frozen=True):
    """All Diagnoses of an input, by subject (kind, namespace, name), and when agents were heard:
    Lease name -> its last renewal.
    """

    published: dict[tuple[str, str | None, str], Published] = {}
    renewed: dict[str, datetime] = {}

    def of_node(self, name: str) -> Published | None:
        """Return the Diagnosis of a node."""
        return self.published.get(("Node", None, name))

    def of_pod(self, namespace: str | None, name: str) -> Published | None:
        """Return the Diagnosis of a pod."""
        return self.published.get(("Pod", namespace, name))

    def why_stale(self, found: Published, now: datetime | None) -> str | None:
        """Return why a Diagnosis no longer counts, None while it does."""
        if found.stale is not None:
            return f"marked stale: {found.stale}"
        renewed = self.renewed.get(names.agent_lease(found.node or ""))
        if renewed is None or now is None:
            return None
        silent = now - renewed
        if silent <= timedelta(seconds=PERIODS * found.period_seconds):
            return None
        return (
            f"its agent was last heard {int(silent.total_seconds())} s ago"
            f" and should be each {found.period_seconds} s"
        )


def read_all(items: Iterable[object]) -> Book:
    """Return the Diagnoses and agents' Leases among decoded objects."""
    published: dict[tuple[str, str | None, str], Published] = {}
    renewed: dict[str, datetime] = {}
    for item in items:
        kind = item.get("kind") if isinstance(item, dict) else None
        if kind == names.DIAGNOSIS and (found := read(item)) is not None:
            about = found.report.subject
            published[about.kind, about.namespace, about.name or ""] = found
        elif kind == "Lease" and (at := fields.moment(item, "spec", "renewTime")) is not None:
            renewed[fields.text(item, "metadata", "name") or ""] = at
    return Book(published, renewed)


def _known(status: JsonObject) -> dict[str, Any]:
    """Nulls are what the API leaves of fields that somebody removed."""
    return {key: value for key, value in status.items() if value is not None}


def _told(label: LabelForm) -> dict[str, str | None]:
    return {"value": label.value, "because": label.because}


def _finding(form: FindingForm) -> Finding | None:
    layer, severity = _member(Layer, form.layer), _member(Severity, form.severity)
    certainty, blame = _member(Certainty, form.certainty), _member(Blame, form.blame)
    audience = _member(Audience, form.audience)
    if not (layer and severity and certainty and blame and audience and form.name):
        return None
    fixes = Fixes(form.fixes.user, form.fixes.admin, form.fixes.hardware)
    about = form.subject
    return Finding(
        id=form.id,
        code=form.code,
        name=form.name,
        layer=layer,
        severity=severity,
        certainty=certainty,
        blame=blame,
        subject=Subject(about.kind, about.name, about.namespace, about.device),
        title=form.title,
        detail=form.detail,
        evidence=tuple(Evidence(e.object, e.path, e.value, e.note) for e in form.evidence),
        explains=form.explains,
        caused_by=form.caused_by,
        audience=audience,
        fix=getattr(fixes, audience) or "",
        fixes=fixes,
        runbook=form.code,
    )


def _member(kind: type[E], value: str) -> E | None:
    try:
        return kind(value)
    except ValueError:
        return None
