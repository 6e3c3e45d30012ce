"""A job's init containers beside each other: what each says of itself, and who was missing.

The statements come from other pods: they are read by their types, and cut to length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from gpudoctor.facts.node.gpu import NodeGpus, NotAvailable
from gpudoctor.facts.node.model import Gid, Hca
from gpudoctor.facts.node.own_container import OwnContainer
from gpudoctor.report import Evidence, Subject
from gpudoctor.sources.host import Host, number, text
from gpudoctor.sources.rendezvous import Outcome, Plan, Refused

Words = Annotated[str, msgspec.Meta(max_length=256)]
_NET = "/sys/class/net"
_HCA = "/sys/class/infiniband"
_PLAIN = ("lo", "docker")


class Statement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a member says of itself; None is what it does not know.

    `network` is ib, roce, efa or none. `rate` is that of its slowest active port in Gb/s, `gid`
    the kinds of the GIDs that NCCL takes. `mtu` is that of the interface by which the processes
    meet, `rdma_mtu` the smallest of its RoCE ports.
    """

    pod: Words | None = None
    node: Words | None = None
    driver: Words | None = None
    cuda: Words | None = None
    nccl: Words | None = None
    gpus: int | None = None
    gpu: Words | None = None
    network: Words | None = None
    hcas: int | None = None
    rate: float | None = None
    gid: Words | None = None
    mtu: int | None = None
    rdma_mtu: int | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One member. `said` is None where it never came, or not so that it could be read."""

    rank: int
    said: Statement | None = None
    address: str | None = None
    came: float | None = None
    late: bool = False
    note: str = ""
    unreachable: dict[int, str] | None = None

    @property
    def is_here(self) -> bool:
        """Whether it met the others and stayed to the end."""
        return self.came is not None and not self.note

    @property
    def label(self) -> str:
        """The member as a reader finds it: its rank, with pod and node where they are known."""
        said = self.said or Statement()
        where = f"{said.pod} on {said.node}" if said.pod and said.node else said.pod or said.node
        where = where or self.address
        return f"member {self.rank} ({where})" if where else f"member {self.rank}"


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """How the meeting went, as every member sees it; `failed` is why there was none for us."""

    subject: Subject
    plan: Plan
    members: tuple[Member, ...] = ()
    refused: tuple[Refused, ...] = ()
    failed: str = ""
    why: str = ""

    @property
    def here(self) -> tuple[Member, ...]:
        """Those that met."""
        return tuple(member for member in self.members if member.is_here)


class OrderedStart(msgspec.Struct, frozen=True, kw_only=True):
    """This pod is made before, or only after, others of its job: to wait for them is a deadlock."""

    subject: Subject
    what: str
    evidence: tuple[Evidence, ...]


def read(outcome: Outcome, plan: Plan, subject: Subject) -> Rendezvous:
    """Turn what came over the wire into facts."""
    minutes = outcome.minutes
    if minutes is None:
        return Rendezvous(subject=subject, plan=plan, failed=outcome.failed, why=outcome.why)
    by_rank = {entry.rank: entry for entry in minutes.entries}
    members = []
    for rank in range(plan.members):
        entry = by_rank.get(rank)
        if entry is None:
            members.append(Member(rank=rank))
            continue
        members.append(
            Member(
                rank=rank,
                said=_statement(entry.report),
                address=entry.address,
                came=entry.came,
                late=entry.late,
                note=entry.note,
                unreachable=entry.unreachable,
            )
        )
    return Rendezvous(subject=subject, plan=plan, members=tuple(members), refused=minutes.refused)


def _statement(raw: dict[str, Any] | None) -> Statement | None:
    try:
        return None if raw is None else msgspec.convert(raw, Statement)
    except msgspec.ValidationError:
        return None


def statement(
    own: OwnContainer, host: Host, environment: Mapping[str, str], nccl: str | None
) -> Statement:
    """Return what we say of ourselves, from facts that are read already and some MTUs."""
    gpus = own.gpus if isinstance(own.gpus, NodeGpus) else None
    models = {gpu.name for gpu in gpus.gpus if isinstance(gpu.name, str)} if gpus else set()
    usable = None if gpus is None else sum(gpu.handle is None for gpu in gpus.gpus)
    cuda = None if gpus is None or isinstance(gpus.cuda, NotAvailable) else str(gpus.cuda)
    hcas = given_adapters(own)
    active = [port for hca in hcas or () for port in hca.ports if port.is_active]
    return Statement(
        pod=own.subject.name,
        node=environment.get("NODE_NAME") or None,
        driver=_driver(gpus, host),
        cuda=cuda,
        nccl=nccl,
        gpus=usable,
        gpu=", ".join(sorted(models))[:256] or None,
        network=None if hcas is None else network(hcas),
        hcas=None if hcas is None else len(hcas),
        rate=min((port.rate for port in active if port.rate is not None), default=None),
        gid=_gid_kinds(hcas or (), environment.get("NCCL_IB_GID_INDEX", "")),
        mtu=_mtu(host, interface(environment, interface_names(own))),
        rdma_mtu=_rdma_mtu(host, hcas or ()),
    )


def interface_names(own: OwnContainer) -> frozenset[str]:
    """Return the names of our network interfaces, as far as they are known."""
    return frozenset(one.name for one in own.interfaces or ())


def given_adapters(own: OwnContainer) -> tuple[Hca, ...] | None:
    """Return the adapters whose device node this container has; None if that is not known."""
    if own.node.hcas is None or own.node.verbs is None:
        return None
    nodes = {node.name for node in own.node.verbs}
    return tuple(hca for hca in own.node.hcas if hca.uverbs is not None and hca.uverbs in nodes)


def network(hcas: tuple[Hca, ...]) -> str:
    """Return which kind of RDMA adapters there are: ib, roce, efa, none, or several by +."""
    kinds = set()
    for hca in hcas:
        layers = {port.link_layer for port in hca.ports}
        if hca.is_efa:
            kinds.add("efa")
        elif "InfiniBand" in layers:
            kinds.add("ib")
        elif "Ethernet" in layers:
            kinds.add("roce")
    return "+".join(sorted(kinds)) or "none"


def _driver(gpus: NodeGpus | None, host: Host) -> str | None:
    if gpus is not None and not isinstance(gpus.driver, NotAvailable):
        return str(gpus.driver)
    version = text(host, "/sys/module/nvidia/version")
    return version[:64] if version else None


def _gid_kinds(hcas: tuple[Hca, ...], index: str) -> str | None:
    """Return the kinds of the GIDs in use: the index that is set, else RoCE v2 with IPv4."""
    kinds: set[str] = set()
    for hca in hcas:
        for port in hca.ports:
            wanted = int(index) if index.isdecimal() else port.roce_v2_ipv4_index
            kinds.update(_kind(gid) for gid in port.gids if not gid.is_empty and (
                wanted is None or gid.index == wanted
            ))  # fmt: skip
    return ", ".join(sorted(kinds))[:256] or None


def _kind(gid: Gid) -> str:
    return f"{gid.kind} {'IPv4' if gid.ipv4 else 'IPv6'}"


def interface(environment: Mapping[str, str], interfaces: frozenset[str]) -> str | None:
    """Return by which interface NCCL's processes meet: as NCCL_SOCKET_IFNAME says, else its own
    order, which is ib first and lo and docker last; None where that is open.
    """
    setting = environment.get("NCCL_SOCKET_IFNAME", "")
    if setting and not setting.startswith("^"):
        for word in setting.removeprefix("=").split(","):
            for name in sorted(interfaces):
                if name == word or (not setting.startswith("=") and name.startswith(word)):
                    return name
        return None
    barred = tuple(setting.removeprefix("^").removeprefix("=").split(",")) if setting else _PLAIN
    left = [name for name in sorted(interfaces) if not name.startswith(barred)]
    of_ib = [name for name in left if name.startswith("ib")]
    chosen = of_ib or left
    return chosen[0] if chosen else None


def _mtu(host: Host, name: str | None) -> int | None:
    return None if name is None else number(host, f"{_NET}/{name}/mtu")


def _rdma_mtu(host: Host, hcas: tuple[Hca, ...]) -> int | None:
    """Return the smallest MTU of the network devices of active RoCE ports."""
    found = []
    for hca in hcas:
        for port in hca.ports:
            if port.link_layer == "Ethernet" and port.is_active and port.gids:
                where = f"{_HCA}/{hca.name}/ports/{port.number}/gid_attrs/ndevs"
                device = text(host, f"{where}/{port.gids[0].index}")
                found.append(_mtu(host, device))
    return min((mtu for mtu in found if mtu is not None), default=None)
