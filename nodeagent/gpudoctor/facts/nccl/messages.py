"""What each message says, written into the book of one job.

The text after `NCCL INFO ` or `NCCL WARN ` is told apart by its first word; what is not known
here is looked up among the symptoms. Formats: NCCL 2.4 to 2.31, see `symptoms.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpudoctor.facts.nccl import symptoms
from gpudoctor.facts.nccl.model import Adapters, GdrDistance, HcaGdr, Line
from gpudoctor.facts.nccl.records import Record
from gpudoctor.facts.nccl.state import Comm, Occurrence, Process, Transports

_CHANNEL = re.compile(
    rb"(?:Channel|Ring) \d+(?:/\d+)? ?: ?(\d+)(?:\[[^\]]*\])? -> (\d+)(?:\[[^\]]*\])?"
    rb"(?: \[(send|receive)\])? via (.+)"
)
_NET = re.compile(rb"NET/([^/]+)/(\d+)(\(\d+\))?(.*)")
_COMM = re.compile(rb"comm (0x[0-9a-f]+|\(nil\)) rank (\d+) n[rR]anks (\d+)(.*)")
_BUS = re.compile(rb"busId ([0-9a-f]{1,12})(?![0-9a-f])")
_COMM_ID = re.compile(rb"commId (0x[0-9a-f]+)")
_SPLIT = re.compile(rb"(?:parent|splitCount|childCount|color|key) (?:0x)?[0-9a-f-]+")
_NNODES = re.compile(rb"nNodes (\d+)")
_SETTING = re.compile(rb"(NCCL_\w+) set (?:by environment )?to (.*)")
_USING = re.compile(rb"NET/([^ :]+) ?: Using (.*)")
_HCA = re.compile(rb"\[\d+\](=\{.*?\}|[^ ;]+)")
_HCA_GDR = re.compile(rb"NET/(.+?) ?: GPU Direct RDMA (Enabled|Disabled) for HCA (\S+) '([^']*)'")
_DISTANCE = re.compile(
    rb"GPU Direct RDMA (Enabled|Disabled) for "
    rb"(?:GPU ?/?(?P<gpu>[\w./:-]+)(?: \(rank \d+\))?) ?[-/] (?:HCA|NET)[ /](?P<hca>[\w./:-]+)"
    rb".*?\(distance (?P<distance>\d+) [<>]=? (?P<limit>\d+)\)(?:,? read (?P<read>[01]))?"
)
_RETURN = re.compile(rb"\S+:\d+ -> (\d+)")
_TIMINGS = re.compile(rb"Bootstrap timings total [\d.]+ .*?recv (\d+\.?\d*)")
_INIT_TIMINGS = re.compile(
    rb"Init timings - \w+: rank (\d+) nranks (\d+) total [\d.]+ \(.*?bootstrap (\d+\.?\d*)"
)
_BARE_VERSION = re.compile(rb"(?:^|[^\w])NCCL version (\d+\.\d+[\w.]*)")
_VERSION = re.compile(rb"NCCL version (\d+\.\d+[\w.]*)")

_ADDRESS = re.compile(rb"Using [^ :]+:([0-9A-Fa-f.:]+)<")

_TEXT_LIMIT = 400
_EVENTS_LIMIT = 1 << 14
_PER_PLACE_LIMIT = 1 << 12
_IN_PROGRESS = 7
_UNKNOWN = symptoms.Symptom("warning", b"", None, ("text",))


class Book:
    """Everything said so far, by process, communicator and kind."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.transports = Transports()
        self.comms: dict[str, Comm] = {}
        self.versions: dict[str, Line] = {}
        self.settings: dict[tuple[str, str], tuple[Line, set[str]]] = {}
        self.adapters: dict[tuple[str, tuple[str, ...]], Adapters] = {}
        self.hca_gdr: dict[tuple[str, str, str], HcaGdr] = {}
        self.distances: dict[tuple[str, str, str], tuple[GdrDistance, Process]] = {}
        self.events: dict[tuple[str, ...], Occurrence] = {}
        self.addresses: dict[str, str] = {}
        """Address of the control connections -> host."""
        self.run_starts: dict[tuple[str, int], Line] = {}
        """Source and number of a run after the first -> where it begins."""
        self._members: dict[tuple[str, int, int], Process] = {}
        """Host, rank and size of a communicator -> who began it last."""
        self.deduplicated = False
        self.starts_seen = False
        self.lines_before = 0
        """Lines of the sources before this one."""
        self._place = ("", 0, b"")
        self._readers: dict[bytes, Callable[[Process, Record], bool]] = {
            b"Bootstrap": self._bootstrap,
            b"Bootstrap:": self._bootstrap,
            b"NCCL": self._version,
            b"Using": self._using,
            b"Init": self._init_timings,
            b"GPU": self._gpu,
            b"Channel": self._channel,
            b"Ring": self._channel,
            b"comm": self._comm,
            b"[Rank": self._comm,
        }

    def at(self, source: str, number: int, text: bytes) -> None:
        """Say where the line stands that is read next."""
        self._place = (source, number, text)

    def line(self) -> Line:
        """The line that is being read, as evidence."""
        source, number, text = self._place
        return Line(source, number, text[:_TEXT_LIMIT].decode("utf-8", "replace"))

    def add(self, process: Process) -> None:
        """Take up a process that was heard for the first time."""
        self.processes.append(process)

    def read(self, process: Process, record: Record) -> bool:
        """Read one record. True means that the process began anew: give it again, to a new one."""
        self.deduplicated = self.deduplicated or record.repeated
        text = record.text
        first = text.partition(b" ")[0]
        reader = self._readers.get(first)
        if reader is not None and not record.warning:
            return reader(process, record)
        if first.startswith(b"ncclComm") and self._comm_line(process, text):
            return False
        if first.startswith(b"NET/") and self._net(process, text):
            return False
        if first.startswith(b"NCCL_") and self._setting(process, text):
            return False
        self._symptom(process, record)
        return False

    def read_bare(self, line: bytes) -> bool:
        """Read a line that is no record: True when it was NCCL's version banner."""
        if b"NCCL version " in line and b"error" not in line:
            banner = _BARE_VERSION.search(line)
            if banner is not None:
                version = banner[1].decode()
                if version not in self.versions:
                    self.versions[version] = self.line()
                self.starts_seen = True
                return True
        return False

    def _bootstrap(self, process: Process, record: Record) -> bool:
        timings = _TIMINGS.match(record.text)
        if timings is not None:
            process.waited = float(timings[1]), self.line()
        elif b"Using" in record.text:
            self.starts_seen = True
            if process.bootstrapped and process.pointers:
                return True
            process.bootstrapped = True
            address = _ADDRESS.search(record.text)
            if address is not None and len(self.addresses) < _EVENTS_LIMIT:
                self.addresses.setdefault(address[1].decode(), process.host)
        else:
            self._symptom(process, record)
        return False

    def _init_timings(self, process: Process, record: Record) -> bool:
        timings = _INIT_TIMINGS.match(record.text)
        if timings is None:
            self._symptom(process, record)
            return False
        rank, nranks = int(timings[1][:9]), int(timings[2][:9])
        for key, own in reversed(process.ranks.items()):
            comm = self.comms[key]
            if own == rank and comm.nranks == nranks:
                comm.wait(rank, float(timings[3]), self.line())
                break
        return False

    def _version(self, process: Process, record: Record) -> bool:
        match = _VERSION.match(record.text)
        if match is not None:
            version = match[1].decode()
            process.version = process.version or (version, self.line())
            if version not in self.versions:
                self.versions[version] = self.line()
            self.starts_seen = True
        else:
            self._symptom(process, record)
        return False

    def _using(self, process: Process, record: Record) -> bool:
        if record.text.startswith(b"Using network "):
            name = record.text[len(b"Using network ") :].decode("utf-8", "replace")
            first = process.networks.pop(name, None)
            process.networks[name] = first or self.line()
            self.starts_seen = True
        return False

    def _gpu(self, process: Process, record: Record) -> bool:
        match = _DISTANCE.match(record.text)
        if match is not None and len(self.distances) < _EVENTS_LIMIT:
            key = (process.host, match["gpu"].decode(), match["hca"].decode())
            fact = GdrDistance(
                host=process.host,
                gpu=key[1],
                hca=key[2],
                enabled=match[1] == b"Enabled",
                distance=match["distance"].decode(),
                limit=match["limit"].decode(),
                read=None if match["read"] is None else match["read"] == b"1",
                line=self.line(),
            )
            self.distances.setdefault((*key,), (fact, process))
        return False

    def _channel(self, process: Process, record: Record) -> bool:
        self.channel(process, record.text)
        return False

    def channel(self, process: Process, text: bytes) -> None:
        """Read the text of a channel line."""
        match = _CHANNEL.match(text)
        if match is None:
            return
        source, target = int(match[1][:9]), int(match[2][:9])
        direction = (match[3] or b"").decode()
        via = match[4]
        own, peer = (target, source) if direction == "receive" else (source, target)
        net = _NET.match(via)
        if net is None:
            name = via.decode("utf-8", "replace").strip()
            process.local.add(name)
        else:
            network = net[1].decode("utf-8", "replace")
            gdr = b"/G" in net[4]  # also where the line was cut inside /GDRDMA
            nic = int(net[2][:9])
            if len(process.net) < _PER_PLACE_LIMIT:
                process.use_net(network, nic, direction, gdr, self.line)
                if net[3] is None:  # else another rank's, which passes it on (PXN)
                    process.own_nics.add(nic)
            name = f"NET/{network}" + ("/GDRDMA" if gdr else "")
        process.connect(own, peer, self.transports.code(name))

    def _comm(self, process: Process, record: Record) -> bool:
        if not self._comm_line(process, record.text):
            self._symptom(process, record)
        return False

    def is_told(self, process: Process, text: bytes) -> bool:
        """Read a further line of a communicator that its process has begun, without a search.

        Two such lines a rank and communicator are most of what is new in a large log.
        """
        start = text.find(b"comm 0x", 0, 64) + 5
        if start < 5:
            return False
        key = process.pointers.get(text[start : text.find(b" ", start)])
        if key is None or process.waited is not None:
            return False
        comm = self.comms[key]
        if text.endswith(b"Init COMPLETE"):
            comm.completed.add(process.ranks[key])
            return True
        return comm.nnodes is not None and b" nNodes " in text

    def _comm_line(self, process: Process, text: bytes) -> bool:
        match = _COMM.search(text)
        if match is None:
            return False
        pointer, rank, nranks, rest = match.groups()
        rank, nranks = int(rank[:9]), int(nranks[:9])
        begins = rest.endswith(b"Init START")
        comm = self._communicator(process, pointer, rest, begins, nranks)
        if rank not in comm.started:
            comm.started[rank] = process.host
        process.ranks[comm.key] = rank
        bus = _BUS.search(rest)
        if bus is not None:
            process.bus = address(int(bus[1], 16))
        if begins:
            self.starts_seen = True
            process.join(nranks)
            self._begin_run(process, rank, nranks)
        elif rest.endswith(b"Init COMPLETE"):
            comm.completed.add(rank)
            self.starts_seen = True
        elif nodes := _NNODES.search(rest):
            comm.nnodes = int(nodes[1][:9])
            comm.mnnvl = comm.mnnvl or rest.endswith(b"MNNVL 1")
        elif b"Abort COMPLETE" in rest:
            comm.aborted = True
        if process.waited is not None:
            comm.wait(rank, *process.waited)
            process.waited = None
        return True

    def _begin_run(self, process: Process, rank: int, nranks: int) -> None:
        """A process takes the place of one that failed: the job was started again."""
        key = (process.host, rank, nranks)
        before = self._members.get(key)
        if before is not process:
            self._members[key] = process
            if before is not None and before.failed is not None:
                process.run = max(process.run, before.run + 1)
        if process.run:
            source = (self._place[0], process.run)
            if source not in self.run_starts:
                self.run_starts[source] = self.line()

    def _communicator(
        self, process: Process, pointer: bytes, rest: bytes, begins: bool, nranks: int
    ) -> Comm:
        """The communicator of a line: by commId, by how it was split, else by its size."""
        known = None if begins else process.pointers.get(pointer)
        if known is not None:
            return self.comms[known]
        identity = _COMM_ID.search(rest)
        if identity is not None:
            key = identity[1].decode()
        else:
            parent = process.pointers.get(_parent(rest), "")
            split = b" ".join(_SPLIT.findall(rest)[1:-1]).decode()
            key = f"{parent}/{split}" if split else f"of {nranks} ranks"
        process.pointers[pointer] = key
        if key not in self.comms:
            self.comms[key] = Comm(key, nranks, self.line())
        return self.comms[key]

    def _net(self, process: Process, text: bytes) -> bool:
        match = _HCA_GDR.match(text)
        if match is not None:
            device = match[4].decode("utf-8", "replace") or match[3].decode()
            network = match[1].decode("utf-8", "replace")
            fact = HcaGdr(process.host, device, match[2] == b"Enabled", network, self.line())
            self.hca_gdr.setdefault((process.host, device, match[2].decode()), fact)
            return True
        using = _USING.match(text)
        if using is None or using[1] == b"Socket":
            return using is not None
        devices = tuple(
            name.lstrip(b"=").decode("utf-8", "replace")
            for name in _HCA.findall(using[2].partition(b"; OOB")[0])
        )
        if devices:
            key = (process.host, devices)
            if key not in self.adapters:
                self.adapters[key] = Adapters(process.host, devices, self.line())
        return True

    def _setting(self, process: Process, text: bytes) -> bool:
        match = _SETTING.match(text)
        if match is None:
            return False
        value = match[2].decode("utf-8", "replace").strip().removesuffix(".")
        key = (match[1].decode(), value)
        if key not in self.settings and len(self.settings) >= _PER_PLACE_LIMIT:
            return True
        if key not in self.settings:
            self.settings[key] = (self.line(), set())
        self.settings[key][1].add(process.host)
        return True

    def _symptom(self, process: Process, record: Record) -> None:
        returned = _RETURN.match(record.text)
        if returned is not None:
            if int(returned[1][:9]) not in (0, _IN_PROGRESS) and process.failed is None:
                process.failed = self.line()
            if b"Cuda failure" not in record.text:
                return
        found = symptoms.find(record.text)
        if found is None and not record.warning:
            return
        symptom, values = found or (_UNKNOWN, {"text": _text(record)})
        kind = symptom.kind
        if record.warning:
            values["warning"] = "yes"
        key: tuple[str, ...] = (
            kind,
            process.host,
            str(process.run),
            *(values.get(name, "") for name in symptom.splits),
        )
        if kind == "async":
            key += (str(process.pid), str(process.device))
        occurrence = self.events.get(key)
        if occurrence is None:
            if len(self.events) >= _EVENTS_LIMIT:
                return
            values.setdefault("message", _text(record))
            occurrence = self.events[key] = Occurrence(
                kind, process.host, values, self.lines_before + self._place[1], record.time
            )
        occurrence.add(process, self.line)


def address(number: int) -> str:
    """Turn a bus id as NCCL prints it (1b000, the digits of an address) into `0000:1b:00.0`."""
    device, function = number >> 4 & 0xFF, number & 0xF
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{device:02x}.{function:x}"


def _text(record: Record) -> str:
    return record.text[:200].decode("utf-8", "replace")


def _parent(rest: bytes) -> bytes:
    match = re.search(rb"parent (0x[0-9a-f]+)", rest)
    return match[1] if match else b""
