"""The output contract: what every command answers, in every format.

`Report` is what `-o json` prints (schema `gpudoctor.io/report/v1`, published as
`report.schema.json`), and the only thing that render/ and publish/ see.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from gpudoctor import PREFIX, __version__

SCHEMA = f"{PREFIX}/report/v1"


ALL_GPU_PODS = "all GPU pods"
"""The name of the subject of a report on the GPU pods of a namespace or a cluster."""
PREVIOUS = "!previous"
"""What ends the name of a container's log from before its restart."""


class Severity(StrEnum):
    """How bad a finding is. `critical` is broken now; `info` is never a root cause."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """Greater is worse."""
        return _SEVERITY_RANK[self]


class Certainty(StrEnum):
    """How far the evidence carries: proved, leaning on something unread, or one of several."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"

    @property
    def rank(self) -> int:
        """Greater is surer."""
        return _CERTAINTY_RANK[self]


_SEVERITY_RANK = {
    Severity.INFO: 0,
    Severity.WARNING: 1,
    Severity.ERROR: 2,
    Severity.CRITICAL: 3,
}
_CERTAINTY_RANK = {Certainty.POSSIBLE: 0, Certainty.LIKELY: 1, Certainty.CERTAIN: 2}


class Blame(StrEnum):
    """What has to change; `platform` is queue, quota or operator."""

    REQUEST = "request"
    PLACEMENT = "placement"
    NODE = "node"
    FABRIC = "fabric"
    APPLICATION = "application"
    PLATFORM = "platform"


class Audience(StrEnum):
    """Who can repair it: the pod's owner, the cluster's administrator, or whoever swaps parts."""

    USER = "user"
    ADMIN = "admin"
    HARDWARE = "hardware"


class Layer(StrEnum):
    """The layers of the machine, bottom up; the value is the prefix of the finding's code."""

    HARDWARE = "HW"
    DRIVER = "DRV"
    RUNTIME = "RUN"
    DEVICES = "DEV"
    SCHEDULING = "SCH"
    TOPOLOGY = "TOP"
    NETWORK = "NET"
    WORKLOAD = "WKL"
    NCCL = "NCL"
    ACCEPTANCE = "ACC"

    @property
    def depth(self) -> int:
        """0 for the lowest layer."""
        return _LAYER_DEPTH[self]


_LAYER_DEPTH = {layer: depth for depth, layer in enumerate(Layer)}


class Verdict(StrEnum):
    """The answer in one word."""

    HEALTHY = "healthy"
    STARTING = "starting"
    WARNING = "warning"
    FAILING = "failing"
    UNKNOWN = "unknown"


class Subject(msgspec.Struct, frozen=True, order=True):
    """What a finding or a report is about: a Kubernetes object, a host, or one device of it."""

    kind: str
    name: str
    namespace: str | None = None
    device: str | None = None

    def __str__(self) -> str:
        path = [self.kind, self.namespace, self.name, self.device]
        return "/".join(part for part in path if part)


class ReportSubject(msgspec.Struct, frozen=True):
    """The subject of a whole report; `node` is where a pod runs."""

    kind: str
    name: str | None = None
    namespace: str | None = None
    node: str | None = None


class Evidence(msgspec.Struct, frozen=True):
    """One thing that was read: `object` names where (Pod/ns/name, /path, file:line, log …).

    `path` is the field inside the object, `value` what stands there, `note` what it shows.
    """

    object: str
    path: str | None = None
    value: str | None = None
    note: str | None = None

    @classmethod
    def of_line(cls, source: str, number: int, text: str) -> Evidence:
        """A line of a file or a log, by its number from 1; pod logs are `log ns/pod/container`."""
        note = "before the restart" if source.endswith(PREVIOUS) else None
        return cls(f"{source}:{number}", value=text, note=note)


class Fixes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to do, for each reader who can do something: one line or a patch to paste."""

    user: str | None = None
    admin: str | None = None
    hardware: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong or worth knowing, proved by evidence, with its place in the chain."""

    id: str
    code: str
    name: str
    layer: Layer
    severity: Severity
    certainty: Certainty
    blame: Blame
    subject: Subject
    title: str
    detail: str
    evidence: tuple[Evidence, ...]
    explains: tuple[str, ...]
    caused_by: tuple[str, ...]
    audience: Audience
    fix: str
    fixes: Fixes
    runbook: str


class Unknown(msgspec.Struct, frozen=True, order=True):
    """A fact that was needed and could not be read, with the reason."""

    what: str
    why: str


class Tool(msgspec.Struct, frozen=True):
    """Who wrote the report."""

    name: str = "gpudoctor"
    version: str = __version__


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer. `roots` are names, worst first, no doubles; `root_ids` their findings."""

    schema: str = SCHEMA
    tool: Tool = Tool()
    subject: ReportSubject
    observed_at: str | None
    verdict: Verdict
    roots: tuple[str, ...]
    root_ids: tuple[str, ...]
    findings: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]
    children: tuple[Report, ...] = ()
    facts: dict[str, Any] = {}

    def finding(self, finding_id: str) -> Finding:
        """Return the finding of that id; KeyError if there is none."""
        for finding in self.findings:
            if finding.id == finding_id:
                return finding
        raise KeyError(finding_id)

    @property
    def members(self) -> tuple[Report, ...]:
        """The children that decide over this report with it.

        Pods on a node are none: what a pod asks for or runs does not make its node a bad one.
        """
        if self.subject.kind != "Node":
            return self.children
        return tuple(child for child in self.children if child.subject.kind != "Pod")

    def worst(self) -> Severity | None:
        """Return the worst severity of this report and its members, None if nothing was found."""
        own = [finding.severity for finding in self.findings]
        below = [worst for member in self.members if (worst := member.worst()) is not None]
        return max(own + below, key=lambda severity: severity.rank, default=None)


def encode(report: Report) -> bytes:
    """Encode a report as the JSON that `-o json` prints (UTF-8, two-space indent, newline)."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a report, as it is published beside this module."""
    schema = msgspec.json.schema(Report)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://{SCHEMA}",
        **schema,
    }


if __name__ == "__main__":
    # `make schema` writes this to report.schema.json.
    print(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode())
