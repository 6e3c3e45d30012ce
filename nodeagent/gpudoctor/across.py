"""Links causes across a report and its children: a job and its pods.

What NCCL says in the logs of all pods is judged once, for the job; why a pod has no adapter, or a
node no GPU, is found at the pod. Here the two meet: the pod's finding that explains the job's is
taken up into the job's report as its cause, with what lies beneath it, and the job's finding that
explains a pod's is handed down to the pod's report. As within one report, a finding explains
another when its runbook says so and both concern the same pod or node.

A rank that waits or loses its peer says only for whom. There whatever is the root at that member,
be it an image that cannot be pulled, is the cause, and no runbook has to name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpudoctor.catalogue import Catalogue
from gpudoctor.diagnosis import roots_of, worst_first
from gpudoctor.report import Finding, Layer, Report, Severity, Subject, Verdict

_MOST_ALIKE = 16
"""Of one name are taken up: in a job of a thousand pods a thousand may lack the same resource."""

Touched = Mapping[str, frozenset[Subject]]
"""Finding id -> the objects that it concerns, or waits for."""

_NO_CAUSE = "insufficient-evidence"
_OWN_MATTER = ("application-error",)


class _TakenUp:
    """What goes from the children's reports into the parent's: of one name only so many."""

    def __init__(self) -> None:
        self.findings: dict[str, Finding] = {}
        self._alike: Counter[str] = Counter()

    def take(self, cause: Finding, own: Mapping[str, Finding]) -> bool:
        """Take a cause up with all that lies beneath it; False if there are enough like it."""
        if cause.id not in self.findings:
            if self._alike[cause.name] >= _MOST_ALIKE:
                return False
            self._alike[cause.name] += 1
        self.findings |= {found.id: found for found in _with_causes(cause, own)}
        return True


def link(parent: Report, touched: Touched, awaited: Touched, catalogue: Catalogue) -> Report:
    """Return the parent with its children, linked both ways."""
    up = _TakenUp()
    links: set[tuple[str, str]] = set()
    linked = []
    for child in parent.children:
        own = _by_id(child)
        down: dict[str, Finding] = {}
        for cause, effect in _links(parent, child, touched, catalogue):
            if cause.id not in own:
                down[cause.id] = cause
            elif not up.take(cause, own):
                continue
            links.add((cause.id, effect.id))
        linked.append(_relinked(child, (*child.findings, *down.values()), links) if down else child)
    known = (*parent.findings, *up.findings.values())
    for child, effect, cause in _awaited(known, parent, awaited):
        if up.take(cause, _by_id(child)):
            links.add((cause.id, effect.id))
    findings = _unique((*parent.findings, *up.findings.values()))
    parent = _relinked(parent, findings, links) if up.findings else parent
    return msgspec.structs.replace(parent, children=tuple(linked))


def take_up(report: Report, members: Iterable[Report], awaited: Touched) -> Report:
    """Return a pod's report with the roots of those members that it waits for.

    An error of another's program says no more than that this one waits for it: it stays there. What
    NCCL's log says is of the whole job, and no more a matter of the member than of this pod.
    """
    up = _TakenUp()
    links: set[tuple[str, str]] = set()
    around = msgspec.structs.replace(report, children=tuple(members))
    for child, effect, cause in _awaited(report.findings, around, awaited):
        is_shared = cause.layer is Layer.NCCL or cause.name in _OWN_MATTER
        if not is_shared and up.take(cause, _by_id(child)):
            links.add((cause.id, effect.id))
    if not links:
        return report
    joined = _relinked(report, _unique((*report.findings, *up.findings.values())), links)
    worst = joined.worst()
    if worst is not None and worst.rank >= Severity.ERROR.rank:
        joined = msgspec.structs.replace(joined, verdict=Verdict.FAILING)
    return joined


def _by_id(report: Report) -> dict[str, Finding]:
    return {finding.id: finding for finding in report.findings}


def _links(
    parent: Report, child: Report, touched: Touched, catalogue: Catalogue
) -> Iterator[tuple[Finding, Finding]]:
    """Yield (cause, effect) between the two reports."""
    subject = child.subject
    member = Subject(subject.kind, subject.name or "", subject.namespace)
    for above in parent.findings:
        concerned = touched.get(above.id, frozenset())
        for below in child.findings:
            if not concerned & {member, _bare(below.subject)}:
                continue
            if _explains(below, above, catalogue):
                yield below, above
            elif _explains(above, below, catalogue):
                yield above, below


def _awaited(
    findings: Iterable[Finding], parent: Report, awaited: Touched
) -> Iterator[tuple[Report, Finding, Finding]]:
    """Yield (child, effect, cause) for findings that wait for a member that cannot run."""
    members = {
        Subject(child.subject.kind, child.subject.name or "", child.subject.namespace): child
        for child in parent.children
    }
    for effect in _unique(findings):
        for subject in sorted(awaited.get(effect.id, ()), key=str):
            child = members.get(subject)
            if child is None:
                continue
            for cause in child.findings:
                if _keeps_from_running(cause, child, awaited):
                    yield child, effect, cause


def _keeps_from_running(finding: Finding, child: Report, awaited: Touched) -> bool:
    """Whether it is a root of a member's own trouble, and not of what others did to it."""
    return (
        finding.id in child.root_ids
        and finding.severity.rank >= Severity.ERROR.rank
        and finding.id not in awaited
        and finding.name != _NO_CAUSE
    )


def _bare(subject: Subject) -> Subject:
    return Subject(subject.kind, subject.name, subject.namespace)


def _explains(cause: Finding, effect: Finding, catalogue: Catalogue) -> bool:
    entry = catalogue.get(cause.name)
    loud = cause.severity is not Severity.INFO
    return loud and entry is not None and effect.name in entry.explains


def _with_causes(finding: Finding, known: Mapping[str, Finding]) -> Iterator[Finding]:
    """Yield a finding and all that lies beneath it."""
    waiting, seen = [finding.id], {finding.id}
    while waiting:
        found = known.get(waiting.pop())
        if found is not None:
            yield found
            fresh = [cause for cause in found.caused_by if cause not in seen]
            seen.update(fresh)
            waiting += fresh


def _unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple({finding.id: finding for finding in findings}.values())


def _relinked(report: Report, findings: tuple[Finding, ...], links: set[tuple[str, str]]) -> Report:
    """Return a report of these findings with the links among them and its roots anew."""
    here = {finding.id for finding in findings}
    explains: dict[str, list[str]] = {one: [] for one in here}
    caused_by: dict[str, list[str]] = {one: [] for one in here}
    known = {(cause, found.id) for found in findings for cause in found.caused_by}
    for cause, effect in sorted(known | links):
        if cause in here and effect in here:
            explains[cause].append(effect)
            caused_by[effect].append(cause)
    joined = sorted(
        (
            msgspec.structs.replace(
                finding,
                explains=tuple(explains[finding.id]),
                caused_by=tuple(caused_by[finding.id]),
            )
            for finding in findings
        ),
        key=worst_first,
    )
    roots = roots_of(joined)
    names = {finding.id: finding.name for finding in joined}
    return msgspec.structs.replace(
        report,
        findings=tuple(joined),
        root_ids=roots,
        roots=tuple(dict.fromkeys(names[root] for root in roots)),
    )
