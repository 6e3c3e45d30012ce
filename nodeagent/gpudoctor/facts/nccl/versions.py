"""NCCL versions and the path types whose numbers differ between them."""

from __future__ import annotations

import re

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")

# The number printed for each path type, by the first minor version of 2.x that has this list.
# Source: PATH_* in src/graph/topo.h of the tags named.
_PATHS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (27, ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")),
    (26, ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "PHB", "SYS", "NET", "DIS")),
    (12, ("LOC", "NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS", "NET", "DIS")),
    (5, ("LOC", "NVL", "NVB", "PIX", "PXB", "PHB", "SYS", "NET")),
)


def parts(version: str) -> tuple[int, int, int] | None:
    """Split `2.21.5+cuda12.4` (or a vendor's `2.6.4ali`) into numbers; None if it is not one."""
    match = _VERSION.match(version)
    if match is None:
        return None
    return int(match[1]), int(match[2]), int(match[3] or 0)


def from_integer(number: int) -> str:
    """Turn the integer that NCCL compares (22304; before 2.9 2708) into `2.23.4`."""
    if number >= 10000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def path_type(number: int, version: str | None) -> str:
    """Name a distance as NCCL of that version numbers it; the number itself when unknown.

    The page of facts gives PIX 4, PXB 5, PHB 8 and SYS 9 for 2.27 and later: P2C sits after PXB.
    """
    numbers = parts(version) if version else None
    if numbers is None or numbers[0] != 2:
        return str(number)
    for since, names in _PATHS:
        if numbers[1] >= since:
            return names[number] if 0 <= number < len(names) else str(number)
    return str(number)
