"""PCIe on the node: width and speed of links, GPUs that are gone."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.model import Link, NodeFacts, PciDevice, WorkloadFacts
from gpudoctor.report import Certainty, Evidence, Subject

CHECKS = CheckSet()

_DEVICES = "/sys/bus/pci/devices"


def on(facts: WorkloadFacts, device: str) -> Subject:
    """Return the subject of one device of the node."""
    return msgspec.structs.replace(facts.subject, device=device)


def _narrow(device: PciDevice) -> tuple[int, int] | None:
    """Return (lanes, lanes at most) of a link that lost lanes; a narrow slot lost none."""
    link = device.link
    if link.width is None or link.max_width is None or link.width >= link.max_width:
        return None
    if device.upstream.max_width is not None and device.upstream.max_width <= link.width:
        return None
    return link.width, min(link.max_width, device.upstream.max_width or link.max_width)


def _slow(device: PciDevice) -> tuple[float, float] | None:
    """Return (GT/s, GT/s at most) of a link below what card and slot can do."""
    link = device.link
    if link.speed is None or link.max_speed is None:
        return None
    most = min(link.max_speed, device.upstream.max_speed or link.max_speed)
    return (link.speed, most) if link.speed < most else None


def _link_evidence(device: PciDevice) -> Iterator[Evidence]:
    folder = f"{_DEVICES}/{device.address}"
    link: Link = device.link
    yield Evidence(folder, "current_link_width", str(link.width), f"at most {link.max_width}")
    yield Evidence(folder, "current_link_speed", f"{link.speed} GT/s", f"at most {link.max_speed}")


def _describe(device: PciDevice) -> str:
    return f"x{device.link.width} at {device.link.speed or 'unknown'} GT/s"


@CHECKS.check(NodeFacts)
def gpu_links(facts: NodeFacts) -> Iterator[Result]:
    """A GPU's link lost lanes, or runs slow while the GPU works."""
    for gpu in facts.own_gpus:
        narrow, slow = _narrow(gpu), _slow(gpu)
        if narrow or (slow and gpu.address in facts.busy):
            parts = [f"x{narrow[0]} of x{narrow[1]}"] if narrow else []
            if slow and gpu.address in facts.busy:
                parts.append(f"{slow[0]:g} of {slow[1]:g} GT/s while it is busy (P0 or under load)")
            yield finding(
                "gpu-pcie-degraded",
                on(facts, gpu.address),
                f"The PCIe link of GPU {gpu.address} runs at {' and '.join(parts)}.",
                *_link_evidence(gpu),
                values={"device": gpu.address, "link": _describe(gpu)},
            )
        elif slow:
            yield finding(
                "gpu-pcie-idle-speed",
                on(facts, gpu.address),
                f"The PCIe link of GPU {gpu.address} is at {slow[0]:g} of {slow[1]:g} GT/s: an "
                "idle GPU lowers it to save power. Look again under load.",
                *_link_evidence(gpu),
                values={"device": gpu.address, "speed": f"{slow[0]:g} GT/s"},
                certainty=(Certainty.CERTAIN if gpu.address in facts.idle else Certainty.POSSIBLE),
            )


@CHECKS.check(NodeFacts)
def nic_links(facts: NodeFacts) -> Iterator[Result]:
    """An RDMA NIC's link lost lanes or speed; NICs do not slow down when idle."""
    for hca in facts.hcas or ():
        if hca.pci is None or hca.pci.physical is not None:
            continue
        narrow, slow = _narrow(hca.pci), _slow(hca.pci)
        if not narrow and not slow:
            continue
        parts = [f"x{narrow[0]} of x{narrow[1]}"] if narrow else []
        parts += [f"{slow[0]:g} of {slow[1]:g} GT/s"] if slow else []
        yield finding(
            "nic-pcie-degraded",
            on(facts, hca.name),
            f"The PCIe link of {hca.name} ({hca.pci.address}) runs at {' and '.join(parts)}.",
            *_link_evidence(hca.pci),
            values={"device": hca.name, "link": _describe(hca.pci)},
            related=[on(facts, hca.pci.address)],
        )


@CHECKS.check(NodeFacts)
def gpu_count(facts: NodeFacts) -> Iterator[Result]:
    """A GPU on the bus is not among those that the driver has, or the other way round."""
    if facts.driver_gpus is None or not facts.pci_whole or facts.in_container is not False:
        return
    on_bus = {gpu.address for gpu in facts.gpus if gpu.driver in (None, "nvidia")}
    taken = set(facts.driver_gpus)
    if on_bus == taken or not taken:
        return
    lost = ", ".join(sorted(on_bus ^ taken))
    yield finding(
        "gpu-count-wrong",
        facts.subject,
        f"{len(on_bus)} NVIDIA GPUs are on the PCI bus, the driver has {len(taken)}: {lost} "
        "is only in one of the two.",
        Evidence("/sys/bus/pci/devices", None, ", ".join(sorted(on_bus))),
        Evidence("/proc/driver/nvidia/gpus", None, ", ".join(sorted(taken))),
        values={"seen": str(len(taken)), "expected": str(len(on_bus))},
    )
