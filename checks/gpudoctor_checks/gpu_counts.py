"""A node advertises another number of GPUs than its machine has, in either direction."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.gpu_counts import RESOURCE, GpuCounts
from gpudoctor.report import Evidence
from gpudoctor_checks import supply

CHECKS = CheckSet()


@CHECKS.check(GpuCounts)
def advertised_and_gone(counts: GpuCounts) -> Iterator[Result]:
    """The kubelet would give out more GPUs than there are: a pod gets one that is not there."""
    if counts.allocatable <= counts.usable or supply.upgrade_of(counts.node) is not None:
        return
    gone = counts.allocatable - counts.usable
    yield finding(
        "gpu-advertised-not-present",
        counts.node.subject,
        f"{counts.node.name} advertises {counts.allocatable} healthy {RESOURCE}, and its machine "
        f"has {counts.usable} ({counts.told_by.note}): {gone} would be given to a pod that then "
        "does not start or sees no GPU.",
        *supply.allocatable_evidence([counts.node], RESOURCE, "what the scheduler counts on"),
        counts.told_by,
        values={"count": str(gone), "resource": RESOURCE, "node": counts.node.name},
    )


@CHECKS.check(GpuCounts)
def present_and_not_advertised(counts: GpuCounts) -> Iterator[Result]:
    """The machine has GPUs that nobody can ask for: the plugin did not find them at its start."""
    missing = len(counts.cards) - counts.capacity
    if missing <= 0 or counts.capacity == 0 or supply.upgrade_of(counts.node) is not None:
        return
    yield finding(
        "gpu-present-not-advertised",
        counts.node.subject,
        f"{counts.node.name} has {len(counts.cards)} GPUs on its PCI bus and advertises "
        f"{counts.capacity} {RESOURCE}, unhealthy ones included: {missing} cannot be asked for.",
        *supply.allocatable_evidence([counts.node], RESOURCE, "capacity counts unhealthy ones"),
        Evidence("/sys/bus/pci/devices", None, str(len(counts.cards)), ", ".join(counts.cards)),
        values={"count": str(missing), "resource": RESOURCE, "node": counts.node.name},
    )
