"""PCI devices from sysfs: what they are, where they hang, and how wide their links run."""

from __future__ import annotations

import posixpath
import re

from gpudoctor.facts.node import cpulist
from gpudoctor.facts.node.model import Link, PciDevice
from gpudoctor.sources.host import Host, Listing, Missing, names, number, text

DEVICES = "/sys/bus/pci/devices"
DRIVER_GPUS = "/proc/driver/nvidia/gpus"
_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_ANY_ADDRESS = re.compile(
    r"^(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<rest>[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$"
)
_ROOT = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
_SPEED = re.compile(r"^([0-9.]+) ?GT/s")
_LINK = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
_READ = ("vendor", "class", "local_cpulist", "device", "numa_node", *_LINK)
_LINKS = ("physfn", "driver", "iommu_group")
_WIDEST = 32
"""Lanes of the widest link; unknown widths read 63 or 255."""


def address(printed: str) -> str | None:
    """Return an address as sysfs has it, of `00000000:1B:00.0` or `1b:00.0`; None if it is none."""
    match = _ANY_ADDRESS.match(printed.strip().lower())
    if match is None:
        return None
    return f"{int(match['domain'] or '0', 16):04x}:{match['rest']}"


def read_devices(host: Host) -> tuple[tuple[PciDevice, ...], bool]:
    """Return all PCI devices that are known, and whether the bus was listed whole."""
    listing = host.listing(DEVICES)
    if isinstance(listing, Missing):
        return (), listing.absent
    addresses = [name for name in listing.names if _ADDRESS.match(name)]
    host.expect((), links=(f"{DEVICES}/{name}" for name in addresses))
    above = {bridges[-1] for name in addresses if (bridges := _chain(host, name)[1])}
    asked = [f"{DEVICES}/{name}/{attribute}" for name in addresses for attribute in _READ]
    asked += [f"{DEVICES}/{name}/{attribute}" for name in above for attribute in _LINK]
    linked = (f"{DEVICES}/{name}/{link}" for name in addresses for link in _LINKS)
    host.expect(dict.fromkeys(asked), links=linked)
    found = [read_device(host, name) for name in addresses]
    return tuple(device for device in found if device is not None), listing.complete


def read_device(host: Host, name: str) -> PciDevice | None:
    """Return one device by its address, None if even vendor and class cannot be read."""
    folder = f"{DEVICES}/{name}"
    vendor, class_ = _hex(host, f"{folder}/vendor"), _hex(host, f"{folder}/class")
    if vendor is None or class_ is None:
        return None
    root, bridges = _chain(host, name)
    cpus = text(host, f"{folder}/local_cpulist")
    return PciDevice(
        address=name,
        vendor=vendor,
        class_=class_,
        device=_hex(host, f"{folder}/device"),
        numa=number(host, f"{folder}/numa_node"),
        cpus=cpulist.parse(cpus) if cpus else None,
        link=_link(host, folder),
        upstream=_link(host, f"{DEVICES}/{bridges[-1]}") if bridges else Link(),
        root=root,
        bridges=bridges,
        physical=_base_of_link(host, f"{folder}/physfn"),
        driver=_base_of_link(host, f"{folder}/driver"),
        iommu=_base_of_link(host, f"{folder}/iommu_group"),
    )


def _hex(host: Host, path: str) -> int | None:
    content = text(host, path)
    try:
        return None if content is None else int(content, 16)
    except ValueError:
        return None


def _base_of_link(host: Host, path: str) -> str | None:
    target = host.target(path)
    return None if isinstance(target, Missing) else posixpath.basename(target)


def _chain(host: Host, name: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the root complex and the bridges above a device, from where its link leads."""
    target = host.target(f"{DEVICES}/{name}")
    if isinstance(target, Missing):
        return None, ()
    parts = target.split("/")
    root = next((part for part in parts if _ROOT.match(part)), None)
    return root, tuple(part for part in parts if _ADDRESS.match(part) and part != name)


def _link(host: Host, folder: str) -> Link:
    return Link(
        speed=_speed(text(host, f"{folder}/current_link_speed")),
        width=_width(number(host, f"{folder}/current_link_width")),
        max_speed=_speed(text(host, f"{folder}/max_link_speed")),
        max_width=_width(number(host, f"{folder}/max_link_width")),
    )


def _speed(content: str | None) -> float | None:
    """Return GT/s of `32.0 GT/s PCIe` or `16 GT/s`; None for `Unknown`."""
    match = _SPEED.match(content or "")
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None


def _width(lanes: int | None) -> int | None:
    return lanes if lanes is not None and 0 < lanes <= _WIDEST else None


def path_between(one: PciDevice, other: PciDevice, nodes: int) -> str | None:
    """Return the path between two devices in the words of `nvidia-smi topo`, None if unknown.

    Bridges below the last common one are counted, not the length of the path: a switch shows as
    one bridge up and one down. `nodes` is the number of NUMA nodes with CPUs.
    """
    common = [a for a, b in zip(one.bridges, other.bridges, strict=False) if a == b]
    if common and one.root == other.root:
        below = [len(device.bridges) - len(common) for device in (one, other)]
        return "PIX" if max(below) <= 1 else "PXB"
    if one.root is not None and one.root == other.root:
        return "PHB"
    if one.numa is None or other.numa is None:
        return None
    if one.numa == other.numa and (one.numa >= 0 or nodes == 1):
        return "NODE" if one.root and other.root else None
    return "SYS" if one.numa >= 0 and other.numa >= 0 else None


def physical_function(device: PciDevice, devices: dict[str, PciDevice]) -> PciDevice:
    """Return the card behind a virtual function: its bridges tell the distance."""
    return devices.get(device.physical or "", device)


def driver_gpus(host: Host) -> tuple[str, ...] | None:
    """Return the addresses of the GPUs that the NVIDIA driver has taken, None if unknown."""
    listing = host.listing(DRIVER_GPUS)
    if isinstance(listing, Missing) or not listing.complete:
        return None
    return tuple(found for name in listing.names if (found := address(name)))


def given_gpus(host: Host) -> tuple[str, ...] | None:
    """Return the addresses of the GPUs that this container was given, None if unknown.

    By the list that the tool printed there, else by the device nodes whose minor numbers the
    driver ties to an address.
    """
    printed = host.run(["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"])
    if isinstance(printed, str):
        return tuple(found for line in printed.splitlines() if (found := address(line))) or None
    listing = host.listing("/dev")
    if not isinstance(listing, Listing) or not listing.complete:
        return None
    minors = frozenset(name[6:] for name in listing.names if re.match(r"^nvidia\d+$", name))
    return with_minors(host, minors) or None


def with_minors(host: Host, minors: frozenset[str]) -> tuple[str, ...]:
    """Return the addresses of the GPUs whose device nodes have these minor numbers."""
    return tuple(
        found
        for name in names(host, DRIVER_GPUS)
        if (found := address(name)) and identity(host, name)[1] in minors
    )


def models(host: Host) -> dict[str, str] | None:
    """Return address -> model name as the driver has it, None if it says none."""
    found = {}
    for name in names(host, DRIVER_GPUS):
        information = text(host, f"{DRIVER_GPUS}/{name}/information") or ""
        match = re.search(r"^Model:\s*(\S.*)$", information, re.MULTILINE)
        if match and (where := address(name)):
            found[where] = match[1].strip()
    return found or None


def identity(host: Host, name: str) -> tuple[str | None, str | None]:
    """Return UUID and minor number of a GPU, by its name under `DRIVER_GPUS`."""
    information = text(host, f"{DRIVER_GPUS}/{name}/information") or ""
    uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]{36})", information, re.MULTILINE)
    minor = re.search(r"^Device Minor:\s*(\d+)", information, re.MULTILINE)
    return uuid[1] if uuid else None, minor[1] if minor else None


def busy_and_idle(
    host: Host, given: tuple[str, ...] | None
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the GPUs that run at full clocks or under load, and those that do not."""
    command = "nvidia-smi --query-gpu=pstate,utilization.gpu --format=csv,noheader"
    printed = host.run(command.split())
    if isinstance(printed, Missing) or given is None:
        return frozenset(), frozenset()
    lines = [line for line in printed.splitlines() if line.strip()]
    busy: set[str] = set()
    idle: set[str] = set()
    for where, line in zip(given, lines, strict=False):
        state, _, load = (part.strip() for part in line.partition(","))
        is_busy = state == "P0" or load.split(" ")[0] not in ("0", "", "[N/A]", "N/A")
        (busy if is_busy else idle).add(where)
    return frozenset(busy), frozenset(idle)
