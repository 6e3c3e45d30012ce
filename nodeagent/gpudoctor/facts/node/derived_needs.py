"""What a container needs where nobody declares it: the devices that it was given or names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpudoctor.facts.node.needs import Needs
from gpudoctor.facts.node.versions import parse_cuda
from gpudoctor.sources.host import Host, names

_GPU_NODE = re.compile(r"^nvidia\d+$")
_VISIBLE = re.compile(r"(GPU-|MIG-)?[0-9A-Fa-f][0-9A-Fa-f/-]*")


def derived(environment: Mapping[str, str], host: Host) -> Needs:
    """Return what the container shows that it needs: the devices that it was given or names.

    GPUs count only where NVML can be asked about them, which a container may switch off. The CUDA
    version is that of our own image, which matters where it is the trainer's.
    """
    given = any(name.startswith("uverbs") for name in names(host, "/dev/infiniband"))
    named = environment.get("NCCL_IB_HCA", "")
    efa = "efa" in environment.get("FI_PROVIDER", "").split(",")
    capabilities = environment.get("NVIDIA_DRIVER_CAPABILITIES") or "utility"
    tells = "utility" in capabilities or "all" in capabilities
    gpus = max(gpu_nodes(host) or 0, _visible(environment.get("NVIDIA_VISIBLE_DEVICES", "")))
    return Needs(
        rdma=given or efa or bool(named and not named.startswith("^")),
        gpus=(gpus or None) if tells else None,
        cuda=parse_cuda(environment.get("CUDA_VERSION", "")) if tells and gpus else None,
    )


def _visible(devices: str) -> int:
    """Count the devices that a device plugin lists; words such as all and void name none."""
    words = devices.split(",") if devices else []
    return len(words) if all(_VISIBLE.fullmatch(word) for word in words) else 0


def gpu_nodes(host: Host) -> int | None:
    """Return how many GPUs have a device node here, None if /dev cannot be listed."""
    found = names(host, "/dev")
    return sum(bool(_GPU_NODE.match(name)) for name in found) if found else None
