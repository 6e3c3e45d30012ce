"""The table of situations and what gpudoctor answered, kept over the runs of all lines."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.admin import JSON

RECORD_VARIABLE = "RECORD_SCHEDULER_MESSAGES"
# Namespace, uid and generated name, which differ from run to run.
_TELLING = re.compile(
    r"\bs\d+-[a-z0-9-]+(?=/)|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|train-\w{5}"
)
_SAME = "x"
_NOT_KEPT = ("metadata", "involvedObject", "source", "eventTime", "firstTimestamp",
             "lastTimestamp", "lastTransitionTime", "lastProbeTime", "reportingInstance",
             "observedGeneration")  # fmt: skip


@dataclass
class Answers:
    """The answers on one line; `messages` are the scheduler's own."""

    line: str
    given: dict[str, str] = field(default_factory=dict)
    messages: dict[str, JSON] = field(default_factory=dict)

    def add(
        self, situation: str, roots: Iterable[str], *, right: bool, event: JSON, requests: int
    ) -> None:
        """Note an answer, the message that it had to read, and the requests that it cost."""
        words = ", ".join(sorted(roots)) or "no cause"
        self.given[situation] = f"{'' if right else 'WRONG '}{words} ({requests})"
        if event:
            kept = {key: value for key, value in event.items() if key not in _NOT_KEPT and value}
            kept["message"] = _TELLING.sub(_SAME, kept["message"])
            self.messages[situation] = kept

    def record(self) -> None:
        """Write the messages into the folder that RECORD_SCHEDULER_MESSAGES names, if any."""
        folder = os.environ.get(RECORD_VARIABLE)
        if folder and self.messages:
            path = Path(folder) / f"{self.line}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.messages, indent=1, sort_keys=True) + "\n")


def table(lines: dict[str, dict[str, str]]) -> Iterator[str]:
    """One row a situation, one column a line: `lines` maps line -> situation -> answer.

    An answer ends with the number of its API requests, without pages of the bound pods.
    """
    names = list(dict.fromkeys(name for given in lines.values() for name in given))
    rows = [["situation", *lines], *([name, *(lines[at].get(name, "-") for at in lines)]
                                     for name in names)]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
