"""What of a machine's troubles is a pod's affair.

A node of eight GPUs serves eight pods. That one GPU is lost breaks the pod that has it and no
other; that no NIC can reach GPU memory matters to a job that trains over RDMA and not to one that
serves from a single GPU. What does not touch the pod is left to the report on its node. What does
is tied to the pod, so that it explains what the pod shows; and while a pod is well, the machine's
weaknesses are no failure of the pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gpudoctor.catalogue import Entry
from gpudoctor.checking import Draft
from gpudoctor.facts.node.model import UNLIMITED, PciDevice
from gpudoctor.facts.pod_on_node import PodOnNode
from gpudoctor.readings.host_facts import KERNEL_LOG
from gpudoctor.report import Certainty, Evidence, Layer, Severity

_GPU_LABEL = re.compile(r"^GPU(\d+)$")
_OF_THE_CLUSTER = re.compile(r"^(?:log |[A-Z][A-Za-z]+/)")
_NEEDS_GPUS = (Layer.HARDWARE, Layer.DRIVER, Layer.RUNTIME, Layer.DEVICES)
_BETWEEN_GPUS = ("nvlink-", "gpu-odd-one-out", "gpu-p2p-", "nvswitch-")
_NIC_NEAR_GPU = ("gpu-without-near-nic", "gpu-nic-cross-numa", "nic-shared-by-gpus")
_IOMMU = "iommu-enabled"
_LIMITS = ("memlock-too-low", "shm-too-small")
GUESSES_OF_MEMLOCK = ("missing-ipc-lock", "memlock-limit-nonroot")
"""What a pod's objects alone suggest, and its processes can refute."""
_WHOSE = "Which devices the pod was given is not known."
_USED_UP = "are in use"


class Stake:
    """What of its machine's findings touches one pod, and which of its own the machine refutes.

    `concern` and `kept` are for `diagnosis.diagnose`.
    """

    def __init__(self, pod: PodOnNode) -> None:
        self._pod = pod
        self._gpus = {gpu.address.rpartition(".")[0]: gpu.address for gpu in pod.machine.gpus}
        in_order = sorted(gpu.address for gpu in pod.machine.own_gpus)
        self._labels = {f"GPU{index}": address for index, address in enumerate(in_order)}
        self._adapters = {hca.name for hca in pod.machine.hcas or ()}
        self._cards = {hca.pci.address: hca.name for hca in pod.machine.hcas or () if hca.pci}

    def concern(self, draft: Draft, entry: Entry) -> Draft | None:
        """Return a finding as it stands for the pod, None if it is not the pod's affair."""
        if draft.subject.kind != "Node":
            mine = self._of_container(draft, entry)
        elif draft.subject.device is None:
            mine = self._of_machine(draft, entry)
        else:
            mine = self._of_device(draft, entry, draft.subject.device)
        return None if mine is None else self._placed(mine)

    def kept(self, draft: Draft, _entry: Entry) -> bool:
        """Whether a finding of the pod's objects holds beside what its processes really have."""
        if draft.name not in GUESSES_OF_MEMLOCK or draft.subject != self._pod.subject:
            return True
        processes = [container.process for container in self._pod.containers]
        limits = [process for process in processes if process and process.memlock_soft is not None]
        return not limits or not all(
            process.memlock_soft == UNLIMITED or process.ipc_lock for process in limits
        )

    def _placed(self, draft: Draft) -> Draft:
        """Tie a finding to the pod, and say on which machine its evidence was read."""
        return msgspec.structs.replace(
            draft,
            related=tuple(dict.fromkeys((*draft.related, self._pod.subject, self._pod.node))),
            evidence=tuple(map(self._located, draft.evidence)),
        )

    def _located(self, evidence: Evidence) -> Evidence:
        if _OF_THE_CLUSTER.match(evidence.object):
            return evidence
        where = f"{self._pod.node.name}:{evidence.object}"
        return msgspec.structs.replace(evidence, object=where)

    def _of_container(self, draft: Draft, entry: Entry) -> Draft | None:
        """A limit is a fault where it does harm: a pod that is well lives with it."""
        if draft.name in _LIMITS and self._lives_with(draft):
            return _at_most(draft, entry, Severity.INFO)
        if entry.layer is Layer.NETWORK and not self._pod.uses_rdma:
            return None
        return draft

    def _lives_with(self, draft: Draft) -> bool:
        if _USED_UP in draft.detail:
            return False  # the next allocation of shared memory fails
        if draft.name == "memlock-too-low":
            return self._pod.is_well or not self._pod.uses_rdma or self._registers_memory()
        return self._pod.is_well

    def _registers_memory(self) -> bool:
        """Whether NCCL's log shows channels over RDMA and no failed registration."""
        log = self._pod.log
        if log is None or log.of_kind("memory-registration"):
            return False
        return any(use.network not in ("Socket", "FastSocket") for use in log.net)

    def _of_machine(self, draft: Draft, entry: Entry) -> Draft | None:
        pod = self._pod
        if entry.layer in _NEEDS_GPUS:
            if not pod.uses_gpus:
                return None
            # A pod that runs, or dies of its own mistake, has got past the driver.
            past = pod.is_well or pod.gpu_trouble is False
            return _at_most(draft, entry, Severity.INFO) if past else draft
        if entry.layer is Layer.NETWORK:
            if not pod.uses_rdma:
                return None
            return self._of_network(draft, entry)
        if draft.name.startswith(_BETWEEN_GPUS) and not pod.many_gpus:
            return None
        if draft.name == _IOMMU and pod.was_refused_memory:
            return draft
        return _at_most(draft, entry, Severity.INFO)

    def _of_network(self, draft: Draft, entry: Entry) -> Draft | None:
        """What may be wrong with RDMA on the machine, by what NCCL shows of this pod's own."""
        if self._pod.only_others_suffer:
            return _at_most(draft, entry, Severity.INFO)  # it must not explain what others show
        unharmed = self._pod.is_well and not self._pod.rdma_suffers
        return _at_most(draft, entry, Severity.WARNING) if unharmed else draft

    def _of_device(self, draft: Draft, entry: Entry, device: str) -> Draft | None:
        address = self._address(device)
        if address is not None:
            return self._of_gpu(draft, entry, address)
        name = device if device in self._adapters else self._cards.get(device)
        if name is not None:
            return self._of_adapter(draft, entry, name)
        return self._of_path(draft, entry, device)

    def _address(self, device: str) -> str | None:
        """Return the address of a GPU by its address, with or without function, or its label."""
        if _GPU_LABEL.match(device):
            return self._labels.get(device, device)
        return self._gpus.get(device) or self._gpus.get(device.rpartition(".")[0])

    def _of_gpu(self, draft: Draft, entry: Entry, address: str) -> Draft | None:
        pod = self._pod
        if not pod.uses_gpus:
            return None
        if draft.name.startswith(_BETWEEN_GPUS) and not pod.many_gpus:
            return None
        if draft.name in _NIC_NEAR_GPU and not pod.uses_rdma:
            return None
        if pod.gpus is None:
            # It may be the pod's GPU or another's: worth saying only where something is wrong.
            return None if pod.is_well else _less_sure(draft, _WHOSE)
        if address not in pod.gpus:
            return None
        if address in pod.undated and any(map(_is_kernels, draft.evidence)):
            return self._undated(draft)
        if entry.layer is Layer.TOPOLOGY and not (pod.many_gpus or pod.uses_rdma):
            return _at_most(draft, entry, Severity.INFO)
        return draft

    def _undated(self, draft: Draft) -> Draft | None:
        """The kernel's word without a time: the pod's affair only if its own words agree."""
        if self._pod.gpu_trouble is False:
            return None
        most = Certainty.LIKELY if self._pod.gpu_trouble else Certainty.POSSIBLE
        return _less_sure(draft, "Whether that was while the pod was there is not known.", most)

    def _of_adapter(self, draft: Draft, entry: Entry, name: str) -> Draft | None:
        pod = self._pod
        if not pod.uses_rdma:
            return None
        if pod.adapters is None:
            return None if pod.is_well else _less_sure(draft, _WHOSE)
        if name not in pod.adapters:
            return None
        if draft.name == "nic-port-down" and self._went_past(name):
            return None
        return self._of_network(draft, entry)

    def _went_past(self, name: str) -> bool:
        """Whether NCCL took TCP although other ports were up: then a port down is not why."""
        others = [port for hca, port in self._pod.own_ports() if hca.name != name]
        return self._pod.over_tcp and any(port.is_active for port in others)

    def _of_path(self, draft: Draft, entry: Entry, device: str) -> Draft | None:
        """A bridge or switch: the pod's affair where its traffic passes and suffers."""
        pod = self._pod
        if draft.name.startswith("nvswitch-"):
            return draft if pod.uses_gpus and pod.many_gpus and not pod.is_well else None
        if not _is_below(device, (*pod.own_gpus(), *(h.pci for h in pod.own_adapters() if h.pci))):
            return None
        suffers = pod.rdma_suffers and pod.uses_rdma
        return draft if suffers else _at_most(draft, entry, Severity.INFO)


def _is_below(bridge: str, devices: Iterable[PciDevice]) -> bool:
    return any(bridge in device.bridges for device in devices)


def _is_kernels(evidence: Evidence) -> bool:
    return evidence.object.startswith(f"{KERNEL_LOG}:")


def _less_sure(draft: Draft, why: str, most: Certainty = Certainty.POSSIBLE) -> Draft:
    certainty = min(draft.certainty, most, key=lambda one: one.rank)
    return msgspec.structs.replace(draft, certainty=certainty, detail=f"{draft.detail} {why}")


def _at_most(draft: Draft, entry: Entry, most: Severity) -> Draft | None:
    """Lower the severity as far as the runbook allows; None where it allows none so low."""
    if (draft.severity or entry.severity).rank <= most.rank:
        return draft
    allowed = [one for one in entry.may_be if one.rank <= most.rank]
    if not allowed:
        return None
    return msgspec.structs.replace(draft, severity=max(allowed, key=lambda one: one.rank))
