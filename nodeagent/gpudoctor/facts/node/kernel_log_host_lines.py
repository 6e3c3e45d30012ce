"""What the kernel says beside the GPU driver: memory that ran out, DMA that the IOMMU stopped,
tasks that hang, and which device is what.

Kernels from 4.x on; the AMD, Intel and Arm IOMMUs name the device each in their own way.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec


class KillScope(StrEnum):
    """Whose memory ran out: a cgroup's, by its limit, or the machine's."""

    CGROUP = "cgroup"
    MACHINE = "machine"
    NUMA = "NUMA nodes"


class KillLine(msgspec.Struct, frozen=True):
    """The out-of-memory killer's summary; `pod` is a Kubernetes UID."""

    pid: int
    process: str
    pod: str | None
    scope: KillScope


_KILL = re.compile(
    r"oom-kill:constraint=CONSTRAINT_(?P<constraint>[A-Z_]+),(?P<where>.*)"
    r"\btask_memcg=(?P<group>[^,]*),task=(?P<task>.*),pid=(?P<pid>[0-9]{1,9}),uid="
)
# Before 5.0 the machine's killer prints nothing but this; since then it follows the summary.
_KILLED = re.compile(
    r"Out of memory(?: \(oom_kill_allocating_task\))?: Kill(?:ed)? process (?P<pid>[0-9]{1,9})"
    r"(?:, UID \d+,)? \((?P<task>.*?)\)(?:[ ,]|\Z)"
)
_POD = re.compile(r"\bpod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})\b")
_SCOPES = {
    "MEMCG": KillScope.CGROUP,
    "CPUSET": KillScope.NUMA,
    "MEMORY_POLICY": KillScope.NUMA,
}


def parse_kill(message: str) -> KillLine | None:
    """Parse the line about a process killed for want of memory; None for any other."""
    if match := _KILL.match(message):
        pod = _POD.search(match["group"].replace("_", "-"))
        scope = _SCOPES.get(match["constraint"], KillScope.MACHINE)
        return KillLine(int(match["pid"]), match["task"], pod[1] if pod else None, scope)
    if match := _KILLED.match(message):
        return KillLine(int(match["pid"]), match["task"], None, KillScope.MACHINE)
    return None


class HungLine(msgspec.Struct, frozen=True):
    """A task that the kernel's watcher of hung tasks found, `seconds` after it last ran."""

    pid: int
    process: str
    seconds: int


_HUNG = re.compile(
    r"INFO: task (?P<task>.{1,64}):(?P<pid>[0-9]{1,9}) blocked for more than (?P<s>[0-9]{1,6}) sec"
)
_DRIVERS_FRAME = re.compile(r"\+0x[0-9a-f]+/0x[0-9a-f]+ \[nvidia(?:[_-][a-z]+)*[ \]]")
HUNG_WORDS = (b" blocked for more than ", b" [nvidia")


def parse_hung(message: str) -> HungLine | None:
    """Parse the first line about a hung task; None for any other."""
    match = _HUNG.match(message)
    return match and HungLine(int(match["pid"]), match["task"], int(match["s"]))


def is_in_gpu_driver(message: str) -> bool:
    """Whether a line of a call trace is of a function of the NVIDIA driver's modules."""
    return _DRIVERS_FRAME.search(message) is not None


class DeviceKind(StrEnum):
    """What a PCI device is to this tool."""

    GPU = "GPU"
    ADAPTER = "RDMA adapter"
    OTHER = "other"


class IommuLine(msgspec.Struct, frozen=True):
    """A DMA that the IOMMU stopped. `device` is a PCI address, without domain where none is said;
    `kind` is what the driver that the kernel names before the address makes of it.
    """

    device: str
    kind: DeviceKind | None
    reason: str


_BDF = r"(?:[0-9a-f]{4,6}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"
_INTEL = re.compile(
    r"(?:DMAR|dmar): ?\[DMA (?P<what>Read|Write)[^\]]*\] "
    rf"Request device \[(?:0x)?(?P<pci>{_BDF})\] "
    r"(?:PASID \w+ )?fault addr (?:0x)?[0-9a-f]+ *(?:\[fault reason \w+\] *(?P<why>.*))?"
)
_AMD = re.compile(
    rf"(?:(?P<driver>[\w-]+) (?P<pci>{_BDF}): )?AMD-Vi: Event logged \[(?P<what>IO_PAGE_FAULT"
    rf"|INVALID_DEVICE_REQUEST) (?:device=(?P<named>{_BDF}) )?(?P<why>[^\]]*)"
)
_ARM = re.compile(
    r"arm-smmu-v3 \S+\s+event: (?P<what>F_(?:TRANSLATION|ADDR_SIZE|ACCESS|PERMISSION)) "
    rf"client: (?P<pci>{_BDF})"
)
_DRIVERS = {
    "nvidia": DeviceKind.GPU,
    "amdgpu": DeviceKind.GPU,
    "mlx5_core": DeviceKind.ADAPTER,
    "mlx4_core": DeviceKind.ADAPTER,
    "efa": DeviceKind.ADAPTER,
    "bnxt_en": DeviceKind.ADAPTER,
    "irdma": DeviceKind.ADAPTER,
    "ice": DeviceKind.ADAPTER,
}
# What the kernel calls a device that no driver has bound, or one that a virtual machine drives.
_NO_DRIVER = ("pci", "vfio-pci", "pci-stub", "pcieport")


def parse_iommu(message: str) -> IommuLine | None:
    """Parse a fault that an IOMMU reports; None for any other message."""
    if match := _AMD.match(message):
        device = match["named"] or match["pci"]
        if device is None:
            return None
        driver = match["driver"]
        kind = None if driver is None or driver in _NO_DRIVER else DeviceKind.OTHER
        return IommuLine(device, _DRIVERS.get(driver or "", kind), match["what"])
    if match := _INTEL.match(message):
        why = match["why"] or ""
        return IommuLine(match["pci"], None, f"DMA {match['what'].lower()}: {why}".rstrip(": "))
    if match := _ARM.match(message):
        return IommuLine(match["pci"], None, match["what"])
    return None


_PROBED = re.compile(
    rf"pci (?P<pci>{_BDF}): \[(?P<vendor>[0-9a-f]{{4}}):[0-9a-f]{{4}}\] type \w+ "
    r"class 0x(?P<cls>[0-9a-f]{4})"
)
_BOUND = re.compile(rf"(?P<driver>[\w-]+) (?P<pci>{_BDF}): ")
_DISPLAY, _NETWORK = "03", "02"
_WITH_RDMA = ("15b3", "1d0f")  # NVIDIA/Mellanox, Amazon


def is_probe(message: str) -> bool:
    """Whether a message is of the kernel's walk over the PCI bus, which meets every device."""
    return _PROBED.match(message) is not None


def parse_device(message: str) -> tuple[str, DeviceKind] | None:
    """Return the PCI address that a message tells the kind of; None where it tells of none."""
    if match := _PROBED.match(message):
        kind = DeviceKind.OTHER
        if match["cls"][:2] == _DISPLAY:
            kind = DeviceKind.GPU if match["vendor"] in ("10de", "1002") else kind
        elif match["cls"][:2] == _NETWORK or match["vendor"] == "15b3":
            kind = DeviceKind.ADAPTER if match["vendor"] in _WITH_RDMA else kind
        return match["pci"], kind
    match = _BOUND.match(message)
    if match is None or match["driver"] not in _DRIVERS:
        return None
    return match["pci"], _DRIVERS[match["driver"]]


class AdapterLine(msgspec.Struct, frozen=True):
    """What an adapter's driver says of its firmware or its start: the finding's name, None for
    the word that it has recovered.
    """

    name: str | None
    device: str


_ADAPTER = re.compile(
    rf"(?:mlx5_core|mlx4_core|bnxt_en|efa|irdma):? (?:probe of )?(?P<pci>{_BDF})\b(?P<text>.*)"
)
_FIRMWARE = re.compile(
    r"health compromised|Will cause a leak of a command resource|firmware internal error"
    r"|Fatal error \d+ detected"
)
_NOT_STARTED = re.compile(
    r"(?:load_one|init_one|probe_one).* failed with error code -|failed with error -\d"
    r"|probe with driver \w+ failed"
)
_RECOVERED = re.compile(r"health recovery succe")
ADAPTER_WORDS = (
    b"health compromised", b"leak of a command resource", b"firmware internal error",
    b"Fatal error ", b"_one failed with", b"failed with error -", b"health recovery",
)  # fmt: skip


def parse_adapter(message: str) -> AdapterLine | None:
    """Parse an RDMA adapter's complaint; None for any other message."""
    match = _ADAPTER.match(message)
    if match is None:
        return None
    text = match["text"]
    if _FIRMWARE.search(text):
        return AdapterLine("nic-firmware-failure", match["pci"])
    if _NOT_STARTED.search(text):
        return AdapterLine("nic-init-failed", match["pci"])
    return AdapterLine(None, match["pci"]) if _RECOVERED.search(text) else None
