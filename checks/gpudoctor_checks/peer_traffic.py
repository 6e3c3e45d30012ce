"""What hinders peer-to-peer traffic of GPUs and NICs: ACS, the IOMMU, a driver that refuses it."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.model import AcsPort, NodeFacts, PciDevice
from gpudoctor.facts.node.peer_access import OK, SWITCHED_OFF, WORDS, PeerAccess, PeerRow
from gpudoctor.facts.node.topology import nvlinks
from gpudoctor.report import Certainty, Evidence, Severity
from gpudoctor_checks.pcie import on

CHECKS = CheckSet()

_SHOWN = 8
_ROOT_PATHS = ("PHB", "NODE")
"""Where NCCL still tries peer-to-peer between GPUs: not across the sockets' interconnect."""


def _ends(facts: NodeFacts) -> list[PciDevice]:
    """Return the GPUs and RDMA NICs whose place in the PCIe tree is known."""
    ends = [*facts.gpus, *(hca.pci for hca in facts.hcas or () if hca.pci is not None)]
    return [end for end in ends if end.root is not None]


def _turns_round(facts: NodeFacts, port: AcsPort) -> bool:
    """Whether peer traffic of a GPU or NIC can turn round below this port.

    Where the tree is known, that is a port of a switch with a GPU or NIC below it.
    """
    placed = _ends(facts)
    return not placed or any(port.address in end.bridges[1:] for end in placed)


@CHECKS.check(NodeFacts)
def switch_ports(facts: NodeFacts) -> Iterator[Result]:
    """A switch port sends peer-to-peer traffic up to the root complex."""
    passes_through = any(device.driver == "vfio-pci" for device in facts.pci)
    for port in facts.acs.ports:
        if not port.redirects or not _turns_round(facts, port):
            continue
        yield finding(
            "acs-redirects-p2p",
            on(facts, port.address),
            f"ACS of bridge {port.address} redirects peer-to-peer requests to the root complex: "
            "traffic between GPU and NIC below one switch takes the way through the CPU. Turn it "
            "off on bare metal only; a machine that passes devices to virtual machines needs it."
            + (" This is a virtual machine: leave it to the host." if facts.virtual else ""),
            Evidence(port.source, port.address, port.control, "ACSCtl: what is switched on"),
            values={"bridge": port.address},
            severity=Severity.INFO if facts.virtual or passes_through else None,
        )


@CHECKS.check(NodeFacts)
def root_ports(facts: NodeFacts) -> Iterator[Result]:
    """Root ports hand peer traffic to an IOMMU that translates, and no NVLink goes round it.

    Without translation a redirect by a root port costs nothing: traffic between root ports
    passes the root complex anyway.
    """
    if facts.iommu.translated is not True or facts.virtual or _no_peer_access(facts):
        return
    ports = {port.address: port for port in facts.acs.ports if port.redirects}
    used = {end.bridges[0] for end in _met_at_root(facts) if len(end.bridges) == 1}
    concerned = [ports[address] for address in sorted(used & set(ports))]
    if len(concerned) < 2:
        return
    names = ", ".join(port.address for port in concerned)
    yield finding(
        "acs-redirects-p2p",
        facts.subject,
        f"ACS of the root ports {names} redirects peer-to-peer requests, and the IOMMU translates "
        "them: GPUs that sit directly below these ports reach each other slowly, or NCCL hangs. "
        "Boot with iommu=pt, or turn ACS off; on bare metal only.",
        *(Evidence(port.source, port.address, port.control, "ACSCtl") for port in concerned),
        Evidence(facts.iommu.source, None, facts.iommu.evidence, "how the IOMMU treats them"),
        values={"bridge": names},
        certainty=Certainty.LIKELY,
        severity=None if facts.iommu.certain else Severity.INFO,
    )


def _no_peer_access(facts: NodeFacts) -> bool:
    """Whether no GPU here can reach another by PCIe: GeForce cards are made so."""
    models = (facts.models or {}).values()
    return bool(models) and all("GeForce" in model for model in models) and not facts.hcas


def _met_at_root(facts: NodeFacts) -> list[PciDevice]:
    """Return the GPUs whose way to another GPU goes over the root complex, without NVLink."""
    topology, gpus = facts.topology, [gpu for gpu in facts.own_gpus if gpu.root is not None]
    if topology is None or len(gpus) != len(topology.gpus):
        return []
    labels = {gpu.label: device for gpu, device in zip(topology.gpus, gpus, strict=True)}
    pairs = list(topology.gpu_pairs())
    if any(nvlinks(path) for _, _, path in pairs):
        return []
    met = {
        label
        for one, other, path in pairs
        if path in _ROOT_PATHS or (path == "SYS" and one.numa == other.numa)
        for label in (one.label, other.label)
    }
    return [device for label, device in labels.items() if label in met]


@CHECKS.check(NodeFacts)
def iommu(facts: NodeFacts) -> Iterator[Result]:
    """Devices sit behind an IOMMU that translates their addresses."""
    if not facts.iommu.translated or (facts.pci_whole and not facts.gpus and not facts.hcas):
        return
    yield finding(
        "iommu-enabled",
        facts.subject,
        f"The IOMMU translates DMA ({facts.iommu.evidence}). Peer-to-peer traffic between GPUs "
        "and NICs can go through it, slowly, or fail; identity mode (iommu=pt) does no harm.",
        Evidence(facts.iommu.source, None, facts.iommu.evidence),
        values={"evidence": facts.iommu.evidence},
        certainty=Certainty.CERTAIN if facts.iommu.certain else Certainty.LIKELY,
        severity=Severity.INFO if facts.virtual else None,
    )


@CHECKS.check(PeerAccess)
def refused(access: PeerAccess) -> Iterator[Result]:
    """The driver lets a GPU reach no other one's memory.

    Where that is so of all of them it is the model or the machine: GeForce, L4, most VMs. One
    table in a text may be all right and the next one not: NVLink where there is none.
    """
    reaches = {row.gpu for row in access.rows if OK in row.statuses.values()}
    without = [row for row in access.rows if row.gpu not in reaches]
    off = [row for row in access.rows if SWITCHED_OFF in row.statuses.values()]
    shown = off or without
    if not shown:
        return
    words = dict.fromkeys(
        WORDS[word] for row in shown for word in row.statuses.values() if word != OK
    )
    gpus = ", ".join(dict.fromkeys(row.gpu for row in shown))
    yield finding(
        "p2p-disabled",
        access.subject,
        f"The driver gives {gpus} no peer access ({'; '.join(words)}): what goes between them and"
        " the others takes the way through host memory." + _of_all(reaches, off),
        *(Evidence(f"{access.source}:{row.number}", value=row.text) for row in shown[:_SHOWN]),
        values={"hosts": "this host", "link": next(iter(words))},
        severity=Severity.WARNING if reaches or off else Severity.INFO,
        certainty=Certainty.CERTAIN,
    )


def _of_all(reaches: set[str], off: list[PeerRow]) -> str:
    if reaches or off:
        return ""
    return (
        " It is so of all GPUs here, as by design of GeForce and some smaller cards, and in most"
        " virtual machines."
    )
