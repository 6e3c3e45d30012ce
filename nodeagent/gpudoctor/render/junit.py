"""The report as JUnit XML, for CI systems: one test case for each finding, pod and node.

A finding of warning or above is a failure, a fact that could not be read a skipped test, a
subject with neither a test that passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO
from xml.etree import ElementTree as ET

from gpudoctor.render.clean import clean
from gpudoctor.report import Finding, Report, ReportSubject, Severity

_FAILS_FROM = Severity.WARNING


def render(report: Report, stream: BinaryIO) -> None:
    """Write the report as one `testsuites` document (UTF-8)."""
    root = ET.Element("testsuites", name="gpudoctor")
    for part in _flat(report):
        root.append(_suite(part))
    ET.indent(root)
    stream.write(ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


def _flat(report: Report) -> Iterator[Report]:
    """Yield the report and those below it; one that only holds children adds nothing."""
    if report.findings or report.unknown or not report.children:
        yield report
    for child in report.children:
        yield from _flat(child)


def _suite(report: Report) -> ET.Element:
    name = _name(report.subject)
    cases = [_finding_case(finding, name) for finding in report.findings]
    for unknown in report.unknown:
        case = _case(unknown.what, name)
        ET.SubElement(case, "skipped", message=_safe(unknown.why))
        cases.append(case)
    if not cases:
        cases.append(_case(f"verdict: {report.verdict}", name))
    suite = ET.Element(
        "testsuite",
        name=name,
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        errors="0",
    )
    if report.observed_at:
        suite.set("timestamp", _safe(report.observed_at)[:19])
    suite.extend(cases)
    return suite


def _finding_case(finding: Finding, suite: str) -> ET.Element:
    case = _case(f"{finding.code} {finding.name} {finding.subject}", suite)
    lines = [finding.detail, *(_evidence(finding)), f"fix: {finding.fix}"]
    text = _safe("\n".join(lines))
    if finding.severity.rank >= _FAILS_FROM.rank:
        kind = f"{finding.severity}, {finding.certainty}"
        failure = ET.SubElement(case, "failure", type=kind, message=_safe(finding.title))
        failure.text = text
    else:
        ET.SubElement(case, "system-out").text = f"{_safe(finding.title)}\n{text}"
    return case


def _evidence(finding: Finding) -> Iterator[str]:
    for item in finding.evidence:
        where = " ".join(part for part in (item.object, item.path) if part)
        yield f"{where}: {item.value or ''}{f' ({item.note})' if item.note else ''}"


def _case(name: str, suite: str) -> ET.Element:
    return ET.Element("testcase", name=_safe(name), classname=suite)


def _name(subject: ReportSubject) -> str:
    parts = (subject.kind, subject.namespace, subject.name)
    return _safe("/".join(part for part in parts if part))


def _safe(text: str) -> str:
    """Return the text without what XML 1.0 cannot hold, which is more than it can escape."""
    return "".join(char for char in clean(text) if ord(char) not in (0xFFFE, 0xFFFF))
