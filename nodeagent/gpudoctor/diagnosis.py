"""From facts to a verdict: runs the checks, links causes to what they explain, picks the roots.

A finding explains another when its runbook says so and both concern the same pod, node or
device; one found on a machine explains the same one where a pod shows it. A root is a finding of
severity warning or above that no other present one explains. Where runbooks explain each other in
a circle, the finding on a machine is the cause of the pod's, else that of the lower layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gpudoctor.catalogue import Catalogue, Entry
from gpudoctor.checking import Check, Draft
from gpudoctor.registry import Registry
from gpudoctor.report import (
    Audience,
    Certainty,
    Finding,
    Fixes,
    Report,
    ReportSubject,
    Severity,
    Subject,
    Unknown,
    Verdict,
)

_MACHINES = ("Node", "Host")


class RuleError(Exception):
    """A rule that breaks the contract with the catalogue; its finding becomes an unknown."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Linked findings, worst first, the ids of the roots among them, and what is unknown.

    `needed_unknown` says that a check could not judge, for want of a fact or because it broke.
    `touched` has the objects that each finding concerns, by its id, `awaited` the members of the
    job that those findings wait for that wait for any, `lost` those that ended before.
    """

    findings: tuple[Finding, ...]
    root_ids: tuple[str, ...]
    unknown: tuple[Unknown, ...]
    needed_unknown: bool = False
    touched: dict[str, frozenset[Subject]] = {}
    awaited: dict[str, frozenset[Subject]] = {}
    lost: dict[str, frozenset[Subject]] = {}

    @property
    def missed(self) -> dict[str, frozenset[Subject]]:
        """The members that each finding waits for or lost."""
        none: frozenset[Subject] = frozenset()
        keys = (*self.awaited, *(key for key in self.lost if key not in self.awaited))
        return {key: self.awaited.get(key, none) | self.lost.get(key, none) for key in keys}


def diagnose(
    registry: Registry,
    facts: Sequence[object],
    *,
    otherwise: Sequence[object] = (),
    around: Sequence[object] = (),
    concern: Callable[[Draft, Entry], Draft | None] = lambda draft, _entry: draft,
    is_complete: Callable[[str], bool] = lambda _kind: True,
    unknown: Iterable[Unknown] = (),
    selected: Callable[[Entry], bool] = lambda _entry: True,
    kept: Callable[[Draft, Entry], bool] = lambda _draft, _entry: True,
) -> Diagnosis:
    """Run every check whose fact type is among `facts` and link what they find.

    The checks of `otherwise` run only where nothing of severity warning or above was found.
    `around` are facts about the subject's surroundings, such as the machine that a pod runs on:
    of what is found there, `concern` returns how it stands for the subject, None where it does
    not touch it. It explains what is found in `facts`, and does not stand in for `otherwise`.
    `is_complete(kind)` says whether the input holds all objects of that kind; findings that
    lean on a kind it does not are at most `likely`. `unknown` are the facts that the sources
    could not read. `selected` leaves out findings by their catalogue entry, `kept`
    single occurrences, as a site's waivers do.
    """
    drafts, unknowns = _run_all(registry, facts)
    if all((d.severity or e.severity) is Severity.INFO for d, e in drafts if kept(d, e)):
        more, missing = _run_all(registry, otherwise)
        drafts += more
        unknowns += missing
    needed_unknown = bool(unknowns)
    beside, missing = _run_all(registry, around)
    drafts += [(own, entry) for draft, entry in beside if (own := concern(draft, entry))]
    drafts = [(draft, entry) for draft, entry in drafts if selected(entry) and kept(draft, entry)]
    unknowns = [*registry.broken, *unknown, *unknowns, *missing]
    merged = _merge(drafts)
    findings = _link(merged, is_complete)
    return Diagnosis(
        findings=findings,
        root_ids=roots_of(findings),
        unknown=tuple(dict.fromkeys(unknowns)),
        needed_unknown=needed_unknown,
        touched={key: frozenset(_touches(draft)) for key, (draft, _) in merged.items()},
        awaited={key: frozenset(d.awaits) for key, (d, _) in merged.items() if d.awaits},
        lost={key: frozenset(d.lost) for key, (d, _) in merged.items() if d.lost},
    )


def _run_all(
    registry: Registry, facts: Sequence[object]
) -> tuple[list[tuple[Draft, Entry]], list[Unknown]]:
    drafts: list[tuple[Draft, Entry]] = []
    unknowns: list[Unknown] = []
    for check in registry.checks_for(facts):
        for part in facts:
            if isinstance(part, check.takes):
                found, missing = _run(check, part, registry.catalogue)
                drafts += found
                unknowns += missing
    return drafts, unknowns


def _run(
    check: Check, part: Any, catalogue: Catalogue
) -> tuple[list[tuple[Draft, Entry]], list[Unknown]]:
    """Run one check; an exception in it becomes an unknown and keeps what came before."""
    found: list[tuple[Draft, Entry]] = []
    missing: list[Unknown] = []
    try:
        for result in check.run(part):
            if isinstance(result, Unknown):
                missing.append(result)
            elif result.told is not None and catalogue.get(result.name) is None:
                why = f"{result.told.title} ({result.told.code}): this version has no runbook of it"
                missing.append(Unknown(f"finding {result.name}", why))
            else:
                found.append((result, _entry_of(result, catalogue)))
    except Exception as error:  # noqa: BLE001 - one broken rule must not hide the others
        why = f"the check failed: {type(error).__name__}: {error}"
        missing.append(Unknown(f"check {check.name}", why))
    return found, missing


def _entry_of(draft: Draft, catalogue: Catalogue) -> Entry:
    entry = catalogue.get(draft.name)
    if entry is None:
        raise RuleError(f"no runbook for finding {draft.name}")
    if draft.told is not None:
        return entry
    if draft.severity not in (None, entry.severity, *entry.may_be):
        raise RuleError(f"runbook {entry.code} does not allow severity {draft.severity}")
    return entry


def _merge(drafts: list[tuple[Draft, Entry]]) -> dict[str, tuple[Draft, Entry]]:
    """Key drafts by id; one found by two rules is one, with the evidence of both."""
    merged: dict[str, tuple[Draft, Entry]] = {}
    for draft, entry in drafts:
        key = f"{draft.name}@{draft.subject}"
        if key in merged:
            draft = _join(merged[key][0], draft, entry)
        merged[key] = (draft, entry)
    return merged


def _join(first: Draft, second: Draft, entry: Entry) -> Draft:
    """Keep the words of the surer draft, of the worse one if both are as sure; evidence of both."""
    lead, other = sorted(
        (first, second),
        key=lambda draft: (-draft.certainty.rank, -(draft.severity or entry.severity).rank),
    )
    return msgspec.structs.replace(
        lead,
        evidence=tuple(dict.fromkeys(lead.evidence + other.evidence)),
        related=tuple(dict.fromkeys(lead.related + other.related)),
        awaits=tuple(dict.fromkeys(lead.awaits + other.awaits)),
        lost=tuple(dict.fromkeys(lead.lost + other.lost)),
        leans_on=lead.leans_on
        if lead.certainty is not other.certainty
        else (tuple(kind for kind in lead.leans_on if kind in other.leans_on)),
    )


def _link(
    drafts: dict[str, tuple[Draft, Entry]], is_complete: Callable[[str], bool]
) -> tuple[Finding, ...]:
    explains = {key: _explained_by(key, drafts) for key in drafts}
    _break_circles(explains, drafts)
    caused_by: dict[str, list[str]] = {key: [] for key in drafts}
    for cause, effects in explains.items():
        for effect in effects:
            caused_by[effect].append(cause)
    findings = [
        _finding(key, draft, entry, explains[key], caused_by[key], is_complete)
        for key, (draft, entry) in drafts.items()
    ]
    return tuple(sorted(findings, key=worst_first))


def roots_of(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the ids of the findings that no other one of severity warning or above explains."""
    severities = {finding.id: finding.severity for finding in findings}
    return tuple(
        finding.id
        for finding in findings
        if finding.severity is not Severity.INFO
        and all(severities[cause] is Severity.INFO for cause in finding.caused_by)
    )


def _explained_by(key: str, drafts: dict[str, tuple[Draft, Entry]]) -> list[str]:
    draft, entry = drafts[key]
    touched = _touches(draft)
    return [
        other_key
        for other_key, (other, _) in drafts.items()
        if other_key != key
        and (other.name in entry.explains or _is_where_it_is(draft, other))
        and touched & _touches(other)
    ]


def _is_where_it_is(draft: Draft, other: Draft) -> bool:
    """Whether a pod only shows what another draft finds on the machine itself: a lost GPU."""
    return (
        draft.name == other.name
        and draft.subject.kind in _MACHINES
        and other.subject.kind not in _MACHINES
    )


def _touches(draft: Draft) -> set[Subject]:
    """The objects a draft concerns; a device also concerns the object that has it."""
    concerned = {draft.subject, *draft.related}
    return concerned | {
        Subject(subject.kind, subject.name, subject.namespace)
        for subject in concerned
        if subject.device
    }


def _break_circles(explains: dict[str, list[str]], drafts: dict[str, tuple[Draft, Entry]]) -> None:
    """Drop each link that would close a circle: the machine and the lower layers are the cause.

    That a program sees no GPU explains nothing about the node, where the node offers none; that
    the node's own driver sees none explains why it offers none.
    """

    def causes_first(key: str) -> tuple[bool, int, str, str]:
        draft, entry = drafts[key]
        return draft.subject.kind not in _MACHINES, entry.layer.depth, entry.code, key

    order = sorted(explains, key=causes_first)
    kept: dict[str, list[str]] = {key: [] for key in explains}
    for cause in order:
        for effect in explains[cause]:
            if not _reaches(kept, effect, cause):
                kept[cause].append(effect)
    explains.update(kept)


def _reaches(links: dict[str, list[str]], start: str, goal: str) -> bool:
    stack, seen = [start], {start}
    while stack:
        here = stack.pop()
        if here == goal:
            return True
        fresh = [key for key in links[here] if key not in seen]
        seen.update(fresh)
        stack += fresh
    return False


def _finding(
    key: str,
    draft: Draft,
    entry: Entry,
    explains: list[str],
    caused_by: list[str],
    is_complete: Callable[[str], bool],
) -> Finding:
    certainty = draft.certainty
    if certainty is Certainty.CERTAIN and not all(is_complete(kind) for kind in draft.leans_on):
        certainty = Certainty.LIKELY
    told = draft.told
    fixes = _fixes(draft, entry) if told is None else told.fixes
    return Finding(
        id=key,
        code=entry.code,
        name=entry.name,
        layer=entry.layer,
        severity=draft.severity or entry.severity,
        certainty=certainty,
        blame=draft.blame or entry.blame,
        subject=draft.subject,
        title=_fill(entry.title, draft.values) if told is None else told.title,
        detail=draft.detail,
        evidence=draft.evidence,
        explains=tuple(explains),
        caused_by=tuple(caused_by),
        audience=entry.audience,
        fix=getattr(fixes, entry.audience) or "",
        fixes=fixes,
        runbook=entry.code,
    )


def _fixes(draft: Draft, entry: Entry) -> Fixes:
    filled = {
        audience: _fill(text, draft.values)
        for audience in Audience
        if (text := getattr(entry.fixes, audience))
    }
    if draft.fix:
        filled[entry.audience] = draft.fix
    return Fixes(**filled)


class _Values(dict[str, str]):
    """Values of a template; one that the rule did not give is shown as the word itself."""

    def __missing__(self, key: str) -> str:
        return key


def _fill(template: str, values: dict[str, str]) -> str:
    return template.format_map(_Values(values))


def worst_first(finding: Finding) -> tuple[int, int, int, str, str]:
    """Return the key by which findings are sorted in a report."""
    return (
        -finding.severity.rank,
        -finding.certainty.rank,
        finding.layer.depth,
        finding.code,
        finding.id,
    )


def report(
    diagnosis: Diagnosis,
    subject: ReportSubject,
    *,
    observed_at: str | None,
    needed_unknown: bool = False,
    starting: bool = False,
    facts: dict[str, Any] | None = None,
    children: tuple[Report, ...] = (),
) -> Report:
    """Build the report of a diagnosis.

    `needed_unknown` says that a fact which the verdict needs is unknown, so that finding
    nothing is not "healthy"; `starting` that the subject is still on its way up.
    """
    names = {finding.id: finding.name for finding in diagnosis.findings}
    built = Report(
        subject=subject,
        observed_at=observed_at,
        verdict=Verdict.UNKNOWN,
        roots=tuple(dict.fromkeys(names[root] for root in diagnosis.root_ids)),
        root_ids=diagnosis.root_ids,
        findings=diagnosis.findings,
        unknown=diagnosis.unknown,
        children=children,
        facts=facts or {},
    )
    unsure = needed_unknown or diagnosis.needed_unknown
    verdict = _verdict(built, needed_unknown=unsure, starting=starting)
    return msgspec.structs.replace(built, verdict=verdict)


def _verdict(report: Report, *, needed_unknown: bool, starting: bool) -> Verdict:
    worst = report.worst()
    if worst is not None and worst.rank >= Severity.ERROR.rank:
        return Verdict.FAILING
    if worst is Severity.WARNING:
        return Verdict.WARNING
    if needed_unknown or any(member.verdict is Verdict.UNKNOWN for member in report.members):
        return Verdict.UNKNOWN
    if starting or any(member.verdict is Verdict.STARTING for member in report.members):
        return Verdict.STARTING
    return Verdict.HEALTHY
