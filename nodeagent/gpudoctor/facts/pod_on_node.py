"""A pod beside the machine that it runs on: which of its devices it has, and what it needs of it.

Of eight GPUs a pod may have one, and only that one is its affair. Which it has is told by the
kubelet's pod-resources socket, by the device nodes of its containers, by its own status, or by
its asking for all there are; where none tells, it is not known, and None says so.
"""

from __future__ import annotations

import msgspec

from gpudoctor.facts.kubernetes import health, resources
from gpudoctor.facts.kubernetes.health import State
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.nccl.model import NcclLog
from gpudoctor.facts.node.model import Hca, NodeFacts, PciDevice, Port, WorkloadFacts
from gpudoctor.facts.node.rails import rails
from gpudoctor.report import Subject

_SOCKET = ("Socket", "mixed")
_RDMA_TROUBLE = (
    "completion", "async", "modify-qp", "memory-registration", "ib-none", "ib-open", "ibv-open",
)  # fmt: skip


class PodOnNode(msgspec.Struct, frozen=True, kw_only=True):
    """A pod and its machine. `containers` are those of it that run and use GPUs or RDMA.

    `gpus` are the addresses of the GPUs that it was given, `adapters` the names of the RDMA
    devices that its containers can open and NCCL_IB_HCA does not leave out; None where unknown.
    `log` is what NCCL said in it and its peers, whoever judges that.
    """

    situation: PodSituation
    state: State
    machine: NodeFacts
    containers: tuple[WorkloadFacts, ...] = ()
    gpus: frozenset[str] | None = None
    adapters: frozenset[str] | None = None
    log: NcclLog | None = None

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
    def rdma_suffers(self) -> bool:
        """Whether NCCL's log shows that RDMA between hosts fails or is worse than it could be."""
        log = self.log
        if log is None or log.multi_node is False:
            return False
        return (
            log.network in _SOCKET
            or log.gdr in ("none", "partial")
            or bool(log.of_kind(*_RDMA_TROUBLE))
        )

    def own_gpus(self) -> tuple[PciDevice, ...]:
        """Return the machine's GPUs that it was given; none where that is not known."""
        return tuple(gpu for gpu in self.machine.gpus if gpu.address in (self.gpus or ()))

    def own_adapters(self) -> tuple[Hca, ...]:
        """Return the RDMA devices that it can use; none where that is not known."""
        return tuple(hca for hca in self.machine.hcas or () if hca.name in (self.adapters or ()))

    def own_ports(self) -> tuple[tuple[Hca, Port], ...]:
        """Return the ports of the RDMA devices that it can use."""
        return tuple((hca, port) for hca in self.own_adapters() for port in hca.ports)
