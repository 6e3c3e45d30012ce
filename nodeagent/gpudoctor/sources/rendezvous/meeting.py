"""The rendezvous as one call, whichever member we are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gpudoctor.sources.rendezvous import Outcome, Plan
from gpudoctor.sources.rendezvous.guest import Guest
from gpudoctor.sources.rendezvous.hub import Hub


def meet(plan: Plan, report: dict[str, Any], say: Callable[[str], None]) -> Outcome:
    """Take part as the plan says, with a report of at most `wire.MOST_REPORT` bytes as JSON."""
    part: Hub | Guest = (Guest if plan.rank else Hub)(plan, report, say)
    return asyncio.run(part.run())


def stay_away(plan: Plan, report: dict[str, Any], why: str, say: Callable[[str], None]) -> None:
    """Tell the others that we do not take part; as member 0 there is nobody to tell."""
    if plan.rank:
        asyncio.run(Guest(plan, report, say).leave(why))
