"""Which GPU may reach which other's memory, as the driver says: the facts of `topo -p2p`."""

from __future__ import annotations

import msgspec

from gpudoctor.report import Subject

OK = "OK"
SWITCHED_OFF = "DR"
WORDS = {
    OK: "status OK",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    SWITCHED_OFF: "disabled by a registry key of the driver",
    "U": "unknown",
}


class PeerRow(msgspec.Struct, frozen=True):
    """One GPU's row: its label, the others' statuses by label, and the line."""

    gpu: str
    statuses: dict[str, str]
    text: str
    number: int


class PeerAccess(msgspec.Struct, frozen=True):
    """The tables of one text, row by row."""

    subject: Subject
    source: str
    rows: tuple[PeerRow, ...]
