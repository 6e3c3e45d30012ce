"""Reports inside a log that are read line by line: of `ncclras`, and of the tool that reads flight
records. Few of their lines name NCCL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudoctor.facts.nccl import ras
from gpudoctor.facts.nccl.records import plain
from gpudoctor.facts.nccl.state import Place

if TYPE_CHECKING:
    from gpudoctor.facts.nccl import flight
    from gpudoctor.facts.nccl.model import FlightGap

FLIGHT = b"Not all ranks joining collective"
"""With what the report on flight records begins."""


def begins(line: bytes) -> bool:
    """Tell the line with which a report begins."""
    return ras.begins(line) or (FLIGHT in line and b" NCCL INFO " not in line)


class Reports:
    """Takes parts of a log; one that was read is not read again."""

    def __init__(self, place: Place) -> None:
        self.ras = ras.Reader()
        self._flight: flight.Reader | None = None
        self._place = place
        self._last = 0
        """The first line of the part that was read last."""

    @property
    def is_open(self) -> bool:
        """Whether the next line may belong to a report."""
        return self.ras.is_open or (self._flight is not None and self._flight.is_open)

    def open(self) -> None:
        """Begin with another source; its lines count from 1."""
        self._last = 0

    def gaps(self) -> tuple[FlightGap, ...]:
        """The collectives that not all ranks joined."""
        return tuple(self._flight.gaps()) if self._flight is not None else ()

    def read(self, source: str, first: int, part: bytes) -> None:
        """Read the reports in some whole lines, of which the first has this number."""
        if first == self._last:
            return
        self._last = first
        for number, line in enumerate(part.split(b"\n")[:-1], first):
            if self.is_open or begins(line):
                text = plain(line)
                self._place.at(source, number, text)
                if self.ras.is_open or ras.begins(line):
                    self.ras.read(text, self._place.line())
                if self._flight is None and FLIGHT in line:
                    self._flight = _flight_reader()
                if self._flight is not None:
                    self._flight.read(text, self._place.line())


def _flight_reader() -> flight.Reader:
    from gpudoctor.facts.nccl.flight import Reader  # imported late: few logs have it

    return Reader()
