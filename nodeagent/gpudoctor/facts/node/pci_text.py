"""The PCI tree as `lspci -tv` and `hwloc-ls` draw it: which GPU and NIC share a switch."""

from __future__ import annotations

import re

import msgspec

from gpudoctor.facts.node import pci
from gpudoctor.facts.node.model import NVIDIA, Hca, PciDevice

_TOKEN = re.compile(
    r"\[(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2})(?:-[0-9a-f]{2})?\]"
    r"|(?P<device>[0-9a-f]{2}\.[0-7])(?=-|\s|$)"
)
_TREE = re.compile(r"^[ |\\+-]*-\[[0-9a-f]{4,8}:[0-9a-f]{2}(?:-[0-9a-f]{2})?\]-", re.MULTILINE)
_BRANCH = re.compile(r"^[ |\\+-]+[0-9a-f]{2}\.[0-7](?:-\[|  )", re.MULTILINE)
_NO_GPU = re.compile(r"audio|usb|nvswitch|bridge|ucsi|serial|memory controller", re.IGNORECASE)
_NIC = re.compile(r"mellanox|connectx|bluefield|infiniband|elastic fabric|omni-path", re.IGNORECASE)
_NO_NIC = re.compile(r"bridge|management|soc|dma", re.IGNORECASE)

_HWLOC_PCI = re.compile(
    r"^(?P<indent>\s*)PCI (?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
    r" \((?P<kind>[^)]*)\)"
)
_HWLOC_BRIDGE = re.compile(r"^(?P<indent>\s*)(?P<kind>HostBridge|PCIBridge)\b")
_HWLOC_NUMA = re.compile(r"^(?P<indent>\s*)NUMANode L#\d+ \(P#(?P<number>\d+)")
_HWLOC_FABRIC = re.compile(r'^\s*OpenFabrics(?: L#\d+)? "(?P<name>[^"]+)"')
_HWLOC_NVML = re.compile(r"^\s*(?:GPU\(NVML\)|CoProc\(CUDA\))")
_GPU_CLASS, _NIC_CLASS = 0x030200, 0x020700


class _Place(msgspec.Struct):
    column: int
    bridge: str | None
    bus: str
    domain: str


class Tree(msgspec.Struct, frozen=True):
    """GPUs in order of their addresses, and NICs by device name, else by address."""

    gpus: tuple[PciDevice, ...]
    nics: tuple[Hca, ...]


def lspci_lines(text: str) -> int:
    """Count the telling lines of `lspci -tv`."""
    return 3 * len(_TREE.findall(text)) + (len(_BRANCH.findall(text)) if _TREE.search(text) else 0)


def hwloc_lines(text: str) -> int:
    """Count the telling lines of `hwloc-ls` or `lstopo`."""
    lines = text.splitlines()
    return sum(bool(_HWLOC_BRIDGE.match(line) or _HWLOC_PCI.match(line)) for line in lines)


def parse_lspci(text: str) -> Tree:
    """Read the drawing of `lspci -tv`: a device hangs below what stands to its left."""
    gpus: list[PciDevice] = []
    nics: list[Hca] = []
    places: list[_Place] = []
    for line in text.replace("\r", "").splitlines():
        drawing, _, name = line.partition("  ")
        if line.startswith(" "):  # the drawing itself may begin with blanks
            stripped = line.lstrip(" |")
            offset = len(line) - len(stripped)
            drawing, _, name = stripped.partition("  ")
            drawing = " " * offset + drawing
        last: str | None = None
        for token in _TOKEN.finditer(drawing):
            if token["bus"]:
                domain = token["domain"] or (places[-1].domain if places else "0000")
                if token["domain"]:
                    last = None
                places = [place for place in places if place.column < token.start()]
                places.append(_Place(token.start(), last, token["bus"], domain[-4:]))
                continue
            places = [place for place in places if place.column < token.start()]
            if not places:
                break
            last = f"{places[-1].domain}:{places[-1].bus}:{token['device']}"
        if last is not None and name:
            _sort_in(_device(last, places), name, gpus, nics)
    return Tree(tuple(sorted(gpus, key=lambda gpu: gpu.address)), tuple(nics))


def _device(address: str, places: list[_Place]) -> PciDevice:
    return PciDevice(
        address=address,
        vendor=0,
        class_=0,
        root=f"pci{places[0].domain}:{places[0].bus}",
        bridges=tuple(place.bridge for place in places if place.bridge is not None),
    )


def _sort_in(device: PciDevice, name: str, gpus: list[PciDevice], nics: list[Hca]) -> None:
    if "NVIDIA" in name and not _NO_GPU.search(name) and not _NIC.search(name):
        gpus.append(msgspec.structs.replace(device, vendor=NVIDIA, class_=_GPU_CLASS))
    elif _NIC.search(name) and not _NO_NIC.search(name):
        nics.append(_nic(device.address, device))


def _nic(name: str, device: PciDevice) -> Hca:
    placed = msgspec.structs.replace(device, class_=_NIC_CLASS)
    return Hca(name=name, pci=placed, model=None, board=None, ports=(), uverbs=None)


def parse_hwloc(text: str) -> Tree:
    """Read `hwloc-ls`: indentation is nesting; bridges have no addresses, so they get numbers."""
    gpus: dict[str, PciDevice] = {}
    nics: dict[str, Hca] = {}
    above: list[tuple[int, str]] = []
    nodes: list[tuple[int, int]] = []
    last: PciDevice | None = None
    for number, line in enumerate(text.replace("\r", "").splitlines()):
        if match := _HWLOC_NUMA.match(line):
            indent = len(match["indent"])
            nodes = [entry for entry in nodes if entry[0] < indent] + [
                (indent, int(match["number"][:4]))
            ]
        elif match := _HWLOC_BRIDGE.match(line):
            indent = len(match["indent"])
            above = [entry for entry in above if entry[0] < indent]
            above.append((indent, f"{match['kind']}#{number}"))
        elif match := _HWLOC_PCI.match(line):
            indent = len(match["indent"])
            above = [entry for entry in above if entry[0] < indent]
            last = _hwloc_device(match["address"], above, nodes)
            if match["kind"] == "3D":
                gpus[last.address] = msgspec.structs.replace(last, vendor=NVIDIA, class_=_GPU_CLASS)
            elif match["kind"] == "InfiniBand":
                nics[last.address] = _nic(last.address, last)
        elif last is not None and (match := _HWLOC_FABRIC.match(line)):
            nics[last.address] = _nic(match["name"], last)
        elif last is not None and _HWLOC_NVML.match(line):
            gpus[last.address] = msgspec.structs.replace(last, vendor=NVIDIA, class_=_GPU_CLASS)
    return Tree(tuple(gpus[address] for address in sorted(gpus)), tuple(nics.values()))


def _hwloc_device(
    printed: str, above: list[tuple[int, str]], nodes: list[tuple[int, int]]
) -> PciDevice:
    names = [name for _, name in above]
    return PciDevice(
        address=pci.address(printed) or printed,
        vendor=0,
        class_=0,
        numa=nodes[-1][1] if nodes else None,
        root=names[0] if names else None,
        bridges=tuple(names[1:]),
    )
