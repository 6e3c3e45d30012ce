"""What NCCL says of its communicators: who begins one, how many nodes it spans, who has it.

Three such lines a rank and communicator are most of what is new in a large log; so those of the
usual form are read with one match.
"""

from __future__ import annotations

import re

from gpudoctor.facts.nccl.model import Line
from gpudoctor.facts.nccl.state import Comm, Members, Place, Process

_COMM = re.compile(rb"comm (0x[0-9a-f]+|\(nil\)) rank (\d+) n[rR]anks (\d+)(.*)")
_BUS = re.compile(rb"busId ([0-9a-f]{1,12})(?![0-9a-f])")
_COMM_ID = re.compile(rb"commId (0x[0-9a-f]+)")
_SPLIT = re.compile(rb"(?:parent|splitCount|childCount|color|key) (?:0x)?[0-9a-f-]+")
_PARENT = re.compile(rb"parent (0x[0-9a-f]+)")
_NNODES = re.compile(rb"nNodes (\d+)")
# What was matched once stands: the quantifiers with a second plus do not try again.
_FORM = (
    rb"(?:\[Rank \d++\] )?(?:ncclComm\w++ )?"
    rb"comm (0x[0-9a-f]++) rank (\d{1,9}+) n[rR]anks (\d{1,9}+) "
    rb"(?:nNodes (\d{1,9}+) localRanks \d++ localRank \d++ MNNVL ([01])"
    rb"|cudaDev \d++ (?:nvmlDev \d++ )?busId ([0-9a-f]{1,12}+) "
    rb"(?:commId (0x[0-9a-f]++)"
    rb"|parent 0x[0-9a-f]++ (?:splitCount|childCount) \d++ color -?\d++ key -?\d++)"
    rb" ?- Init (?:(START)|COMPLETE))"
)
_USUAL = re.compile(_FORM)
_USUAL_LINES = re.compile(rb"(?:([^ \n]+):\d++( \[\d++\]) NCCL INFO " + _FORM + rb"|[^\n]*)\n")


Said = tuple[bytes, ...]
"""Host and pid, device; pointer, rank, number of ranks; then number of nodes and whether NVLink
joins them, or bus, commId, and START if it begins. What is not said is empty.
"""


def usual(text: bytes) -> Said | None:
    """What a message says that stands alone and has the usual form of a communicator's; who says
    it is left empty.
    """
    match = _USUAL.fullmatch(text)
    return (b"", b"", *match.groups(b"")) if match else None


def usual_lines(lines: list[bytes]) -> list[Said]:
    """What lines say that begin with their record; all empty where that has no usual form."""
    return _USUAL_LINES.findall(b"\n".join((*lines, b"")))


class Communicators:
    """The communicators of a job by commId, or by what older versions print instead."""

    def __init__(self, place: Place) -> None:
        self.known: dict[str, Comm] = {}
        self.run_starts: dict[tuple[str, int], Line] = {}
        """Source and number of a run after the first -> where it begins."""
        self.starts_seen = False
        self.largest: Comm | None = None
        """The one with the most ranks, the first of several."""
        self._place = place
        self._by_id: dict[bytes, Comm] = {}
        self._memberships: dict[frozenset[tuple[int, str]], Members] = {}
        self._members: dict[tuple[str, int, int], Process] = {}
        """Host, rank and size of a communicator -> who began it last."""

    def read_usual(self, process: Process, said: Said) -> bool:
        """Read what a line of the usual form says; False leaves the line to `read`."""
        _, _, pointer, rank, nranks, nodes, mnnvl, bus, identity, start = said
        if process.waited is not None:
            return False
        if start:
            if not identity:
                return False
            size = int(nranks)
            comm = self._by_id.get(identity) or self._identified(identity, size)
            process.pointers[pointer] = comm
            if process.bus is None:
                process.bus = address(int(bus, 16))
            self._begin(process, comm, int(rank), size)
            return True
        known = process.pointers.get(pointer)
        if known is None:
            return False
        if nodes:
            known.span(int(nodes), mnnvl=mnnvl == b"1")
        else:
            known.complete(int(rank), self._memberships)
        return True

    def read(self, process: Process, text: bytes) -> bool:
        """Read a line that may be of a communicator; False when it is not."""
        match = _COMM.search(text)
        if match is None:
            return False
        pointer, digits, size, rest = match.groups()
        rank, nranks = int(digits[:9]), int(size[:9])
        begins = rest.endswith(b"Init START")
        comm = self._of_line(process, pointer, rest, begins, nranks)
        bus = _BUS.search(rest)
        if bus is not None and process.bus is None:
            process.bus = address(int(bus[1], 16))
        if begins:
            self._begin(process, comm, rank, nranks)
        else:
            comm.start(rank, process.host)
            process.ranks[comm.key] = rank
            if rest.endswith(b"Init COMPLETE"):
                comm.complete(rank, self._memberships)
                self.starts_seen = True
            elif nodes := _NNODES.search(rest):
                comm.span(int(nodes[1][:9]), mnnvl=rest.endswith(b"MNNVL 1"))
            elif b"Abort COMPLETE" in rest:
                comm.aborted = True
        if process.waited is not None:
            comm.wait(rank, *process.waited)
            process.waited = None
        return True

    def _begin(self, process: Process, comm: Comm, rank: int, nranks: int) -> None:
        if rank not in comm.started:
            comm.start(rank, process.host)
        process.ranks[comm.key] = rank
        process.join(nranks)
        self.starts_seen = True
        # A process takes the place of one that failed: the job was started again.
        key = (process.host, rank, nranks)
        before = self._members.get(key)
        if before is not process:
            self._members[key] = process
            if before is not None and before.failed is not None:
                process.run = max(process.run, before.run + 1)
        if process.run:
            self._begin_run(process)

    def _begin_run(self, process: Process) -> None:
        source = (self._place.source, process.run)
        if source not in self.run_starts:
            self.run_starts[source] = self._place.line()

    def _of_line(
        self, process: Process, pointer: bytes, rest: bytes, begins: bool, nranks: int
    ) -> Comm:
        """The communicator of a line: by commId, by how it was split, else by its size."""
        known = None if begins else process.pointers.get(pointer)
        if known is not None:
            return known
        identity = _COMM_ID.search(rest)
        if identity is not None:
            comm = self._identified(identity[1], nranks)
        else:
            parent = process.pointers.get(_parent(rest))
            split = b" ".join(_SPLIT.findall(rest)[1:-1]).decode()
            of = parent.key if parent else ""
            comm = self._named(f"{of}/{split}" if split else f"of {nranks} ranks", nranks)
        process.pointers[pointer] = comm
        return comm

    def _identified(self, identity: bytes, nranks: int) -> Comm:
        comm = self._by_id.get(identity)
        if comm is None:
            comm = self._by_id[identity] = self._named(identity.decode(), nranks)
        return comm

    def _named(self, key: str, nranks: int) -> Comm:
        comm = self.known.get(key)
        if comm is None:
            comm = self.known[key] = Comm(key, nranks, self._place.line())
            if self.largest is None or nranks > self.largest.nranks:
                self.largest = comm
        return comm


def _parent(rest: bytes) -> bytes:
    match = _PARENT.search(rest)
    return match[1] if match else b""


def address(number: int) -> str:
    """Turn a bus id as NCCL prints it (1b000, the digits of an address) into `0000:1b:00.0`."""
    device, function = number >> 4 & 0xFF, number & 0xF
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{device:02x}.{function:x}"
