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

from gpudoctor.sources import nvml_calls


def _emit(*parts: object) -> None:
    sys.stdout.write(json.dumps(parts) + "\n")
    sys.stdout.flush()


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


def _device(gpu: int) -> Any:
    """Ask all about one GPU; returns its handle, None where NVML does not let us at it."""
    handles: list[Any] = []
    _ask(gpu, "handle", lambda: handles.append(pynvml.nvmlDeviceGetHandleByIndex(gpu)))
    if not handles:
        return None
    for name, call in nvml_calls.CALLS:
        _ask(gpu, name, lambda call=call: call(handles[0]))  # type: ignore[misc]
    return handles[0]


def _load(library: str) -> bool:
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    return True


def main() -> None:
    """Print all that NVML says; the one argument is a library to use instead of the default."""
    if sys.argv[1:] and _ask(None, "library", lambda: _load(sys.argv[1])) is None:
        return
    if _ask(None, "init", lambda: pynvml.nvmlInit() or True) is None:
        return
    _ask(None, "driver", lambda: nvml_calls.text(pynvml.nvmlSystemGetDriverVersion()))
    _ask(None, "nvml", lambda: nvml_calls.text(pynvml.nvmlSystemGetNVMLVersion()))
    _ask(None, "cuda", pynvml.nvmlSystemGetCudaDriverVersion_v2)
    count = _ask(None, "count", pynvml.nvmlDeviceGetCount)
    handles = [_device(gpu) for gpu in range(count or 0)]
    for gpu, handle in enumerate(handles):
        if handle is not None and len(handles) > 1:
            _ask(gpu, "ancestors", lambda handle=handle: nvml_calls.ancestors(handle, handles))  # type: ignore[misc]
    _emit(None, "complete", True)


if __name__ == "__main__":
    main()
