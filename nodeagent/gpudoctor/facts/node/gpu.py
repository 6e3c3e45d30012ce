"""A node's GPUs as NVML describes them; each value may be unavailable, with the reason."""

from __future__ import annotations

import msgspec

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
    """

    state: int
    status: int
    clique: int
    cluster: str


class NvLink(msgspec.Struct, frozen=True):
    """One NVLink of a GPU; `errors` counts replay, recovery and crc where NVML has them."""

    active: bool
    errors: dict[str, int] = {}


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
    `clock_reasons` is NVML's bit mask, `recovery_action` its number (0 none).
    """

    index: int
    handle: NotAvailable | None
    name: str | NotAvailable
    uuid: str | NotAvailable
    pci: str | NotAvailable
    capability: CudaVersion | NotAvailable
    recovery_action: int | NotAvailable
    mig_mode: Modes | NotAvailable
    mig_devices: tuple[str, ...] | NotAvailable
    compute_mode: int | NotAvailable
    persistence: bool | NotAvailable
    memory: MemoryUse | NotAvailable
    ecc_mode: Modes | NotAvailable
    ecc_uncorrected: int | NotAvailable
    sram_threshold: bool | NotAvailable
    remapped_rows: RemappedRows | NotAvailable
    retired_pending: bool | NotAvailable
    pcie_generation: int | NotAvailable
    pcie_width: int | NotAvailable
    pcie_max_generation: int | NotAvailable
    pcie_max_width: int | NotAvailable
    pcie_replays: int | NotAvailable
    clock_reasons: int | NotAvailable
    temperature: int | NotAvailable
    power: Power | NotAvailable
    fabric: FabricState | NotAvailable
    links: tuple[NvLink, ...] | NotAvailable
    processes: tuple[GpuProcess, ...] | NotAvailable

    @property
    def label(self) -> str:
        """What to call it: its address, which other sources know too, else its number."""
        return f"GPU {self.index}" if isinstance(self.pci, NotAvailable) else self.pci


class NodeGpus(msgspec.Struct, frozen=True, kw_only=True):
    """All that NVML said. `failure` is why it could not be initialised, None where it was.

    `hung_in` names the call that did not come back in time; `count` is what NVML counts.
    """

    subject: Subject
    failure: NotAvailable | None
    hung_in: str | None
    driver: DriverVersion | NotAvailable
    nvml: str | NotAvailable
    cuda: CudaVersion | NotAvailable
    count: int | NotAvailable
    gpus: tuple[Gpu, ...]
