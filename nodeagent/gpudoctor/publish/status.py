"""The form of a Diagnosis: `status` of the object, as the agent writes it and readers read it.

A report with its texts bounded, in the words of the Kubernetes API. Everything is optional, so
that an object of another version is still read as far as it goes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Form(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of the object; what has its default is left out."""


class SubjectForm(Form, frozen=True):
    """What it is about: an object, or one device of it."""

    kind: str = ""
    namespace: str | None = None
    name: str = ""
    device: str | None = None


class EvidenceForm(Form, frozen=True):
    """One thing that was read: the object, the field, what stands there and what that shows."""

    object: str = ""
    path: str | None = None
    value: str | None = None
    note: str | None = None


class FixesForm(Form, frozen=True):
    """What to do, for each reader who can do something."""

    user: str | None = None
    admin: str | None = None
    hardware: str | None = None


class FindingForm(Form, frozen=True):
    """One thing that is wrong or worth knowing; runbook `code` says more."""

    id: str = ""
    code: str = ""
    name: str = ""
    layer: str = ""
    severity: str = ""
    certainty: str = ""
    blame: str = ""
    audience: str = ""
    subject: SubjectForm = SubjectForm()
    title: str = ""
    detail: str = ""
    evidence: tuple[EvidenceForm, ...] = ()
    explains: tuple[str, ...] = ()
    caused_by: tuple[str, ...] = ()
    fixes: FixesForm = FixesForm()


class LabelForm(Form, frozen=True):
    """A node label: its value with the fact behind it; without one, why there is none."""

    name: str = ""
    value: str | None = None
    because: str = ""


class UnknownForm(Form, frozen=True):
    """A fact that was needed and could not be read."""

    what: str = ""
    why: str = ""


class StaleForm(Form, frozen=True):
    """That nobody renews this any more; written by the controller, not by the agent."""

    since: str = ""
    why: str = ""


class Status(Form, frozen=True):
    """What gpudoctor's agent found. Written only when something changes: whether it still looks
    says its Lease, which it renews each period.
    """

    subject: Annotated[SubjectForm, Meta(description="the node or pod that it is about")] = (
        SubjectForm()
    )
    verdict: Annotated[str, Meta(description="healthy, starting, warning, failing or unknown")] = ""
    root: Annotated[str | None, Meta(description="the name of the worst root cause")] = None
    code: Annotated[str | None, Meta(description="its code: gpudoctor runbook CODE")] = None
    message: Annotated[str, Meta(description="the verdict in one sentence")] = ""
    node: Annotated[str | None, Meta(description="the node that it was seen on")] = None
    observed_at: Annotated[
        str | None, Meta(description="when it was first seen so; it may have been so since")
    ] = None
    period_seconds: Annotated[int, Meta(description="how often the agent looks")] = 60
    version: Annotated[str, Meta(description="of gpudoctor")] = ""
    node_diagnosis: Annotated[
        str | None, Meta(description="NAMESPACE/NAME of the Diagnosis of the pod's node")
    ] = None
    labels: Annotated[
        tuple[LabelForm, ...], Meta(description="the labels of the node, and why it has them")
    ] = ()
    roots: Annotated[
        tuple[str, ...], Meta(description="the names of all root causes, worst first")
    ] = ()
    root_ids: Annotated[
        tuple[str, ...], Meta(description="the ids of the findings that these are")
    ] = ()
    findings: Annotated[
        tuple[FindingForm, ...],
        Meta(description="everything found, worst first, with evidence and what to do"),
    ] = ()
    left_out: Annotated[int, Meta(description="findings for which there was no room")] = 0
    unknown: Annotated[
        tuple[UnknownForm, ...], Meta(description="facts that could not be read, and why")
    ] = ()
    stale: Annotated[
        StaleForm | None, Meta(description="set once the agent no longer renews its Lease")
    ] = None
