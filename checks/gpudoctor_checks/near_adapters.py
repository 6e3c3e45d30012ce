"""Ranks that talk through an adapter on the far side of the machine while a nearer one is idle.

NCCL picks for each GPU the nearest of the adapters in its list. So where a rank uses one beyond
the host bridge or the other socket, and the machine has its like nearer to that GPU, the nearer one
was kept from NCCL: left out by a variable, not given to the pod, or its port is not up. Only an
adapter that no rank of the host uses counts: how NCCL shares out those it has (rails, rings that
enter and leave by one adapter, PXN) is its own affair.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checking import Result, finding
from gpudoctor.facts import rank_places
from gpudoctor.facts.node.model import Hca, WorkloadFacts
from gpudoctor.facts.node.topology import distance
from gpudoctor.facts.pod_on_node import PodOnNode
from gpudoctor.facts.rank_places import RankPlace, Ways
from gpudoctor.report import Blame, Certainty, Evidence, Unknown
from gpudoctor_checks.nccl_log import evidence as lines
from gpudoctor_checks.nccl_log import ranks, several
from gpudoctor_checks.network import selected
from gpudoctor_checks.pod_process import CHECKS, evidence, variable

_CLASS = "/sys/class/infiniband"
_SHOWN = 3
_FARNESS = {"PIX": 0, "PXB": 0, "PHB": 1, "NODE": 1, "SYS": 2}
"""By what NCCL crosses: switches only, the host bridge, or the way between the sockets."""


class _Why(msgspec.Struct, frozen=True):
    """Why an adapter is not in NCCL's list: words, what has to change, and what shows it."""

    words: str
    blame: Blame
    proof: Evidence | None = None


@CHECKS.check(PodOnNode)
def near_adapter_idle(pod: PodOnNode) -> Iterator[Result]:
    """A rank's data takes the long way through the machine while an adapter near it is idle."""
    places = [] if pod.over_tcp else list(rank_places.read(pod))
    if not places or len(pod.machine.hcas or ()) < 2:
        return
    ways = Ways(pod.machine)
    if pod.machine.virtual or all(ways.nearest(p.gpu, p.adapters) is None for p in places):
        yield Unknown("how far the pod's GPUs are from its adapters", _why_unknown(pod))
        return
    busy = {_card(ways, hca) for hca in _busy(pod)}
    found: dict[str, list[RankPlace]] = {}
    idle: dict[str, Hca] = {}
    for place in places:
        for hca in _nearer(pod, ways, place, busy):
            idle[hca.name] = hca
            found.setdefault(hca.name, []).append(place)
    reasons = {name: why for name, hca in idle.items() if (why := _why(pod, hca)) is not None}
    if reasons:
        far = {place.rank: place for name in reasons for place in found[name]}
        yield _finding(pod, ways, list(far.values()), [idle[name] for name in reasons], reasons)


def _why_unknown(pod: PodOnNode) -> str:
    if pod.machine.virtual:
        return "a virtual machine does not show the real PCIe tree"
    return "their place in the PCIe tree could not be read"


def _nearer(pod: PodOnNode, ways: Ways, place: RankPlace, busy: set[str]) -> Iterator[Hca]:
    """The idle adapters of the machine that are nearer to a rank's GPU than those that it uses.

    `busy` are the cards that some rank uses.
    """
    path = ways.nearest(place.gpu, place.adapters)
    if path is None or not _FARNESS[path]:
        return
    for hca in pod.machine.hcas or ():
        other = ways.path(place.gpu, hca)
        if other is None or _FARNESS[other] >= _FARNESS[path] or _card(ways, hca) in busy:
            continue
        if any(_could_stand_in(hca, used) for used in place.adapters):
            yield hca


def _busy(pod: PodOnNode) -> Iterator[Hca]:
    """The adapters that some rank of the host uses, by itself or for another."""
    assert pod.log is not None
    names = {
        name
        for rail in pod.rails
        for name in rank_places.names(pod.log, rail.host, (*rail.nics, *rail.own))
    }
    return (hca for hca in pod.machine.hcas or () if hca.name in names)


def _card(ways: Ways, hca: Hca) -> str:
    """What the functions and ports of one card share."""
    card = ways.card(hca)
    return hca.name if card is None else card.address.rpartition(".")[0]


def _could_stand_in(hca: Hca, used: Hca) -> bool:
    """Whether one adapter is of the other's kind: same model, same network, no lower rate.

    A storage or management NIC beside the GPU is none.
    """
    boards = {hca.board, used.board} - {None}
    links = {port.link_layer for port in used.ports}
    rates = [port.rate for port in used.ports if port.is_active and port.rate]
    enough = any(
        port.link_layer in links
        and (not port.is_active or port.rate is None or port.rate >= min(rates, default=0.0))
        for port in hca.ports
    )
    return hca.model == used.model and len(boards) < 2 and enough


def _why(pod: PodOnNode, hca: Hca) -> _Why | None:
    """Why NCCL did without it; None where nothing that we know speaks against it."""
    if hca.name in rank_places.listed(pod):
        return _by_topology_file(pod)
    if hca.ports and all(port.is_active is False for port in hca.ports):
        port = hca.ports[0]
        if port.physical == "Disabled":
            return None  # switched off, or never cabled: not meant to be used
        place = f"{_CLASS}/{hca.name}/ports/{port.number}"
        return _Why(f"its port is {port.state}", Blame.NODE, Evidence(place, "state", port.state))
    by_filter = _by_filter(pod, hca)
    if by_filter is not None:
        return by_filter
    if pod.containers and all(_lacks(workload, hca) for workload in pod.containers):
        where = Evidence(f"/dev/infiniband/{hca.uverbs}", None, "not in the container")
        return _Why("the pod was not given it", Blame.PLACEMENT, where)
    return None


def _by_topology_file(pod: PodOnNode) -> _Why | None:
    found = variable(pod, "NCCL_TOPO_FILE")
    if found is None or not found[0]:
        return None
    words = f"NCCL_TOPO_FILE={found[0]} describes another machine than this one"
    return _Why(words, Blame.REQUEST, evidence("NCCL_TOPO_FILE", *found))


def _by_filter(pod: PodOnNode, hca: Hca) -> _Why | None:
    name = "NCCL_IB_HCA"
    found = variable(pod, name)
    proof: Evidence | None
    if found is not None:
        value, proof = found[0], evidence(name, *found)
    else:
        own = [s for s in (pod.log.setting(name) if pod.log else ()) if pod.host_name in s.hosts]
        value = own[0].value if own else ""
        proof = next(iter(lines([setting.line for setting in own[:1]])), None)
    if selected(hca, None, value) is not False:
        return None
    return _Why(f"{name}={value} leaves it out", Blame.REQUEST, proof)


def _lacks(workload: WorkloadFacts, hca: Hca) -> bool:
    if hca.uverbs is None or workload.verbs is None or not workload.verbs_whole:
        return False
    return hca.uverbs not in {node.name for node in workload.verbs}


def _finding(
    pod: PodOnNode,
    ways: Ways,
    places: list[RankPlace],
    idle: list[Hca],
    reasons: dict[str, _Why],
) -> Result:
    used = several((hca.name for place in places for hca in place.adapters), "adapter")
    names = several((hca.name for hca in idle), "adapter")
    who = ranks(place.rank for place in places).capitalize()
    alike: dict[str, list[str]] = {}
    for hca in idle:
        alike.setdefault(reasons[hca.name].words, []).append(hca.name)
    why = "; ".join(f"{words} ({several(them, 'adapter')})" for words, them in alike.items())
    told = "; ".join(
        f"rank {place.rank} (GPU {place.gpu.address}, NUMA node {place.gpu.numa}) uses"
        f" {several((hca.name for hca in place.adapters), 'adapter')} at"
        f" {ways.nearest(place.gpu, place.adapters)}"
        for place in places[:_SHOWN]
    )
    return finding(
        "nccl-near-adapter-idle",
        pod.subject,
        f"{told}. Nearer, and idle: {names}. Why NCCL does without: {why}.",
        *lines([place.line for place in places[:1]]),
        *dict.fromkeys(proof for hca in idle if (proof := reasons[hca.name].proof)),
        *_paths(ways, places, idle),
        values={"ranks": who, "used": used, "idle": names},
        blame=reasons[idle[0].name].blame,
        certainty=Certainty.CERTAIN if pod.gpus is not None else Certainty.LIKELY,
    )


def _paths(ways: Ways, places: list[RankPlace], idle: list[Hca]) -> Iterator[Evidence]:
    """The way to what is used and to what is idle, of the first few GPUs."""
    for place in places[:_SHOWN]:
        near = {
            distance(path): hca for hca in reversed(idle) if (path := ways.path(place.gpu, hca))
        }
        for hca in (*place.adapters[:1], near[min(near)]):
            where = f"/sys/bus/pci/devices/{place.gpu.address}"
            yield Evidence(where, hca.name, ways.path(place.gpu, hca), "between GPU and adapter")
