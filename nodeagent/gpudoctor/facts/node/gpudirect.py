"""What GPUDirect RDMA needs on a node: kernel module flavour, kernel, peer memory."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpudoctor.facts.node.model import GpuDirect
from gpudoctor.sources.host import Host, Listing, Missing, text

_VERSION = re.compile(r"(?:Kernel Module(?: for \S+)?)\s+(\d+(?:\.\d+)+)")
_KERNEL = re.compile(r"^(\d+)\.(\d+)")
_NUMBER = re.compile(r"^\d+(?:\.\d+)+$")
_MODULES = ("nvidia_peermem", "nv_peer_mem")
_PEERS = "/sys/kernel/mm/memory_peers"


def read(host: Host) -> GpuDirect:
    """Read what decides GPUDirect RDMA; what cannot be read stays None."""
    banner = text(host, "/proc/driver/nvidia/version")
    version = text(host, "/sys/module/nvidia/version")
    if version is None or not _NUMBER.match(version):
        match = _VERSION.search(banner or "")
        version = match[1] if match else None
    release = text(host, "/proc/sys/kernel/osrelease")
    kernel = _KERNEL.match(release or "")
    return GpuDirect(
        driver=version,
        open_module=_is_open(host, banner),
        kernel=(int(kernel[1]), int(kernel[2])) if kernel else None,
        kernel_text=release,
        peermem_loaded=_any(_module(host, name) for name in _MODULES),
        peermem_registered=_registered(host),
    )


def _is_open(host: Host, banner: str | None) -> bool | None:
    if banner is not None and "Kernel Module" in banner:
        return "Open Kernel Module" in banner
    licence = host.run(["modinfo", "-F", "license", "nvidia"])
    if isinstance(licence, Missing) or not licence.strip():
        return None
    return "MIT" in licence or "GPL" in licence


def _any(states: Iterable[bool | None]) -> bool | None:
    known = list(states)
    if True in known:
        return True
    return None if None in known or not known else False


def _module(host: Host, name: str) -> bool | None:
    """Return whether a module is loaded: its directory in /sys/module, or a file below it."""
    found = host.listing(f"/sys/module/{name}")
    if isinstance(found, Listing):
        return True
    if not isinstance(host.read_bytes(f"/sys/module/{name}/version"), Missing):
        return True
    return False if found.absent else None


def _registered(host: Host) -> bool | None:
    """Return whether a peer-memory client is registered with the RDMA core."""
    found = host.listing(_PEERS)
    if isinstance(found, Missing):
        return False if found.absent else None
    clients = [name for name in found.names if name.startswith("nv_mem")]
    return True if clients else (False if found.complete else None)
