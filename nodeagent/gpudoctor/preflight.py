"""Looks at the container we run in, before the trainer starts: does it have what it needs?

What is declared is tried, not inferred: devices are opened, memory is locked, shared memory is
allocated, in children under this container's own limits. Only a declared need can fail.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum

import msgspec

from gpudoctor import diagnosis
from gpudoctor.facts.node import machine, process, system
from gpudoctor.facts.node.cuda_stack import CudaStack
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_offer import either, offer_of_gpus, offer_of_module
from gpudoctor.facts.node.gpu_reader import read_gpus
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.facts.node.needs import Needs
from gpudoctor.facts.node.own_container import OwnContainer, Proofs
from gpudoctor.facts.node.system import Interface
from gpudoctor.readings import host as host_readings
from gpudoctor.registry import Registry
from gpudoctor.report import (
    Blame,
    Certainty,
    Evidence,
    Report,
    ReportSubject,
    Severity,
    Subject,
    Unknown,
)
from gpudoctor.sources.host import Host, Listing, Missing, Proof, proofs, text
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder
from gpudoctor.sources.system import read_system

_NVML_S = 10.0
_INTERFACES_S = 5.0
_NOTHING_TRIED = Unknown(
    "needs of this container",
    "none is declared (--require, GPUDOCTOR_REQUIRE, the pod's annotation), and it was given "
    "neither GPU nor RDMA device: nothing was tried",
)
_GPU_NODE = re.compile(r"^nvidia\d+$")


class Exit(IntEnum):
    """How preflight ends; a Job's podFailurePolicy tells them apart. 2 is wrong usage."""

    PASSED = 0
    REQUEST = 10
    NODE = 11
    PEER = 12
    UNKNOWN = 13


_BY_BLAME = {
    Blame.REQUEST: Exit.REQUEST,
    Blame.APPLICATION: Exit.REQUEST,
    Blame.PLACEMENT: Exit.NODE,
    Blame.NODE: Exit.NODE,
    Blame.PLATFORM: Exit.NODE,
    Blame.FABRIC: Exit.PEER,
}


class Outcome(msgspec.Struct, frozen=True):
    """The report, and how to end."""

    report: Report
    exit: Exit


def derived(environment: Mapping[str, str], host: Host) -> Needs:
    """Return what the container shows that it needs: the devices that it was given or names.

    GPUs count only where NVML can be asked about them, which a container may switch off.
    """
    given = any(name.startswith("uverbs") for name in _in(host, "/dev/infiniband"))
    named = environment.get("NCCL_IB_HCA", "")
    capabilities = environment.get("NVIDIA_DRIVER_CAPABILITIES") or "utility"
    tells = "utility" in capabilities or "all" in capabilities
    return Needs(
        rdma=given or bool(named and not named.startswith("^")),
        gpus=(_gpu_nodes(host) or None) if tells else None,
    )


def run(
    declared: Needs | None,
    checks: Registry,
    environment: Mapping[str, str],
    *,
    fail_on: str,
    fail_on_unknown: bool,
) -> Outcome:
    """Look, try and judge. `declared` is None where nothing was declared: then it is derived."""
    subject = Subject("Container", os.uname().nodename)
    with LiveHost(programs=host_readings.PROGRAMS) as live:
        recorder = Recorder(live)
        needs = derived(environment, recorder) if declared is None else declared
        own = _read(needs, subject, recorder, environment)
    facts: list[object] = [own]
    if isinstance(own.gpus, NodeGpus):
        facts.append(own.gpus)
    if needs.nvlink and own.node.topology is not None:
        # Whether CPUs are near is asked with `numa`; here only NVLink is.
        topology = own.node.topology
        facts.append(topology if needs.numa else topology.without_cpus())
    facts += _cuda_stack(own, text(recorder, "/proc/driver/nvidia/version"))
    unknown = () if needs != Needs() else (_NOTHING_TRIED,)
    found = diagnosis.diagnose(checks, facts, unknown=unknown)
    built = diagnosis.report(
        found,
        ReportSubject(subject.kind, subject.name),
        observed_at=host_readings.now(),
        needed_unknown=bool(unknown),
        facts={"preflight": {"needs": _published(needs), "derived": declared is None}},
    )
    return Outcome(built, _exit(built, found, fail_on, fail_on_unknown))


def _published(needs: Needs) -> dict[str, object]:
    return {
        name: str(value) if name == "cuda" else value
        for name in needs.__struct_fields__
        if (value := getattr(needs, name))
    }


def _exit(report: Report, found: diagnosis.Diagnosis, fail_on: str, fail_on_unknown: bool) -> Exit:
    """The worst root decides; with none that fails, an unproved need does, if it shall."""
    least = None if fail_on == "never" else Severity(fail_on).rank
    for root in map(report.finding, report.root_ids):
        if least is not None and root.severity.rank >= least:
            return _BY_BLAME[root.blame]
    return Exit.UNKNOWN if found.needed_unknown and fail_on_unknown else Exit.PASSED


def _read(
    needs: Needs, subject: Subject, host: Host, environment: Mapping[str, str]
) -> OwnContainer:
    """Read and try side by side: each waits for the kernel or for the driver."""
    first = environment.get("MASTER_ADDR") or None
    tries = {
        "shared": needs.shm and proofs.allocate_shared(needs.shm),
        "huge": needs.hugepages and proofs.map_huge_pages(needs.hugepages),
        "resolved": needs.bootstrap and first and proofs.resolve(first, needs.bootstrap),
    }
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(_gpus, needs, subject)
        interfaces = pool.submit(_interfaces)
        node = _node(host, subject)
        gpus = asked.result()
    node = machine.with_gpus(host, node, gpus if isinstance(gpus, NodeGpus) else None)
    return OwnContainer(
        needs=needs,
        node=node,
        gpus=gpus,
        gpu_nodes=_gpu_nodes(host),
        proofs=Proofs(
            locked=_locked(host, needs.locked) if needs.locked else None,
            **{
                name: attempt.result()
                for name, attempt in tries.items()
                if isinstance(attempt, proofs.Attempt)
            },
        ),
        interfaces=interfaces.result(),
        first_address=first,
    )


def _gpus(needs: Needs, subject: Subject) -> NodeGpus | Unknown | None:
    return read_gpus(_NVML_S, subject=subject) if needs.wants_gpus else None


def _interfaces() -> tuple[Interface, ...] | None:
    """Return the interfaces of our network namespace; /sys may show those of another."""
    answer = read_system(_INTERFACES_S, "interfaces")
    return None if isinstance(answer, str) else system.parse(answer.text).interfaces


def _node(host: Host, subject: Subject) -> NodeFacts:
    """Read the machine, with our own process: process 1 is another's where they are shared."""
    return msgspec.structs.replace(
        machine.read(host, subject),
        process=process.read_process(host, str(os.getpid())),
        in_container=True,
    )


def _in(host: Host, path: str) -> tuple[str, ...]:
    listing = host.listing(path)
    return listing.names if isinstance(listing, Listing) else ()


def _gpu_nodes(host: Host) -> int | None:
    """Return how many GPUs have a device node here, None if /dev cannot be listed."""
    names = _in(host, "/dev")
    return sum(bool(_GPU_NODE.match(name)) for name in names) if names else None


def _locked(host: Host, size: int) -> Proof:
    tried = host.try_lock(size)
    if isinstance(tried, Missing):
        return Proof(size, 0, tried.errno, tried.note)
    return Proof(size, 0 if tried else size, tried)


def _cuda_stack(own: OwnContainer, module: str | None) -> list[object]:
    """The declared CUDA version beside the driver; what the image really holds is not seen."""
    if own.needs.cuda is None or not isinstance(own.gpus, NodeGpus):
        return []
    offer = either(offer_of_gpus(own.gpus), offer_of_module(module or ""))
    if offer.driver is None and offer.level is None:
        return []
    return [
        CudaStack(
            subject=own.subject,
            driver=offer.driver,
            level=offer.level,
            toolkit=own.needs.cuda,
            gpu=offer.gpu,
            kernel_module=offer.kernel_module,
            certainty=Certainty.POSSIBLE,
            evidence=(Evidence("declared need", "cuda", str(own.needs.cuda)),),
        )
    ]
