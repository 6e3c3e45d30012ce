"""The rules of `preflight`: what is declared against what was read and tried."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.checking import Draft
from gpudoctor.diagnosis import Diagnosis, diagnose
from gpudoctor.facts.node.gpu import NOT_SUPPORTED, Gpu, Modes, NodeGpus, NotAvailable, NvLink
from gpudoctor.facts.node.model import (
    MELLANOX,
    Gid,
    GpuDirect,
    Hca,
    HugePages,
    NodeFacts,
    NumaNode,
    PciDevice,
    Port,
    Process,
    VerbsNode,
)
from gpudoctor.facts.node.needs import Needs, parse
from gpudoctor.facts.node.own_container import OwnContainer, Proofs
from gpudoctor.facts.node.system import Interface
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion
from gpudoctor.registry import Registry
from gpudoctor.report import Blame, Severity, Subject, Unknown
from gpudoctor.sources.host import Proof
from gpudoctor_checks import needs

SUBJECT = Subject("Container", "trainer-0")
GIB = 1 << 30
LO = Interface("lo", up=True, addresses=("127.0.0.1",))
ETH0 = Interface("eth0", up=True, mtu=1500, addresses=("10.0.0.7",))
IPC_LOCK = 1 << 14
NIC = PciDevice(address="0000:3b:00.0", vendor=MELLANOX, class_=0x020700)
NO_VALUE = NotAvailable(NOT_SUPPORTED, "Not Supported")


def gpu(index: int, **values: Any) -> Gpu:
    fields: dict[str, Any] = dict.fromkeys(Gpu.__struct_fields__, NO_VALUE)
    fields |= {"index": index, "handle": None, "name": "NVIDIA H100", "pci": f"0000:{index:02x}:00"}
    fields["links"] = (NvLink(True),) * 18
    return Gpu(**(fields | values))


def gpus(*found: Gpu, **values: Any) -> NodeGpus:
    fields: dict[str, Any] = {
        "subject": SUBJECT,
        "failure": None,
        "hung_in": None,
        "driver": DriverVersion(580, 126, 9),
        "nvml": "13.580.126.09",
        "cuda": CudaVersion(13, 0),
        "count": len(found),
        "gpus": found,
    }
    return NodeGpus(**(fields | values))


def hca(name: str = "mlx5_0", state: str = "ACTIVE", uverbs: str = "uverbs0") -> Hca:
    port = Port(
        number="1",
        state=state,
        physical="LinkUp",
        rate=400.0,
        rate_text="400 Gb/sec",
        link_layer="InfiniBand",
    )
    return Hca(name=name, pci=NIC, model=None, board=None, ports=(port,), uverbs=uverbs)


def process(**values: Any) -> Process:
    fields: dict[str, Any] = {
        "pid": "1",
        "uid": 0,
        "effective": IPC_LOCK,
        "bounding": IPC_LOCK,
        "own_user_namespace": False,
        "memlock_soft": 8 << 20,
        "memlock_hard": 8 << 20,
        "environment": {},
    }
    return Process(**(fields | values))


def container(words: str = "", **values: Any) -> OwnContainer:
    """A container with a GPU node's devices; `node_…` changes the machine behind it."""
    node: dict[str, Any] = {
        "subject": SUBJECT,
        "pci": (NIC,),
        "pci_whole": True,
        "hcas": (hca(),),
        "verbs": (VerbsNode("uverbs0", 0o666, 0, 0, ""),),
        "verbs_whole": True,
        "rdma_shared": False,
        "process": process(),
        "in_container": True,
    }
    node |= {name[5:]: values.pop(name) for name in list(values) if name.startswith("node_")}
    return OwnContainer(needs=parse(words, "test"), node=NodeFacts(**node), **values)


def judged(*facts: object) -> Diagnosis:
    return diagnose(Registry([needs.CHECKS]), facts)


def names(own: OwnContainer) -> list[str]:
    return [finding.name for finding in judged(own).findings]


def only(own: OwnContainer) -> Draft:
    [found] = judged(own).findings
    return found  # type: ignore[return-value]


# GPUs


def test_fewer_gpus_were_given_than_declared() -> None:
    own = container("gpus=8", gpus=gpus(*map(gpu, range(4))), gpu_nodes=4)
    found = only(own)
    assert (found.name, found.blame) == ("gpu-count-wrong", Blame.REQUEST)
    assert "8 GPUs are needed and 4 can be used" in found.detail


def test_a_gpu_that_was_given_is_not_offered_by_the_driver() -> None:
    own = container("gpus=8", gpus=gpus(*map(gpu, range(7))), gpu_nodes=8)
    found = only(own)
    assert (found.name, found.blame) == ("gpu-count-wrong", Blame.NODE)


@pytest.mark.parametrize(
    "have",
    [
        tuple(map(gpu, range(2))),
        (gpu(0, mig_mode=Modes(True, True), mig_devices=("MIG-1", "MIG-2")),),
        tuple(map(gpu, range(3))),
    ],
    ids=["two", "two slices of one", "one more"],
)
def test_enough_gpus(have: tuple[Gpu, ...]) -> None:
    assert names(container("gpus=2", gpus=gpus(*have), gpu_nodes=len(have))) == []


def test_a_lost_gpu_does_not_count() -> None:
    lost = gpu(1, handle=NotAvailable(15, "GPU is lost"))
    assert names(container("gpus=2", gpus=gpus(gpu(0), lost), gpu_nodes=2)) == ["gpu-count-wrong"]


def test_no_driver_library_is_a_container_without_gpu() -> None:
    missing = Unknown("GPUs (NVML)", "no libnvidia-ml.so.1: no NVIDIA driver here")
    found = only(container("gpus=1", gpus=missing, gpu_nodes=0))
    assert (found.name, found.blame) == ("driver-libs-not-injected", Blame.REQUEST)
    found = only(container("gpus=1", gpus=missing, gpu_nodes=1))
    assert found.blame is Blame.NODE
    assert names(container("shm=1Gi", gpus=missing, gpu_nodes=0)) == []


@pytest.mark.parametrize(
    ("capabilities", "blame"),
    [
        ("compute", Blame.REQUEST),
        ("compute,utility", Blame.NODE),
        ("all", Blame.NODE),
        ("", Blame.NODE),
    ],
)
def test_nvml_that_the_container_leaves_out(capabilities: str, blame: Blame) -> None:
    missing = Unknown("GPUs (NVML)", "no libnvidia-ml.so.1: no NVIDIA driver here")
    asked = process(environment={"NVIDIA_DRIVER_CAPABILITIES": capabilities})
    found = only(container("gpus=1", gpus=missing, gpu_nodes=1, node_process=asked))
    assert (found.name, found.blame) == ("driver-libs-not-injected", blame)


def test_nvml_that_hangs_is_unknown() -> None:
    hung = Unknown("GPUs (NVML)", "NVML did not answer in time")
    answer = judged(container("gpus=1", gpus=hung))
    assert (answer.findings, answer.unknown, answer.needed_unknown) == ((), (hung,), True)


def test_no_nvlink() -> None:
    none = only(container("nvlink", gpus=gpus(gpu(0, links=NO_VALUE))))
    assert (none.name, none.blame) == ("nvlink-missing", Blame.PLACEMENT)
    down = only(container("nvlink", gpus=gpus(gpu(0, links=(NvLink(False),) * 18))))
    assert (down.name, down.blame) == ("nvlink-missing", Blame.NODE)
    assert names(container("nvlink", gpus=gpus(gpu(0)))) == []
    assert names(container("gpus=1", gpus=gpus(gpu(0, links=NO_VALUE)))) == []


def test_nvlink_that_may_not_be_read_is_unknown() -> None:
    denied = gpu(0, links=NotAvailable(4, "Insufficient Permissions"))
    assert judged(container("nvlink", gpus=gpus(denied))).needed_unknown


def test_a_driver_without_version_leaves_cuda_unknown() -> None:
    silent = gpus(gpu(0), driver=NO_VALUE, cuda=NO_VALUE)
    assert judged(container("cuda=13.0", gpus=silent)).needed_unknown
    assert not judged(container("cuda=13.0", gpus=gpus(gpu(0)))).needed_unknown


# RDMA


def test_rdma_that_works_says_nothing() -> None:
    assert judged(container("rdma")) == Diagnosis(findings=(), root_ids=(), unknown=())


def test_rdma_that_nobody_declares_is_not_judged() -> None:
    closed = (VerbsNode("uverbs0", 0o600, 0, 0, "EPERM"),)
    assert names(container("shm=1Gi", node_verbs=closed)) == []
    assert names(container("shm=1Gi", node_verbs=())) == []


def test_the_device_was_not_given() -> None:
    answer = judged(container("rdma", node_verbs=()))
    [root] = [f for f in answer.findings if f.id in answer.root_ids]
    assert (root.name, root.blame) == ("rdma-device-node-missing", Blame.REQUEST)
    assert "rdma-device-absent" in {finding.name for finding in answer.findings}


def test_no_adapter_in_sight() -> None:
    exclusive = only(container("rdma", node_hcas=(), node_verbs=()))
    assert (exclusive.name, exclusive.blame) == ("rdma-device-absent", Blame.REQUEST)
    bare = only(container("rdma", node_hcas=(), node_verbs=(), node_pci=()))
    assert (bare.name, bare.blame) == ("rdma-device-absent", Blame.PLACEMENT)


@pytest.mark.parametrize(
    ("opened", "blame"), [("EPERM", Blame.REQUEST), ("EACCES", Blame.REQUEST), ("EIO", Blame.NODE)]
)
def test_the_device_does_not_open(opened: str, blame: Blame) -> None:
    closed = (VerbsNode("uverbs0", 0o666, 0, 0, opened),)
    found = only(container("rdma", node_verbs=closed))
    assert (found.name, found.blame) == ("rdma-device-open-failed", blame)


def test_all_given_ports_are_down() -> None:
    found = only(container("rdma", node_hcas=(hca(state="DOWN"),)))
    assert (found.name, found.severity) == ("nic-port-down", Severity.ERROR)


def test_one_port_of_two_is_down() -> None:
    two = (hca(), hca("mlx5_1", "DOWN", "uverbs1"))
    nodes = (VerbsNode("uverbs0", opened=""), VerbsNode("uverbs1", opened=""))
    assert names(container("rdma", node_hcas=two, node_verbs=nodes)) == []


def test_one_adapter_of_two_opens() -> None:
    two = (hca(), hca("mlx5_1", uverbs="uverbs1"))
    nodes = (VerbsNode("uverbs0", opened=""), VerbsNode("uverbs1", opened="EPERM"))
    found = only(container("rdma", node_hcas=two, node_verbs=nodes))
    assert (found.name, found.severity) == ("rdma-device-open-failed", Severity.WARNING)


def test_adapters_that_were_not_given_are_not_judged() -> None:
    gids = (Gid(0, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),)
    other = hca("mlx5_1", uverbs="uverbs1")
    roce = msgspec.structs.replace(other.ports[0], link_layer="Ethernet", gids=gids)
    other = msgspec.structs.replace(other, ports=(roce,))
    settings = process(environment={"NCCL_IB_HCA": "mlx5", "NCCL_IB_GID_INDEX": "3"})
    values: dict[str, Any] = {"node_hcas": (hca(), other), "node_process": settings}
    assert names(container("rdma", **values)) == []
    given = (VerbsNode("uverbs1", opened=""),)
    assert names(container("rdma", **values, node_verbs=given)) == ["gid-index-invalid"]


def test_nodes_without_any_adapter() -> None:
    assert names(container("rdma", node_hcas=())) == ["rdma-device-absent"]


def test_a_listing_that_is_refused_is_unknown() -> None:
    assert judged(container("rdma", node_verbs=None)).needed_unknown


def test_gpudirect() -> None:
    card = PciDevice(address="0000:1b:00.0", vendor=0x10DE, class_=0x030200)
    old = GpuDirect(driver="535.183.06", open_module=False, kernel=(5, 15), peermem_loaded=False)
    own = container("gdr", node_pci=(NIC, card), node_gpudirect=old)
    found = {f.name: f for f in judged(own).findings}
    assert found["gdr-unavailable"].severity is Severity.ERROR
    good = msgspec.structs.replace(old, open_module=True)
    assert names(container("gdr", node_pci=(NIC, card), node_gpudirect=good)) == []
    assert names(container("rdma", node_pci=(NIC, card), node_gpudirect=old)) == []
    assert judged(container("gdr", node_pci=(NIC, card))).needed_unknown


# Limits, by trying


def locked(errno: str, **values: Any) -> OwnContainer:
    proof = Proof(GIB, 0 if errno else GIB, errno)
    return container("memlock", proofs=Proofs(locked=proof), node_process=process(**values))


def test_memory_that_can_be_locked() -> None:
    assert names(locked("")) == []


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"effective": 0, "bounding": 0}, "missing-ipc-lock"),
        ({"effective": 0, "uid": 1000}, "memlock-limit-nonroot"),
        ({"own_user_namespace": True}, "memlock-limit-nonroot"),
    ],
)
def test_memory_that_cannot_be_locked(values: dict[str, Any], cause: str) -> None:
    answer = judged(locked("ENOMEM", **values))
    assert {f.name for f in answer.findings} == {"memlock-too-low", cause}
    assert [root.partition("@")[0] for root in answer.root_ids] == [cause]


def test_a_try_that_was_ended_is_unknown() -> None:
    answer = judged(locked("SIGKILL"))
    assert (answer.findings, answer.needed_unknown) == ((), True)


@pytest.mark.parametrize("errno", ["ENOSPC", "ENOENT", "EACCES", "EROFS"])
def test_shared_memory_that_is_not_there(errno: str) -> None:
    proof = Proof(16 * GIB, 64 << 20, errno)
    found = only(container("shm=16Gi", proofs=Proofs(shared=proof)))
    assert (found.name, found.severity) == ("shm-too-small", Severity.ERROR)
    assert "16 GiB of shared memory are needed" in found.detail


def test_shared_memory_that_is_there_or_not_tried() -> None:
    assert names(container("shm=1Gi", proofs=Proofs(shared=Proof(GIB, GIB, "")))) == []
    assert judged(container("shm=1Gi", proofs=Proofs(shared=Proof(GIB, 0, "EIO")))).needed_unknown


def test_the_default_size_with_several_gpus_warns() -> None:
    small = process(shm_bytes=64 << 20)
    several = container("gpus=2", gpus=gpus(gpu(0), gpu(1)), gpu_nodes=2, node_process=small)
    assert only(several).severity is Severity.WARNING
    one = container("gpus=1", gpus=gpus(gpu(0)), gpu_nodes=1, node_process=small)
    assert names(one) == []


@pytest.mark.parametrize(
    ("errno", "free", "blame"),
    [("ENOMEM", 0, Blame.NODE), ("ENOMEM", 512, Blame.REQUEST), ("SIGBUS", 0, Blame.REQUEST)],
)
def test_huge_pages(errno: str, free: int, blame: Blame) -> None:
    proofs = Proofs(huge=Proof(GIB, 0, errno))
    found = only(
        container("hugepages=1Gi", proofs=proofs, node_hugepages=(HugePages(2 << 20, 512, free),))
    )
    assert (found.name, found.blame) == ("hugepages-missing", blame)


def test_huge_pages_that_are_there() -> None:
    assert names(container("hugepages=1Gi", proofs=Proofs(huge=Proof(GIB, GIB, "")))) == []
    ended = Proofs(huge=Proof(GIB, 0, "ETIMEDOUT"))
    assert judged(container("hugepages=1Gi", proofs=ended)).needed_unknown


# Names


@pytest.mark.parametrize(
    ("variable", "value", "severity"),
    [
        ("NCCL_SOCKET_IFNAME", "ib0", Severity.ERROR),
        ("NCCL_SOCKET_IFNAME", "=eth", Severity.ERROR),
        ("NCCL_SOCKET_IFNAME", "^eth", Severity.ERROR),
        ("NCCL_IB_HCA", "bnxt", Severity.WARNING),
        ("NCCL_IB_HCA", "=mlx5", Severity.WARNING),
    ],
)
def test_the_environment_names_what_is_not_here(
    variable: str, value: str, severity: Severity
) -> None:
    own = container(interfaces=(LO, ETH0), node_process=process(environment={variable: value}))
    found = only(own)
    assert (found.name, found.severity) == ("nccl-env-names-missing-device", severity)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "eth"),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker"),
        ("NCCL_IB_HCA", "mlx5"),
        ("NCCL_IB_HCA", "=mlx5_0:1"),
        ("NCCL_IB_HCA", "^mlx5_bond"),
    ],
)
def test_the_environment_names_what_is_here(variable: str, value: str) -> None:
    settings = process(environment={variable: value})
    assert names(container(interfaces=(LO, ETH0), node_process=settings)) == []


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (Interface("net1", up=False, addresses=("192.168.0.7",)), "net1 (is down)"),
        (Interface("net1", up=True), "net1 (has no address)"),
    ],
)
def test_the_environment_names_an_interface_that_carries_nothing(
    state: Interface, why: str
) -> None:
    settings = process(environment={"NCCL_SOCKET_IFNAME": "net"})
    found = only(container(interfaces=(LO, ETH0, state), node_process=settings))
    assert found.name == "nccl-env-names-missing-device"
    assert why in found.detail
    other = Interface("net2", up=True, addresses=("192.168.0.8",))
    assert names(container(interfaces=(LO, state, other), node_process=settings)) == []


def test_the_first_address() -> None:
    gone = Proofs(resolved=Proof(1, 0, "ENOENT", "Name or service not known"))
    own = container("bootstrap=5", first_address="trainer-0.trainer", proofs=gone)
    found = only(own)
    assert (found.name, found.blame) == ("master-address-unresolved", Blame.FABRIC)
    there = Proofs(resolved=Proof(1, 1, "", "10.0.0.1"))
    assert names(container("bootstrap", first_address="trainer-0", proofs=there)) == []
    assert judged(container("bootstrap")).needed_unknown
    hung = Proofs(resolved=Proof(1, 0, "ETIMEDOUT"))
    assert judged(container("bootstrap", first_address="a", proofs=hung)).needed_unknown
    assert names(container("rdma", first_address="trainer-0.trainer")) == []


def test_cpus_far_from_the_gpus() -> None:
    card = PciDevice(address="0000:1b:00.0", vendor=0x10DE, class_=0x030200, numa=1)
    values: dict[str, Any] = {
        "node_pci": (card,),
        "node_given": (card.address,),
        "node_numa": (NumaNode(0, frozenset({0, 1})), NumaNode(1, frozenset({2, 3}))),
        "node_process": process(cpus=frozenset({0, 1})),
    }
    assert names(container("numa", **values)) == ["cpu-gpu-cross-numa"]
    assert names(container("gpus=1", **values)) == []
    near = values | {"node_process": process(cpus=frozenset({2, 3}))}
    assert names(container("numa", **near)) == []


def test_needs_default_to_nothing() -> None:
    assert container().needs == Needs()
