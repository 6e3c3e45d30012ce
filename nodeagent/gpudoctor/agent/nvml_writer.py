"""The second DaemonSet: asks NVML for the agent, which cannot have the driver's library itself.

It alone runs with the GPU runtime, so it does not start where driver or toolkit are broken; the
agent does, and takes its silence for what it is. Each answer is got by a short-lived child, so
that between two of them nothing of ours holds the driver, which would keep it from being
unloaded and MIG from being changed. During such work the DaemonSet's node affinity ends its pod.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from gpudoctor.sources import nvml_file
from gpudoctor.sources.nvml import NvmlSource

DEADLINE_S = 20.0
"""NVML of eight GPUs takes a second where the driver stays loaded, and many where it does not."""


def run(folder: Path, period_s: float, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Write what NVML says to `folder` each period until `stop` is set."""
    source = NvmlSource()
    failure = ""
    while not stop.is_set():
        answer = source.read(DEADLINE_S)
        try:
            nvml_file.write(folder, answer, period_s)
        except OSError as error:
            told = f"{folder} cannot be written: {error.strerror}"
        else:
            told = answer if isinstance(answer, str) else ""
        if told != failure:
            failure = told
            say(told or f"NVML's answers are in {folder} again")
        stop.wait(period_s)
