"""What an NCCL log says, as facts: no judgement, and light enough to import at every start.

Shapes are sized by ranks, hosts and channels, never by lines. Ranks are those of a communicator;
hosts are named as NCCL prints them (cut at the first dot; in Kubernetes the pod's name).
"""

from __future__ import annotations

import msgspec

from gpudoctor.report import Subject


class Line(msgspec.Struct, frozen=True, order=True):
    """A line that proves something: its source, its number (from 1) and its text, shortened."""

    source: str
    number: int
    text: str


class Setting(msgspec.Struct, frozen=True):
    """A variable that NCCL said it had read: who read this value, and the first line of it."""

    name: str
    value: str
    hosts: tuple[str, ...]
    line: Line


class Event(msgspec.Struct, frozen=True):
    """Lines of one kind from one host: how many, the first of them, and what they name.

    `kind` is one of `symptoms.py`. `values` are the named parts of the first line (device,
    status, peer …). `ranks` are those of the reporting processes, where known.
    """

    kind: str
    host: str
    ranks: tuple[int, ...]
    count: int
    lines: tuple[Line, ...]
    values: dict[str, str]
    order: int
    """Position of the first line in what was read, for "first error"."""
    time: str = ""
    """When the line says so itself: sortable, else empty."""


class NetUse(msgspec.Struct, frozen=True, order=True):
    """Channels of one host over one NIC in one direction: all of them alike.

    `network` as NCCL names it; `nic` is the index in NCCL's own list, not the N of mlx5_N;
    `direction` is send, receive or empty (old formats).
    """

    host: str
    network: str
    nic: int
    direction: str
    gdr: bool
    line: Line


class HcaGdr(msgspec.Struct, frozen=True):
    """The per-adapter line: whether this adapter of this host can do GPUDirect RDMA."""

    host: str
    device: str
    enabled: bool
    network: str
    line: Line


class GdrDistance(msgspec.Struct, frozen=True):
    """The per-pair line: GDR between a GPU and an adapter, judged by distance.

    `distance` and `limit` are NCCL's path types (PIX … SYS), or the bare number when the
    version is unknown.
    """

    host: str
    gpu: str
    hca: str
    enabled: bool
    distance: str
    limit: str
    read: bool | None
    line: Line


class Adapters(msgspec.Struct, frozen=True):
    """The list after `NET/IB : Using`, in NCCL's order: `mlx5_0:1/IB`, or a merged group."""

    host: str
    devices: tuple[str, ...]
    line: Line

    @property
    def links(self) -> frozenset[str]:
        """The link layers: IB, RoCE."""
        return frozenset(device.rpartition("/")[2].split(";")[0] for device in self.devices)


class Communicator(msgspec.Struct, frozen=True):
    """One communicator: `started` and `completed` are the ranks whose lines were seen."""

    id: str
    nranks: int
    nnodes: int | None
    started: tuple[int, ...]
    completed: tuple[int, ...]
    aborted: bool
    hosts: tuple[tuple[int, str], ...]
    """Rank and host, for the ranks seen."""
    line: Line
    bootstrap_seconds: tuple[tuple[int, float], ...] = ()
    """Rank and the time it spent waiting for the others, where printed."""
    least_waited: Line | None = None
    """The line of the rank that waited least."""
    mnnvl: bool = False
    """Whether NVLink joins its hosts."""


class Host(msgspec.Struct, frozen=True):
    """One host's processes, summed up for the per-node picture."""

    name: str
    processes: int
    ranks: tuple[int, ...]
    networks: tuple[str, ...]
    adapters: int | None
    transports: tuple[str, ...]
    gdr: str
    version: str | None
    errors: int


class WorkStatus(msgspec.Struct, frozen=True):
    """What PyTorch's watchdog says of one rank of one process group.

    `timed_out` is the sequence number of the collective that it gave up, if it did.
    """

    group: str
    rank: int
    enqueued: int | None
    completed: int | None
    timed_out: int | None
    operation: str
    milliseconds: int | None
    line: Line


class FlightGap(msgspec.Struct, frozen=True):
    """A collective that some ranks never joined, as PyTorch's flight recorders have it.

    `missing` are ranks of the job; `sequence` counts the collectives of the group.
    """

    group: str
    collective: str
    sequence: int | None
    missing: tuple[int, ...]
    line: Line


class StuckWatchdog(msgspec.Struct, frozen=True):
    """A rank whose own watchdog did not move for `seconds`: it hangs in a call.

    `after_timeout` says that it had still moved when another rank gave a collective up.
    """

    rank: int
    seconds: int | None
    line: Line
    after_timeout: bool = False


class Rail(msgspec.Struct, frozen=True):
    """Which adapters one rank uses: `local` counts the ranks of its host, `nics` are indices in
    that host's list, `own` those of them that it reaches itself and not through another rank
    (PXN), `bare` those of `own` that it reaches without GPUDirect RDMA, in a direction at least.
    `bus` is the PCI address of its GPU. Of the last run only.
    """

    host: str
    local: int
    rank: int
    nics: tuple[int, ...]
    line: Line
    own: tuple[int, ...] = ()
    bare: tuple[int, ...] = ()
    bus: str | None = None


class RasProcess(msgspec.Struct, frozen=True):
    """A process that `ncclras` got no answer from; `is_dead` after 60 seconds of trying."""

    node: str
    pid: int
    gpu: str
    is_dead: bool
    line: Line


class RasLag(msgspec.Struct, frozen=True):
    """A rank that `ncclras` found behind the others of its communicator.

    `operation` is the last it launched, `most` that of most ranks. `is_stuck`: a later report
    found it at the same operation; a single report catches healthy ranks between two.
    """

    communicator: str
    rank: int
    node: str
    operation: int
    most: int
    is_stuck: bool
    line: Line


class TransportRow(msgspec.Struct, frozen=True):
    """One row of the rank grid: `codes[i]` indexes `NcclLog.transports` for peer i, 0 unknown."""

    rank: int
    codes: bytes


class NcclLog(msgspec.Struct, frozen=True, kw_only=True):
    """Everything read from the logs of one job.

    `network`: what data between hosts goes over, as NCCL names it (IB, Socket, a plugin's
    name), `mixed` when processes differ, `none` without any network channel. `gdr`: all,
    partial, none or n/a over the network channels logged. `nodes`: distinct hosts in the log.
    `rdma_expected_by`: evidence from outside the log that RDMA was meant to be used.
    """

    subject: Subject
    related: tuple[Subject, ...] = ()
    sources: tuple[str, ...] = ()
    lines: int = 0
    network: str = "none"
    gdr: str = "n/a"
    ranks: int = 0
    nodes: int = 0
    multi_node: bool | None = None
    """None when the log does not tell."""
    versions: tuple[str, ...] = ()
    version_of_host: tuple[tuple[str, str, Line], ...] = ()
    runs: int = 1
    channels_seen: bool = False
    single_host_net: bool = False
    """Network channels inside one host: P2P and SHM were switched off."""
    deduplicated: bool = False
    """Ray folded alike lines: what is not in the log may still have been said."""
    complete_start: bool = True
    """False when the log begins after start-up: rotation or a tail took it."""
    unfinished: Line | None = None
    """A line near the end that says that somebody gave up waiting."""
    hosts: tuple[Host, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    settings: tuple[Setting, ...] = ()
    adapters: tuple[Adapters, ...] = ()
    chosen: tuple[tuple[str, str, Line], ...] = ()
    """Host, network and line of each distinct `Using network`."""
    net: tuple[NetUse, ...] = ()
    rails: tuple[Rail, ...] = ()
    hca_gdr: tuple[HcaGdr, ...] = ()
    distances: tuple[GdrDistance, ...] = ()
    events: tuple[Event, ...] = ()
    failed: tuple[tuple[str, Line], ...] = ()
    """Host and first line of each process in which NCCL returned an error (`file.cc:1 -> N`)."""
    work: tuple[WorkStatus, ...] = ()
    gave_up_first: tuple[int, Line] | None = None
    """The rank that made the others dump their flight recorders, as they name it."""
    stuck: tuple[StuckWatchdog, ...] = ()
    flight: tuple[FlightGap, ...] = ()
    ras_processes: tuple[RasProcess, ...] = ()
    ras_lags: tuple[RasLag, ...] = ()
    run_starts: tuple[tuple[int, Line], ...] = ()
    """Where each further run begins in each source; the first is run 1."""
    addresses: tuple[tuple[str, str], ...] = ()
    """Address of the control connections, and the host that has it."""
    transports: tuple[str, ...] = ()
    grid: tuple[TransportRow, ...] = ()
    rdma_expected_by: tuple[str, ...] = ()
    no_gdr_by_design: str = ""
    """What says, outside the log, that these GPUs have no GPUDirect RDMA at all."""
    places: tuple[tuple[str, tuple[Subject, ...]], ...] = ()
    """Host, and the pod and node that it is, where known from outside the log."""

    def setting(self, name: str) -> tuple[Setting, ...]:
        """Return what was read for one variable: one item a value."""
        return tuple(setting for setting in self.settings if setting.name == name)

    def of_kind(self, *kinds: str) -> tuple[Event, ...]:
        """Return the events of these kinds, the first to happen first."""
        found = [event for event in self.events if event.kind in kinds]
        return tuple(sorted(found, key=lambda event: (event.order, event.host)))
