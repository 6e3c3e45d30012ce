"""Access Control Services and IOMMU: what sends peer-to-peer traffic up to the root complex.

ACSCap is what a port can do, ACSCtl what is switched on. Without CAP_SYS_ADMIN the kernel shows
64 bytes of the configuration space, so that nothing is known.
"""

from __future__ import annotations

import re
import struct

from gpudoctor.facts.node import pci
from gpudoctor.facts.node.model import Acs, AcsPort, Iommu, PciDevice
from gpudoctor.sources.host import Host, Missing, names, text

_BITS = (
    "SrcValid",
    "TransBlk",
    "ReqRedir",
    "CmpltRedir",
    "UpstreamFwd",
    "EgressCtrl",
    "DirectTrans",
)
_REDIRECT = 0b11100
_ACS_CAPABILITY = 0x000D
_HEADER_ONLY = 64
_VIRTUAL = ("QEMU", "KVM", "VMware", "Virtual Machine", "VirtualBox", "Xen", "Firecracker")
_DEVICE = re.compile(r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^:]*)", re.IGNORECASE)
_CONTROL = re.compile(r"^\s+ACSCtl:\s*(.*)$")


def read_acs(host: Host, devices: tuple[PciDevice, ...]) -> Acs:
    """Read the ACS state of all bridges, from configuration space, else from `lspci -vvv`."""
    ports: dict[str, AcsPort] = {}
    denied: set[str] = set()
    known = {device.address: device for device in devices}
    for name in names(host, pci.DEVICES):
        if name in known and not known[name].is_bridge:
            continue
        raw = host.read_bytes(f"{pci.DEVICES}/{name}/config")
        if isinstance(raw, Missing) or not _is_bridge(raw):
            continue
        if len(raw) <= _HEADER_ONLY:
            denied.add(name)
        elif (control := _control_word(raw)) is not None:
            ports[name] = _port(name, control, f"{pci.DEVICES}/{name}/config")
    printed = host.run(["lspci", "-vvv"])
    if isinstance(printed, str):
        found, refused = parse_lspci(printed)
        ports = {port.address: port for port in found} | ports
        denied |= refused
    return Acs(tuple(ports.values()), tuple(sorted(denied - set(ports))))


def _is_bridge(config: bytes) -> bool:
    return len(config) > 0x0E and config[0x0E] & 0x7F == 1


def _control_word(config: bytes) -> int | None:
    """Walk the extended capabilities from 0x100; the ACS control word stands at +6."""
    offset, seen = 0x100, set()
    while 0x100 <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        header = int(struct.unpack_from("<I", config, offset)[0])
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int(struct.unpack_from("<H", config, offset + 6)[0])
        offset = header >> 20 & 0xFFC
    return None


def _port(address: str, control: int, source: str) -> AcsPort:
    words = " ".join(
        f"{name}{'+' if control >> bit & 1 else '-'}" for bit, name in enumerate(_BITS)
    )
    return AcsPort(address, bool(control & _REDIRECT), words, source)


def parse_lspci(printed: str) -> tuple[tuple[AcsPort, ...], set[str]]:
    """Return the bridges of `lspci -vvv` with their ACS control, and those that hide it."""
    ports: list[AcsPort] = []
    denied: set[str] = set()
    address: str | None = None
    for line in printed.splitlines():
        if match := _DEVICE.match(line):
            is_bridge = "pci bridge" in match[2].lower()
            address = pci.address(match[1]) if is_bridge else None
        elif address is None:
            continue
        elif "<access denied>" in line:
            denied.add(address)
        elif match := _CONTROL.match(line):
            flags = match[1].split()
            control = sum(1 << bit for bit, name in enumerate(_BITS) if f"{name}+" in flags)
            ports.append(_port(address, control, "lspci -vvv"))
    return tuple(ports), denied


def read_iommu(host: Host, devices: tuple[PciDevice, ...]) -> Iommu:
    """Say whether the devices that matter are behind a translating IOMMU.

    The type of a device's group is the fact; the kernel's command line only what was asked for.
    """
    types = {}
    for device in devices:
        kind = text(host, f"/sys/kernel/iommu_groups/{device.iommu}/type") if device.iommu else None
        if kind:
            types[device.address] = kind
    if types:
        address, kind = next(
            ((a, k) for a, k in types.items() if k.startswith("DMA")), next(iter(types.items()))
        )
        where = f"/sys/bus/pci/devices/{address}/iommu_group/type"
        return Iommu(translated=kind.startswith("DMA"), certain=True, evidence=kind, source=where)
    return _from_command_line(text(host, "/proc/cmdline"))


def _from_command_line(line: str | None) -> Iommu:
    words = set((line or "").split())
    through = words & {"iommu=pt", "iommu.passthrough=1"}
    asked = words & {"intel_iommu=on", "amd_iommu=on", "iommu=force", "iommu.passthrough=0"}
    off = words & {"intel_iommu=off", "amd_iommu=off", "iommu=off"}
    source = "/proc/cmdline"
    if through or off:
        return Iommu(translated=False, evidence=min(through | off), source=source)
    if asked:
        return Iommu(translated=True, evidence=min(asked), source=source)
    return Iommu()


def is_virtual(host: Host) -> bool | None:
    """Return whether this is a virtual machine, by the CPU's hypervisor flag, else the firmware.

    The vendor alone does not tell: clouds put their name on bare metal too.
    """
    info = host.read_bytes("/proc/cpuinfo")
    firmware = [text(host, f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    if any(word in (name or "") for name in firmware for word in _VIRTUAL):
        return True
    if isinstance(info, Missing):
        return None
    return b" hypervisor" in info[: 1 << 16]
