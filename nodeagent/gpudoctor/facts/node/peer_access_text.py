"""The tables of `nvidia-smi topo -p2p`: which GPU may reach which other's memory, or why not.

The tool prints one table a capability (read, write, NVLink, atomics, PCIe); rows may be indented
by a blank, and tabs become blanks once somebody has pasted them.
"""

from __future__ import annotations

import re

from gpudoctor.facts.node.peer_access import WORDS, PeerAccess, PeerRow
from gpudoctor.facts.node.topology_text import plain
from gpudoctor.report import Subject

_SELF = "X"
_ROW = re.compile(
    rf"^[>\s]*(?P<gpu>GPU\d{{1,3}})(?P<cells>(?:\s+(?:{_SELF}|{'|'.join(WORDS)}))+)\s*$",
    re.MULTILINE,
)
_FEWEST_GPUS = 2


def rows_seen(text: str) -> int:
    """Count the rows, to recognise the table: one at least holds a status."""
    found = [match["cells"].split() for match in _ROW.finditer(plain(text))]
    return len(found) if any(set(cells) & set(WORDS) for cells in found) else 0


def parse(text: str, subject: Subject, source: str) -> PeerAccess | None:
    """Read all tables; None without any row that can be one."""
    rows = []
    for number, line in enumerate(plain(text).splitlines(), 1):
        match = _ROW.match(line)
        cells = match["cells"].split() if match else []
        if match is None or len(cells) < _FEWEST_GPUS or cells.count(_SELF) != 1:
            continue
        statuses = {f"GPU{n}": cell for n, cell in enumerate(cells) if cell != _SELF}
        if match["gpu"] not in statuses:
            rows.append(PeerRow(match["gpu"], statuses, line.strip(), number))
    return PeerAccess(subject, source, tuple(rows)) if rows else None
