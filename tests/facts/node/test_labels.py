"""Labels from facts: what counts, what does not, and what is not known and so has no value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.facts.node import cuda, labels
from gpudoctor.facts.node.container_defaults import ContainerDefaults, Default
from gpudoctor.facts.node.gpu import FabricState, Gpu, NodeGpus, NotAvailable, NvLink
from gpudoctor.facts.node.kubelet_policy import PATH, KubeletPolicy, read_policy
from gpudoctor.facts.node.labels import UNLIMITED_MIB
from gpudoctor.facts.node.model import (
    GpuDirect,
    Hca,
    NodeFacts,
    NumaNode,
    PciDevice,
    Port,
)
from gpudoctor.facts.node.topology_text import parse
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion
from gpudoctor.report import Subject
from gpudoctor.sources.host.recorded import RecordedHost

NODE = Subject("Node", "gpu-1")
NO = NotAvailable(3, "not supported")


def gpu_device(bus: int, numa: int = 0) -> PciDevice:
    return PciDevice(
        address=f"0000:{bus:02x}:00.0", vendor=0x10DE, class_=0x030200, device=0x2330, numa=numa
    )


GPUS = tuple(gpu_device(bus) for bus in (1, 2, 3, 4))


def facts(**changes: Any) -> NodeFacts:
    known: dict[str, Any] = {
        "pci": GPUS,
        "pci_whole": True,
        "driver_gpus": tuple(gpu.address for gpu in GPUS),
        "models": {gpu.address: "NVIDIA H100 80GB HBM3" for gpu in GPUS},
        "gpudirect": GpuDirect(
            driver="580.126.09", open_module=True, kernel=(6, 8), kernel_text="6.8.0"
        ),
        "hcas": (),
    }
    return NodeFacts(subject=NODE, **known | changes)


def gpu(number: int, **changes: Any) -> Gpu:
    fields = dict.fromkeys(Gpu.__struct_fields__, NO)
    known: dict[str, Any] = {
        "index": number,
        "handle": None,
        "name": "NVIDIA H100 80GB HBM3",
        "pci": GPUS[number].address,
        "capability": CudaVersion(9, 0),
    }
    return Gpu(**(fields | known | changes))


def nvml(*gpus: Gpu, **changes: Any) -> NodeGpus:
    known: dict[str, Any] = {
        "failure": None,
        "hung_in": None,
        "driver": DriverVersion(580, 126, 9),
        "nvml": NO,
        "cuda": CudaVersion(13, 0),
        "count": len(gpus),
    }
    return NodeGpus(subject=NODE, gpus=gpus, **known | changes)


def value(name: str, facts: NodeFacts, **parts: Any) -> str | None:
    return labels.read(labels.Node(facts=facts, **parts))[name].value


# -- driver and CUDA -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "number", "level"),
    [
        ("580.126.09", "580126009", "13000"),
        ("535.183.06", "535183006", "12020"),
        ("590.44", "590044000", "13010"),
        ("570.1000.1", None, "12080"),
        (None, None, None),
    ],
)
def test_versions_compare_as_numbers(
    driver: str | None, number: str | None, level: str | None
) -> None:
    node = facts(gpudirect=GpuDirect(driver=driver))
    assert (value("driver", node), value("cuda", node)) == (number, level)


def test_the_driver_s_own_word_on_cuda_counts_more_than_the_table() -> None:
    told = nvml(*map(gpu, range(4)), cuda=CudaVersion(13, 1))
    assert value("cuda", facts(), gpus=told) == "13010"


# -- GPUs ----------------------------------------------------------------------------------------


def test_a_gpu_that_the_driver_lost_does_not_count() -> None:
    assert value("gpu-count", facts()) == "4"
    assert value("gpu-count", facts(driver_gpus=tuple(g.address for g in GPUS[:3]))) == "3"
    lost = gpu(3, handle=NotAvailable(15, "GPU is lost"))
    assert value("gpu-count", facts(), gpus=nvml(gpu(0), gpu(1), gpu(2), lost)) == "3"


@pytest.mark.parametrize(
    "node",
    [facts(pci_whole=False), facts(driver_gpus=None)],
    ids=["bus not read whole", "driver's list not read"],
)
def test_a_count_that_is_not_known_is_none(node: NodeFacts) -> None:
    assert value("gpu-count", node) is None


def test_no_count_while_nvml_does_not_work() -> None:
    hung = nvml(hung_in="nvmlDeviceGetHandleByIndex_v2")
    broken = nvml(failure=NotAvailable(18, "driver/library version mismatch"))
    assert value("gpu-count", facts(), gpus=hung) is None
    assert value("gpu-count", facts(), gpus=broken) is None


def test_a_node_without_gpus_has_zero_and_no_model() -> None:
    node = facts(pci=(), driver_gpus=None, models=None)
    assert value("gpu-count", node) == "0"
    assert value("gpu-model", node) is None


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA X9000 (new)", "x9000-new"),
        ("NVIDIA-H100-80GB-HBM3", "h100"),
    ],
)
def test_models_have_short_names(name: str, short: str) -> None:
    assert cuda.short_name(name) == short


def test_gpus_that_differ_have_no_model_and_the_reason_names_them() -> None:
    models = {GPUS[0].address: "NVIDIA H100 80GB HBM3", GPUS[1].address: "NVIDIA H200"}
    found = labels.read(labels.Node(facts=facts(models=models)))
    assert found["gpu-model"].value is None
    assert "NVIDIA H100 80GB HBM3, NVIDIA H200" in found["gpu-model"].because
    assert found["gpu-arch"].value == "hopper"


# -- NVLink --------------------------------------------------------------------------------------

PAIRS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tSYS\tSYS\t0-31\t0
GPU1\tNV12\t X \tSYS\tSYS\t0-31\t0
GPU2\tSYS\tSYS\t X \t{last}\t32-63\t1
GPU3\tSYS\tSYS\t{last}\t X \t32-63\t1

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""


@pytest.mark.parametrize(
    ("text", "kind", "island"),
    [
        (PAIRS.replace("{last}", "NV12"), "partial", "2"),
        (PAIRS.replace("{last}", "PHB"), "partial", "1"),
        (PAIRS.replace("{last}", "NV12").replace("SYS", "NV12"), "all", "4"),
        (PAIRS.replace("{last}", "PHB").replace("NV12", "PIX"), "none", "1"),
    ],
)
def test_nvlink_by_the_matrix(text: str, kind: str, island: str) -> None:
    node = facts(topology=parse(text, NODE))
    assert (value("nvlink", node), value("nvlink-island-size", node)) == (kind, island)


def test_nvlink_by_nvml_where_it_can_tell() -> None:
    dark = nvml(*(gpu(n, links=(NvLink(active=False),)) for n in range(4)))
    assert value("nvlink", facts(), gpus=dark) == "none"
    lit = nvml(*(gpu(n, links=(NvLink(active=True),)) for n in range(4)))
    assert value("nvlink", facts(), gpus=lit) is None
    uuid = "2f7a2f0e-3b1d-4d3e-9b6a-7c1c9e1f0a11"
    joined = nvml(
        *(gpu(n, links=(NvLink(True),), fabric=FabricState(3, 0, 7, uuid)) for n in range(4))
    )
    assert value("nvlink", facts(), gpus=joined) == "all"
    assert value("clique", facts(), gpus=joined) == f"{uuid}.7"
    assert value("fabric", facts(), gpus=joined) == uuid
    half = nvml(*(gpu(n, fabric=FabricState(3 if n else 2, 0, 7, uuid)) for n in range(4)))
    assert value("fabric", facts(), gpus=half) is None


# -- RDMA ----------------------------------------------------------------------------------------


def hca(name: str, layer: str = "InfiniBand", rate: float = 400, state: str | None = "ACTIVE",
        pci: PciDevice | None = None) -> Hca:  # fmt: skip
    port = Port(number="1", state=state, physical=None, rate=rate, rate_text="", link_layer=layer)
    return Hca(name=name, pci=pci, model=None, board=None, ports=(port,), uverbs=None)


RAILS = tuple(hca(f"mlx5_{n}") for n in range(8))


def rdma(*hcas: Hca) -> tuple[str | None, str | None, str | None]:
    node = facts(hcas=hcas)
    return value("rdma", node), value("rdma-rails", node), value("rdma-gbps", node)


def test_rails_are_the_active_ports_of_the_rate_that_most_have() -> None:
    assert rdma(*RAILS) == ("ib", "8", "400")
    storage = (hca("mlx5_8", "Ethernet", 200), hca("mlx5_9", "Ethernet", 200))
    assert rdma(*RAILS, *storage) == ("ib", "8", "400")
    down, slow = hca("mlx5_0", state="DOWN"), hca("mlx5_1", rate=200)
    assert rdma(down, slow, *RAILS[2:]) == ("ib", "6", "400")
    assert rdma(*(hca(f"rocep{n}", "Ethernet", 100) for n in range(2))) == ("roce", "2", "100")


def test_virtual_functions_beside_their_card_are_not_further_rails() -> None:
    card = PciDevice(address="0000:10:00.0", vendor=0x15B3, class_=0x020700)
    virtual = PciDevice(
        address="0000:10:00.2", vendor=0x15B3, class_=0x020700, physical="0000:10:00.0"
    )
    assert rdma(hca("mlx5_0", pci=card), hca("mlx5_1", pci=virtual)) == ("ib", "1", "400")
    assert rdma(hca("mlx5_1", pci=virtual)) == ("ib", "1", "400"), "in a virtual machine"


def test_none_is_what_is_known_not_to_be() -> None:
    assert rdma() == ("none", "0", None)
    assert rdma(hca("mlx5_0", state="DOWN")) == ("none", "0", None)
    assert rdma(hca("mlx5_0", state=None)) == (None, None, None)
    assert value("rdma", facts(hcas=None)) is None


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "dmabuf"),
        ({"open_module": False, "peermem_loaded": True, "peermem_registered": True}, "peermem"),
        ({"open_module": False, "peermem_loaded": True, "peermem_registered": False}, "none"),
        ({"open_module": False, "peermem_loaded": False}, "none"),
        ({"open_module": None}, None),
        ({"driver": None}, None),
    ],
)
def test_gdr(changes: dict[str, Any], label: str | None) -> None:
    direct = msgspec.structs.replace(facts().gpudirect, **changes)
    assert value("gdr", facts(hcas=RAILS, gpudirect=direct)) == label


def test_the_farthest_gpu_decides_how_near_a_nic_is() -> None:
    text = (
        "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tNV12\tPIX\tSYS\t0-31\t0\nGPU1\tNV12\t X \tSYS\tNODE\t0-31\t0\n"
        "NIC0\tPIX\tSYS\t X \tSYS\nNIC1\tSYS\tNODE\tSYS\t X \n\n"
        "NIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
    )
    both = facts(hcas=RAILS[:2], topology=parse(text, NODE))
    assert value("gpu-nic", both) == "node"
    one = facts(hcas=(RAILS[0], hca("mlx5_1", state="DOWN")), topology=parse(text, NODE))
    assert value("gpu-nic", one) == "sys"


# -- NUMA, limits --------------------------------------------------------------------------------

TWO = (NumaNode(0, frozenset({0})), NumaNode(1, frozenset({1})))


@pytest.mark.parametrize(
    ("policy", "numa", "aligned"),
    [
        (KubeletPolicy("single-numa-node", "static"), TWO, "true"),
        (KubeletPolicy("best-effort", "static"), TWO, "false"),
        (KubeletPolicy("restricted", "none"), TWO, "false"),
        ("not read", TWO, None),
        ("not read", TWO[:1], "true"),
        (KubeletPolicy("restricted", "static"), (), None),
    ],
)
def test_numa_alignment(
    policy: KubeletPolicy | str, numa: tuple[NumaNode, ...], aligned: str | None
) -> None:
    assert value("numa-aligned", facts(numa=numa), policy=policy) == aligned


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (
            "kind: KubeletConfiguration\ntopologyManagerPolicy: restricted\n",
            KubeletPolicy("restricted", "none"),
        ),
        ('{"kind": "KubeletConfiguration"}', KubeletPolicy("none", "none")),
        ("kind: Other", f"{PATH} is no KubeletConfiguration"),
        ("a: [", f"{PATH} is no KubeletConfiguration"),
        ({"errno": "EACCES"}, f"{PATH}: denied (EACCES)"),
    ],
)
def test_the_kubelet_s_policies(content: object, found: object) -> None:
    assert read_policy(RecordedHost({PATH: content}, ("/",))) == found


def test_the_kubelet_s_file_is_found_through_the_host_s_proc() -> None:
    content = "kind: KubeletConfiguration\ncpuManagerPolicy: static\n"
    seen = RecordedHost({f"/proc/1/root{PATH}": content}, ("/",))
    assert read_policy(seen) == KubeletPolicy("none", "static")


def test_what_most_containers_get_is_the_default() -> None:
    unlimited, small = Default(-1, 9, 10), Default(64 << 20, 6, 8)
    defaults = ContainerDefaults(memlock=unlimited, shm=small)
    assert value("memlock-mib", facts(), defaults=defaults) == str(UNLIMITED_MIB)
    assert value("shm-mib", facts(), defaults=defaults) == "64"
    nobody = ContainerDefaults(memlock=Default(None, 4, 8), shm=Default(None, 0, 0))
    assert value("memlock-mib", facts(), defaults=nobody) is None


# -- what others' labels tell --------------------------------------------------------------------


def test_the_rack_and_the_clique_may_be_on_the_node_object() -> None:
    found = labels.with_node_labels(
        labels.read(labels.Node(facts=facts())),
        {"network.topology.nvidia.com/leaf": "sw-7", "nvidia.com/gpu.clique": "uuid.1"},
    )
    assert (found["rack"].value, found["clique"].value) == ("sw-7", "uuid.1")
    assert labels.with_node_labels({}, {})["rack"].value is None
