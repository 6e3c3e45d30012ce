"""Single answers of NVML as typed values; on others each raises ValueError, KeyError, TypeError."""

from __future__ import annotations

from typing import Any

import msgspec

from gpudoctor.facts.node.gpu import (
    Clock,
    FabricState,
    GpuProcess,
    MigInstance,
    NvLink,
    Platform,
    RemappedRows,
    RowHistogram,
)
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion, parse_driver

_CUDA_MAJOR, _CUDA_MINOR = 1000, 10
_VALUE_NOT_AVAILABLE = (1 << 64) - 1
_MOST = 1 << 16


def pci_address(text: str) -> str:
    """Return NVML's address (`00000000:3B:00.0`) as sysfs writes it (`0000:3b:00.0`)."""
    domain, bus, device = text.lower().split(":")
    return f"{int(domain, 16):04x}:{bus}:{device}"


def driver(text: str) -> DriverVersion:
    """Return a driver's release."""
    found = parse_driver(text)
    if found is None:
        raise ValueError(text)
    return found


def cuda(number: int) -> CudaVersion:
    """Return the level that NVML writes as 13010."""
    return CudaVersion(number // _CUDA_MAJOR, number % _CUDA_MAJOR // _CUDA_MINOR)


def rows(row: Any) -> RemappedRows:
    """Return the four figures of row remapping."""
    correctable, uncorrectable, pending, failed = row
    return RemappedRows(int(correctable), int(uncorrectable), bool(pending), bool(failed))


def histogram(counts: Any) -> RowHistogram:
    """Return the five figures of the row remapper's histogram."""
    return RowHistogram(*map(int, counts))


def clocks(found: Any) -> dict[str, Clock]:
    """Return clock name -> MHz now, at most, for applications."""
    return {
        str(name): Clock(*(None if speed is None else int(speed) for speed in speeds))
        for name, speeds in dict(found).items()
    }


def platform(found: Any) -> Platform:
    """Return the place in the rack."""
    return Platform(
        str(found["chassis_serial"]),
        *(int(found[name]) for name in ("slot", "tray", "host", "peer_type", "module")),
    )


def numbers(found: Any) -> frozenset[int]:
    """Return the numbers of CPUs or NUMA nodes; the empty set where NVML has no bit set."""
    known = frozenset(map(int, found))
    if any(not 0 <= number < _MOST for number in known):
        raise ValueError("no number of a CPU or node")
    return known


def levels(found: Any) -> tuple[int | None, ...]:
    """Return the levels of common ancestors by GPU index."""
    return tuple(None if level is None else int(level) for level in list(found))


def fabric(info: Any) -> FabricState:
    """Return the state of the fabric, with its health where the driver tells it."""
    mask, summary = info.get("health_mask"), info.get("health_summary")
    return FabricState(
        int(info["state"]),
        int(info["status"]),
        int(info["clique"]),
        str(info["cluster"]),
        health_mask=None if mask is None else int(mask),
        health_summary=None if summary is None else int(summary),
    )


def link(found: Any) -> NvLink:
    """Return one NVLink; recordings of older versions do not tell where it leads."""
    errors = {
        str(name): bit_error_rate(int(count)) if str(name).endswith("_ber") else int(count)
        for name, count in dict(found["errors"]).items()
    }
    kind, where = found.get("remote_type"), found.get("remote_pci")
    return NvLink(
        bool(found["active"]),
        errors,
        remote_type=None if kind is None else int(kind),
        remote_pci=pci_address(where) if where else None,
    )


def bit_error_rate(raw: int) -> float:
    """Return the rate of a field value: mantissa in bits 8-11, negative exponent in bits 0-7."""
    return float(f"{raw >> 8 & 0xF}e-{raw & 0xFF}")


def mig_instance(found: Any) -> MigInstance:
    """Return a MIG device; recordings of older versions hold only its UUID."""
    if isinstance(found, str):
        return MigInstance(uuid=found)
    try:
        return msgspec.convert(found, MigInstance, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def process(found: Any) -> GpuProcess:
    """Return a process with a compute context."""
    memory = found["memory"]
    told = isinstance(memory, int) and memory < _VALUE_NOT_AVAILABLE
    return GpuProcess(int(found["pid"]), memory if told else None)
