"""The job of a pod: how many members it wants and which there are; `members` reads it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from gpudoctor.facts.kubernetes.model import Condition, Pod
from gpudoctor.report import Evidence, Subject


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a pod, and how many of its members there are.

    `wanted` is how many it needs to work, `came` those that exist, ended ones and the pod itself
    among them, `ended` how many more have ended well and are gone. `said` is where the number
    stands, `by_object` whether that is the job's own object. `whole` says that every pod of the
    job is in the input. `later` says that members may be made only when this pod is ready.
    `conditions` are the job's, `started` is when the newest of its pods was made.
    """

    job: Subject
    wanted: int
    came: tuple[Pod, ...]
    ended: int
    said: Evidence
    by_object: bool
    whole: bool
    later: bool = False
    conditions: tuple[Condition, ...] = ()
    started: datetime | None = None

    @property
    def missing(self) -> int:
        """How many do not exist, although they should."""
        return 0 if self.later else max(0, self.wanted - len(self.came) - self.ended)
