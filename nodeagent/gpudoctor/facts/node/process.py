"""The workload's process as the kernel sees it: limits, capabilities, CPUs, memory, shared memory.

Read from /proc/PID of the process that matters: the limits of a shell or of the agent are not
those of a training rank.
"""

from __future__ import annotations

import re

from gpudoctor.facts.node import cpulist
from gpudoctor.facts.node.model import UNLIMITED, NumaNode, Process
from gpudoctor.sources.host import Host, Missing, environment, names, text

_MEMLOCK = re.compile(r"^Max locked memory\s+(unlimited|\d+)\s+(unlimited|\d+)", re.MULTILINE)
_STATUS = re.compile(r"^(\w+):[ \t]*(.*?)\s*$", re.MULTILINE)
_SIZE = re.compile(r"(?:^|,)size=(\d+)([kmg%]?)")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_WHOLE_MAP = ["0", "0", "4294967295"]
_INITS = ("systemd", "init", "launchd")


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
    status = dict(_STATUS.findall(text(host, f"{folder}/status") or ""))
    limits = _MEMLOCK.search(text(host, f"{folder}/limits") or "")
    uid = status.get("Uid", "").split()
    mapping = text(host, f"{folder}/uid_map")
    return Process(
        pid=pid,
        memlock_soft=_limit(limits[1]) if limits else None,
        memlock_hard=_limit(limits[2]) if limits else None,
        pinned=_kilobytes(status.get("VmPin")),
        uid=int(uid[1]) if len(uid) > 1 and uid[1].isdigit() else None,
        effective=_mask(status.get("CapEff")),
        bounding=_mask(status.get("CapBnd")),
        own_user_namespace=None if mapping is None else mapping.split() != _WHOLE_MAP,
        cpus=_cpus(host, status.get("Cpus_allowed_list")),
        memory_nodes=_set(status.get("Mems_allowed_list")),
        shm_bytes=_shm(host, pid),
        environment=_environment(host, pid),
    )


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
    cpuset = _set(text(host, "/sys/fs/cgroup/cpuset.cpus.effective"))
    if own is not None and cpuset:
        return own & cpuset or own
    return own if own is not None else cpuset


def _shm(host: Host, pid: str) -> int | None:
    """Return the size of /dev/shm in bytes, None if it is not its own mount or has no limit."""
    table = text(host, f"/proc/{pid}/mountinfo") or text(host, "/proc/self/mountinfo") or ""
    size = None
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) > 6 and fields[4] == "/dev/shm":  # noqa: S108 - the path that is judged
            match = _SIZE.search(fields[-1])
            if match and match[2] in _UNITS:
                size = int(match[1]) * _UNITS[match[2]]
    return size


def _environment(host: Host, pid: str) -> dict[str, str] | None:
    raw = host.read_bytes(f"/proc/{pid}/environ")
    return None if isinstance(raw, Missing) else environment.allowed(raw)


def numa_nodes(host: Host) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes of the machine; those of Grace's GPUs have no CPUs."""
    found = []
    for name in names(host, "/sys/devices/system/node"):
        if re.match(r"^node\d+$", name):
            cpus = cpulist.parse(text(host, f"/sys/devices/system/node/{name}/cpulist") or "")
            found.append(NumaNode(int(name[4:]), cpus or frozenset()))
    return tuple(sorted(found, key=lambda node: node.number))
