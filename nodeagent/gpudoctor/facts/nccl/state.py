"""What is remembered while a log is read: bounded by processes, communicators and channels.

Everything here may be told the same thing twice, and in any order of processes.
"""

from __future__ import annotations

from collections.abc import Callable

from gpudoctor.facts.nccl.model import Line

_TEXT_LIMIT = 400
_TRANSPORTS_LIMIT = 250
_PEERS_LIMIT = 1 << 16


class Place:
    """Where the line stands that is being read."""

    def __init__(self) -> None:
        self.source = ""
        self.number = 0
        self._text = b""

    def at(self, source: str, number: int, text: bytes) -> None:
        """Say where the line stands that is read next."""
        self.source, self.number, self._text = source, number, text

    def line(self) -> Line:
        """The line that is being read, as evidence."""
        return Line(self.source, self.number, self._text[:_TEXT_LIMIT].decode("utf-8", "replace"))


class Process:
    """One process's use of one GPU: NCCL's pid and `[DEV]` on one host, until a restart."""

    __slots__ = (
        "bootstrapped", "bus", "device", "failed", "hashes", "heard", "host", "is_remapped",
        "lives", "local", "mapped", "net", "networks", "own_nics", "pid", "pointers", "ranks",
        "rows", "run", "version", "waited", "widest",
    )  # fmt: skip

    def __init__(self, host: str, pid: int, device: int) -> None:
        self.host = host
        self.pid = pid
        self.device = device
        self.version: tuple[str, Line] | None = None
        self.networks: dict[str, Line] = {}
        self.net: dict[tuple[str, int, str, bool], Line] = {}
        self.local: set[str] = set()
        self.rows: dict[int, bytearray] = {}
        self.pointers: dict[bytes, Comm] = {}
        self.ranks: dict[str, int] = {}
        """Communicator -> this process's rank in it."""
        self.bus: str | None = None
        """The PCI address of its GPU."""
        self.own_nics: set[int] = set()
        """The adapters that it uses itself, not through another rank (PXN)."""
        self.failed: Line | None = None
        self.run = 0
        """How many times the job had begun before on this host, as far as is known."""
        self.waited: tuple[float, Line] | None = None
        self.bootstrapped = False
        self.mapped = True
        """Whether channels now belong to the largest communicator, as far as can be told."""
        self.widest = 0
        """Ranks of the largest communicator so far."""
        self.is_remapped = False
        """Whether channels that were heard before now count for another communicator."""
        self.lives = 1
        """How many processes it stands for: those of its name before the last count as one."""
        self.heard: set[bytes] = set()
        """For the parser: what its channel lines said, without the channel's number."""
        self.hashes: set[int] = set()
        """For the parser: the hashes by which the sieve drops them."""

    def join(self, nranks: int) -> None:
        """A communicator begins: only channels of the largest one go into the rank grid, and of
        several as large those of the first that has any.
        """
        was_mapped = self.mapped
        if nranks > self.widest:
            self.widest = nranks
            self.mapped = True
            self.is_remapped = bool(self.heard)
            self.rows.clear()
        elif nranks < self.widest:
            self.mapped = False
        elif not self.rows:
            self.mapped = True
            self.is_remapped = bool(self.heard) and not was_mapped

    def retire(self, communicator: str) -> None:
        """Nothing more comes from it; of its ranks only that in this communicator still counts."""
        rank = self.ranks.get(communicator)
        self.ranks = {} if rank is None else {communicator: rank}
        self.pointers = {}
        self.waited = None

    def is_like(self, other: Process) -> bool:
        """Whether the two do not contradict each other in what is known of a process alone."""
        if self.version is None or other.version is None:
            return True
        return self.version[0] == other.version[0]

    def absorb(self, later: Process) -> None:
        """Stand for a later process of the same name, too, when both are retired."""
        self.lives += later.lives
        self.version = self.version or later.version
        self.failed = self.failed or later.failed
        self.run = max(self.run, later.run)
        for name, line in later.networks.items():
            self.networks[name] = self.networks.pop(name, line)
        self.net = {**later.net, **self.net} if later.net else self.net
        self.local |= later.local
        self.own_nics |= later.own_nics
        self.bus = self.bus or later.bus
        self.rows |= later.rows
        self.ranks |= later.ranks

    def use_net(
        self, network: str, nic: int, direction: str, gdr: bool, line: Callable[[], Line]
    ) -> None:
        """Note a network channel; `line` is called for the first of its kind."""
        key = (network, nic, direction, gdr)
        if key not in self.net:
            self.net[key] = line()

    def connect(self, rank: int, peer: int, code: int) -> None:
        """Note that `rank` reaches `peer` by this transport; the worst one stays."""
        if not self.mapped or peer >= _PEERS_LIMIT:
            return
        row = self.rows.get(rank)
        if row is None:
            row = self.rows[rank] = bytearray()
        if len(row) <= peer:
            row.extend(bytes(peer + 1 - len(row)))
        if code > row[peer]:
            row[peer] = code


Members = tuple[dict[int, str], set[int]]
"""The ranks of a communicator that started, each with its host, and those that completed."""


class Comm:
    """One communicator, by its commId, or by what older versions print instead."""

    __slots__ = (
        "aborted", "completed", "is_shared", "key", "least_waited", "line", "mnnvl", "nnodes",
        "nranks", "started", "waited",
    )  # fmt: skip

    def __init__(self, key: str, nranks: int, line: Line) -> None:
        self.key = key
        self.nranks = nranks
        self.line = line
        self.nnodes: int | None = None
        self.mnnvl = False
        """Whether NVLink joins its hosts."""
        self.started: dict[int, str] = {}
        """Rank -> host."""
        self.completed: set[int] = set()
        self.is_shared = False
        """Whether `started` and `completed` are those of others, too."""
        self.waited: dict[int, float] = {}
        self.least_waited: tuple[float, Line] | None = None
        self.aborted = False

    def start(self, rank: int, host: str) -> None:
        """Note that a rank began; its first host counts."""
        if rank not in self.started:
            if self.is_shared:
                self._own()
            self.started[rank] = host

    def complete(self, rank: int, shared: dict[frozenset[tuple[int, str]], Members]) -> None:
        """Note that a rank is through with the start. When all are, the members are kept once
        for all communicators that have the same: in a long log most are made again and again.
        """
        if rank in self.completed:
            return
        if self.is_shared:
            self._own()
        self.completed.add(rank)
        if len(self.completed) == self.nranks and self.completed == self.started.keys():
            members = frozenset(self.started.items())
            self.started, self.completed = shared.setdefault(
                members, (self.started, self.completed)
            )
            self.is_shared = True

    def _own(self) -> None:
        self.started, self.completed = dict(self.started), set(self.completed)
        self.is_shared = False

    def span(self, nnodes: int, *, mnnvl: bool) -> None:
        """Note how many nodes it spans, and whether NVLink joins them. Where several communicators
        cannot be told apart, the widest counts, whoever speaks first.
        """
        if self.nnodes is None or nnodes > self.nnodes:
            self.nnodes = nnodes
        self.mnnvl = self.mnnvl or mnnvl

    def wait(self, rank: int, seconds: float, line: Line) -> None:
        """Note how long a rank waited for the others at the start, as it said first."""
        if rank not in self.waited:
            if self.least_waited is None or seconds < self.least_waited[0]:
                self.least_waited = seconds, line
            self.waited[rank] = seconds


class Occurrence:
    """Lines of one kind from one host."""

    KEPT = 3

    def __init__(self, kind: str, host: str, values: dict[str, str], order: int, time: str) -> None:
        self.kind = kind
        self.host = host
        self.values = values
        self.order = order
        self.time = time
        self.count = 0
        self.lines: list[Line] = []
        self.processes: dict[Process, None] = {}

    def add(self, process: Process, line: Callable[[], Line]) -> None:
        """Count one more line; `line` is called for the first few."""
        self.count += 1
        if len(self.lines) < self.KEPT:
            self.lines.append(line())
        self.processes[process] = None


class Transports:
    """Names of transports as small numbers, the slower the greater; 0 is unknown."""

    _ORDER = (
        ("P2P/", 10),
        ("NVLS", 20),
        ("COLLNET", 30),
        ("SHM", 40),
        ("direct shared memory", 40),
    )

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        """Return the number of a transport; alike ones share a band of ten."""
        if name not in self._codes:
            code = self._band(name)
            while code in self._codes.values() and code < _TRANSPORTS_LIMIT:
                code += 1
            self._codes[name] = code
        return self._codes[name]

    def _band(self, name: str) -> int:
        for prefix, band in self._ORDER:
            if name.startswith(prefix):
                return band
        if name.startswith("NET/Socket"):
            return 200
        return 60 if "GDRDMA" in name else 120

    def names(self) -> tuple[str, ...]:
        """Return the names by number; gaps are empty."""
        table = [""] * (max(self._codes.values(), default=0) + 1)
        for name, code in self._codes.items():
            table[code] = name
        return tuple(table)
