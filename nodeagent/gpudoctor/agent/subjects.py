"""The report on one subject as it is published: it changes when the answer does, not the words."""

from __future__ import annotations

import msgspec

from gpudoctor.agent.truth import AGREEING, Track, advance
from gpudoctor.report import Report, Verdict

REWORDED = 10
"""Rounds after which the words of an unchanged answer are brought up to date: their numbers, such
as a count of errors, may change each round."""


def signature(report: Report) -> str | None:
    """Return what two rounds must agree on: verdict and root causes; None for "cannot tell"."""
    if report.verdict is Verdict.UNKNOWN:
        return None
    return " ".join((report.verdict, *report.root_ids))


class Settled:
    """The report on a node or pod that stands, as the Diagnosis and Events tell it.

    The first one stands at once: nothing stood before, that could be flipped.
    """

    def __init__(self) -> None:
        self._track = Track()
        self._round = 0
        self._other_words = 0
        self.report: Report | None = None
        self.told: Report | None = None
        """The last standing report that could tell; what Events compare with."""

    def see(self, report: Report, number: int, *, renew: bool = False) -> Report | None:
        """Take in a round's report; return the new one where another stands now, else None.

        `renew` takes over the new words of an unchanged answer.
        """
        seen = signature(report)
        stood = self._track.stands
        if self.report is None:
            self._track = Track(seen, seen=True)
        else:
            self._track = advance(self._track, seen, number)
            stands = self._track.stands
            self._other_words = self._other_words + 1 if _reworded(self.report, report) else 0
            due = renew or number - self._round >= REWORDED
            reworded = stands == seen and due and self._other_words >= (1 if renew else AGREEING)
            if stands == stood and not reworded:
                return None
        self.report, self._round, self._other_words = report, number, 0
        return report


def _reworded(one: Report, other: Report) -> bool:
    plain = {"observed_at": None, "children": ()}
    return msgspec.structs.replace(one, **plain) != msgspec.structs.replace(other, **plain)
