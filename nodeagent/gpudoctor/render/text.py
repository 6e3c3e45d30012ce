"""The report for a person: verdict, root causes with evidence, what they explain, what to do.

Made to be understood in ten seconds at 80 columns and without colour: the answer first, one line
for what is not the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from gpudoctor.render.clean import one_line, shorten
from gpudoctor.render.paper import Paper
from gpudoctor.report import (
    Audience,
    Certainty,
    Evidence,
    Finding,
    Report,
    ReportSubject,
    Severity,
    Verdict,
)

_VERDICT_COLOR = {
    Verdict.HEALTHY: "green",
    Verdict.STARTING: "cyan",
    Verdict.WARNING: "yellow",
    Verdict.FAILING: "red",
    Verdict.UNKNOWN: "yellow",
}
_VERDICT_ORDER = (
    Verdict.FAILING,
    Verdict.WARNING,
    Verdict.UNKNOWN,
    Verdict.STARTING,
    Verdict.HEALTHY,
)
_WITHOUT_FINDING = {
    Verdict.HEALTHY: "Nothing wrong was found.",
    Verdict.STARTING: "It is on its way up; nothing wrong so far.",
    Verdict.UNKNOWN: "Cannot tell: nothing wrong was found, but a fact that is needed is unknown.",
}
_CERTAINTY = {
    Certainty.LIKELY: "likely: inferred, or part of what would prove it was not read",
    Certainty.POSSIBLE: "possible: one of several explanations",
}
_WHO = {
    Audience.USER: "Owner of the pod",
    Audience.ADMIN: "Administrator",
    Audience.HARDWARE: "Hardware",
}
_INDENT = "  "
_ITEM = _INDENT * 2 + "• "
_MAX_EVIDENCE = 8
_MAX_VALUE_LINES = 6
_MAX_NAMES = 12
_MAX_DETAILED = 3


def render(
    report: Report, stream: TextIO, *, color: bool | None = None, width: int | None = None
) -> None:
    """Write the report as text.

    `color` None means on a terminal unless NO_COLOR is set; `width` None the terminal's, at most
    100, or 80 where there is none.
    """
    paper = Paper(stream, color=color, width=width)
    _headline(paper, report)
    _count(paper, report)
    _body(paper, report)
    if report.children:
        _children(paper, report)


def _headline(paper: Paper, report: Report) -> None:
    subject = _subject(report.subject)
    verdict = report.verdict.upper()
    paper.text(
        subject + (f", {_time(report.observed_at)}" if report.observed_at else ""),
        first=paper.style(verdict, "bold", _VERDICT_COLOR[report.verdict]) + "  ",
        rest=" " * (len(verdict) + 2),
    )


def _count(paper: Paper, report: Report) -> None:
    """Say how many pods were looked at where only those that are not well are listed."""
    pods = report.facts.get("pods")
    if isinstance(pods, dict) and pods.get("seen", 0) > pods.get("shown", 0):
        paper.text(f"{pods['seen']} pods read, {pods['seen'] - pods['shown']} of them are well.")


def _time(moment: str) -> str:
    """Write an RFC 3339 time as people do."""
    return one_line(moment.replace("T", " ").replace("+00:00", "Z").replace("Z", " UTC"))


def _subject(subject: ReportSubject) -> str:
    name = "/".join(part for part in (subject.namespace, subject.name) if part)
    node = f" on {subject.node}" if subject.node and subject.kind != "Node" else ""
    return one_line(f"{subject.kind} {name}{node}")


def _body(paper: Paper, report: Report) -> None:
    shown: set[str] = set()
    for number, finding_id in enumerate(report.root_ids, 1):
        count = f" {number} of {len(report.root_ids)}" if len(report.root_ids) > 1 else ""
        _root(paper, report, report.finding(finding_id), count, shown)
    if not report.root_ids and not report.children and report.verdict in _WITHOUT_FINDING:
        paper.blank()
        paper.text(_WITHOUT_FINDING[report.verdict])
    rest = [finding for finding in report.findings if finding.id not in shown]
    _list(paper, "Also", (f"{finding.title} [{finding.runbook}]" for finding in rest))
    _list(paper, "Not known", (f"{unknown.what}: {unknown.why}" for unknown in report.unknown))


def _list(paper: Paper, heading: str, lines: Iterable[str]) -> None:
    for number, line in enumerate(lines):
        if number == 0:
            paper.blank()
            paper.text(heading, "bold")
        paper.text(one_line(line), first=f"{_INDENT}• ")


def _root(paper: Paper, report: Report, finding: Finding, count: str, shown: set[str]) -> None:
    shown.add(finding.id)
    paper.blank()
    paper.text(
        one_line(finding.title),
        "bold",
        first=paper.style(f"Root cause{count}: ", "bold", _severity_color(finding.severity)),
        rest=_INDENT * 2,
    )
    if finding.certainty in _CERTAINTY:
        paper.text(f"({_CERTAINTY[finding.certainty]})", first=_INDENT)
    paper.text(shorten(finding.detail), first=_INDENT)
    if finding.evidence:
        _heading(paper, "Evidence")
        for evidence in finding.evidence[:_MAX_EVIDENCE]:
            _evidence(paper, evidence)
        left = len(finding.evidence) - _MAX_EVIDENCE
        if left > 0:
            paper.text(f"{left} more with -o json", first=_ITEM)
    if finding.explains:
        _heading(paper, "This explains")
        _effects(paper, report, finding, shown, 1)
    _advice(paper, finding)


def _heading(paper: Paper, title: str) -> None:
    paper.text(title, "bold", first=_INDENT)


def _severity_color(severity: Severity) -> str:
    return "yellow" if severity is Severity.WARNING else "red"


def _evidence(paper: Paper, evidence: Evidence) -> None:
    where = one_line(" ".join(part for part in (evidence.object, evidence.path) if part))
    note = f" ({one_line(evidence.note)})" if evidence.note else ""
    value = shorten(evidence.value or "").strip()
    if "\n" not in value:
        text = f"{where}: {one_line(value)}" if value else where
        paper.text(text + note, first=_ITEM)
        return
    paper.text(f"{where}:{note}", first=_ITEM)
    lines = value.split("\n")
    for line in lines[:_MAX_VALUE_LINES]:
        paper.text(line, first=_INDENT * 4)
    if len(lines) > _MAX_VALUE_LINES:
        paper.text(f"… {len(lines) - _MAX_VALUE_LINES} more lines", first=_INDENT * 4)


def _effects(paper: Paper, report: Report, cause: Finding, shown: set[str], depth: int) -> None:
    """Write the chain below a cause; what was written before is named, not followed again."""
    effects = [report.finding(effect_id) for effect_id in cause.explains]
    for effect in effects:
        effect_id = effect.id
        if any(effect_id in other.explains for other in effects):
            # It comes below the nearer cause.
            continue
        known = effect_id in shown
        shown.add(effect_id)
        paper.text(
            f"{one_line(effect.title)} [{effect.runbook}]{' (as above)' if known else ''}",
            first=f"{_INDENT * (depth + 1)}→ ",
        )
        if not known:
            _effects(paper, report, effect, shown, depth + 1)


def _advice(paper: Paper, finding: Finding) -> None:
    _heading(paper, "What to do")
    audiences = sorted(Audience, key=lambda audience: audience is not finding.audience)
    for audience in audiences:
        advice = getattr(finding.fixes, audience)
        if not advice:
            continue
        label = f"{_INDENT * 2}{_WHO[audience]}: "
        if "\n" in advice.strip():
            paper.text("", first=label.rstrip())
            paper.text(advice.strip("\n"), first=_INDENT * 3, verbatim=True)
        else:
            paper.text(advice, first=label, rest=_INDENT * 3)
    paper.text(f"gpudoctor runbook {finding.runbook}", "cyan", first=f"{_INDENT * 2}More: ")


def _children(paper: Paper, report: Report) -> None:
    """Write the children by what is wrong with them: worst first, the odd ones before the many."""
    groups: dict[tuple[Verdict, tuple[str, ...]], list[Report]] = {}
    leaves = list(_leaves(report))
    for child in leaves:
        groups.setdefault((child.verdict, child.roots), []).append(child)
    ordered = sorted(
        groups.items(), key=lambda item: (_VERDICT_ORDER.index(item[0][0]), len(item[1]), item[0])
    )
    paper.blank()
    for (verdict, _), members in ordered:
        _group(paper, verdict, members)
    wrong = [members for _, members in ordered if members[0].root_ids]
    for members in wrong[:_MAX_DETAILED]:
        paper.blank()
        label = "For example" if len(members) > 1 else "In detail"
        paper.text(f"{label}: {_subject(members[0].subject)}", "bold")
        _body(paper, members[0])
    if len(wrong) > _MAX_DETAILED:
        paper.blank()
        paper.text(
            f"{len(wrong) - _MAX_DETAILED} other causes in detail: ask about one, or -o json."
        )


def _leaves(report: Report) -> Iterator[Report]:
    """Yield the children, and instead of those that only hold children, theirs."""
    for child in report.children:
        if child.children and not child.findings:
            yield from _leaves(child)
        else:
            yield child


def _group(paper: Paper, verdict: Verdict, members: Sequence[Report]) -> None:
    first = members[0]
    names = ", ".join(_short(member.subject) for member in members[:_MAX_NAMES])
    if len(members) > _MAX_NAMES:
        names += f" and {len(members) - _MAX_NAMES} more"
    if len(members) > 1:
        causes = f" with {', '.join(first.roots)}" if first.roots else ""
        line = f"{len(members)}{causes}: {names}"
    elif first.root_ids:
        others = len(first.root_ids) - 1
        more = f" (and {others} more)" if others else ""
        line = f"{names}: {one_line(first.finding(first.root_ids[0]).title)}{more}"
    elif verdict is Verdict.UNKNOWN and first.unknown:
        line = f"{names}: {one_line(f'{first.unknown[0].what}: {first.unknown[0].why}')}"
    else:
        line = names
    paper.text(
        line, first=paper.style(f"{verdict:8}", _VERDICT_COLOR[verdict]) + "  ", rest=" " * 10
    )


def _short(subject: ReportSubject) -> str:
    name = "/".join(part for part in (subject.namespace, subject.name) if part)
    return one_line(name or subject.kind)
