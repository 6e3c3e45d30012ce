"""Where the ranks of a pod sit on its machine: which GPU each has, and by which adapters it talks.

NCCL's log gives the PCI address of a rank's GPU (`busId`) and, for each network channel, the
index of an adapter in its own list; the machine's PCI tree gives the way between the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gpudoctor.facts.nccl.model import Line, NcclLog
from gpudoctor.facts.node.model import Hca, NodeFacts, PciDevice
from gpudoctor.facts.node.pci import path_between
from gpudoctor.facts.node.topology import distance
from gpudoctor.facts.pod_on_node import PodOnNode

_NAME = re.compile(r"([\w.+-]+):\d+/")
"""A device before its port; NCCL joins the names of those that it merged with a plus."""


class RankPlace(msgspec.Struct, frozen=True):
    """A rank, its GPU, the adapters that it reaches itself (not by PXN), and a line of it.

    `bare` are those of the adapters that it reaches without GPUDirect RDMA.
    """

    rank: int
    gpu: PciDevice
    adapters: tuple[Hca, ...]
    bare: tuple[Hca, ...]
    line: Line


def read(pod: PodOnNode) -> tuple[RankPlace, ...]:
    """Return the ranks of a pod whose GPU and adapters are known on its machine."""
    log = pod.log
    if log is None or (len(log.hosts) > 1 and not pod.is_named):
        return ()
    gpus = {gpu.address: gpu for gpu in pod.machine.gpus}
    hcas = {hca.name: hca for hca in pod.machine.hcas or ()}
    found = []
    for rail in pod.rails:
        gpu = gpus.get(rail.bus or "")
        adapters, bare = (
            tuple(hcas[name] for name in names(log, rail.host, nics) if name in hcas)
            for nics in (rail.own, rail.bare)
        )
        if gpu is not None and adapters and gpu.address in (pod.gpus or gpus):
            found.append(RankPlace(rail.rank, gpu, adapters, bare, rail.line))
    return tuple(found)


def names(log: NcclLog, host: str, nics: Iterable[int]) -> tuple[str, ...]:
    """Return the names of adapters by NCCL's numbers; none where a host printed several lists,
    for then a number does not tell. A merged adapter has the names of all its parts.
    """
    lists = {found.devices for found in log.adapters if found.host == host}
    if len(lists) != 1:
        return ()
    (devices,) = lists
    return tuple(name for nic in nics if nic < len(devices) for name in _names(devices[nic]))


def _names(printed: str) -> list[str]:
    return [name for joined in _NAME.findall(printed) for name in joined.split("+")]


def listed(pod: PodOnNode) -> frozenset[str]:
    """Return the names of all adapters in the list that NCCL printed for the pod's host."""
    lists = (found.devices for found in (pod.log.adapters if pod.log else ()) if pod.is_of(found))
    return frozenset(name for devices in lists for text in devices for name in _names(text))


class Ways:
    """The ways between the GPUs and adapters of a machine, in the words of `nvidia-smi topo`."""

    def __init__(self, machine: NodeFacts) -> None:
        self._nodes = sum(1 for node in machine.numa if node.cpus)
        self._functions = {device.address: device for device in machine.pci}

    def path(self, gpu: PciDevice, hca: Hca) -> str | None:
        """Return the path between the two, None if it is not known."""
        card = self.card(hca)
        return None if card is None else path_between(gpu, card, self._nodes)

    def card(self, hca: Hca) -> PciDevice | None:
        """Return the physical function of an adapter, which tells its place."""
        if hca.pci is None:
            return None
        return self._functions.get(hca.pci.physical or "", hca.pci)

    def nearest(self, gpu: PciDevice, hcas: tuple[Hca, ...]) -> str | None:
        """Return the shortest of the paths, None if one of them is not known."""
        paths = [self.path(gpu, hca) for hca in hcas]
        known = [path for path in paths if path is not None]
        return min(known, key=distance) if known and len(known) == len(paths) else None
