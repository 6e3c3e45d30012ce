"""The report for a person: verdict, root causes with evidence, what they explain, what to do."""

from __future__ import annotations

from typing import TextIO

from gpudoctor.report import Report


def render(report: Report, stream: TextIO, *, color: bool | None = None) -> None:  # noqa: ARG001
    """Write the report as text; `color` None means only on a terminal."""
    stream.write(f"{report.verdict.upper()}\n")
    for finding in report.findings:
        stream.write(f"{finding.severity}  {finding.title}  [{finding.runbook}]\n")
        stream.write(f"  {finding.detail}\n")
