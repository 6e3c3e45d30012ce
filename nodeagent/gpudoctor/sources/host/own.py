"""What psutil says of our own PID and network namespace: limits, interfaces, who waits.

For another host's mounted /proc it would answer about ourselves: plain files serve that. Asked in
a child (`gpudoctor.sources.system`), since an interface whose driver hangs holds up whoever asks.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

_MOST_WAITING = 64


def limits() -> dict[str, list[int]]:
    """Return soft and hard limits of this process, -1 for none: bytes, or open files."""
    import psutil  # imported late: few runs need it

    process = psutil.Process()
    wanted = {"memlock": psutil.RLIMIT_MEMLOCK, "nofile": psutil.RLIMIT_NOFILE}
    return {name: list(process.rlimit(which)) for name, which in wanted.items()}


def interfaces() -> Iterator[dict[str, Any]]:
    """Yield the interfaces of this network namespace: state, Mb/s (0 unknown), MTU, addresses.

    sysfs may be that of another namespace, and it has no addresses.
    """
    import psutil  # imported late: few runs need it

    addresses = psutil.net_if_addrs()
    for name, state in psutil.net_if_stats().items():
        yield {
            "name": name,
            "up": state.isup,
            "speed_mbps": state.speed,
            "mtu": state.mtu,
            "addresses": [
                address.address
                for address in addresses.get(name, ())
                if address.family in (socket.AF_INET, socket.AF_INET6)
            ],
        }


def waiting() -> Iterator[dict[str, Any]]:
    """Yield the processes that wait uninterruptibly in the kernel (state D), the oldest first."""
    import psutil  # imported late: only a hang asks for it

    found = 0
    for process in psutil.process_iter(["pid", "name", "status"]):
        if process.info["status"] == psutil.STATUS_DISK_SLEEP and found < _MOST_WAITING:
            found += 1
            yield {key: process.info[key] for key in ("pid", "name")}
