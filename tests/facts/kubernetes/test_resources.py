"""Which resource keys are GPUs, RDMA devices, a scheduler's own accounts, or plain."""

from __future__ import annotations

import pytest

from gpudoctor.facts.kubernetes import resources


@pytest.mark.parametrize(
    ("key", "vendor"),
    [
        ("nvidia.com/gpu", "NVIDIA"),
        ("nvidia.com/gpu.shared", "NVIDIA"),
        ("nvidia.com/mig-1g.10gb", "NVIDIA"),
        ("nvidia.com/mig-1g.10gb.shared", "NVIDIA"),
        ("volcano.sh/vgpu-number", "NVIDIA"),
        ("amd.com/gpu", "AMD"),
        ("amd.com/cpx_nps4", "AMD"),
        ("gpu.intel.com/i915", "Intel"),
        ("gpu.intel.com/xe", "Intel"),
        ("habana.ai/gaudi", "Habana"),
        ("aws.amazon.com/neuron", "AWS Neuron"),
        ("aws.amazon.com/neuroncore", "AWS Neuron"),
        ("google.com/tpu", "Google TPU"),
        ("huawei.com/Ascend910", "Huawei Ascend"),
        ("nvidia.com/gpumem", None),
        ("nvidia.com/gpu.product", None),
        ("example.com/gpu", None),
        ("cpu", None),
        ("requests.nvidia.com/gpu", None),
    ],
)
def test_vendors(key: str, vendor: str | None) -> None:
    found = resources.vendor_of(key)
    assert (found.name if found else None) == vendor
    assert resources.is_gpu(key) is (vendor is not None)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("nvidia.com/gpumem", True),
        ("nvidia.com/gpumem-percentage", True),
        ("nvidia.com/gpucores", True),
        ("nvidia.com/priority", True),
        ("volcano.sh/vgpu-memory", True),
        ("volcano.sh/vgpu-cores", True),
        ("volcano.sh/vgpu-number", False),
        ("nvidia.com/gpu", False),
        ("cpu", False),
    ],
)
def test_accounting(key: str, expected: bool) -> None:
    assert resources.is_accounting(key) is expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("rdma/hca_shared", True),
        ("rdma/anything", True),
        ("vpc.amazonaws.com/efa", True),
        ("nvidia.com/hostdev", True),
        ("openshift.io/sriovroce", True),
        ("mellanox.com/cx7", True),
        ("example.com/ib", True),
        ("example.com/vib-x", False),
        ("example.com/disk", False),
        ("nvidia.com/gpu", False),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("requests.rdma/hca", False),
        ("count/sriov.x/y", False),
    ],
)
def test_rdma(key: str, expected: bool) -> None:
    assert resources.is_rdma(key) is expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("example.com/x", True),
        ("cpu", False),
        ("memory", False),
        ("hugepages-1Gi", False),
        ("attachable-volumes-csi-a/b", False),
        ("requests.example.com/x", False),
        ("limits.example.com/x", False),
        ("count/jobs.batch", False),
        ("x.kubernetes.io/y", False),
    ],
)
def test_extended(key: str, expected: bool) -> None:
    assert resources.is_extended(key) is expected


@pytest.mark.parametrize(
    ("machine", "vendor"),
    [
        ("p5.48xlarge", "NVIDIA"),
        ("p4de.24xlarge", "NVIDIA"),
        ("p6-b200.48xlarge", "NVIDIA"),
        ("g6e.2xlarge", "NVIDIA"),
        ("gr6.4xlarge", "NVIDIA"),
        ("g5.metal", "NVIDIA"),
        ("Standard_ND96isr_H100_v5", "NVIDIA"),
        ("Standard_NC24ads_A100_v4", "NVIDIA"),
        ("a3-highgpu-8g", "NVIDIA"),
        ("g2-standard-12", "NVIDIA"),
        ("BM.GPU.H100.8", "NVIDIA"),
        ("VM.GPU3.1", "NVIDIA"),
        ("inf2.8xlarge", "AWS Neuron"),
        ("trn1n.32xlarge", "AWS Neuron"),
        ("dl1.24xlarge", "Habana"),
        ("ct5lp-hightpu-4t", "Google TPU"),
        ("tpu7x-standard-4t", "Google TPU"),
        ("g4ad.xlarge", None),
        ("Standard_NV8as_v4", None),
        ("Standard_ND96isr_MI300X_v5", None),
        ("BM.GPU.MI300X.8", None),
        ("m5.xlarge", None),
        ("Standard_D8s_v5", None),
        ("n2-standard-8", None),
        ("", None),
    ],
)
def test_machines_that_have_accelerators(machine: str, vendor: str | None) -> None:
    for label in ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"):
        labels = {label: machine}
        shown = {one.name: found for one in resources.VENDORS if (found := one.shown_by(labels))}
        assert shown == ({vendor: (label, machine)} if vendor else {})
    assert not any(one.shown_by({"example.com/type": machine}) for one in resources.VENDORS)
