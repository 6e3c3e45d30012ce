"""Why NCCL does without RDMA or GPUDirect in a pod, where its log says only that it does.

NCCL asks in a fixed order (facts of its source: `src/transport/net_ib`, `src/graph/paths.cc`), and
release builds print the outcome, not the question that decided. With the machine at hand the
questions are asked again, in that order: variables and adapters here, GPUDirect in
`gdr_reasons.py`, the adapters that were passed over in `near_adapters.py`. The first question that
fails is the reason; what cannot be answered gives none.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import Result, finding
from gpudoctor.facts.node.model import Hca
from gpudoctor.facts.pod_on_node import PodOnNode
from gpudoctor.report import Evidence
from gpudoctor_checks import gdr_reasons, near_adapters
from gpudoctor_checks.network import selected
from gpudoctor_checks.pod_process import CHECKS, evidence, variable

__all__ = ["CHECKS", "gdr_reasons", "near_adapters"]

_OFF = ("", "0")


@CHECKS.check(PodOnNode)
def ib_disabled(pod: PodOnNode) -> Iterator[Result]:
    """NCCL_IB_DISABLE stands in the environment of a process, whoever put it there."""
    found = variable(pod, "NCCL_IB_DISABLE")
    if found is None or found[0] in _OFF or not pod.over_tcp:
        return
    yield finding(
        "nccl-ib-disabled-by-env",
        pod.subject,
        f"The process has NCCL_IB_DISABLE={found[0]}: NCCL does not look for RDMA adapters at all.",
        evidence("NCCL_IB_DISABLE", *found),
        values={"hosts": pod.situation.pod.meta.name},
    )


@CHECKS.check(PodOnNode)
def filtered(pod: PodOnNode) -> Iterator[Result]:
    """NCCL_IB_HCA lets none of the adapters through that the container has."""
    found = variable(pod, "NCCL_IB_HCA")
    if found is None or not pod.over_tcp:
        return
    value, workload = found
    nodes = {node.name for node in workload.verbs or ()}
    given = [hca.name for hca in workload.hcas or () if hca.uverbs in nodes]
    if not given or any(_passes(hca, value) for hca in workload.hcas or () if hca.name in given):
        return
    shown = ", ".join(given)
    yield finding(
        "nccl-env-names-missing-device",
        pod.subject,
        f"NCCL_IB_HCA={value} matches none of the adapters that the container has ({shown}).",
        evidence("NCCL_IB_HCA", *found),
        Evidence("/sys/class/infiniband", None, shown),
        values={
            "name": "NCCL_IB_HCA",
            "pod": pod.situation.pod.meta.short,
            "device": value,
        },
    )


def _passes(hca: Hca, value: str) -> bool:
    return any(selected(hca, port, value) for port in hca.ports) or bool(selected(hca, None, value))
