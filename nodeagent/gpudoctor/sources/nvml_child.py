"""The process that calls NVML and prints what it answers; `gpudoctor.sources.nvml` starts it.

A call into a sick driver may never return and cannot be interrupted, so it is made here, where the
parent can kill it. One JSON array a line: `["?", gpu, call]` before a call and `[gpu, call, value]`
after it; gpu is null for the machine, and a value `{"code": N, "why": text}` is NVML's refusal.
What was printed before a hang is kept.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml

_MAX_LINKS = pynvml.NVML_NVLINK_MAX_LINKS
_LINK_ERRORS = {
    "replay": pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    "recovery": pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    "crc": pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
}
_RECOVERY_ACTION_FIELD = 230


def _emit(*parts: object) -> None:
    sys.stdout.write(json.dumps(parts) + "\n")
    sys.stdout.flush()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _ask(gpu: int | None, name: str, call: Callable[[], Any]) -> Any:
    """Make one call and print its answer; returns None where NVML refused."""
    _emit("?", gpu, name)
    try:
        value = call()
    except pynvml.NVMLError as error:
        _emit(gpu, name, {"code": error.value, "why": str(error)})
        return None
    except (TypeError, ValueError, AttributeError, OSError) as error:
        # A binding older than the driver, or one that lacks the call.
        _emit(gpu, name, {"code": -1, "why": f"{type(error).__name__}: {error}"})
        return None
    if value is not None:
        _emit(gpu, name, value)
    return value


def _fabric(handle: Any) -> dict[str, Any]:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return {
        "state": info.state,
        "status": info.status,
        "clique": info.cliqueId,
        "cluster": bytes(info.clusterUuid).hex(),
    }


def _field(handle: Any, field: int) -> int:
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [field])
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _sram_threshold(handle: Any) -> bool:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return bool(status.bThresholdExceeded)


def _links(handle: Any) -> list[dict[str, Any]]:
    """Return the links that the part has: the first that it does not have ends the list."""
    links: list[dict[str, Any]] = []
    for number in range(_MAX_LINKS):
        try:
            active = bool(pynvml.nvmlDeviceGetNvLinkState(handle, number))
        except pynvml.NVMLError as error:
            if not links and error.value != pynvml.NVML_ERROR_INVALID_ARGUMENT:
                raise
            break
        links.append({"active": active, "errors": _link_errors(handle, number)})
    return links


def _link_errors(handle: Any, number: int) -> dict[str, int]:
    errors = {}
    for name, counter in _LINK_ERRORS.items():
        try:
            errors[name] = int(pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, number, counter))
        except pynvml.NVMLError:
            continue
    return errors


def _mig_devices(handle: Any) -> list[str]:
    devices = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError:
            continue
        devices.append(_text(pynvml.nvmlDeviceGetUUID(device)))
    return devices


def _processes(handle: Any) -> list[dict[str, Any]]:
    return [
        {"pid": process.pid, "memory": process.usedGpuMemory}
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    ]


_N = pynvml
_VOLATILE, _UNCORRECTED = _N.NVML_VOLATILE_ECC, _N.NVML_MEMORY_ERROR_TYPE_UNCORRECTED

# Identity first and what is known to hang last, so that a hang costs as little as it can.
_CALLS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("name", lambda h: _text(_N.nvmlDeviceGetName(h))),
    ("uuid", lambda h: _text(_N.nvmlDeviceGetUUID(h))),
    ("pci", lambda h: _text(_N.nvmlDeviceGetPciInfo(h).busId)),
    ("capability", lambda h: list(_N.nvmlDeviceGetCudaComputeCapability(h))),
    ("recovery_action", lambda h: _field(h, _RECOVERY_ACTION_FIELD)),
    ("mig_mode", lambda h: list(_N.nvmlDeviceGetMigMode(h))),
    ("compute_mode", lambda h: int(_N.nvmlDeviceGetComputeMode(h))),
    ("persistence", lambda h: bool(_N.nvmlDeviceGetPersistenceMode(h))),
    ("memory", lambda h: [_N.nvmlDeviceGetMemoryInfo(h).total, _N.nvmlDeviceGetMemoryInfo(h).used]),
    ("ecc_mode", lambda h: list(_N.nvmlDeviceGetEccMode(h))),
    ("ecc_uncorrected", lambda h: _N.nvmlDeviceGetTotalEccErrors(h, _UNCORRECTED, _VOLATILE)),
    ("sram_threshold", _sram_threshold),
    ("remapped_rows", lambda h: list(_N.nvmlDeviceGetRemappedRows(h))),
    ("retired_pending", lambda h: bool(_N.nvmlDeviceGetRetiredPagesPendingStatus(h))),
    ("pcie_generation", _N.nvmlDeviceGetCurrPcieLinkGeneration),
    ("pcie_width", _N.nvmlDeviceGetCurrPcieLinkWidth),
    ("pcie_max_generation", _N.nvmlDeviceGetMaxPcieLinkGeneration),
    ("pcie_max_width", _N.nvmlDeviceGetMaxPcieLinkWidth),
    ("pcie_replays", _N.nvmlDeviceGetPcieReplayCounter),
    ("clock_reasons", _N.nvmlDeviceGetCurrentClocksEventReasons),
    ("temperature", lambda h: _N.nvmlDeviceGetTemperature(h, _N.NVML_TEMPERATURE_GPU)),
    ("power", lambda h: [_N.nvmlDeviceGetPowerUsage(h), _N.nvmlDeviceGetEnforcedPowerLimit(h)]),
    ("fabric", _fabric),
    ("links", _links),
    ("mig_devices", _mig_devices),
    ("processes", _processes),
)


def _device(gpu: int) -> None:
    handles: list[Any] = []
    _ask(gpu, "handle", lambda: handles.append(_N.nvmlDeviceGetHandleByIndex(gpu)))
    if not handles:
        return
    for name, call in _CALLS:
        _ask(gpu, name, lambda call=call: call(handles[0]))  # type: ignore[misc]


def main() -> None:
    """Print all that NVML says; the one argument is a library to use instead of the default."""
    if sys.argv[1:]:
        ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    if _ask(None, "init", lambda: _N.nvmlInit() or True) is None:
        return
    _ask(None, "driver", lambda: _text(_N.nvmlSystemGetDriverVersion()))
    _ask(None, "nvml", lambda: _text(_N.nvmlSystemGetNVMLVersion()))
    _ask(None, "cuda", _N.nvmlSystemGetCudaDriverVersion_v2)
    count = _ask(None, "count", _N.nvmlDeviceGetCount)
    for gpu in range(count or 0):
        _device(gpu)
    _emit(None, "complete", True)


if __name__ == "__main__":
    main()
