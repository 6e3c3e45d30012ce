"""The child that tries what a container may do: allocate, map, resolve.

Runs as a script with nothing but the standard library: `python -I -S proof.py WHAT …`, and prints
one JSON object: `{"got": bytes, "wanted": bytes, "errno": NAME or "", "note": …}`. It is a child
because the kernel may kill whoever passes a memory limit, and because a resolver may hang.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import sys
import time

_STEP = 64 << 20
_SHM_S = 1.5
_MAP_HUGETLB = 0x40000
_FAILED = ctypes.c_void_p(-1).value


def _map(size: int, flags: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    whole = ctypes.c_int
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, whole, whole, whole, ctypes.c_long)
    where = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if where == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(where)


def _headroom() -> int | None:
    """Bytes that the container's memory limit leaves, None where there is none."""
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            with open(most, encoding="ascii") as limit, open(used, encoding="ascii") as now:
                return int(limit.read()) - int(now.read())
        except (OSError, ValueError):
            continue
    return None


def shared(folder: str, wanted: int) -> dict[str, object]:
    """Allocate shared memory: all of it where time and memory limit allow, else a good part.

    The mount's own count of free blocks answers for the rest, exactly: tmpfs checks the same.
    Our memory limit bounds what is allocated, and is not judged: the trainer has its own.
    """
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    if not state.f_blocks:
        free = wanted  # a tmpfs without a size limit
    headroom = _headroom()
    flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
    descriptor = os.open(folder, flags, 0o600)
    goal = min(wanted, free + _STEP)
    if headroom is not None:
        goal = min(goal, max(headroom // 2, 1 << 20))
    done, deadline = 0, time.monotonic() + _SHM_S
    while done < goal and time.monotonic() < deadline:
        step = min(_STEP, goal - done)
        try:
            os.posix_fallocate(descriptor, done, step)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return {"got": min(free, wanted), "errno": "ENOSPC", "note": f"{done} allocated"}
        done += step
    note = f"{done} allocated"
    if free < wanted:
        return {"got": free, "errno": "ENOSPC", "note": note}
    return {"got": wanted, "note": note}


def huge(wanted: int) -> dict[str, object]:
    """Map huge pages of the default size and touch each; beyond a cgroup's limit that kills us."""
    where = _map(wanted, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_HUGETLB)
    ctypes.memset(where, 1, wanted)
    return {"got": wanted}


def resolve(name: str, seconds: float) -> dict[str, object]:
    """Resolve a host name, again each second until it is known or the time is over."""
    import socket  # imported late: the other proofs need none

    deadline = time.monotonic() + seconds
    while True:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            addresses = sorted({str(entry[4][0]) for entry in found})
            return {"got": len(addresses), "note": ", ".join(addresses[:4])}
        except OSError as error:
            if time.monotonic() + 1 > deadline:
                return {"got": 0, "errno": "ENOENT", "note": error.strerror or str(error)}
        time.sleep(1)


def main(arguments: list[str]) -> None:
    """Try one thing and print how it went."""
    signal.alarm(660)  # nobody may be left to end us
    what, *rest = arguments
    try:
        match what:
            case "shared":
                answer = shared(rest[0], int(rest[1]))
            case "huge":
                answer = huge(int(rest[0]))
            case "resolve":
                answer = resolve(rest[0], float(rest[1]))
            case _:
                answer = {"errno": "ENOSYS", "note": what}
    except OSError as error:
        answer = {"errno": errno.errorcode.get(error.errno or 0, "EIO"), "note": str(error)}
    print(json.dumps({"got": 0, "errno": "", "note": ""} | answer))


if __name__ == "__main__":
    main(sys.argv[1:])
