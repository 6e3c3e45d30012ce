"""How a job has ended, as its own object says after its pods are gone.

Sources: batch/v1, jobset, trainer and training-operator (conditions), kuberay (RayJob's
jobDeploymentStatus, from 1.1 with a reason), volcano (status.state).
"""

from __future__ import annotations

import re

import msgspec

from gpudoctor.facts.kubernetes import fields, parse
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.report import Evidence, Subject

_WELL = ("Complete", "Completed", "Succeeded", "SUCCEEDED")
_BADLY = ("Failed", "FAILED", "Aborted", "Terminated")
_DEADLINE = re.compile(r"DeadlineExceeded|longer than (?:the )?specified deadline")


class JobEnd(msgspec.Struct, frozen=True):
    """The end of a job: `well`, or why not in the words of its controller."""

    subject: Subject
    well: bool
    reason: str
    message: str
    evidence: Evidence

    @property
    def by_deadline(self) -> bool:
        """Whether its time was over."""
        return not self.well and _DEADLINE.search(f"{self.reason} {self.message}") is not None


def read(job: JsonObject) -> JobEnd | None:
    """Return how the job has ended, None for one that has not, or does not say so."""
    data = parse.meta(job)

    def end(field: str, state: str, reason: str | None, message: str | None) -> JobEnd:
        said = ": ".join(word for word in (state, reason, message) if word)
        shown = Evidence(data.path, field, said)
        return JobEnd(data.subject, state in _WELL, reason or state, message or "", shown)

    for condition in parse.conditions(job):
        if condition.status == "True" and condition.type in (*_WELL, *_BADLY):
            field = f"status.conditions[{condition.type}]"
            return end(field, condition.type, condition.reason, condition.message)
    status = fields.mapping(job, "status")
    # The job itself may have failed where what was deployed for it is complete.
    for name in ("jobStatus", "jobDeploymentStatus"):
        state = fields.text(status, name) or ""
        if state in _BADLY or (state in _WELL and name == "jobDeploymentStatus"):
            reason, message = fields.text(status, "reason"), fields.text(status, "message")
            return end(f"status.{name}", state, reason, message)
    phase = fields.text(status, "state", "phase") or ""
    if phase in (*_WELL, *_BADLY):
        reason, message = (fields.text(status, "state", name) for name in ("reason", "message"))
        return end("status.state.phase", phase, reason, message)
    return None
