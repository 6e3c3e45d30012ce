"""What a node, or a container on it, really has: the facts that the TOP, NET and WKL rules judge.

None stands for "not known" throughout; the reason is among the reading's unknowns.
"""

from __future__ import annotations

import msgspec

from gpudoctor.facts.node.driver_files import DriverFiles
from gpudoctor.facts.node.system import Interface, Waiting
from gpudoctor.facts.node.topology import Topology
from gpudoctor.report import Subject

NVIDIA, MELLANOX, AMAZON = 0x10DE, 0x15B3, 0x1D0F
UNLIMITED = -1
SHM = "/dev/shm"  # noqa: S108 - the path that is judged
LOCK_TRIED = 1 << 30
"""Bytes of the try to lock memory: what the memlock rule takes to be enough for NCCL."""


class Link(msgspec.Struct, frozen=True):
    """A PCIe link: speed in GT/s and lanes, now and at most."""

    speed: float | None = None
    width: int | None = None
    max_speed: float | None = None
    max_width: int | None = None


class PciDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A PCI function. `address` is `dddd:bb:dd.f` in lower case.

    `bridges` are the addresses between the root complex and the device, top first, and `root`
    names the root complex (`pci0000:15`). `upstream` is the link of the bridge above: a slot may
    be wired narrower than the card. `numa` is None when unknown, -1 when the firmware says none.
    `model` is what udev's hardware database calls it.
    """

    address: str
    vendor: int
    class_: int
    device: int | None = None
    numa: int | None = None
    cpus: frozenset[int] | None = None
    link: Link = Link()
    upstream: Link = Link()
    root: str | None = None
    bridges: tuple[str, ...] = ()
    physical: str | None = None
    driver: str | None = None
    iommu: str | None = None
    model: str | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether it is an NVIDIA GPU: a VGA or 3D controller."""
        return self.vendor == NVIDIA and self.class_ >> 8 in (0x0300, 0x0302)

    @property
    def is_data_center(self) -> bool:
        """Whether the GPU has no display: GeForce cards are VGA controllers."""
        return self.class_ >> 8 == 0x0302

    @property
    def is_bridge(self) -> bool:
        """Whether it is a PCI bridge: a root port or a port of a switch."""
        return self.class_ >> 8 == 0x0604


class Gid(msgspec.Struct, frozen=True):
    """An entry of a port's GID table; `kind` is `RoCE v2`, `IB/RoCE v1`, or None if unused."""

    index: int
    value: str
    kind: str | None

    @property
    def is_empty(self) -> bool:
        """Whether the entry is unused: all zeros, or without a type."""
        return not self.value.strip("0:") or self.kind is None

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address of the entry, None if it is not ::ffff:a.b.c.d."""
        groups = self.value.split(":")
        if len(groups) != 8 or [g.strip("0") for g in groups[:6]] != ["", "", "", "", "", "ffff"]:
            return None
        try:
            high, low = (int(group, 16) for group in groups[6:])
        except ValueError:
            return None
        return f"{high >> 8}.{high & 255}.{low >> 8}.{low & 255}"


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A port of an HCA; `rate` in Gb/s means nothing while the port is down.

    `growth` is how much each error counter rose between two observations.
    """

    number: str
    state: str | None
    physical: str | None
    rate: float | None
    rate_text: str
    link_layer: str | None
    gids: tuple[Gid, ...] = ()
    counters: dict[str, int] = {}
    growth: dict[str, int] = {}

    @property
    def is_active(self) -> bool | None:
        """Whether traffic can flow; None if the state is not known."""
        return None if self.state is None else self.state == "ACTIVE"

    @property
    def roce_v2_ipv4_index(self) -> int | None:
        """The index of the first RoCE v2 GID with an IPv4 address: the one to use."""
        return next((gid.index for gid in self.gids if gid.kind == "RoCE v2" and gid.ipv4), None)


class Hca(msgspec.Struct, frozen=True, kw_only=True):
    """An RDMA device. `pci` is its address; `uverbs` its device node's name, such as uverbs3.

    `interfaces` are the network interfaces of the same function, where udev was asked.
    """

    name: str
    pci: PciDevice | None
    model: str | None
    board: str | None
    ports: tuple[Port, ...]
    uverbs: str | None
    interfaces: tuple[str, ...] = ()

    @property
    def is_efa(self) -> bool:
        """Whether it is an Elastic Fabric Adapter, which has its own provider and data path."""
        if self.pci is not None:
            return self.pci.vendor == AMAZON
        return any(port.link_layer == "Unspecified" for port in self.ports)


class VerbsNode(msgspec.Struct, frozen=True):
    """A node under /dev/infiniband. `opened`: errno of a try, "" for success, None untried."""

    name: str
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    opened: str | None = None


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """The workload's process. Limits in bytes, `UNLIMITED` for none; capabilities as bit masks.

    `lock_tried` is the errno of really locking `LOCK_TRIED` bytes under the same limits and
    capabilities, "" for success, None where nobody tried. `shm_used` are the bytes in /dev/shm.
    """

    pid: str
    memlock_soft: int | None = None
    memlock_hard: int | None = None
    pinned: int | None = None
    uid: int | None = None
    effective: int | None = None
    bounding: int | None = None
    own_user_namespace: bool | None = None
    cpus: frozenset[int] | None = None
    memory_nodes: frozenset[int] | None = None
    lock_tried: str | None = None
    shm_bytes: int | None = None
    shm_used: int | None = None
    environment: dict[str, str] | None = None

    @property
    def ipc_lock(self) -> bool | None:
        """Whether CAP_IPC_LOCK is in force; the kernel asks the initial user namespace."""
        if self.effective is None:
            return None
        return bool(self.effective >> 14 & 1) and self.own_user_namespace is not True


class MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG device and its card's address; `index` is its number on the card."""

    uuid: str
    gpu: str
    index: int | None = None
    profile: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class HugePages(msgspec.Struct, frozen=True):
    """The reserved pages of one size on the whole machine: `size` in bytes, the others counts."""

    size: int
    total: int
    free: int


class NumaNode(msgspec.Struct, frozen=True):
    """A NUMA node and its CPUs."""

    number: int
    cpus: frozenset[int]


class GpuDirect(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether a NIC may read and write GPU memory on this node."""

    driver: str | None = None
    open_module: bool | None = None
    kernel: tuple[int, int] | None = None
    kernel_text: str | None = None
    peermem_loaded: bool | None = None
    peermem_registered: bool | None = None

    @property
    def dma_buf(self) -> bool | None:
        """Whether DMA-BUF export works: open module, driver 515, kernel 5.12 or later."""
        known = [self.open_module]
        if self.driver is not None:
            known.append(int(self.driver.split(".")[0]) >= 515)
        known.append(None if self.kernel is None else self.kernel >= (5, 12))
        if False in known:
            return False
        return None if None in known or self.driver is None else True


class AcsPort(msgspec.Struct, frozen=True):
    """A bridge and whether its Access Control Services redirect peer traffic to the root."""

    address: str
    redirects: bool
    control: str
    source: str


class Acs(msgspec.Struct, frozen=True):
    """The bridges whose ACS state could be read, and those that refused."""

    ports: tuple[AcsPort, ...] = ()
    denied: tuple[str, ...] = ()


class Iommu(msgspec.Struct, frozen=True, kw_only=True):
    """How the IOMMU treats devices: `translated` None when it cannot be told."""

    translated: bool | None = None
    certain: bool = False
    evidence: str = ""
    source: str = ""


class WorkloadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One process with what it can use: of a container, or of the shell we were started in.

    `given` are the GPU addresses that it was allotted. `hcas` and `verbs` are None when their
    directories could not be looked at; `verbs_whole` says that the listing of /dev/infiniband is
    a whole one. `rdma_shared` says that every network namespace sees every RDMA device.
    """

    subject: Subject
    pci: tuple[PciDevice, ...] = ()
    pci_whole: bool = False
    given: tuple[str, ...] | None = None
    hcas: tuple[Hca, ...] | None = None
    verbs: tuple[VerbsNode, ...] | None = None
    verbs_whole: bool = False
    rdma_shared: bool | None = None
    process: Process | None = None
    numa: tuple[NumaNode, ...] = ()
    cpu_policy: str | None = None
    in_container: bool | None = None
    topology: Topology | None = None

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        """The NVIDIA GPUs on the bus."""
        return tuple(device for device in self.pci if device.is_gpu)

    @property
    def own_gpus(self) -> tuple[PciDevice, ...]:
        """The GPUs that this container was given; all on the bus when that is not known."""
        if self.given is None:
            return self.gpus
        return tuple(gpu for gpu in self.gpus if gpu.address in self.given)


class NodeFacts(WorkloadFacts, frozen=True, kw_only=True):
    """A machine as well as the process that looks at it.

    `busy` are GPUs known to be in P0 or under load, `idle` those known not to be. `driver_gpus`
    are the addresses of those that the driver has, `models` their names, `mig` the MIG devices
    that NVML shows. `interfaces` are those of our network namespace. `stuck` are paths that did not
    answer in time, `waiting` the processes in state D then, `refused` the paths that this user may
    not read.
    """

    busy: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    gpudirect: GpuDirect = GpuDirect()
    driver_files: DriverFiles = DriverFiles()
    acs: Acs = Acs()
    iommu: Iommu = Iommu()
    virtual: bool | None = None
    driver_gpus: tuple[str, ...] | None = None
    models: dict[str, str] | None = None
    mig: tuple[MigDevice, ...] = ()
    hugepages: tuple[HugePages, ...] = ()
    interfaces: tuple[Interface, ...] | None = None
    waiting: tuple[Waiting, ...] = ()
    stuck: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
