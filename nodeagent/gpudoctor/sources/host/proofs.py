"""What this container can really have, tried in short-lived children under its own limits.

Locked memory is tried by `Host.try_lock`, which costs nothing; these take memory or time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpudoctor.sources.host import Proof

_CHILD = Path(__file__).with_name("proof.py")
_GRACE_S = 5.0
SHM = "/dev/shm"  # noqa: S108 - the path that is tried


class Attempt:
    """A running try; several may run side by side."""

    def __init__(self, wanted: int, bound_s: float, *words: str) -> None:
        self._wanted, self._bound = wanted, bound_s
        try:
            self._child: subprocess.Popen[bytes] | None = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", str(_CHILD), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,
            )
        except OSError as error:
            self._child, self._why = None, f"no child process: {error.strerror}"

    def result(self) -> Proof:
        """Wait for the answer, at most the bound."""
        child = self._child
        if child is None:
            return Proof(self._wanted, 0, "EAGAIN", self._why)
        try:
            printed, _ = child.communicate(timeout=self._bound)
        except subprocess.TimeoutExpired:
            child.kill()
            return Proof(self._wanted, 0, "ETIMEDOUT", f"no answer in {self._bound:g} s")
        if child.returncode < 0:
            return Proof(self._wanted, 0, _signal(-child.returncode), "ended by the kernel")
        return _proof(self._wanted, printed)


def _signal(number: int) -> str:
    import signal  # imported late: a signal is rare

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _proof(wanted: int, printed: bytes) -> Proof:
    try:
        answer: dict[str, Any] = json.loads(printed)
        return Proof(wanted, int(answer["got"]), str(answer["errno"]), str(answer["note"]))
    except (ValueError, KeyError, TypeError):
        return Proof(wanted, 0, "EIO", "the child ended early")


def allocate_shared(size: int, folder: str = SHM) -> Attempt:
    """Allocate that many bytes in the shared memory at `folder`."""
    return Attempt(size, _GRACE_S, "shared", folder, str(size))


def map_huge_pages(size: int) -> Attempt:
    """Map and touch that many bytes of huge pages of the default size."""
    return Attempt(size, _GRACE_S, "huge", str(size))


def resolve(name: str, seconds: int) -> Attempt:
    """Resolve a host name, waiting so many seconds for it to be known."""
    return Attempt(1, seconds + _GRACE_S, "resolve", name, str(seconds))
