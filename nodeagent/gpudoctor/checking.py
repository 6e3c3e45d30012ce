"""What a check is written against: drafts of findings, checks, and sets of checks.

A check is a pure function from one type of facts to drafts. A draft names a finding of the
runbook catalogue and adds what only this occurrence knows: the subject, the values, the
evidence. Everything that is the same for each occurrence (code, layer, severity, title,
audience, what it explains) stands in the runbook's front matter and is added later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from gpudoctor.report import Blame, Certainty, Evidence, Finding, Severity, Subject, Unknown

F = TypeVar("F")


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An occurrence of a catalogued finding.

    `values` fill the placeholders of the catalogue's title and fixes. `related` are further
    objects (the pod, its node, a GPU) by which it can be linked to what it explains.
    `leans_on` names the kinds of object whose absence or completeness the answer needs: if
    the input does not hold all of them, the finding is at most `likely`. `awaits` are members of
    the same job that the subject waits for: whatever keeps such a member from running is the cause.
    `lost` are members that ended before the subject did: for the job what ended them is the cause,
    for the subject alone that they ended is. `told` is the finding as another of us made it, whose
    words are kept.
    """

    name: str
    subject: Subject
    detail: str
    evidence: tuple[Evidence, ...]
    values: dict[str, str]
    certainty: Certainty
    severity: Severity | None
    blame: Blame | None
    related: tuple[Subject, ...]
    leans_on: tuple[str, ...]
    fix: str | None
    awaits: tuple[Subject, ...] = ()
    lost: tuple[Subject, ...] = ()
    told: Finding | None = None


def finding(
    name: str,
    subject: Subject,
    detail: str,
    *evidence: Evidence,
    values: dict[str, str] | None = None,
    certainty: Certainty = Certainty.CERTAIN,
    severity: Severity | None = None,
    blame: Blame | None = None,
    related: Iterable[Subject] = (),
    leans_on: Iterable[str] = (),
    fix: str | None = None,
    awaits: Iterable[Subject] = (),
    lost: Iterable[Subject] = (),
) -> Draft:
    """Draft a finding of the catalogue.

    `severity` and `blame` replace the catalogue's default; the runbook must list the severity
    under `may_be`. `fix` replaces the catalogue's advice for its main audience, for example
    with a patch to paste. What several pieces of evidence say alike is said once.
    """
    return Draft(
        name=name,
        subject=subject,
        detail=detail,
        evidence=tuple(dict.fromkeys(evidence)),
        values=values or {},
        certainty=certainty,
        severity=severity,
        blame=blame,
        related=tuple(related),
        leans_on=tuple(leans_on),
        fix=fix,
        awaits=tuple(awaits),
        lost=tuple(lost),
    )


def relayed(told: Finding, *, evidence: tuple[Evidence, ...], related: Iterable[Subject]) -> Draft:
    """Draft a finding that another of us made, such as the agent of a node, in its own words.

    `evidence` says where it was published, before what was read there.
    """
    return Draft(
        name=told.name,
        subject=told.subject,
        detail=told.detail,
        evidence=(*evidence, *told.evidence),
        values={},
        certainty=told.certainty,
        severity=told.severity,
        blame=told.blame,
        related=tuple(related),
        leans_on=(),
        fix=None,
        told=told,
    )


Result = Draft | Unknown


class Check(msgspec.Struct, frozen=True):
    """A rule: which type of facts it takes, and the function that judges them."""

    name: str
    takes: type[Any]
    run: Callable[[Any], Iterable[Result]]


class CheckSet:
    """The rules of one layer or one third party, with the package that holds their runbooks.

    An instance is what an entry point of the group `gpudoctor.checks` names.
    """

    def __init__(self, runbooks: str = "gpudoctor_runbooks") -> None:
        """`runbooks` is an importable package with the Markdown pages and their `index.json`."""
        self.runbooks = runbooks
        self._checks: list[Check] = []

    def check(
        self, takes: type[F]
    ) -> Callable[[Callable[[F], Iterator[Result]]], Callable[[F], Iterator[Result]]]:
        """Register the decorated function as the check of this type of facts."""

        def register(function: Callable[[F], Iterator[Result]]) -> Callable[[F], Iterator[Result]]:
            name = f"{function.__module__}.{function.__name__}"
            self._checks.append(Check(name, takes, function))
            return function

        return register

    def __iter__(self) -> Iterator[Check]:
        return iter(self._checks)
