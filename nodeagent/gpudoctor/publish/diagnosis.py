"""The report object: a Diagnosis of each node, and of each GPU pod in the pod's own namespace.

`python -m gpudoctor.publish.diagnosis` prints its CRD as the chart has it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from gpudoctor.publish import condition, labels, names, targets, writes
from gpudoctor.publish.bounds import block, cut
from gpudoctor.publish.status import (
    EvidenceForm,
    FindingForm,
    FixesForm,
    LabelForm,
    StaleForm,
    Status,
    SubjectForm,
    UnknownForm,
)
from gpudoctor.publish.targets import Target
from gpudoctor.publish.writes import Write
from gpudoctor.report import Evidence, Finding, Report, Subject

MOST_BYTES = 64 << 10
"""What a Diagnosis may take; its status gets less, since metadata and its owners come on top."""
_STATUS_BYTES = 48 << 10
_MOST_FINDINGS = 40
_MOST_EVIDENCE = 6
_MOST_UNKNOWN = 20
_MOST_LINKS = 20
_MOST_LABELS = 40
_ID, _TITLE, _TEXT, _VALUE, _FIX = 400, 300, 1024, 300, 1500
_API_VERSION = f"{names.GROUP}/{names.VERSION}"


def of(report: Report, *, period_seconds: int, node_diagnosis: str | None = None) -> Status:
    """Return the status of a report's Diagnosis, within its bounds.

    `node_diagnosis` is `namespace/name` of the node's, for a pod's.
    """
    findings = tuple(map(_finding, report.findings[:_MOST_FINDINGS]))
    root = report.finding(report.root_ids[0]) if report.root_ids else None
    told = condition.of(report)
    about = report.subject
    status = Status(
        subject=SubjectForm(kind=about.kind, namespace=about.namespace, name=about.name or ""),
        verdict=report.verdict.value,
        root=root.name if root else None,
        code=root.code if root else None,
        message=told.message,
        node=about.name if about.kind == "Node" else about.node,
        observed_at=report.observed_at,
        period_seconds=period_seconds,
        version=report.tool.version,
        node_diagnosis=node_diagnosis,
        labels=_labels(report),
        roots=tuple(cut(name, _ID) for name in report.roots[:_MOST_LINKS]),
        root_ids=tuple(cut(key, _ID) for key in report.root_ids[:_MOST_LINKS]),
        findings=findings,
        left_out=len(report.findings) - len(findings),
        unknown=tuple(
            UnknownForm(what=cut(unknown.what, _VALUE), why=cut(unknown.why, _VALUE))
            for unknown in report.unknown[:_MOST_UNKNOWN]
        ),
    )
    return _within(status)


def same(one: Status, other: Status) -> bool:
    """Whether two statuses say the same, whenever they were observed: then nothing is written."""
    clear = {"observed_at": None, "stale": None}
    return msgspec.structs.replace(one, **clear) == msgspec.structs.replace(other, **clear)


def object_write(target: Target, namespace: str) -> Write:
    """Return the write that makes the object; `namespace` is the agents', for a node's.

    Without it there is nothing whose status could be written.
    """
    fields: dict[str, Any] = {
        "apiVersion": _API_VERSION,
        "kind": names.DIAGNOSIS,
        "metadata": {"name": target.diagnosis, "namespace": target.namespace or namespace},
    }
    if owners := targets.owner(target):
        fields["metadata"]["ownerReferences"] = owners
    return writes.apply(f"Diagnosis of {target}", _path(target, namespace), fields, names.AGENT)


def status_write(target: Target, namespace: str, status: Status) -> Write:
    """Return the write of the status of an object that is there; 404 where it is not.

    What somebody edited in it by hand is taken back: a report says what the agent found.
    """
    fields = {"status": msgspec.to_builtins(status)}
    return writes.forced(_status(target, namespace, fields, names.AGENT))


def stale_write(target: Target, namespace: str, since: str, why: str) -> Write:
    """Return the controller's mark that nobody renews what the Diagnosis says."""
    stale = StaleForm(since=since, why=cut(why, _VALUE))
    fields = {"status": {"stale": msgspec.to_builtins(stale)}}
    return _status(target, namespace, fields, names.CONTROLLER)


def fresh_write(target: Target, namespace: str) -> Write:
    """Return the write that takes the controller's mark away again."""
    return _status(target, namespace, {}, names.CONTROLLER)


def delete_write(target: Target, namespace: str) -> Write:
    """Return the deletion of the Diagnosis of what is no more."""
    return writes.delete(f"Diagnosis of {target}", _path(target, namespace))


def _status(target: Target, namespace: str, fields: dict[str, Any], manager: str) -> Write:
    body = {
        "apiVersion": _API_VERSION,
        "kind": names.DIAGNOSIS,
        "metadata": {"name": target.diagnosis, "namespace": target.namespace or namespace},
        **fields,
    }
    what = f"status of the Diagnosis of {target}"
    return writes.apply(what, f"{_path(target, namespace)}/status", body, manager)


def _path(target: Target, namespace: str) -> str:
    where = quote(target.namespace or namespace, safe="")
    collection = f"/apis/{_API_VERSION}/namespaces/{where}/{names.DIAGNOSES}"
    return f"{collection}/{quote(target.diagnosis, safe='')}"


def _labels(report: Report) -> tuple[LabelForm, ...]:
    """The labels of a node, by which its like are compared; a pod has none of them."""
    if report.subject.kind != "Node":
        return ()
    return tuple(
        LabelForm(name=label.name, value=label.value, because=cut(label.because, _VALUE))
        for label in labels.of(report)[:_MOST_LABELS]
    )


def _within(status: Status) -> Status:
    """Leave out the last findings, which are the least severe, where not all fit."""
    room = _STATUS_BYTES - len(msgspec.json.encode(msgspec.structs.replace(status, findings=())))
    kept = []
    for finding in status.findings:
        room -= len(msgspec.json.encode(finding)) + 1
        if room < 0:
            break
        kept.append(finding)
    left_out = status.left_out + len(status.findings) - len(kept)
    return msgspec.structs.replace(status, findings=tuple(kept), left_out=left_out)


def _finding(finding: Finding) -> FindingForm:
    return FindingForm(
        id=cut(finding.id, _ID),
        code=finding.code,
        name=finding.name,
        layer=finding.layer.value,
        severity=finding.severity.value,
        certainty=finding.certainty.value,
        blame=finding.blame.value,
        audience=finding.audience.value,
        subject=_subject(finding.subject),
        title=cut(finding.title, _TITLE),
        detail=cut(finding.detail, _TEXT),
        evidence=tuple(map(_evidence, finding.evidence[:_MOST_EVIDENCE])),
        explains=tuple(cut(link, _ID) for link in finding.explains[:_MOST_LINKS]),
        caused_by=tuple(cut(link, _ID) for link in finding.caused_by[:_MOST_LINKS]),
        fixes=FixesForm(
            **{
                audience: block(text, _FIX)
                for audience in ("user", "admin", "hardware")
                if (text := getattr(finding.fixes, audience))
            }
        ),
    )


def _subject(subject: Subject) -> SubjectForm:
    return SubjectForm(
        kind=cut(subject.kind, _VALUE),
        namespace=_short(subject.namespace),
        name=cut(subject.name, _VALUE),
        device=_short(subject.device),
    )


def _evidence(evidence: Evidence) -> EvidenceForm:
    return EvidenceForm(
        object=cut(evidence.object, _VALUE),
        path=_short(evidence.path),
        value=_short(evidence.value),
        note=_short(evidence.note),
    )


def _short(text: str | None) -> str | None:
    return None if text is None else cut(text, _VALUE)
