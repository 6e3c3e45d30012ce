"""What each message says, written into the book of one job.

The text after `NCCL INFO ` or `NCCL WARN ` is told apart by its first word; what is not known
here is looked up among the symptoms. Formats: NCCL 2.4 to 2.31, see `symptoms.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpudoctor.facts.nccl import symptoms
from gpudoctor.facts.nccl.channels import Channels
from gpudoctor.facts.nccl.communicators import Communicators
from gpudoctor.facts.nccl.model import Adapters, GdrDistance, HcaGdr, Line
from gpudoctor.facts.nccl.records import Record
from gpudoctor.facts.nccl.state import Comm, Occurrence, Place, Process, Transports

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

BARE_WORDS = (b": no socket interface found", b"FI_HMEM capability requires RDMA, which")
"""What is worth reading in lines that do not name NCCL: libfabric's own, and one that PyTorch
quotes; see `quotes.py`.
"""

_EVENTS_LIMIT = 1 << 14
_PER_PLACE_LIMIT = 1 << 12
_IN_PROGRESS = 7
_UNKNOWN = symptoms.Symptom("warning", b"", None, ("text",))


class Book:
    """Everything said so far, by process, communicator and kind."""

    def __init__(self) -> None:
        self.place = Place()
        self.processes: dict[Process, None] = {}
        self.channels = Channels(self.place)
        self.communicators = Communicators(self.place)
        self.versions: dict[str, Line] = {}
        self.settings: dict[tuple[str, str], tuple[Line, set[str]]] = {}
        self.adapters: dict[tuple[str, tuple[str, ...]], Adapters] = {}
        self.hca_gdr: dict[tuple[str, str, str], HcaGdr] = {}
        self.distances: dict[tuple[str, str, str], tuple[GdrDistance, Process]] = {}
        self.events: dict[tuple[str, ...], Occurrence] = {}
        self._bare: dict[str, Occurrence] = {}
        self.addresses: dict[str, str] = {}
        """Address of the control connections -> host."""
        self._retired: dict[tuple[str, int, int], Process] = {}
        self.deduplicated = False
        self._starts_seen = False
        self.lines_before = 0
        """Lines of the sources before this one."""
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

    @property
    def comms(self) -> dict[str, Comm]:
        """The communicators by what tells them apart."""
        return self.communicators.known

    @property
    def transports(self) -> Transports:
        """The ways between ranks and their numbers."""
        return self.channels.transports

    @property
    def starts_seen(self) -> bool:
        """Whether any line of NCCL's start-up was read."""
        return self._starts_seen or self.communicators.starts_seen

    @property
    def occurrences(self) -> list[Occurrence]:
        """What happened; what somebody without a name tells counts if nobody else told it."""
        kinds = {occurrence.kind for occurrence in self.events.values()}
        bare = [occurrence for kind, occurrence in self._bare.items() if kind not in kinds]
        return [*self.events.values(), *bare]

    def add(self, process: Process) -> None:
        """Take up a process that was heard for the first time."""
        self.processes[process] = None

    def retire(self, process: Process) -> None:
        """Another process has its name now. What is kept of those before does not grow with the
        number of restarts.
        """
        largest = self.communicators.largest
        process.retire(largest.key if largest else "")
        name = (process.host, process.pid, process.device)
        first = self._retired.setdefault(name, process)
        if first is not process and first.is_like(process):
            first.absorb(process)
            del self.processes[process]

    def read(self, process: Process, record: Record) -> bool:
        """Read one record. True means that the process began anew: give it again, to a new one."""
        self.deduplicated = self.deduplicated or record.repeated
        text = record.text
        first = text.partition(b" ")[0]
        reader = self._readers.get(first)
        if reader is not None and not record.warning:
            return reader(process, record)
        if first.startswith(b"ncclComm") and self.communicators.read(process, text):
            return False
        if first.startswith(b"NET/") and self._net(process, text):
            return False
        if first.startswith(b"NCCL_") and self._setting(process, text):
            return False
        self._symptom(process, record)
        return False

    def read_bare(self, line: bytes) -> bool:
        """Read a line that is no record: True when it was NCCL's version banner, or what its
        plugin's library or PyTorch says for it.
        """
        if any(words in line for words in BARE_WORDS):
            self._bare_symptom(line)
            return True
        if b"NCCL version " in line and b"error" not in line:
            banner = _BARE_VERSION.search(line)
            if banner is not None:
                version = banner[1].decode()
                if version not in self.versions:
                    self.versions[version] = self.place.line()
                self._starts_seen = True
                return True
        return False

    def quote(self, source: str, number: int, line: bytes) -> bool:
        """Take a line in which somebody else quotes NCCL; False where it says nothing known."""
        self.place.at(source, number, line)
        return self._bare_symptom(line)

    def _bare_symptom(self, line: bytes) -> bool:
        """A symptom of a line that does not say who wrote it; the first of its kind is kept."""
        found = symptoms.find(line)
        if found is None or found[0].kind in self._bare:
            return found is not None
        kind, values = found[0].kind, found[1] | {"message": line[:200].decode("utf-8", "replace")}
        at = self.lines_before + self.place.number
        self._bare[kind] = occurrence = Occurrence(kind, "", values, at, "")
        occurrence.count = 1
        occurrence.lines.append(self.place.line())
        return True

    def _bootstrap(self, process: Process, record: Record) -> bool:
        timings = _TIMINGS.match(record.text)
        if timings is not None:
            process.waited = float(timings[1]), self.place.line()
        elif b"Using" in record.text:
            self._starts_seen = True
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
                comm.wait(rank, float(timings[3]), self.place.line())
                break
        return False

    def _version(self, process: Process, record: Record) -> bool:
        match = _VERSION.match(record.text)
        if match is not None:
            version = match[1].decode()
            process.version = process.version or (version, self.place.line())
            if version not in self.versions:
                self.versions[version] = self.place.line()
            self._starts_seen = True
        else:
            self._symptom(process, record)
        return False

    def _using(self, process: Process, record: Record) -> bool:
        if record.text.startswith(b"Using network "):
            name = record.text[len(b"Using network ") :].decode("utf-8", "replace")
            first = process.networks.pop(name, None)
            process.networks[name] = first or self.place.line()
            self._starts_seen = True
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
                line=self.place.line(),
            )
            self.distances.setdefault((*key,), (fact, process))
        return False

    def _channel(self, process: Process, record: Record) -> bool:
        self.channels.read(process, record.text)
        return False

    def _comm(self, process: Process, record: Record) -> bool:
        if not self.communicators.read(process, record.text):
            self._symptom(process, record)
        return False

    def _net(self, process: Process, text: bytes) -> bool:
        match = _HCA_GDR.match(text)
        if match is not None:
            device = match[4].decode("utf-8", "replace") or match[3].decode()
            network = match[1].decode("utf-8", "replace")
            fact = HcaGdr(process.host, device, match[2] == b"Enabled", network, self.place.line())
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
                self.adapters[key] = Adapters(process.host, devices, self.place.line())
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
            self.settings[key] = (self.place.line(), set())
        self.settings[key][1].add(process.host)
        return True

    def _symptom(self, process: Process, record: Record) -> None:
        returned = _RETURN.match(record.text)
        if returned is not None:
            if int(returned[1][:9]) not in (0, _IN_PROGRESS) and process.failed is None:
                process.failed = self.place.line()
            if b"Cuda failure" not in record.text:
                return
        found = symptoms.find(record.text, record.where)
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
                kind, process.host, values, self.lines_before + self.place.number, record.time
            )
        occurrence.add(process, self.place.line)


def _text(record: Record) -> str:
    return record.text[:200].decode("utf-8", "replace")
