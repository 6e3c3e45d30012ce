"""What is asked of NVML about each GPU, in the child of `gpudoctor.sources.nvml_child`.

Each call returns plain values for JSON, or raises what NVML refused with. Identity comes first
and what is known to hang last, so that a hang costs as little as it can.

https://docs.nvidia.com/deploy/nvml-api/index.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pynvml as nvml

Call = Callable[[Any], Any]

_LINK_ERRORS = {
    "replay": nvml.NVML_NVLINK_ERROR_DL_REPLAY,
    "recovery": nvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    "crc": nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
}
_NVLINK5 = {
    "malformed_packets": 206,
    "buffer_overruns": 207,
    "receive_errors": 208,
    "remote_receive_errors": 209,
    "general_receive_errors": 210,
    "integrity_errors": 211,
    "transmit_discards": 212,
    "recoveries_successful": 213,
    "recoveries_failed": 214,
    "recoveries": 215,
    "effective_errors": 219,
    "effective_ber": 220,
    "symbol_errors": 221,
    "symbol_ber": 222,
} | {f"fec_bin_{number}": 235 + number for number in range(16)}
"""Counters of NVLink 5 and later as field ids; the scope is the link's number."""

_RECOVERY_ACTION = 230
_CLOCKS = {"graphics": nvml.NVML_CLOCK_GRAPHICS, "sm": nvml.NVML_CLOCK_SM,
           "memory": nvml.NVML_CLOCK_MEM}  # fmt: skip
_UNION = {
    nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
_CPU_WORDS, _NODE_WORDS = 64, 16
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_VERSION_MISMATCH = nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def text(value: Any) -> str:
    """Return a C string of NVML as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _optional(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return None where NVML has no value: one counter less must not cost the others."""
    try:
        return call(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _fields(handle: Any, wanted: list[Any]) -> list[int | float | None]:
    """Return the values of field ids, or of (field id, scope), each None where there is none."""
    values = nvml.nvmlDeviceGetFieldValues(handle, wanted)
    return [
        getattr(value.value, _UNION.get(value.valueType, "ullVal"))
        if value.nvmlReturn == nvml.NVML_SUCCESS
        else None
        for value in values
    ]


def _recovery_action(handle: Any) -> int:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _fabric(handle: Any) -> dict[str, Any]:
    """Ask in the newest form that the driver knows: older drivers refuse a newer one's version."""
    for form in (nvml.c_nvmlGpuFabricInfo_v3_t, nvml.c_nvmlGpuFabricInfo_v2_t):
        info = form()
        try:
            nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        except nvml.NVMLError as error:
            if error.value in (_VERSION_MISMATCH, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                continue
            raise
        return _fabric_of(info)
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return _fabric_of(info)


def _fabric_of(info: Any) -> dict[str, Any]:
    return {
        "state": info.state,
        "status": info.status,
        "clique": info.cliqueId,
        "cluster": bytes(info.clusterUuid).hex(),
        "health_mask": getattr(info, "healthMask", None),
        "health_summary": getattr(info, "healthSummary", None),
    }


def _platform(handle: Any) -> dict[str, Any]:
    """Where in the rack the GPU sits; read as bytes, which the binding would take for text."""
    form = nvml.c_nvmlPlatformInfo_v2_t
    info = form()
    nvml.nvmlDeviceGetPlatformInfo(handle, ctypes.byref(info))
    raw, serial = bytes(info), form.chassisSerialNumber.offset
    return {
        "chassis_serial": raw[serial : serial + 16].split(b"\0")[0].decode("ascii", "replace"),
        "slot": raw[form.slotNumber.offset],
        "tray": raw[form.trayIndex.offset],
        "host": raw[form.hostId.offset],
        "peer_type": raw[form.peerType.offset],
        "module": raw[form.moduleId.offset],
    }


def _sram_threshold(handle: Any) -> bool:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return bool(status.bThresholdExceeded)


def _row_histogram(handle: Any) -> list[int]:
    """Banks by how many spare rows are left: all, many, some, few, none."""
    found = nvml.nvmlDeviceGetRowRemapperHistogram(handle)
    return [found.max, found.high, found.partial, found.low, found.none]


def _clocks(handle: Any) -> dict[str, list[int | None]]:
    """MHz of each clock: now, at most, and as set for applications (gone in newer drivers)."""
    nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
    calls = (
        nvml.nvmlDeviceGetClockInfo,
        nvml.nvmlDeviceGetMaxClockInfo,
        nvml.nvmlDeviceGetApplicationsClock,
    )
    return {
        name: [_optional(call, handle, kind) for call in calls] for name, kind in _CLOCKS.items()
    }


def _links(handle: Any) -> list[dict[str, Any]]:
    """Return the links that the part has: the first that it does not have ends the list."""
    links: list[dict[str, Any]] = []
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = bool(nvml.nvmlDeviceGetNvLinkState(handle, number))
        except nvml.NVMLError as error:
            if not links and error.value != nvml.NVML_ERROR_INVALID_ARGUMENT:
                raise
            break
        links.append(_link(handle, number, active=active))
    for link, counters in zip(links, _counters5(handle, len(links)), strict=False):
        link["errors"] |= counters
    return links


def _link(handle: Any, number: int, *, active: bool) -> dict[str, Any]:
    errors = {
        name: _optional(nvml.nvmlDeviceGetNvLinkErrorCounter, handle, number, kind)
        for name, kind in _LINK_ERRORS.items()
    }
    remote = _optional(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
    return {
        "active": active,
        "errors": {name: int(count) for name, count in errors.items() if count is not None},
        "remote_type": _optional(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number),
        "remote_pci": None if remote is None else text(remote.busId),
    }


def _counters5(handle: Any, links: int) -> Iterator[dict[str, int | float]]:
    """Yield the NVLink 5 counters of each link, in one call to the driver for all of them."""
    names = list(_NVLINK5)
    wanted = [(field, link) for link in range(links) for field in _NVLINK5.values()]
    values = _optional(_fields, handle, wanted) if wanted else None
    for first in range(0, len(values or ()), len(names)):
        own = zip(names, (values or [])[first : first + len(names)], strict=True)
        yield {name: value for name, value in own if value is not None}


def _mig_devices(handle: Any) -> list[dict[str, Any]]:
    devices = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:
            continue
        devices.append(_mig_device(device, number))
    return devices


def _mig_device(device: Any, number: int) -> dict[str, Any]:
    name = _optional(nvml.nvmlDeviceGetName, device)
    return {
        "uuid": text(nvml.nvmlDeviceGetUUID(device)),
        "index": number,
        "name": None if name is None else text(name),
        "gpu_instance": _optional(nvml.nvmlDeviceGetGpuInstanceId, device),
        "compute_instance": _optional(nvml.nvmlDeviceGetComputeInstanceId, device),
    }


def _bits(words: Any) -> list[int]:
    """Return the numbers of the set bits of an array of unsigned longs."""
    mask = sum(int(word) << position * _WORD_BITS for position, word in enumerate(words))
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


def _processes(handle: Any) -> list[dict[str, Any]]:
    return [
        {"pid": process.pid, "memory": process.usedGpuMemory}
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    ]


_N = nvml
_VOLATILE, _UNCORRECTED = _N.NVML_VOLATILE_ECC, _N.NVML_MEMORY_ERROR_TYPE_UNCORRECTED

CALLS: tuple[tuple[str, Call], ...] = (
    ("name", lambda h: text(_N.nvmlDeviceGetName(h))),
    ("uuid", lambda h: text(_N.nvmlDeviceGetUUID(h))),
    ("pci", lambda h: text(_N.nvmlDeviceGetPciInfo(h).busId)),
    ("minor", _N.nvmlDeviceGetMinorNumber),
    ("capability", lambda h: list(_N.nvmlDeviceGetCudaComputeCapability(h))),
    ("recovery_action", _recovery_action),
    ("gsp_firmware", lambda h: text(_N.nvmlDeviceGetGspFirmwareVersion(h))),
    ("mig_mode", lambda h: list(_N.nvmlDeviceGetMigMode(h))),
    ("compute_mode", lambda h: int(_N.nvmlDeviceGetComputeMode(h))),
    ("persistence", lambda h: bool(_N.nvmlDeviceGetPersistenceMode(h))),
    ("memory", lambda h: [_N.nvmlDeviceGetMemoryInfo(h).total, _N.nvmlDeviceGetMemoryInfo(h).used]),
    ("ecc_mode", lambda h: list(_N.nvmlDeviceGetEccMode(h))),
    ("ecc_uncorrected", lambda h: _N.nvmlDeviceGetTotalEccErrors(h, _UNCORRECTED, _VOLATILE)),
    ("sram_threshold", _sram_threshold),
    ("remapped_rows", lambda h: list(_N.nvmlDeviceGetRemappedRows(h))),
    ("row_histogram", _row_histogram),
    ("retired_pending", lambda h: bool(_N.nvmlDeviceGetRetiredPagesPendingStatus(h))),
    ("pcie_generation", _N.nvmlDeviceGetCurrPcieLinkGeneration),
    ("pcie_width", _N.nvmlDeviceGetCurrPcieLinkWidth),
    ("pcie_max_generation", _N.nvmlDeviceGetMaxPcieLinkGeneration),
    ("pcie_max_width", _N.nvmlDeviceGetMaxPcieLinkWidth),
    ("pcie_replays", _N.nvmlDeviceGetPcieReplayCounter),
    ("performance_state", _N.nvmlDeviceGetPerformanceState),
    ("clock_reasons", _N.nvmlDeviceGetCurrentClocksEventReasons),
    ("clocks", _clocks),
    ("temperature", lambda h: _N.nvmlDeviceGetTemperature(h, _N.NVML_TEMPERATURE_GPU)),
    ("power", lambda h: [_N.nvmlDeviceGetPowerUsage(h), _N.nvmlDeviceGetEnforcedPowerLimit(h)]),
    ("platform", _platform),
    ("cpus", lambda h: _bits(_N.nvmlDeviceGetCpuAffinity(h, _CPU_WORDS))),
    ("numa", lambda h: _bits(_N.nvmlDeviceGetMemoryAffinity(
        h, _NODE_WORDS, _N.NVML_AFFINITY_SCOPE_NODE
    ))),
    ("memory_node", _N.nvmlDeviceGetNumaNodeId),
    ("fabric", _fabric),
    ("links", _links),
    ("mig_devices", _mig_devices),
    ("processes", _processes),
)  # fmt: skip
"""Name of the answer and how to get it from a device's handle."""


def ancestors(handle: Any, others: list[Any]) -> list[int | None]:
    """Return NVML's level of the common PCIe ancestor with each other GPU, None for no answer."""
    return [
        None
        if other is None or other is handle
        else _optional(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, other)
        for other in others
    ]
