"""The container we run in: what it declares that it needs, what it has, and what was tried."""

from __future__ import annotations

import msgspec

from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.model import NodeFacts, WorkloadFacts
from gpudoctor.facts.node.needs import Needs
from gpudoctor.facts.node.system import Interface
from gpudoctor.report import Subject, Unknown
from gpudoctor.sources.host import Proof


class Proofs(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried, in bytes; None for what nobody needs. `resolved` is the first address."""

    locked: Proof | None = None
    shared: Proof | None = None
    huge: Proof | None = None
    resolved: Proof | None = None


class OwnContainer(msgspec.Struct, frozen=True, kw_only=True):
    """Our own container. `gpus` is None where no GPU is needed, Unknown where NVML told nothing.

    `gpu_nodes` counts the device nodes of GPUs, None if /dev could not be listed; `interfaces`
    are those of its network namespace, None if unread; `first_address` is the job's MASTER_ADDR.
    """

    needs: Needs
    node: NodeFacts
    gpus: NodeGpus | Unknown | None = None
    gpu_nodes: int | None = None
    proofs: Proofs = Proofs()
    interfaces: tuple[Interface, ...] | None = None
    first_address: str | None = None

    @property
    def subject(self) -> Subject:
        """The container as the subject of findings."""
        return self.node.subject

    @property
    def workload(self) -> WorkloadFacts:
        """What concerns this container alone: the rest of the node is not its own to judge."""
        own = {name: getattr(self.node, name) for name in WorkloadFacts.__struct_fields__}
        return WorkloadFacts(**own)
