"""What this host, or a node of the cluster, offers to a CUDA image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpudoctor.errors import InputError
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_offer import (
    GpuOffer,
    either,
    offer_of_gpus,
    offer_of_labels,
    offer_of_module,
)
from gpudoctor.facts.node.gpu_reader import read_gpus
from gpudoctor.sources import recorded
from gpudoctor.sources.bundle import Bundle

if TYPE_CHECKING:
    from gpudoctor.sources.kubernetes.client import Client

_DEADLINE_S = 5.0
_MODULE = Path("/proc/driver/nvidia/version")
_MAX_TEXT = 4096


def of_host(library: str | None = None) -> GpuOffer:
    """Ask NVML and the loaded module of this host; what neither tells is None."""
    try:
        with _MODULE.open(encoding="utf-8", errors="replace") as text:
            module = offer_of_module(text.read(_MAX_TEXT))
    except OSError:
        module = GpuOffer()
    gpus = read_gpus(_DEADLINE_S, library)
    return either(offer_of_gpus(gpus), module) if isinstance(gpus, NodeGpus) else module


def of_recorded_node(name: str, files: Sequence[str]) -> GpuOffer:
    """Read a node's labels from bundles or dumps; InputError if it is not among them."""
    return _of_labels(recorded.load(files), name)


def of_live_node(name: str, connect: Callable[[], Client]) -> GpuOffer:
    """Read a node's labels from the cluster, with one request."""
    from gpudoctor.sources.kubernetes import kinds

    with connect() as connection:
        return _of_labels(Bundle(objects=(connection.get(kinds.NODE, name),)), name)


def _of_labels(objects: Bundle, name: str) -> GpuOffer:
    from gpudoctor.readings.kubernetes import Input

    node = Input(objects).cluster.nodes.get(name)
    if node is None:
        raise InputError(f"node {name} is not in the input")
    offer = offer_of_labels(node.labels)
    if offer.driver is None and offer.level is None:
        raise InputError(
            f"node {name} has no label nvidia.com/cuda.driver-version.*: is GPU feature"
            " discovery running? Say --driver and --gpu instead"
        )
    return offer
