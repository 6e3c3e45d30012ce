"""Who is near to whom on one machine: the facts of `nvidia-smi topo -m`, whatever gave them.

The text of every driver generation, NVML and plain sysfs all become one `Topology`. Paths have
the names of the tool's legend, near to far: NV# (bonded NVLinks), PIX, PXB, PHB, NODE, SYS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gpudoctor.report import Subject

SELF = "X"
NEAR = ("PIX", "PXB")
"""PCIe paths that do not cross a host bridge: what GPUDirect RDMA wants between GPU and NIC."""

_RANK = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}
PATHS = frozenset(_RANK)


def nvlinks(path: str) -> int:
    """Return the number of bonded NVLinks of a path, 0 for a PCIe path."""
    return int(path[2:]) if path.startswith("NV") and path[2:].isdigit() else 0


def distance(path: str) -> int:
    """Return how far a path is: 0 NVLink, 1 PIX … 5 SYS."""
    return 0 if nvlinks(path) else _RANK[path]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's place. `cpus` are its local CPUs that the caller may use; None is unknown.

    `cpus_cut` says that the tool printed only the first entries of a longer list. `numa` are the
    CPU nodes it is near to, None when the machine does not say; `memory_node` is the GPU's own
    memory as a NUMA node (Grace). `is_partitioned` says that MIG is on: it has no NVLink then.
    """

    label: str
    cpus: frozenset[int] | None = None
    cpus_text: str = ""
    cpus_cut: bool = False
    numa: tuple[int, ...] | None = None
    memory_node: int | None = None
    is_partitioned: bool = False


class Nic(msgspec.Struct, frozen=True):
    """An RDMA NIC: its label in the matrix and its device name."""

    label: str
    device: str


class MigPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG device: the label of the card that it is on, its profile and its instances there."""

    uuid: str
    gpu: str
    profile: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class BrokenRow(msgspec.Struct, frozen=True):
    """A row of the table that could not be read."""

    label: str
    why: str
    line: str


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs, NICs and the path between any two of them, keyed by label: `matrix[a][b]`.

    A pair that could not be read is not in the matrix. `nvlink_shown` says that the source
    would have shown NVLink: `topo -mp` and sysfs do not. `numa_shown` that it has NUMA nodes.
    """

    subject: Subject
    source: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    matrix: dict[str, dict[str, str]]
    nvlink_shown: bool
    numa_shown: bool
    broken: tuple[BrokenRow, ...] = ()
    mig: tuple[MigPlace, ...] = ()

    def without_cpus(self) -> Topology:
        """Return it as if the CPUs near to the GPUs were not known."""
        gpus = (msgspec.structs.replace(gpu, cpus=None, cpus_text="") for gpu in self.gpus)
        return msgspec.structs.replace(self, gpus=tuple(gpus))

    def path(self, one: str, other: str) -> str | None:
        """Return the path between two labels, read in either direction; None if unknown."""
        there = self.matrix.get(one, {}).get(other)
        return there if there is not None else self.matrix.get(other, {}).get(one)

    def gpu_pairs(self) -> Iterator[tuple[Gpu, Gpu, str]]:
        """Yield each pair of GPUs whose path is known, once."""
        for index, one in enumerate(self.gpus):
            for other in self.gpus[index + 1 :]:
                path = self.path(one.label, other.label)
                if path is not None:
                    yield one, other, path

    def nic_pairs(self) -> Iterator[tuple[Nic, Nic, str]]:
        """Yield each pair of NICs whose path is known, once."""
        for index, one in enumerate(self.nics):
            for other in self.nics[index + 1 :]:
                path = self.path(one.label, other.label)
                if path is not None:
                    yield one, other, path

    def nic_paths(self, gpu: Gpu) -> dict[str, str]:
        """Return the path from a GPU to each NIC label for which it is known."""
        return {
            nic.label: path
            for nic in self.nics
            if (path := self.path(gpu.label, nic.label)) is not None
        }

    def near_nics(self, gpu: Gpu) -> tuple[str, ...]:
        """Return the device names of the NICs at PIX or PXB of a GPU."""
        paths = self.nic_paths(gpu)
        return tuple(nic.device for nic in self.nics if paths.get(nic.label) in NEAR)

    def islands(self) -> tuple[tuple[str, ...], ...]:
        """Return the groups of GPUs that NVLink joins, directly or through each other."""
        group = {gpu.label: {gpu.label} for gpu in self.gpus}
        for one, other, path in self.gpu_pairs():
            if nvlinks(path) and group[one.label] is not group[other.label]:
                joined = group[one.label] | group[other.label]
                for label in joined:
                    group[label] = joined
        order = {gpu.label: index for index, gpu in enumerate(self.gpus)}
        unique = {frozenset(members) for members in group.values() if len(members) > 1}
        islands = [tuple(sorted(members, key=order.__getitem__)) for members in unique]
        return tuple(sorted(islands, key=lambda island: order[island[0]]))

    def published(self) -> dict[str, Any]:
        """Return what a report says of a topology under `facts.topology`."""
        return {
            "source": self.source,
            "gpus": len(self.gpus),
            "nics": len(self.nics),
            "matrix": self.matrix,
            "nic_names": {nic.label: nic.device for nic in self.nics},
            "nic_for_gpu": {
                gpu.label: list(near) for gpu in self.gpus if (near := self.near_nics(gpu))
            },
            "numa": {gpu.label: list(gpu.numa) for gpu in self.gpus if gpu.numa is not None},
            "gpu_numa_id": {gpu.label: gpu.memory_node for gpu in self.gpus},
            "cpu_affinity": {gpu.label: gpu.cpus_text for gpu in self.gpus},
            "cpu_affinity_cut": any(gpu.cpus_cut for gpu in self.gpus),
            "nvlink_islands": [list(island) for island in self.islands()],
            "nvlink_visible": self.nvlink_shown,
            "mig": [self._placed(device) for device in self.mig],
        }

    def _placed(self, device: MigPlace) -> dict[str, Any]:
        """Return a MIG device with the NVLink group that its card belongs to."""
        group = next((island for island in self.islands() if device.gpu in island), ())
        return {**msgspec.to_builtins(device), "nvlink_island": list(group)}
