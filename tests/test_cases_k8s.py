"""Each Kubernetes case: the right root, nothing else, evidence; and with input missing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpudoctor.errors import InputError
from gpudoctor.report import Certainty, Finding, Report, Severity, Verdict
from tests import cases_k8s

LINE = re.compile(r":\d+$")
HEALTHY = {"healthy": Verdict.HEALTHY, "healthy-still-starting": Verdict.STARTING}


def loud(report: Report) -> list[str]:
    return [f.name for f in report.findings if f.severity is not Severity.INFO]


@pytest.mark.parametrize("name", cases_k8s.NAMES)
def test_root_cause(name: str) -> None:
    case = cases_k8s.load(name)
    expected = case["expect"]
    report = cases_k8s.ask(case)
    if expected["cause"] in HEALTHY:
        assert report.verdict is HEALTHY[expected["cause"]]
        assert report.roots == ()
        return
    allowed = {*expected.get("also", []), *expected.get("may", [])}
    assert [root for root in report.roots if root not in allowed] == [expected["cause"]]
    assert {*expected.get("also", [])} <= {finding.name for finding in report.findings}
    # Selectors of claims are not evaluated, and the report says so.
    assert [gap for gap in report.unknown if "CEL selectors" not in gap.why] == []


@pytest.mark.parametrize("name", cases_k8s.NAMES)
def test_forbidden_causes_are_not_said(name: str) -> None:
    case = cases_k8s.load(name)
    forbidden = {
        said.removeprefix("cause:")
        for said in case["expect"]["must_not_say"]
        if said.startswith("cause:")
    }
    assert forbidden & set(loud(cases_k8s.ask(case))) == set()


@pytest.mark.parametrize("name", cases_k8s.NAMES)
def test_evidence_names_each_deciding_object(name: str) -> None:
    case = cases_k8s.load(name)
    report = cases_k8s.ask(case)
    if case["expect"]["cause"] in HEALTHY:
        return
    shown = " ".join(item.object for finding in report.findings for item in finding.evidence)
    wanted = [item["object"].split("/")[-1].split(" ")[-1] for item in case["expect"]["evidence"]]
    assert [name for name in wanted if name not in shown] == []


@pytest.mark.parametrize("name", cases_k8s.NAMES)
def test_lines_of_logs_have_one_form(name: str) -> None:
    """`log ns/pod/container:12`, whichever rule shows the line."""
    report = cases_k8s.ask(cases_k8s.load(name))
    shown = [item for finding in report.findings for item in finding.evidence]
    lines = [item for item in shown if item.object.startswith("log ")]
    assert not [item for item in lines if (item.path or "").startswith("line ")]
    assert not [item for item in lines if item.path is None and not LINE.search(item.object)]


def removals() -> list[tuple[str, int]]:
    found = []
    for name in cases_k8s.NAMES:
        case = cases_k8s.load(name)
        for position, obj in enumerate(case["objects"]):
            if not is_subject(case, obj):
                found.append((name, position))
    return found


def is_subject(case: dict[str, Any], obj: dict[str, Any]) -> bool:
    namespace, name = cases_k8s.subject_of(case)
    data = obj["metadata"]
    return obj["kind"] == "Pod" and (data.get("namespace"), data["name"]) == (namespace, name)


@pytest.mark.parametrize(("name", "position"), removals())
def test_one_object_missing_never_makes_another_answer_certain(name: str, position: int) -> None:
    case = cases_k8s.load(name)
    expected = case["expect"]
    removed = case["objects"].pop(position)
    try:
        report = cases_k8s.ask(case, complete=False)
    except InputError:
        return  # of a pod that was never made nothing is left
    known = {expected["cause"], *expected.get("also", []), *expected.get("may", [])}
    others = [
        finding
        for finding in report.findings
        if finding.id in report.root_ids
        and finding.name not in known
        and finding.certainty is Certainty.CERTAIN
        and finding.name != "insufficient-evidence"
    ]
    assert others == [], f"without {removed['kind']}/{removed['metadata']['name']}"
    if expected["cause"] not in HEALTHY:
        assert report.verdict is not Verdict.HEALTHY


@pytest.mark.parametrize("name", cases_k8s.NAMES)
def test_logs_missing_never_makes_another_answer_certain(name: str) -> None:
    case = cases_k8s.load(name)
    case["logs"] = {}
    report = cases_k8s.ask(case, complete=False)
    known = {case["expect"]["cause"], *case["expect"].get("also", [])}
    sure = {f.name for f in roots(report) if f.certainty is Certainty.CERTAIN}
    assert sure - known - {"insufficient-evidence"} == set()


def roots(report: Report) -> list[Finding]:
    return [report.finding(root) for root in report.root_ids]
