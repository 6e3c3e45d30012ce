"""Limits of the workload's process: locked memory and /dev/shm."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.model import LOCK_TRIED, SHM, UNLIMITED, Process, WorkloadFacts
from gpudoctor.report import Certainty, Evidence, Severity

CHECKS = CheckSet()

_MIB = 1 << 20
_ENOUGH_MEMLOCK = LOCK_TRIED
"""NCCL and UCX pin some hundred MiB a process; from 1 GiB on a limit is a choice, not a default."""
_NEARLY = 0.9
_DEFAULT_SHM = 64 * _MIB


def amount(size: int) -> str:
    """Return a size as people write it: `64 KiB`, `8 MiB`, `1.5 GiB`."""
    for unit, name in ((1 << 30, "GiB"), (_MIB, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}" if size % unit == 0 else f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def _why_no_ipc_lock(process: Process) -> str:
    if process.ipc_lock and process.lock_tried:
        return (
            "CAP_IPC_LOCK is in CapEff but not in force: the kernel refused to lock "
            f"{amount(LOCK_TRIED)} ({process.lock_tried})."
        )
    if process.ipc_lock is None:
        return "Whether CAP_IPC_LOCK is in force is not known."
    if process.own_user_namespace and process.effective and process.effective >> 14 & 1:
        return (
            "CAP_IPC_LOCK is in CapEff, but the process has its own user namespace and the kernel "
            "asks the initial one."
        )
    granted = bool(process.bounding and process.bounding >> 14 & 1)
    if granted and process.uid:
        return (
            f"CAP_IPC_LOCK is in CapBnd but not in CapEff: the process is non-root (uid "
            f"{process.uid}), for which Kubernetes' capabilities.add has no effect."
        )
    return "CAP_IPC_LOCK is not in CapEff."


def _uses_rdma(facts: WorkloadFacts) -> bool | None:
    """Whether the process can use RDMA; None if that was not looked at.

    A container without a device node has other trouble, and registers no memory.
    """
    if facts.verbs is not None and any(node.name.startswith("uverbs") for node in facts.verbs):
        return True
    if facts.verbs is not None and facts.verbs_whole:
        return False
    if facts.hcas:
        return True
    return None if facts.hcas is None and facts.verbs is None else False


def _memlock_evidence(process: Process) -> Iterator[Evidence]:
    hard = process.memlock_hard
    yield Evidence(
        f"/proc/{process.pid}/limits",
        "Max locked memory",
        f"{process.memlock_soft} bytes",
        None if hard is None else f"hard limit {'unlimited' if hard == UNLIMITED else hard}",
    )
    if process.effective is not None:
        value = f"{process.effective:016x}"
        yield Evidence(f"/proc/{process.pid}/status", "CapEff", value, f"uid {process.uid}")
    if process.lock_tried:
        tried = f"really tried for {amount(LOCK_TRIED)}"
        yield Evidence("mlock2", None, process.lock_tried, tried)


@CHECKS.check(WorkloadFacts)
def memlock(facts: WorkloadFacts) -> Iterator[Result]:
    """The process may lock too little memory for RDMA, and has no right to exceed the limit.

    A real try decides where there was one; limit and capabilities say what to expect of it.
    """
    process = facts.process
    if process is None or process.memlock_soft in (None, UNLIMITED):
        return
    if process.ipc_lock and not process.lock_tried:
        return
    limit = process.memlock_soft
    assert limit is not None
    used_up = process.pinned is not None and process.pinned > limit * _NEARLY
    if process.lock_tried == "" and (limit < _ENOUGH_MEMLOCK or not used_up):
        return
    uses_rdma = _uses_rdma(facts)
    if uses_rdma is False or (limit >= _ENOUGH_MEMLOCK and not used_up):
        return
    sure = uses_rdma and (process.ipc_lock is False or process.lock_tried is not None)
    yield finding(
        "memlock-too-low",
        facts.subject,
        f"Process {process.pid} may lock {amount(limit)} of memory"
        + (f" and has pinned {amount(process.pinned)}" if used_up and process.pinned else "")
        + f"; registering RDMA buffers beyond it fails with ENOMEM. {_why_no_ipc_lock(process)}",
        *_memlock_evidence(process),
        values={"limit": amount(limit)},
        certainty=Certainty.CERTAIN if sure else Certainty.LIKELY,
        severity=None if uses_rdma else Severity.WARNING,
    )


@CHECKS.check(WorkloadFacts)
def shm(facts: WorkloadFacts) -> Iterator[Result]:
    """The shared memory is full, or has the runtime's default size in a container with GPUs."""
    process = facts.process
    if process is None or process.shm_bytes is None:
        return
    gpus = None if facts.given is None else len(facts.given)
    if gpus is None and not facts.gpus and not facts.hcas:
        return
    used = process.shm_used or 0
    small = process.shm_bytes <= _DEFAULT_SHM
    size = f"the default {amount(process.shm_bytes)}"
    if used >= process.shm_bytes * _NEARLY:
        size = f"full: {amount(used)} of {amount(process.shm_bytes)}"
        detail = (
            f"{amount(used)} of the {amount(process.shm_bytes)} at /dev/shm are in use: the next "
            "segment fails with ENOSPC or SIGBUS. Segments that crashed processes left there "
            "(nccl-*, torch_*, psm_*) are freed only by deleting them."
        )
    elif small and gpus != 1:
        detail = (
            f"The mount at /dev/shm holds {amount(process.shm_bytes)}, the runtime's default: "
            "NCCL's shared-memory transport and data loader workers need more."
        )
    else:
        return
    yield finding(
        "shm-too-small",
        facts.subject,
        detail,
        Evidence(f"/proc/{process.pid}/mountinfo", "shm", f"size={process.shm_bytes}"),
        *([] if process.shm_used is None else [Evidence("statvfs", SHM, f"{used} in use")]),
        values={"pod": facts.subject.name, "size": size},
        severity=Severity.WARNING,
    )
