"""A pod beside the machine that it runs on: which of its devices it has, and what it needs of it.

Of eight GPUs a pod may have one, and only that one is its affair. Which it has is told by the
kubelet's pod-resources socket, by the device nodes of its containers, by its own status, or by
its asking for all there are; where none tells, it is not known, and None says so.
"""

from __future__ import annotations

import msgspec

from gpudoctor.facts.kubernetes import health, resources
from gpudoctor.facts.kubernetes.health import State
from gpudoctor.facts.kubernetes.situation import PodSituation, place
from gpudoctor.facts.nccl.model import Adapters, NcclLog, NetUse, Rail
from gpudoctor.facts.node.model import Hca, NodeFacts, PciDevice, Port, WorkloadFacts
from gpudoctor.facts.node.rails import rails
from gpudoctor.report import Subject

_SOCKET = "Socket"
_RDMA_TROUBLE = (
    "completion", "async", "modify-qp", "memory-registration", "ib-none", "ib-open", "ibv-open",
)  # fmt: skip


class PodOnNode(msgspec.Struct, frozen=True, kw_only=True):
    """A pod and its machine. `containers` are those of it that run and use GPUs or RDMA.

    `gpus` are the addresses of the GPUs that it was given, `adapters` the names of the RDMA
    devices that its containers can open and NCCL_IB_HCA does not leave out; None where unknown.
    `log` is what NCCL said in it and its peers, whoever judges that. `gpu_trouble` says whether
    its own words (status, events, log) name an error of GPU or driver (True) or a mistake of its
    program (False), None where they tell neither.
    `undated` are GPUs of which the kernel log tells something that may be older than the pod.
    """

    situation: PodSituation
    state: State
    machine: NodeFacts
    containers: tuple[WorkloadFacts, ...] = ()
    gpus: frozenset[str] | None = None
    adapters: frozenset[str] | None = None
    log: NcclLog | None = None
    gpu_trouble: bool | None = None
    undated: frozenset[str] = frozenset()

    @property
    def subject(self) -> Subject:
        """The pod as the subject of a finding."""
        return self.situation.subject

    @property
    def node(self) -> Subject:
        """The node as the subject of a finding."""
        return self.machine.subject

    @property
    def is_well(self) -> bool:
        """Whether its own status says that nothing is wrong."""
        return self.state is State.WELL

    @property
    def uses_gpus(self) -> bool:
        """Whether it asks for GPUs or was given some."""
        return health.is_gpu_pod(self.situation.pod) or bool(self.gpus)

    @property
    def many_gpus(self) -> bool:
        """Whether GPUs of it may talk to each other on this machine."""
        return self.gpus is None or len(self.gpus) > 1

    @property
    def uses_rdma(self) -> bool:
        """Whether it asks for RDMA devices, or speaks NCCL between hosts on a machine with some.

        A privileged container has every device of the machine, whether it wants them or not.
        """
        pod = self.situation.pod
        if any(resources.is_rdma(name) for name in pod.requests):
            return True
        if self.log is not None and self.log.multi_node:
            return bool(self.adapters or rails(self.machine))
        privileged = any(container.privileged for container in pod.containers)
        return bool(self.adapters) and not privileged

    @property
    def host_name(self) -> str:
        """What NCCL calls the pod's host."""
        return place(self.situation.pod)[0]

    @property
    def rdma_suffers(self) -> bool:
        """Whether NCCL's log shows that RDMA of this pod fails or is worse than it could be."""
        log = self.log
        if log is None or log.multi_node is False:
            return False
        troubled = any(event.host in self._hosts for event in log.of_kind(*_RDMA_TROUBLE))
        return troubled or self.over_tcp or any(not use.gdr for use in self.uses)

    @property
    def was_refused_memory(self) -> bool:
        """Whether an adapter of this pod was refused access to local memory (status 4)."""
        events = self.log.of_kind("completion") if self.log is not None else ()
        return any(e.host in self._hosts and e.values.get("status") == "4" for e in events)

    @property
    def only_others_suffer(self) -> bool:
        """Whether it is other pods of the job that the log shows without RDMA or GPUDirect."""
        log = self.log
        return log is not None and len(self._hosts) < len(log.hosts) and not self.rdma_suffers

    @property
    def over_tcp(self) -> bool:
        """Whether the pod's own data goes over TCP."""
        log = self.log
        if log is None or log.multi_node is False:
            return False
        used = {use.network for use in self.uses}
        chosen = {network for host, network, _ in log.chosen if host in self._hosts}
        return _SOCKET in (used or chosen)

    @property
    def uses(self) -> tuple[NetUse, ...]:
        """The channels of this pod's host in NCCL's log."""
        return tuple(use for use in (self.log.net if self.log else ()) if use.host in self._hosts)

    @property
    def rails(self) -> tuple[Rail, ...]:
        """The ranks of this pod's host in NCCL's log, with the adapters that each uses."""
        return tuple(rail for rail in (self.log.rails if self.log else ()) if self.is_of(rail))

    def is_of(self, fact: Rail | Adapters) -> bool:
        """Whether something that NCCL's log says is about this pod's host."""
        return fact.host in self._hosts

    @property
    def is_named(self) -> bool:
        """Whether NCCL's log has lines of this pod's host."""
        return self.host_name in self._hosts

    @property
    def _hosts(self) -> frozenset[str]:
        """The pod's own host, or all where the log does not name it."""
        named = frozenset(host.name for host in self.log.hosts) if self.log else frozenset()
        return frozenset({self.host_name}) & named or named

    def own_gpus(self) -> tuple[PciDevice, ...]:
        """Return the machine's GPUs that it was given; none where that is not known."""
        return tuple(gpu for gpu in self.machine.gpus if gpu.address in (self.gpus or ()))

    def own_adapters(self) -> tuple[Hca, ...]:
        """Return the RDMA devices that it can use; none where that is not known."""
        return tuple(hca for hca in self.machine.hcas or () if hca.name in (self.adapters or ()))

    def own_ports(self) -> tuple[tuple[Hca, Port], ...]:
        """Return the ports of the RDMA devices that it can use."""
        return tuple((hca, port) for hca in self.own_adapters() for port in hca.ports)
