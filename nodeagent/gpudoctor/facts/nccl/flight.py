"""What PyTorch's flight recorder tool (`torchfrtrace`) says of collectives that were not joined.

`Not all ranks joining collective 5 at entry 4` (from 2.9 on `…, sequence number: 5`), then a line
each for the group, the collective and the missing ranks; the first versions say all in one line.
Source: `torch/distributed/flight_recorder` and the tutorial of PyTorch 2.5 to 2.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.facts.nccl.model import FlightGap, Line

BEGIN = b"Not all ranks joining collective"
_LINES_LIMIT = 40
_KEPT = 64
_RANKS_KEPT = 4096
_SEQUENCE = re.compile(rb"joining collective(?:,? sequence number:)? (\d{1,18})")
_MISSING = re.compile(rb"[Mm]issing ranks(?: are|:) *\{([\d, ]+)\}")
_COLLECTIVE = re.compile(rb"\bcollective(?:: (?:nccl:)?| nccl:)([a-z_]+)")
_GROUP = re.compile(rb"(?:group info: |for group )(\S+)")


class Reader:
    """Takes the lines of a log from `BEGIN` on, as long as `is_open`."""

    def __init__(self) -> None:
        self.is_open = False
        self._left = 0
        self._sequence: int | None = None
        self._collective = self._group = ""
        self._found: dict[tuple[str, int | None, tuple[int, ...]], FlightGap] = {}

    def read(self, line: bytes, evidence: Line) -> None:
        """Read a line of the tool's output, or the one with which it begins."""
        if BEGIN in line:
            self.is_open, self._left = True, _LINES_LIMIT
            self._collective = self._group = ""
            sequence = _SEQUENCE.search(line)
            self._sequence = int(sequence[1]) if sequence else None
        elif not self.is_open:
            return
        self._left -= 1
        group = _GROUP.search(line)
        collective = _COLLECTIVE.search(line)
        self._group = group[1].decode("utf-8", "replace") if group else self._group
        self._collective = collective[1].decode() if collective else self._collective
        missing = _MISSING.search(line)
        if missing is not None:
            self._note(missing[1], evidence)
        self.is_open = self._left > 0 and missing is None

    def _note(self, listed: bytes, evidence: Line) -> None:
        numbers = [number.strip() for number in listed.split(b",")]
        ranks = tuple(sorted(int(n) for n in numbers[:_RANKS_KEPT] if n.isdigit() and len(n) < 10))
        key = (self._group, self._sequence, ranks)
        if ranks and key not in self._found and len(self._found) < _KEPT:
            self._found[key] = FlightGap(
                self._group, self._collective, self._sequence, ranks, evidence
            )

    def gaps(self) -> Iterator[FlightGap]:
        """The collectives that some ranks did not join, in the order in which they were told."""
        yield from self._found.values()
