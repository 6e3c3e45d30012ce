"""The plainest CEL selectors of DRA, which every driver's classes are made of.

`device.driver == "d"` and `device.attributes["d"].name == value`, joined by `&&`: no more than that
is evaluated. What any other expression says of a device is left to the scheduler.
Source: kubernetes resource.k8s.io/v1 (CELDeviceSelector); the DeviceClasses of
dra-driver-nvidia-gpu.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

_CLAUSE = (
    r"""\s*device\.(?:driver|attributes\[(?P<dq>["'])(?P<domain>[\w./-]+)(?P=dq)\]\.(?P<name>\w+))"""
    r"""\s*==\s*(?:(?P<q>["'])(?P<text>[^"'\\]*)(?P=q)|(?P<plain>true|false|-?\d+))\s*"""
)
_MAX_CHARS = 10 * 1024
_KEPT = 256


def is_plain(selector: str) -> bool:
    """Whether the selector is one that is evaluated here."""
    return _clauses(selector) is not None


def may_match(selector: str, driver: str, attributes: Mapping[str, str]) -> bool:
    """Whether a device can match: False only where a plain selector says that it does not.

    `attributes` are those of a ResourceSlice as texts; a name without a domain is the driver's.
    """
    clauses = _clauses(selector)
    if clauses is None:
        return True
    return all(
        value == (driver if name is None else _attribute(domain, name, driver, attributes))
        for domain, name, value in clauses
    )


def _attribute(domain: str, name: str, driver: str, attributes: Mapping[str, str]) -> str | None:
    found = attributes.get(f"{domain}/{name}")
    return attributes.get(name) if found is None and domain == driver else found


@lru_cache(_KEPT)
def _clauses(selector: str) -> tuple[tuple[str, str | None, str], ...] | None:
    """Return (domain, name, wanted text) of each clause, name None for the driver."""
    if len(selector) > _MAX_CHARS:
        return None
    found = []
    for part in selector.split("&&"):
        match = re.fullmatch(_CLAUSE, part)
        if match is None:
            return None
        value = match["plain"] if match["text"] is None else match["text"]
        found.append((match["domain"] or "", match["name"], value))
    return tuple(found)
