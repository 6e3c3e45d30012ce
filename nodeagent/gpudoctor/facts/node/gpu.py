"""A node's GPUs as NVML describes them; each value may be unavailable, with the reason."""

from __future__ import annotations

from typing import Any

import msgspec

from gpudoctor.facts.node.system import Waiting
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion
from gpudoctor.report import Subject


class NotAvailable(msgspec.Struct, frozen=True):
    """Why NVML gave no value: its return code, or one of the two below."""

    code: int
    why: str

    @property
    def normal(self) -> bool:
        """Whether the part simply does not have it: nothing to report as unknown."""
        return self.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND, NOT_ASKED)


NOT_SUPPORTED, FUNCTION_NOT_FOUND = 3, 13
NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 4, 9, 12
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH = 15, 16, 18

NOT_ASKED = -2
"""The call was not made, since an earlier one decided already."""

NO_ANSWER = -3
"""The call, or one before it, did not come back in time."""


class FabricState(msgspec.Struct, frozen=True):
    """Registration with the NVLink fabric: 0 not supported, 1 not started, 2 in progress,
    3 completed, with NVML's return code as its status.

    `health_mask` has two bits a condition (`complaints` decodes them); `health_summary` is 0 not
    supported, 1 healthy, 2 unhealthy, 3 limited capacity. None where the driver has neither.
    """

    state: int
    status: int
    clique: int
    cluster: str
    health_mask: int | None = None
    health_summary: int | None = None

    @property
    def complaints(self) -> tuple[str, ...]:
        """What the fabric's health says that is not well, in words."""
        mask = self.health_mask or 0
        said = [word for shift, word in _HEALTH.items() if mask >> shift & 3 == _TRUE]
        wrong = _MISCONFIGURED.get(mask >> _CONFIGURATION_SHIFT & 0xF)
        said += [f"wrong configuration: {wrong}"] if wrong else []
        summary = _SUMMARY.get(self.health_summary or 0)
        return tuple(said or ([summary] if summary else []))


_TRUE = 1
_HEALTH = {
    0: "bandwidth degraded",
    2: "a route is being recovered",
    4: "a route is unhealthy",
    6: "recovery after an access time-out",
}
_CONFIGURATION_SHIFT = 8
_MISCONFIGURED = {
    2: "system GUID",
    3: "chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "GPU firmware does not fit",
    7: "location in the chassis",
    8: "GPU in an invalid state",
}
_SUMMARY = {2: "unhealthy", 3: "limited capacity"}

REMOTE_GPU, REMOTE_SWITCH, REMOTE_UNKNOWN = 0, 2, 255
"""What NVML says is at the other end of an NVLink."""


class NvLink(msgspec.Struct, frozen=True):
    """One NVLink of a GPU.

    `errors` are NVML's counters since the driver was loaded: replay, recovery, crc, and from
    NVLink 5 on those by field id; bit error rates are floats. `remote_pci` is as `Gpu.pci`.
    """

    active: bool
    errors: dict[str, int | float] = {}
    remote_type: int | None = None
    remote_pci: str | None = None


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG device: its number on the card, and the instances that it is made of."""

    uuid: str
    index: int | None = None
    name: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None

    @property
    def profile(self) -> str | None:
        """The profile in the device's name, such as 1g.10gb."""
        _, found, profile = (self.name or "").partition(" MIG ")
        return profile if found else None


class Clock(msgspec.Struct, frozen=True):
    """MHz of a clock: now, at most, and as set for applications."""

    current: int | None
    most: int | None
    application: int | None


class RowHistogram(msgspec.Struct, frozen=True):
    """Memory banks by the spare rows that they have left: all, many, some, few, none."""

    all: int
    many: int
    some: int
    few: int
    none: int


class Platform(msgspec.Struct, frozen=True):
    """Where in its rack a GPU sits: chassis, slot, compute tray, host in the tray, module."""

    chassis_serial: str
    slot: int
    tray: int
    host: int
    peer_type: int
    module: int


class GpuProcess(msgspec.Struct, frozen=True):
    """A process with a compute context; bytes of GPU memory, None where it is not told."""

    pid: int
    memory: int | None


class MemoryUse(msgspec.Struct, frozen=True):
    """Bytes of device memory."""

    total: int
    used: int


class Modes(msgspec.Struct, frozen=True):
    """A switch that takes effect at the next reset."""

    current: bool
    pending: bool


class RemappedRows(msgspec.Struct, frozen=True):
    """Rows replaced after errors; `pending` waits for a reset, `failed` found no spare."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


class Power(msgspec.Struct, frozen=True):
    """Milliwatts drawn, and the limit that is enforced."""

    drawn: int
    limit: int


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `handle` is None where NVML let us at it, else why not.

    `pci` is in lower case with a domain of four digits and the function, as in sysfs.
    `clock_reasons` is NVML's bit mask, `recovery_action` its number (0 none). `clocks` are keyed
    graphics, sm and memory. `cpus` and `numa` are near to it, `memory_node` is its own memory
    (Grace). `ancestors` has NVML's level of the common PCIe ancestor with each GPU by index.
    """

    index: int
    handle: NotAvailable | None
    name: str | NotAvailable
    uuid: str | NotAvailable
    pci: str | NotAvailable
    minor: int | NotAvailable
    capability: CudaVersion | NotAvailable
    gsp_firmware: str | NotAvailable
    recovery_action: int | NotAvailable
    mig_mode: Modes | NotAvailable
    mig_devices: tuple[MigInstance, ...] | NotAvailable
    compute_mode: int | NotAvailable
    persistence: bool | NotAvailable
    memory: MemoryUse | NotAvailable
    ecc_mode: Modes | NotAvailable
    ecc_uncorrected: int | NotAvailable
    sram_threshold: bool | NotAvailable
    remapped_rows: RemappedRows | NotAvailable
    row_histogram: RowHistogram | NotAvailable
    retired_pending: bool | NotAvailable
    pcie_generation: int | NotAvailable
    pcie_width: int | NotAvailable
    pcie_max_generation: int | NotAvailable
    pcie_max_width: int | NotAvailable
    pcie_replays: int | NotAvailable
    performance_state: int | NotAvailable
    clock_reasons: int | NotAvailable
    clocks: dict[str, Clock] | NotAvailable
    temperature: int | NotAvailable
    power: Power | NotAvailable
    platform: Platform | NotAvailable
    cpus: frozenset[int] | NotAvailable
    numa: frozenset[int] | NotAvailable
    memory_node: int | NotAvailable
    fabric: FabricState | NotAvailable
    links: tuple[NvLink, ...] | NotAvailable
    processes: tuple[GpuProcess, ...] | NotAvailable
    ancestors: tuple[int | None, ...] | NotAvailable

    @property
    def label(self) -> str:
        """What to call it: its address, which other sources know too, else its number."""
        return f"GPU {self.index}" if isinstance(self.pci, NotAvailable) else self.pci


class NodeGpus(msgspec.Struct, frozen=True, kw_only=True):
    """All that NVML said. `failure` is why it could not be initialised, None where it was.

    `hung_in` names the call that did not come back in time; `ended` is False where its process
    could not even be killed, now or at an earlier look, and `waiting` are the processes in state D
    then. `count` is what NVML counts.
    """

    subject: Subject
    failure: NotAvailable | None
    hung_in: str | None
    driver: DriverVersion | NotAvailable
    nvml: str | NotAvailable
    cuda: CudaVersion | NotAvailable
    count: int | NotAvailable
    gpus: tuple[Gpu, ...]
    ended: bool = True
    waiting: tuple[Waiting, ...] = ()

    def published(self) -> dict[str, Any]:
        """Return what a report says under `facts.nvml`, without what is not there.

        Of eight GPUs with 18 links of 30 counters each, only the counters that counted.
        """
        said = {
            "driver": self.driver,
            "nvml": self.nvml,
            "cuda": self.cuda,
            "count": self.count,
        }
        return {
            **{name: str(value) if name in ("driver", "cuda") else value
               for name, value in said.items() if not isinstance(value, NotAvailable)},
            "hung_in": self.hung_in,
            "gpus": [_published(gpu) for gpu in self.gpus],
        }  # fmt: skip


def _published(gpu: Gpu) -> dict[str, Any]:
    known = {
        name: value
        for name in gpu.__struct_fields__
        if not isinstance(value := getattr(gpu, name), NotAvailable | None)
        and name not in ("ancestors", "cpus", "numa", "links")
    }
    if not isinstance(gpu.capability, NotAvailable):
        known["capability"] = str(gpu.capability)
    told: dict[str, Any] = {name: msgspec.to_builtins(value) for name, value in known.items()}
    if not isinstance(gpu.links, NotAvailable):
        told["links"] = {
            "active": sum(link.active for link in gpu.links),
            "total": len(gpu.links),
            "counted": {
                str(number): counted
                for number, link in enumerate(gpu.links)
                if (counted := {name: count for name, count in link.errors.items() if count})
            },
        }
    return told
