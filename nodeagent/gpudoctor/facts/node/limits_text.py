"""Limits of a process as `ulimit -a` of a shell and /proc/PID/limits print them."""

from __future__ import annotations

import re

from gpudoctor.facts.node.model import UNLIMITED, Process

_SHELL = re.compile(
    r"^(?:max locked memory\s+\(kbytes, -l\)|-l: locked[- ](?:in-)?memory.*?\(kb(?:ytes)?\)"
    r"|locked memory\s+\(kb(?:ytes)?\))\s+(unlimited|\d+)\s*$",
    re.MULTILINE | re.IGNORECASE,
)
_PROC = re.compile(
    r"^Max locked memory\s+(unlimited|\d+)\s+(unlimited|\d+)\s+bytes\s*$", re.MULTILINE
)
_OTHER = re.compile(
    r"^(?:open files|stack size|max user processes|core file size|Max open files|Max stack size)"
    r"\b.*(?:unlimited|\d)",
    re.MULTILINE,
)


def lines_seen(text: str) -> int:
    """Count the telling lines."""
    found = len(_SHELL.findall(text)) + len(_PROC.findall(text))
    return found and 2 * found + len(_OTHER.findall(text))


def parse(text: str) -> Process | None:
    """Return what is known of the process; None if the memlock limit is not there."""
    text = text.replace("\r", "")
    if match := _PROC.search(text):
        return Process(
            pid="PID", memlock_soft=_bytes(match[1], 1), memlock_hard=_bytes(match[2], 1)
        )
    if match := _SHELL.search(text):
        return Process(pid="self", memlock_soft=_bytes(match[1], 1024))
    return None


def _bytes(word: str, unit: int) -> int:
    return UNLIMITED if word.lower() == "unlimited" else int(word) * unit
