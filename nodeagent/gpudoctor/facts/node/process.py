"""The workload's process as the kernel sees it: limits, capabilities, CPUs, memory, shared memory.

Read from /proc/PID of the process that matters: the limits of a shell or of the agent are not
those of a training rank.
"""

from __future__ import annotations

import re

from gpudoctor.facts.node import cpulist
from gpudoctor.facts.node.model import (
    LOCK_TRIED,
    SHM,
    UNLIMITED,
    HugePages,
    NumaNode,
    Process,
)
from gpudoctor.sources import environment
from gpudoctor.sources.host import Host, Missing, Space, names, number, text

_MEMLOCK = re.compile(r"^Max locked memory\s+(unlimited|\d+)\s+(unlimited|\d+)", re.MULTILINE)
_STATUS = re.compile(r"^(\w+):[ \t]*(.*?)\s*$", re.MULTILINE)
_SIZE = re.compile(r"(?:^|,)size=(\d+)([kmg%]?)")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_WHOLE_MAP = ["0", "0", "4294967295"]
_HUGE = "/sys/kernel/mm/hugepages"
_INITS = ("systemd", "init", "launchd")
_CPUSET = "/sys/fs/cgroup/cpuset.cpus.effective"
_READ = ("status", "limits", "uid_map", "mountinfo", "environ")


def workload_pid(host: Host) -> str:
    """Return the process to judge: the container's first, or ourselves on a host.

    On a host process 1 is its init system, whose limits no workload has.
    """
    first = text(host, "/proc/1/comm")
    if first is None:
        known = [f"/proc/1/{name}" for name in ("limits", "status", "environ")]
        return (
            "1" if any(not isinstance(host.read_bytes(path), Missing) for path in known) else "self"
        )
    return "self" if first in _INITS else "1"


def in_container(host: Host) -> bool | None:
    """Return whether process 1 is a workload; None if that cannot be told."""
    first = text(host, "/proc/1/comm")
    return None if first is None else first not in _INITS


def read_process(host: Host, pid: str) -> Process:
    """Read one process; what cannot be read stays None."""
    folder = f"/proc/{pid}"
    host.expect([*(f"{folder}/{name}" for name in _READ), _CPUSET])
    status = dict(_STATUS.findall(text(host, f"{folder}/status") or ""))
    limits = _memlock(host, pid)
    uid = status.get("Uid", "").split()
    mapping = text(host, f"{folder}/uid_map")
    shm, shm_used = _shm(host, pid)
    return Process(
        pid=pid,
        memlock_soft=limits[0] if limits else None,
        memlock_hard=limits[1] if limits else None,
        pinned=_kilobytes(status.get("VmPin")),
        uid=int(uid[1]) if len(uid) > 1 and uid[1].isdigit() else None,
        effective=_mask(status.get("CapEff")),
        bounding=_mask(status.get("CapBnd")),
        own_user_namespace=None if mapping is None else mapping.split() != _WHOLE_MAP,
        cpus=_cpus(host, status.get("Cpus_allowed_list")),
        memory_nodes=_set(status.get("Mems_allowed_list")),
        lock_tried=_lock_tried(host, pid),
        shm_bytes=shm,
        shm_used=shm_used,
        environment=variables(host, pid),
    )


def memlock_soft(host: Host, pid: str) -> int | None:
    """Return the bytes that a process may lock, `UNLIMITED` for no limit; None if unknown."""
    limits = _memlock(host, pid)
    return limits[0] if limits else None


def _memlock(host: Host, pid: str) -> tuple[int, int] | None:
    """Return the soft and the hard limit."""
    found = _MEMLOCK.search(text(host, f"/proc/{pid}/limits") or "")
    return (_limit(found[1]), _limit(found[2])) if found else None


def _limit(word: str) -> int:
    return UNLIMITED if word == "unlimited" else int(word)


def _kilobytes(value: str | None) -> int | None:
    number = (value or "").split(" ")[0]
    return int(number) * 1024 if number.isdigit() else None


def _mask(value: str | None) -> int | None:
    try:
        return None if value is None else int(value, 16)
    except ValueError:
        return None


def _set(value: str | None) -> frozenset[int] | None:
    return cpulist.parse(value) if value else None


def _cpus(host: Host, allowed: str | None) -> frozenset[int] | None:
    """Return the CPUs that the process may use: its own list, within the container's cpuset."""
    own = _set(allowed)
    cpuset = _set(text(host, _CPUSET))
    if own is not None and cpuset:
        return own & cpuset or own
    return own if own is not None else cpuset


def _lock_tried(host: Host, pid: str) -> str | None:
    """Return how a try of ours to lock memory ended, where it speaks for the process as well.

    That is so for ourselves, and for a process with the same limit, capabilities and user
    namespace: `kubectl exec` next to the workload, not an agent beside it.
    """
    if pid not in ("self", "1"):
        return None
    tried = host.try_lock(LOCK_TRIED)
    if isinstance(tried, Missing):
        return None
    return tried if pid == "self" or _rights(host, pid) == _rights(host, "self") else None


def _rights(host: Host, pid: str) -> tuple[object, ...]:
    """What decides how much memory a process may lock."""
    limits = _MEMLOCK.search(text(host, f"/proc/{pid}/limits") or "")
    status = dict(_STATUS.findall(text(host, f"/proc/{pid}/status") or ""))
    mapping = (text(host, f"/proc/{pid}/uid_map") or "").split()
    return limits and limits[1], status.get("CapEff"), mapping


def _shm(host: Host, pid: str) -> tuple[int | None, int | None]:
    """Return size and use of /dev/shm in bytes, None if it is not its own mount.

    The mount option is what was asked for; without one the kernel takes half of the memory.
    """
    table = text(host, f"/proc/{pid}/mountinfo") or text(host, "/proc/self/mountinfo") or ""
    size, mounted = _shm_mount(table)
    space = (
        host.space(SHM if pid in ("self", "1") else f"/proc/{pid}/root{SHM}") if mounted else None
    )
    if not isinstance(space, Space):
        return size, None
    return size or space.size, space.size - space.free


def shm_option(host: Host, pid: str) -> int | None:
    """Return the size in bytes with which a process's /dev/shm was mounted, None if unknown."""
    return _shm_mount(text(host, f"/proc/{pid}/mountinfo") or "")[0]


def _shm_mount(table: str) -> tuple[int | None, bool]:
    """Return the size option of /dev/shm in a mountinfo, and whether it is mounted at all."""
    size, mounted = None, False
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) > 6 and fields[4] == SHM:
            mounted = True
            match = _SIZE.search(fields[-1])
            if match and match[2] in _UNITS:
                size = int(match[1]) * _UNITS[match[2]]
    return size, mounted


def variables(host: Host, pid: str) -> dict[str, str] | None:
    """Return the environment of a process, of which only some may be read; None if denied."""
    raw = host.read_bytes(f"/proc/{pid}/environ")
    return None if isinstance(raw, Missing) else environment.allowed(raw)


def huge_pages(host: Host) -> tuple[HugePages, ...]:
    """Return the huge pages that the machine has reserved, by size."""
    found = []
    for name in names(host, _HUGE):
        if match := re.match(r"^hugepages-(\d+)kB$", name):
            total = number(host, f"{_HUGE}/{name}/nr_hugepages")
            free = number(host, f"{_HUGE}/{name}/free_hugepages")
            if total is not None and free is not None:
                found.append(HugePages(int(match[1]) << 10, total, free))
    return tuple(sorted(found, key=lambda pages: pages.size))


def numa_nodes(host: Host) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes of the machine; those of Grace's GPUs have no CPUs."""
    found = []
    for name in names(host, "/sys/devices/system/node"):
        if re.match(r"^node\d+$", name):
            cpus = cpulist.parse(text(host, f"/sys/devices/system/node/{name}/cpulist") or "")
            found.append(NumaNode(int(name[4:]), cpus or frozenset()))
    return tuple(sorted(found, key=lambda node: node.number))
