"""What the second DaemonSet wrote of NVML, in a folder of the host that it shares with the agent.

The file `nvml` there holds a line of JSON about the asking and then what
`gpudoctor.sources.nvml_child` printed. It is dated by the kernel's clock since boot, which all
containers of a machine share and nobody sets.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import msgspec

from gpudoctor.report import Unknown
from gpudoctor.sources import whole_file
from gpudoctor.sources.child import Answer

WHAT = "GPUs (NVML)"
PERIODS = 3
"""After so many periods of its writer without news a file is old."""

FOLDER = "/run/gpudoctor"
"""Where it is on the host; below the host's root the agent has it only where it is to be read."""

_NVML = "nvml"
_MOST = 8 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """When and how it was written; `why` is the reason why NVML was not asked, "" if it was."""

    boot: str
    at: float
    period: float
    in_time: bool = True
    ended: bool = True
    why: str = ""


def write(folder: Path, answer: Answer | str, period_s: float) -> None:
    """Write NVML's answer, or the reason why it was not asked; OSError where that cannot be."""
    told, why = (answer, "") if isinstance(answer, Answer) else (Answer("", True), answer)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    head = _Head(
        boot=_boot(), at=now, period=period_s, in_time=told.in_time, ended=told.ended, why=why
    )
    whole_file.write(folder / _NVML, msgspec.json.encode(head) + b"\n" + told.text.encode())


def read(folder: Path) -> Answer | Unknown:
    """Return NVML's answer; Unknown where the file is absent or old, or NVML was not asked."""
    where = folder / _NVML
    try:
        first, _, rest = _content(where).partition(b"\n")
        head = msgspec.json.decode(first, type=_Head)
    except FileNotFoundError:
        why = f"{where} is not there: has the DaemonSet that asks NVML started on this node?"
        return Unknown(WHAT, f"{why} It cannot where driver or container toolkit are broken")
    except OSError as error:
        return Unknown(WHAT, f"{where} cannot be read: {error.strerror}")
    except (msgspec.MsgspecError, ValueError) as error:
        return Unknown(WHAT, f"{where} is not what gpudoctor writes: {error}")
    age = _age(head)
    if age is None or age > PERIODS * head.period:
        when = "before this boot" if age is None else f"{age:.0f} s ago"
        why = f"{where} was last written {when}: the DaemonSet that asks NVML no longer does"
        return Unknown(WHAT, why)
    if head.why:
        return Unknown(WHAT, head.why)
    return Answer(rest.decode("utf-8", "replace"), head.in_time, head.ended)


def _age(head: _Head) -> float | None:
    """Seconds since it was written; None for another boot."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - head.at
    return age if head.boot == _boot() and age >= 0 else None


def _boot() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _content(path: Path) -> bytes:
    """Read a regular file, at most _MOST bytes, without following a link or waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        return stream.read(_MOST)
