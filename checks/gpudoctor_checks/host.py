"""The reading of a host itself: what does not answer, and what this user may not see."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.report import Evidence, Severity, Unknown

CHECKS = CheckSet()

_SHOWN = 5


@CHECKS.check(NodeFacts)
def unreadable(facts: NodeFacts) -> Iterator[Result]:
    """Files or commands that hang, or that were refused."""
    if facts.stuck:
        first = facts.stuck[0].removeprefix("cmd:")
        yield finding(
            "host-facts-unreadable",
            facts.subject,
            f"{len(facts.stuck)} readings did not come back in time, first {first}: a driver or "
            "file system hangs, and programs that need it will hang too.",
            *(Evidence(path, None, None, "no answer") for path in facts.stuck[:_SHOWN]),
            values={"what": first, "state": "does not answer"},
        )
        for path in facts.stuck[:_SHOWN]:
            yield Unknown(path, "did not answer in time")
    elif facts.refused:
        yield finding(
            "host-facts-unreadable",
            facts.subject,
            f"Files of this host that this user may not read: {', '.join(facts.refused[:_SHOWN])}"
            f" ({len(facts.refused)} in all). Run it as root, or with the capability that guards "
            "them.",
            *(Evidence(path, None, None, "denied") for path in facts.refused[:_SHOWN]),
            values={"what": facts.refused[0], "state": "may not be read"},
            severity=Severity.INFO,
        )
