"""Any report at all: texts of any length and kind, any number of findings."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from gpudoctor.publish import labels
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
    Unknown,
    Verdict,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(
    ["ü" * 2000, "line\nline\x1b[31m", "a b" * 900, '{"a": "b"}', "Bearer x"]
)
MAYBE = st.none() | TEXT
NAMES = st.sampled_from(["rdma-port-down", "gpu-fallen-off-bus", "ö-ß", "", "a" * 300])
SUBJECTS = st.builds(Subject, st.sampled_from(["Pod", "Node"]), TEXT, MAYBE, MAYBE)


EVIDENCE = st.builds(Evidence, TEXT, MAYBE, MAYBE, MAYBE)


@st.composite
def findings(draw: st.DrawFn) -> tuple[Finding, ...]:
    """None, a few, or many: the many are alike but for their ids, since drawing is slow."""
    one = Finding(
        id=draw(TEXT),
        code="NET004",
        name=draw(NAMES),
        layer=draw(st.sampled_from(list(Layer))),
        severity=draw(st.sampled_from(list(Severity))),
        certainty=draw(st.sampled_from(list(Certainty))),
        blame=draw(st.sampled_from(list(Blame))),
        subject=draw(SUBJECTS),
        title=draw(TEXT),
        detail=draw(TEXT),
        evidence=(draw(EVIDENCE),) * draw(st.sampled_from([0, 1, 20])),
        explains=(draw(TEXT),) * draw(st.sampled_from([0, 50])),
        caused_by=(),
        audience=draw(st.sampled_from(list(Audience))),
        fix=draw(TEXT),
        fixes=Fixes(draw(MAYBE), draw(MAYBE), draw(MAYBE)),
        runbook="NET004",
    )
    many = draw(st.sampled_from([0, 1, 3, 90]))
    return tuple(msgspec.structs.replace(one, id=f"{n}{one.id}") for n in range(many))


LABELS = st.dictionaries(
    st.sampled_from(["driver", "rack", "Bad Key", "", "verdict", "ü"]) | st.text(max_size=70),
    st.fixed_dictionaries({"value": MAYBE, "because": TEXT}) | st.none() | TEXT,
    max_size=6,
)


@st.composite
def reports(draw: st.DrawFn, kind: str = "Node") -> Report:
    found = draw(findings())
    roots = [finding for finding in found if finding.severity is not Severity.INFO]
    return Report(
        subject=ReportSubject(kind, "gpu-1", None if kind == "Node" else "ml", "gpu-1"),
        observed_at="2026-11-20T08:20:02Z",
        verdict=draw(st.sampled_from(list(Verdict))),
        roots=tuple(dict.fromkeys(finding.name for finding in roots)),
        root_ids=tuple(finding.id for finding in roots),
        findings=found,
        unknown=tuple(Unknown(draw(TEXT), draw(TEXT)) for _ in range(2))
        * draw(st.sampled_from([0, 1, 40])),
        facts=draw(st.just({}) | st.fixed_dictionaries({labels.FACTS: LABELS | st.just([])})),
    )
