"""What NCCL says of its channels: which rank reaches which, over what."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpudoctor.facts.nccl.state import Place, Process, Transports

_CHANNEL = re.compile(
    rb"(?:Channel|Ring) \d+(?:/\d+)? ?: ?(\d+)(?:\[[^\]]*\])? -> (\d+)(?:\[[^\]]*\])?"
    rb"(?: \[(send|receive)\])? via (.+)"
)
# As text: compiled once there is a large log.
_USUAL_LINES = (
    rb"(?:([^ \n]+):\d++( \[\d++\]) NCCL INFO Channel \d\d"
    rb"(/\d++ : (\d++)\[\d++\] -> (\d++)\[\d++\](?: \[(send|receive)\])?"
    rb" via ([A-Za-z0-9/ ()_-]*+(?<=[A-Za-z0-9])))|[^\n]*)\n"
)
_NET = re.compile(rb"NET/([^/]+)/(\d+)(\(\d+\))?(.*)")
_PER_PROCESS_LIMIT = 1 << 12
_WAYS_LIMIT = 1 << 12


class _Way(NamedTuple):
    """What follows ` via `: the transport's number, and its name if it is no network's, else
    network, NIC, whether it is GPUDirect RDMA, and whether another rank passes it on (PXN).
    """

    code: int
    local: str
    network: str
    nic: int
    gdr: bool
    passed_on: bool


Said = tuple[bytes, ...]
"""What a channel line of the usual form says: host and pid, device; all that follows the channel's
number, and in it the two ranks, the direction, and the way. What is not said is empty.
"""


def usual_lines(lines: list[bytes]) -> list[Said]:
    """What lines say that begin with their record; all empty where that has no usual form."""
    return re.findall(_USUAL_LINES, b"\n".join((*lines, b"")))


class Channels:
    """Reads channel lines; what differs between those of one way is the ranks."""

    def __init__(self, place: Place) -> None:
        self.transports = Transports()
        self._place = place
        self._ways: dict[bytes, _Way] = {}

    def read(self, process: Process, text: bytes) -> None:
        """Read the text of a channel line."""
        match = _CHANNEL.match(text)
        if match is None:
            return
        first, second, side, via = match.groups(b"")
        self.connect(process, first, second, side, via)

    def connect(
        self, process: Process, first: bytes, second: bytes, direction: bytes, via: bytes
    ) -> None:
        """Note that the first rank sends to the second this way; the direction is said by networks
        only.
        """
        way = self._ways.get(via) or self._way(via)
        if way.local:
            process.local.add(way.local)
        elif len(process.net) < _PER_PROCESS_LIMIT:
            process.use_net(way.network, way.nic, direction.decode(), way.gdr, self._place.line)
            if not way.passed_on:
                process.own_nics.add(way.nic)
        source, target = int(first[:9]), int(second[:9])
        if direction == b"receive":
            process.connect(target, source, way.code)
        else:
            process.connect(source, target, way.code)

    def _way(self, via: bytes) -> _Way:
        net = _NET.match(via)
        if net is None:
            name = via.decode("utf-8", "replace").strip()
            way = _Way(self.transports.code(name), name, "", 0, gdr=False, passed_on=False)
        else:
            network = net[1].decode("utf-8", "replace")
            gdr = b"/G" in net[4]  # also where the line was cut inside /GDRDMA
            code = self.transports.code(f"NET/{network}" + ("/GDRDMA" if gdr else ""))
            way = _Way(code, "", network, int(net[2][:9]), gdr, passed_on=net[3] is not None)
        if len(self._ways) >= _WAYS_LIMIT:
            self._ways.clear()
        self._ways[via] = way
        return way
