"""What of a kernel log still holds, and for whom: it keeps everything since boot.

A GPU that fell off the bus a week ago and answers today was reset; a program that crashed its GPU
yesterday says nothing of the node today; and neither says anything of a pod that came this
morning. Stamps are seconds since boot, so that the time of boot tells when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import msgspec

from gpudoctor.facts.kubernetes import fields
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.node.gpu import Gpu, NodeGpus, NotAvailable
from gpudoctor.facts.node.kernel_log import EventKind, GpuEvent, IommuFault, KernelLog
from gpudoctor.facts.node.kernel_log_host_lines import DeviceKind
from gpudoctor.facts.node.xid import Action
from gpudoctor.facts.pod_on_node import PodOnNode
from gpudoctor.readings.host_facts import HostFacts

_SLACK = timedelta(minutes=5)
"""How far the kernel's clock and the cluster's may differ."""
_OLD = timedelta(days=1)


def of_machine(seen: HostFacts, now: datetime | None) -> KernelLog | None:
    """Return what a machine's kernel log says of its present state, None without a log."""
    log = seen.kernel_log
    if not isinstance(log, KernelLog):
        return None
    log = _refuted(log, seen.gpus) if isinstance(seen.gpus, NodeGpus) else log
    kept = [event for event in log.events if not _is_over(event, seen.booted, now)]
    return msgspec.structs.replace(
        log,
        events=tuple(kept),
        kills=tuple(kill for kill in log.kills if not _is_old(kill.time, seen.booted, now)),
        iommu_faults=tuple(_known(log.iommu_faults, seen)),
    )


def _known(faults: Iterable[IommuFault], seen: HostFacts) -> Iterator[IommuFault]:
    """Keep the faults of the machine's GPUs and adapters; its bus says what the log leaves out."""
    kinds = {gpu.address: DeviceKind.GPU for gpu in seen.node.gpus}
    kinds |= {hca.pci.address: DeviceKind.ADAPTER for hca in seen.node.hcas or () if hca.pci}
    for fault in faults:
        found = [kind for address, kind in kinds.items() if address.endswith(fault.device)]
        if found or fault.kind is not None:
            yield msgspec.structs.replace(fault, kind=next(iter(found), fault.kind))


def _refuted(log: KernelLog, gpus: NodeGpus) -> KernelLog:
    """Mark as over what NVML shows to be over: it reaches the GPU, and asks for nothing."""
    if gpus.failure is not None:
        return log
    fine = {gpu.label.rpartition(".")[0] for gpu in gpus.gpus if _is_fine(gpu)}
    events = tuple(
        msgspec.structs.replace(event, ended=True)
        if event.kind is EventKind.XID and event.pci in fine
        else event
        for event in log.events
    )
    all_fine = len(fine) == len(gpus.gpus) == gpus.count
    conditions = tuple(
        said for said in log.conditions if not (all_fine if said.pci is None else said.pci in fine)
    )
    return msgspec.structs.replace(log, events=events, conditions=conditions)


def _is_fine(gpu: Gpu) -> bool:
    reached = gpu.handle is None and not isinstance(gpu.uuid, NotAvailable)
    return reached and gpu.recovery_action == 0


def _is_over(event: GpuEvent, booted: datetime | None, now: datetime | None) -> bool:
    """Whether an event is a day old, and over or none that lasts."""
    return _is_old(event.last_time, booted, now) and (event.ended or event.action < Action.RESET)


def _is_old(stamp: str | None, booted: datetime | None, now: datetime | None) -> bool:
    at = moment(stamp, booted)
    return at is not None and now is not None and now - at >= _OLD


def of_pod(
    log: KernelLog, booted: datetime | None, pod: PodOnNode
) -> tuple[KernelLog, frozenset[str]]:
    """Return the kernel log as far as it may be about the pod's time on the machine, and the GPUs
    of which it tells something without a time.

    What happened before the pod came is history: a GPU that still suffers from it shows in NVML.
    """
    since, until = _time_of(pod.situation)

    def within_its_time(stamp: str | None) -> bool:
        at = moment(stamp, booted)
        if at is None or since is None:
            return not pod.is_well
        return since - _SLACK <= at and (until is None or at <= until + _SLACK)

    kept: list[GpuEvent] = []
    undated: set[str] = set()
    for event in log.events:
        first, last = moment(event.first_time, booted), moment(event.last_time, booted)
        if first is None or last is None or since is None:
            if not pod.is_well:
                kept.append(event)
                undated.add(event.pci)
        elif last >= since - _SLACK and (until is None or first <= until + _SLACK):
            kept.append(event)
    gpus = (gpu.address for gpu in pod.machine.gpus)
    within = msgspec.structs.replace(
        log,
        events=tuple(kept),
        conditions=() if pod.is_well or pod.gpu_trouble is False else log.conditions,
        pcie_errors=() if pod.is_well else log.pcie_errors,
        iommu_faults=() if pod.is_well else log.iommu_faults,
        kills=tuple(kill for kill in log.kills if within_its_time(kill.time)),
    )
    return within, frozenset(gpu for gpu in gpus if gpu.rpartition(".")[0] in undated)


def _time_of(found: PodSituation) -> tuple[datetime | None, datetime | None]:
    """When the pod came to its node, and when its last container ended if it is over."""
    scheduled = found.pod.condition("PodScheduled")
    came = scheduled.since if scheduled and scheduled.status == "True" else None
    since = came or found.pod.meta.created
    if not found.pod.is_terminal:
        return since, None
    ends = [end.finished for status in found.pod.statuses if (end := status.latest_end)]
    return since, max((end for end in ends if end is not None), default=None)


def moment(stamp: str | None, booted: datetime | None) -> datetime | None:
    """Return the time of a line: seconds since boot, or a date that names its offset."""
    if stamp is None:
        return None
    try:
        return booted + timedelta(seconds=float(stamp)) if booted else None
    except (ValueError, OverflowError):
        return fields.moment(stamp.replace(",", "."))
