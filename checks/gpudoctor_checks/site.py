"""The node against its site's profile: what is expected here is sure, not guessed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.facts.node.site import Expected
from gpudoctor.facts.node.topology import nvlinks
from gpudoctor.report import Evidence, Unknown

CHECKS = CheckSet()

_PROFILE = "site profile"


def _wanted(field: str, value: object) -> Evidence:
    return Evidence(_PROFILE, field, str(value), "expected")


@CHECKS.check(Expected)
def gpus(expected: Expected) -> Iterator[Result]:
    """Another number of GPUs than the site has in such a node."""
    count, node = expected.profile.gpus.count, expected.node
    if count is None or len(node.gpus) == count:
        return
    if not node.gpus and not node.pci_whole:
        yield Unknown("number of GPUs", "PCI devices were not read")
        return
    seen = ", ".join(gpu.address for gpu in node.gpus) or "none"
    yield finding(
        "gpu-count-wrong",
        node.subject,
        f"{len(node.gpus)} NVIDIA GPUs are on the PCI bus, the site profile expects {count}.",
        Evidence("/sys/bus/pci/devices", None, seen),
        _wanted("gpus.count", count),
        values={"seen": str(len(node.gpus)), "expected": str(count)},
    )


@CHECKS.check(Expected)
def links(expected: Expected) -> Iterator[Result]:
    """A pair of GPUs has fewer NVLinks than the site expects of every pair."""
    full, topology = expected.profile.gpus.nvlinks, expected.topology
    if not full:
        return
    if topology is None or not topology.nvlink_shown:
        yield Unknown("NVLinks", "only `nvidia-smi topo -m` shows them, which was not read")
        return
    for one, other, path in topology.gpu_pairs():
        if nvlinks(path) < full:
            what = f"{one.label} to {other.label}"
            yield finding(
                "nvlink-degraded",
                msgspec.structs.replace(topology.subject, device=one.label),
                f"{what} is {path}, the site profile expects NV{full}.",
                Evidence(topology.source, one.label, f"{other.label}={path}"),
                _wanted("gpus.nvlinks", full),
                values={"gpu": what, "links": str(nvlinks(path)), "expected": str(full)},
            )


@CHECKS.check(Expected)
def nics(expected: Expected) -> Iterator[Result]:
    """Fewer active ports of the expected rate and network than the site has."""
    wanted, node = expected.profile.nics, expected.node
    if wanted.count is None:
        return
    if node.hcas is None:
        yield Unknown("RDMA ports", "/sys/class/infiniband was not read")
        return
    ports = [
        f"{hca.name}/{port.number}"
        for hca in node.hcas
        for port in hca.ports
        if port.is_active
        and (wanted.rate_gbps is None or (port.rate or 0) >= wanted.rate_gbps)
        and wanted.link_layer in (None, port.link_layer)
    ]
    if len(ports) < wanted.count:
        rate = "" if wanted.rate_gbps is None else f" at {wanted.rate_gbps:g} Gb/s"
        yield finding(
            "nic-count-wrong",
            node.subject,
            f"{len(ports)} active RDMA ports{rate}, the site profile expects {wanted.count}.",
            Evidence("/sys/class/infiniband", None, ", ".join(ports) or "none"),
            _wanted("nics", f"{wanted.count}{rate} {wanted.link_layer or ''}".strip()),
            values={"seen": str(len(ports)), "expected": str(wanted.count)},
        )


@CHECKS.check(Expected)
def software(expected: Expected) -> Iterator[Result]:
    """Another driver or GPU model than the site expects."""
    node, profile = expected.node, expected.profile
    version = node.gpudirect.driver
    if profile.driver.version and version is None:
        yield Unknown("driver version", "/sys/module/nvidia/version was not read")
    elif profile.driver.version and not str(version).startswith(profile.driver.version):
        yield _differs(node, "driver", str(version), profile.driver.version)
    if profile.gpus.model and node.models is None:
        yield Unknown("GPU model", "/proc/driver/nvidia/gpus was not read")
    for address, model in (node.models or {}).items():
        if profile.gpus.model and profile.gpus.model.lower() not in model.lower():
            yield _differs(node, f"GPU {address}", model, profile.gpus.model)


def _differs(node: NodeFacts, what: str, seen: str, wanted: str) -> Result:
    return finding(
        "site-profile-mismatch",
        msgspec.structs.replace(node.subject, device=what.removeprefix("GPU ")),
        f"The {what} is {seen}; the site profile expects {wanted}.",
        Evidence("/proc/driver/nvidia", what, seen),
        _wanted(what, wanted),
        values={"what": what, "seen": seen, "expected": wanted},
    )
