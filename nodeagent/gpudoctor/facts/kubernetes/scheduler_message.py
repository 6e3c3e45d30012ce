"""The text of FailedScheduling events and of the PodScheduled condition, over all versions.

`0/N nodes are available: k reason, k reason. <postfilter>` (kube-scheduler; a PreFilter failure
is one sentence without counts). Reasons are a histogram: one node can count for several.
Source: kubernetes pkg/scheduler/framework/types.go (FitError) and preemption; Volcano prints
`nodes are unavailable`.
"""

from __future__ import annotations

import re

import msgspec

# As text: re compiles, once, what there is a message for.
_HEAD = r"(?P<fit>\d+)/(?P<nodes>\d+) nodes are (?:un)?available:?\s*"
_PREEMPTION = r"(?i)\bpreemption:\s*"
_COUNTED = r"(?:^|,\s+|\.\s+)(?P<count>\d+)\s+(?=\S)"
_POST_FILTER = r"\.\s+(?!\d).*$"
_INSUFFICIENT = re.compile(r"Insufficient (?P<resource>\S+?)[.,]?$")
_TAINT = re.compile(r"taint \{(?P<key>[^:}]+):?\s*(?P<value>[^}]*)\}")
_MAX_CHARS = 64 * 1024

NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"


class Reason(msgspec.Struct, frozen=True):
    """One entry of the histogram: how many nodes gave that reason; None where none is printed."""

    count: int | None
    text: str

    @property
    def insufficient(self) -> str | None:
        """The resource of an `Insufficient R` reason."""
        match = _INSUFFICIENT.search(self.text)
        return match["resource"] if match else None

    @property
    def taint(self) -> tuple[str, str] | None:
        """Key and value of the taint, where the version prints them."""
        match = _TAINT.search(self.text)
        return (match["key"].strip(), match["value"].strip()) if match else None


class SchedulerMessage(msgspec.Struct, frozen=True):
    """A parsed message. `nodes` is the N of 0/N, control plane included; None without counts."""

    nodes: int | None
    reasons: tuple[Reason, ...]
    preemption: tuple[Reason, ...]

    def count(self, phrase: str) -> int:
        """How many nodes gave a reason that contains the phrase (case does not matter)."""
        wanted = phrase.lower()
        return sum(
            1 if reason.count is None else reason.count
            for reason in self.reasons
            if wanted in reason.text.lower()
        )

    def insufficient(self) -> dict[str, int]:
        """Nodes that lack each resource."""
        return {
            resource: reason.count or 0
            for reason in self.reasons
            if (resource := reason.insufficient)
        }

    def unhelpful(self) -> int:
        """Nodes that no preemption could free: request above allocatable, label, taint."""
        return sum(r.count or 0 for r in self.preemption if NOT_HELPFUL.lower() in r.text.lower())

    def without_victims(self) -> int:
        """Nodes where the pod would fit if something were evicted, but nothing may be."""
        return sum(r.count or 0 for r in self.preemption if NO_VICTIMS.lower() in r.text.lower())


def parse(message: str) -> SchedulerMessage:
    """Parse any scheduler's message; text of no known form is one reason without a count."""
    text = " ".join(message[:_MAX_CHARS].split())
    head, preemption = text, ""
    cut = re.search(_PREEMPTION, text)
    if cut:
        head, preemption = text[: cut.start()], text[cut.end() :]
    match = re.search(_HEAD, head)
    nodes = int(match["nodes"]) if match and len(match["nodes"]) < 10 else None
    # What PostFilter plugins say follows the full stop, with or without "preemption:": "no new
    # claims to deallocate", "still not schedulable", "not found".
    body = re.sub(_POST_FILTER, "", head[match.end() :]) if match else head
    return SchedulerMessage(nodes, _reasons(body), _reasons(re.sub(_HEAD, "", preemption, count=1)))


def _reasons(body: str) -> tuple[Reason, ...]:
    body = body.strip().rstrip(".").strip()
    if not body:
        return ()
    starts = list(re.finditer(_COUNTED, body))
    if not starts or starts[0].start() != 0:
        return (Reason(None, body),)
    ends = [start.start() for start in starts[1:]] + [len(body)]
    return tuple(
        Reason(int(start["count"][:9]), body[start.end() : end].strip(" ,."))
        for start, end in zip(starts, ends, strict=True)
    )
