"""A table of node labels: key, value, and the fact behind each; or why there is none."""

from __future__ import annotations

from typing import TextIO

from gpudoctor.publish import labels, names
from gpudoctor.render.clean import one_line
from gpudoctor.render.paper import Paper
from gpudoctor.report import Report

_NONE = "-"
_GAP = "  "


def render(report: Report, stream: TextIO, *, color: bool | None = None) -> None:
    """Write the labels of a node's report, or of each node of a report on several."""
    paper = Paper(stream, color=color)
    reports = [child for child in report.children if child.subject.kind in ("Node", "Host")]
    for number, one in enumerate(reports or [report]):
        if number:
            paper.blank()
        _node(one, paper)


def _node(report: Report, paper: Paper) -> None:
    subject = report.subject
    paper.text(f"{subject.kind} {one_line(subject.name or '')}", "bold")
    told = {names.label(label.name): label for label in labels.of(report)}
    now = report.facts.get("labels_now")
    rows = [
        [
            key,
            _shown(told[key].value if key in told else None),
            *([_shown(now.get(key))] if isinstance(now, dict) else []),
            told[key].because if key in told else "nothing that is known now asks for it",
        ]
        for key in sorted({*told, *(now if isinstance(now, dict) else ())})
    ]
    head = ["label", "value", *(["now"] if isinstance(now, dict) else []), "because"]
    _table([head, *rows], paper)


def _shown(value: str | None) -> str:
    return _NONE if value is None else one_line(value)


def _table(rows: list[list[str]], paper: Paper) -> None:
    """Write columns side by side; the last one is a text and wraps."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        paper.text(
            one_line(row[-1]), *(["dim"] if row is rows[0] else []), first=_GAP.join(cells) + _GAP
        )
