"""What the agent of a node found out there, told again beside what is seen from outside."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, relayed
from gpudoctor.facts.kubernetes.relayed import Relayed

CHECKS = CheckSet()


@CHECKS.check(Relayed)
def published_by_the_agent(published: Relayed) -> Iterator[Result]:
    """A Diagnosis that is fresh has findings; one that is stale is not used, and that is said."""
    yield from published.unknown
    evidence = () if published.where is None else (published.where,)
    for finding in published.findings:
        yield relayed(finding, evidence=evidence, related=(published.about, published.node))
