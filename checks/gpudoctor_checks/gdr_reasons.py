"""Which of NCCL's questions about GPUDirect RDMA a pod fails on its machine.

A variable that forbids it goes first. Whether an adapter can reach GPU memory at all is the
machine's own finding (`network.py`), and a design that has no GPUDirect RDMA the log's
(`nccl_gdr.py`). The last question is the distance between GPU and adapter.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import Result, finding
from gpudoctor.facts import rank_places
from gpudoctor.facts.node.model import GpuDirect, Hca, PciDevice
from gpudoctor.facts.node.topology import distance
from gpudoctor.facts.pod_on_node import PodOnNode
from gpudoctor.facts.rank_places import Ways
from gpudoctor.report import Certainty, Evidence
from gpudoctor_checks.nccl_log import evidence as lines
from gpudoctor_checks.pod_process import CHECKS, evidence, variable

_LEVEL = "NCCL_NET_GDR_LEVEL"
_LEVELS = {"LOC": 0, "PIX": 1, "PXB": 2, "PHB": 4, "SYS": 5}
"""The greatest distance that a level allows; NCCL takes NODE for PHB."""
_NUMBERS = ("LOC", "PIX", "PXB", "PHB", "SYS")
_DEFAULT = "PXB"
_SHOWN = 4
_COHERENT = ("GB200", "GB300", "GH200", "GB10")
"""NVLink-C2C joins GPU and CPU there: the distance over PCIe does not count."""

Pair = tuple[PciDevice, Hca, str]


def _without_gdr(pod: PodOnNode) -> bool:
    """Whether NCCL's log shows channels without GPUDirect RDMA and no reason for it."""
    log = pod.log
    return (
        log is not None
        and pod.rdma_suffers
        and any(use.network != "Socket" and not use.gdr for use in pod.uses)
        and all(fact.enabled for fact in log.hca_gdr)
        and all(fact.enabled for fact in log.distances)
        and not log.single_host_net
    )


@CHECKS.check(PodOnNode)
def gdr_reason(pod: PodOnNode) -> Iterator[Result]:
    """The first of NCCL's questions about GPUDirect RDMA that this pod fails on this machine."""
    if not _without_gdr(pod):
        return
    level, proof = _level(pod)
    if level is None:
        return
    if level == "LOC":
        yield finding(
            "gdr-disabled-by-env",
            pod.subject,
            f"The process has {_LEVEL}={proof[0].value}, which allows no distance between GPU "
            "and adapter.",
            *proof,
            values={"hosts": pod.situation.pod.meta.name},
        )
    elif _reaches_memory(pod.machine.gpudirect) and not _is_coherent(pod):
        # Without a way into GPU memory the machine's own finding is the reason, not the distance.
        yield from _too_far(pod, level, proof)


def _level(pod: PodOnNode) -> tuple[str | None, tuple[Evidence, ...]]:
    """The level in force, and where it is set; None where it is none that we know."""
    found = variable(pod, _LEVEL)
    proof: tuple[Evidence, ...]
    if found is not None:
        value, proof = found[0], (evidence(_LEVEL, *found),)
    else:
        settings = pod.log.setting(_LEVEL) if pod.log is not None else ()
        if not settings:
            return _DEFAULT, ()
        value, proof = settings[0].value, tuple(lines([settings[0].line]))
    if value.isdecimal():
        return _NUMBERS[min(int(value[:2]), len(_NUMBERS) - 1)], proof
    return (value.upper() if value.upper() in _LEVELS else None), proof


def _reaches_memory(state: GpuDirect) -> bool:
    return state.dma_buf is True or (state.peermem_registered is True)


def _is_coherent(pod: PodOnNode) -> bool:
    models = (pod.machine.models or {}).values()
    return any(name in model for model in models for name in _COHERENT)


def _too_far(pod: PodOnNode, level: str, proof: tuple[Evidence, ...]) -> Iterator[Result]:
    """All that the pod sends without GPUDirect RDMA goes to an adapter beyond the limit."""
    pairs = [] if pod.machine.virtual else list(_pairs(pod))
    if not pairs or any(distance(path) <= _LEVELS[level] for _, _, path in pairs):
        return
    worst = max((path for _, _, path in pairs), key=distance)
    told = "; ".join(f"{gpu.address} - {hca.name} {path}" for gpu, hca, path in pairs[:_SHOWN])
    places = tuple(
        Evidence(f"/sys/bus/pci/devices/{gpu.address}", hca.name, path, "between GPU and adapter")
        for gpu, hca, path in pairs[:_SHOWN]
    )
    by_env = distance(worst) <= _LEVELS[_DEFAULT]
    yield finding(
        "gdr-disabled-by-env" if by_env else "gdr-disabled-distance",
        pod.subject,
        f"No adapter that the pod uses is within NCCL's limit ({level}"
        f"{', by ' + _LEVEL if proof else ''}): {told}."
        + (f" Without the variable the limit is {_DEFAULT}, and they are." if by_env else ""),
        *proof,
        *places,
        values={
            "hosts": pod.situation.pod.meta.name,
            "distance": worst,
            "limit": level,
            "pairs": told,
        },
        certainty=Certainty.LIKELY,
    )


def _pairs(pod: PodOnNode) -> Iterator[Pair]:
    """GPU and adapter of what goes without GPUDirect RDMA, and the path; none if one is unknown.

    By NCCL's own channels where the log tells; else every GPU of the pod with its nearest
    adapter.
    """
    ways = Ways(pod.machine)
    places = rank_places.read(pod)
    found: list[tuple[PciDevice, Hca, str | None]] = [
        (place.gpu, hca, ways.path(place.gpu, hca)) for place in places for hca in place.bare
    ]
    if not places:
        adapters = pod.own_adapters()
        for gpu in pod.own_gpus():
            path = ways.nearest(gpu, adapters)
            found += [(gpu, hca, path) for hca in adapters if ways.path(gpu, hca) == path][:1]
    if all(path is not None for _, _, path in found):
        yield from ((gpu, hca, path) for gpu, hca, path in found if path is not None)
