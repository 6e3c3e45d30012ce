"""NVML, asked in a short-lived child: a driver that hangs costs its bound once, and no more.

The answer is text, so that it can be recorded and read again by a better parser; its form is
described in `gpudoctor.sources.nvml_child`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading

import msgspec

_ENVIRONMENT = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_REAP_S = 0.5
_MAX_ANSWER = 1 << 24


class NvmlAnswer(msgspec.Struct, frozen=True):
    """What the child printed; `in_time` is False where it had to be killed."""

    text: str
    in_time: bool


class NvmlSource:
    """Starts the child, one at a time, and none while an earlier one cannot be killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stuck: subprocess.Popen[bytes] | None = None

    def read(self, deadline_s: float, library: str | None = None) -> NvmlAnswer | str:
        """Return the child's answer, or the reason why none was asked for.

        `library` is a path to use instead of the loader's own libnvidia-ml.so.1.
        """
        with self._lock:
            if self._stuck is not None and self._stuck.poll() is None:
                return "an earlier call hangs in the driver and cannot be ended"
            self._stuck = None
            with tempfile.TemporaryFile() as answer:
                try:
                    child = self._start(answer.fileno(), library)
                except OSError as error:
                    return f"the reading process cannot be started: {error.strerror}"
                in_time = self._wait(child, deadline_s)
                answer.seek(0)
                return NvmlAnswer(answer.read(_MAX_ANSWER).decode("utf-8", "replace"), in_time)

    @staticmethod
    def _start(output: int, library: str | None) -> subprocess.Popen[bytes]:
        # -P: a module in the working directory must not take the place of ours.
        command = [sys.executable, "-P", "-m", "gpudoctor.sources.nvml_child"]
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*command, *([library] if library else [])],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )

    def _wait(self, child: subprocess.Popen[bytes], deadline_s: float) -> bool:
        try:
            child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            child.kill()
            try:
                child.wait(_REAP_S)
            except subprocess.TimeoutExpired:
                self._stuck = child  # uninterruptible in the kernel: killed once the call returns
            return False
        return True


_SOURCE = NvmlSource()


def read_nvml(deadline_s: float, library: str | None = None) -> NvmlAnswer | str:
    """Ask the process-wide source; see `NvmlSource.read`."""
    return _SOURCE.read(deadline_s, library)
