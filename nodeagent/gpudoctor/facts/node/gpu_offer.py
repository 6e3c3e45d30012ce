"""What a node offers to a CUDA image: its driver, the driver's CUDA level and its GPU.

From NVML where that can be asked, else from /proc/driver/nvidia, else from the labels that GPU
feature discovery keeps on the node.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpudoctor.facts.node.cuda import Gpu, resolve_gpu
from gpudoctor.facts.node.cuda_stack import KernelModule
from gpudoctor.facts.node.gpu import NodeGpus, NotAvailable
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion, parse_driver

_NVIDIA = "nvidia.com/"


class GpuOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The node's side of the compatibility rules; None where it is not known."""

    driver: DriverVersion | None = None
    level: CudaVersion | None = None
    gpu: Gpu | None = None
    kernel_module: KernelModule | None = None


def offer_of_labels(labels: Mapping[str, str]) -> GpuOffer:
    """Read the labels of GPU feature discovery, of its present and its older releases."""

    def number(*names: str) -> int | None:
        for name in names:
            value = labels.get(_NVIDIA + name, "")
            if value.isdecimal() and value.isascii():
                return int(value)
        return None

    driver = parse_driver(labels.get(f"{_NVIDIA}cuda.driver-version.full", ""))
    branch = number("cuda.driver-version.major", "cuda.driver.major")
    minor = number("cuda.driver-version.minor", "cuda.driver.minor")
    patch = number("cuda.driver-version.revision", "cuda.driver.rev")
    if driver is None and branch is not None:
        driver = (
            DriverVersion(branch) if minor is None else DriverVersion(branch, minor, patch or 0)
        )
    major = number("cuda.runtime-version.major", "cuda.runtime.major")
    level_minor = number("cuda.runtime-version.minor", "cuda.runtime.minor")
    capability = number("gpu.compute.major")
    return GpuOffer(
        driver=driver,
        level=None if major is None or level_minor is None else CudaVersion(major, level_minor),
        gpu=resolve_gpu(
            labels.get(f"{_NVIDIA}gpu.product") or labels.get("cloud.google.com/gke-accelerator"),
            None if capability is None else f"{capability}.{number('gpu.compute.minor') or 0}",
        ),
    )


def offer_of_gpus(gpus: NodeGpus) -> GpuOffer:
    """Read NVML's answers; of several GPUs the first that is known speaks for all."""
    known = (
        resolve_gpu(
            gpu.name if isinstance(gpu.name, str) else None,
            None if isinstance(gpu.capability, NotAvailable) else str(gpu.capability),
        )
        for gpu in gpus.gpus
    )
    return GpuOffer(
        driver=None if isinstance(gpus.driver, NotAvailable) else gpus.driver,
        level=None if isinstance(gpus.cuda, NotAvailable) else gpus.cuda,
        gpu=next((gpu for gpu in known if gpu is not None), None),
    )


def offer_of_module(version: str) -> GpuOffer:
    """Read the text of /proc/driver/nvidia/version, which also tells the module's flavour."""
    driver = parse_driver(version)
    if driver is None:
        return GpuOffer()
    is_open = "Open Kernel Module" in version
    return GpuOffer(
        driver=driver, kernel_module=KernelModule.OPEN if is_open else KernelModule.PROPRIETARY
    )


def either(first: GpuOffer, second: GpuOffer) -> GpuOffer:
    """Return the first offer, with what only the second knows."""
    return GpuOffer(
        driver=first.driver or second.driver,
        level=first.level or second.level,
        gpu=first.gpu or second.gpu,
        kernel_module=first.kernel_module or second.kernel_module,
    )
