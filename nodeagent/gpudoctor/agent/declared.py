"""The node's verdict as it is declared, in label and condition, for the scheduler to act on.

It needs two agreeing rounds, and while the cluster-wide brake is on it does not turn bad. What a
life before declared is taken over where the first round sees the same, else it is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpudoctor.agent.subjects import REWORDED, signature
from gpudoctor.agent.truth import Track, advance
from gpudoctor.publish import condition, labels, names
from gpudoctor.publish.brake import Braked
from gpudoctor.publish.writes import Write
from gpudoctor.report import Report, Verdict

KEY = names.label(labels.VERDICT)
_BEFORE = "declared by a life before"
_CONFIRMING = "Confirming"


class Declared:
    """`braked` is asked before the verdict turns bad, and each round while that is held back."""

    def __init__(self, node: str, braked: Callable[[], Braked | None]) -> None:
        self._node = node
        self._braked = braked
        self._track: Track | None = None
        self._round = 0
        self._report: Report | None = None
        self.held: Braked | None = None

    def adopt(
        self, report: Report, known: Mapping[str, str], before: Mapping[str, Any] | None
    ) -> bool:
        """Take over what stands on the node when the agent starts; whether it is what we see.

        `known` are the node's labels, `before` its condition of ours.
        """
        now = condition.of(report)
        same = (
            before is not None
            and (before.get("status"), before.get("reason")) == (now.status, now.reason)
            and known.get(KEY) == labels.desired(report).get(KEY)
        )
        if same:
            self._track, self._report = Track(signature(report), seen=True), report
        else:
            stood = KEY in known or (before is not None and before.get("status") != "Unknown")
            self._track = Track(_BEFORE if stood else None)
        return same

    def see(self, report: Report, number: int) -> None:
        """Take in a round's report, after `adopt`."""
        assert self._track is not None
        seen = signature(report)
        advanced = advance(self._track, seen, number)
        turns = advanced.stands is not None and advanced.stands != self._track.stands
        self.held = None
        if turns and report.verdict is Verdict.FAILING and not self._is_bad():
            self.held = self._braked()
            if self.held is not None:
                return  # the next round that agrees asks again
        if advanced.stands != self._track.stands:
            self._report = report if advanced.stands is not None else None
            self._round = number
        elif seen is not None and seen == advanced.stands and number - self._round >= REWORDED:
            self._report, self._round = report, number
        self._track = advanced

    def label(self) -> dict[str, str]:
        """Return the verdict's label, none where nothing is declared."""
        if self._report is None:
            return {}
        value = labels.desired(self._report).get(KEY)
        return {} if value is None else {KEY: value}

    def condition(self, report: Report, before: Mapping[str, Any] | None, now: str) -> Write | None:
        """Return the write of the condition, None where it stands as it should."""
        note = self._note(report)
        if self._report is not None:
            return condition.write(self._node, self._report, before, now, note=note)
        if report.verdict is Verdict.UNKNOWN:
            return condition.write(self._node, report, before, now)
        if note or (before is not None and before.get("status") != "Unknown"):
            message = note or "the agent has started and sees the node otherwise; it looks again"
            return condition.unknown(self._node, _CONFIRMING, message, before, now)
        return None

    def _is_bad(self) -> bool:
        return self._report is not None and self._report.verdict is Verdict.FAILING

    def _note(self, report: Report) -> str:
        if self.held is None:
            return ""
        roots = ", ".join(report.roots) or str(report.verdict)
        return (
            f"Held by the cluster-wide brake since {self.held.since} ({self.held.why}):"
            f" this node looks failing ({roots}) and is not declared so."
        )
