"""The form of a Diagnosis: `status` of the object, as the agent writes it and readers read it.

A report with its texts bounded, in the words of the Kubernetes API. Everything is optional, so
that an object of another version is still read as far as it goes.
"""

from __future__ import annotations

import msgspec


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


class UnknownForm(Form, frozen=True):
    """A fact that was needed and could not be read."""

    what: str = ""
    why: str = ""


class StaleForm(Form, frozen=True):
    """That nobody renews this any more; written by the controller, not by the agent."""

    since: str = ""
    why: str = ""


class Status(Form, frozen=True):
    """The whole status.

    `observed_at` is when this was first seen so: it is written only when something changes, and
    the agent's Lease says whether it still looks, each `period_seconds`. `left_out` counts the
    findings for which there was no room.
    """

    verdict: str = ""
    root: str | None = None
    code: str | None = None
    message: str = ""
    node: str | None = None
    observed_at: str | None = None
    period_seconds: int = 60
    version: str = ""
    node_diagnosis: str | None = None
    labels: dict[str, str] = {}
    roots: tuple[str, ...] = ()
    findings: tuple[FindingForm, ...] = ()
    left_out: int = 0
    unknown: tuple[UnknownForm, ...] = ()
    stale: StaleForm | None = None
