"""Extended resources: which keys are GPUs, which are RDMA devices, and who advertises them.

Source: the vendors' device plugins, see the list of keys in each entry. Nothing here is
specific to one vendor beyond this table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

_NATIVE = frozenset({"cpu", "memory", "ephemeral-storage", "storage", "pods"})
_NATIVE_PREFIXES = ("hugepages-", "attachable-volumes-", "requests.", "limits.", "count/")
_NAMES = 1024
_MACHINE_TYPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_RDMA_WORDS = re.compile(r"rdma|roce|infiniband|\bib\b|hca|mlnx|mellanox|sriov|hostdev|efa", re.I)


class Vendor(msgspec.Struct, frozen=True):
    """A maker of accelerators: patterns of its resource keys, and of labels of nodes with them.

    `machines` are the clouds' machine types that have them, `accounting` keys that a scheduler
    extender counts and no node ever advertises.
    """

    name: str
    keys: str
    labels: str
    accounting: str = ""
    machines: str = ""

    def shown_by(self, labels: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the label by which a node has its devices, advertised or not; None without."""
        shown = (
            (label, value)
            for label, value in sorted(labels.items())
            if value not in ("false", "0", "")
            and (
                re.fullmatch(self.labels, label)
                or (label in _MACHINE_TYPE and re.fullmatch(self.machines, value))
            )
        )
        return next(shown, None)


VENDORS = (
    Vendor(
        "NVIDIA",
        r"nvidia\.com/(gpu(\.shared)?|mig-[\w.]+)|volcano\.sh/vgpu-number",
        r"nvidia\.com/gpu\.(present|count|product)"
        r"|feature\.node\.kubernetes\.io/pci-(\w+_)?10de(_\w+)*\.present"
        r"|cloud\.google\.com/gke-accelerator|k8s\.amazonaws\.com/accelerator",
        r"nvidia\.com/(gpumem(-percentage)?|gpucores|priority)|volcano\.sh/vgpu-(memory|cores)",
        # AWS, Azure, Google, Oracle; their AMD machines have names like these.
        r"(p[2-6][\w-]*|g(?!4ad)[3-7]\w*|gr6\w*)\.\d*(xlarge|metal)"
        r"|Standard_N[CDV](?!.*(MI300X|as_v4))\w+|(a[2-4]|g[24])-\w+-[\w-]+"
        r"|(VM|BM)\.GPU(?!.*MI\d)\w*(\.[\w-]+)+",
    ),
    Vendor(
        "AMD",
        r"amd\.com/(gpu|[a-z]+_nps\d+)",
        r"(beta\.)?amd\.com/gpu\..*|feature\.node\.kubernetes\.io/(amd-v?gpu"
        r"|pci-(\w+_)?1002(_\w+)*\.present)",
    ),
    Vendor(
        "Intel",
        r"gpu\.intel\.com/(i915|xe|tiles|millicores)",
        r"intel\.feature\.node\.kubernetes\.io/gpu|gpu\.intel\.com/.*",
    ),
    Vendor(
        "Habana",
        r"habana\.ai/gaudi",
        r"feature\.node\.kubernetes\.io/pci-(\w+_)?1da3(_\w+)*\.present|habana\.ai/.*",
        machines=r"dl1\.\d*xlarge",
    ),
    Vendor(
        "AWS Neuron",
        r"aws\.amazon\.com/neuron(core|device)?",
        r"aws\.amazon\.com/neuron.*",
        machines=r"(inf|trn)\d\w*\.\d*xlarge",
    ),
    Vendor(
        "Google TPU",
        r"google\.com/tpu",
        r"cloud\.google\.com/gke-tpu-accelerator",
        machines=r"(ct|tpu)\w+-\w+-\d+t",
    ),
    Vendor(
        "Huawei Ascend",
        r"huawei\.com/(Ascend|npu).*",
        r"accelerator(-type)?|node\.kubernetes\.io/npu.*|huawei\.com/.*",
    ),
)


def is_extended(resource: str) -> bool:
    """Tell an extended resource (device plugin or DRA) from cpu, memory, hugepages and the like."""
    return (
        "/" in resource
        and resource not in _NATIVE
        and not resource.startswith(_NATIVE_PREFIXES)
        and "kubernetes.io/" not in resource
    )


@lru_cache(_NAMES)
def vendor_of(resource: str) -> Vendor | None:
    """Return the vendor whose accelerators the key counts, None for anything else."""
    if "/" not in resource:
        return None
    return next((vendor for vendor in VENDORS if re.fullmatch(vendor.keys, resource)), None)


def is_gpu(resource: str) -> bool:
    """Whether the key counts GPUs or other accelerators that nodes advertise."""
    return vendor_of(resource) is not None


def is_accounting(resource: str) -> bool:
    """Whether the key is counted by a scheduler extender alone (HAMi, Volcano vGPU)."""
    return any(v.accounting and re.fullmatch(v.accounting, resource) for v in VENDORS)


def is_rdma(resource: str) -> bool:
    """Whether the key gives RDMA devices: `rdma/…`, EFA, or a site's SR-IOV or host-device name."""
    if resource.startswith("rdma/"):
        return True
    return (
        is_extended(resource)
        and not is_gpu(resource)
        and not is_accounting(resource)
        and _RDMA_WORDS.search(resource) is not None
    )
