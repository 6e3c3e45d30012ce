"""The addresses of this network namespace's interfaces."""

from __future__ import annotations

import socket

import psutil


def address(interface: str) -> str | None:
    """Return the interface's IPv4 address, else its IPv6 one that others can reach."""
    found = psutil.net_if_addrs().get(interface, [])
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in found:
            if entry.family == family and not entry.address.startswith("fe80:"):
                return str(entry.address)
    return None
