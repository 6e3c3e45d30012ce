"""Looks at the container we run in, before the trainer starts: does it have what it needs?

What is declared is tried, not inferred: devices are opened, memory is locked, shared memory is
allocated, in children under this container's own limits. Only a declared need can fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum

import msgspec

from gpudoctor import diagnosis
from gpudoctor.facts.node import image, machine, own_cuda, process, system
from gpudoctor.facts.node.derived_needs import derived, gpu_nodes
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_reader import read_gpus
from gpudoctor.facts.node.image import ImageLevels
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.facts.node.needs import Needs
from gpudoctor.facts.node.own_container import OwnContainer, Proofs
from gpudoctor.facts.node.system import Interface
from gpudoctor.facts.rendezvous import OrderedStart, Rendezvous
from gpudoctor.readings import host as host_readings
from gpudoctor.readings import rendezvous
from gpudoctor.registry import Registry
from gpudoctor.report import (
    Blame,
    Finding,
    Layer,
    Report,
    ReportSubject,
    Severity,
    Subject,
    Unknown,
)
from gpudoctor.sources.host import Host, Missing, Proof, proofs, text
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder
from gpudoctor.sources.rendezvous import Plan
from gpudoctor.sources.system import read_system

_NVML_S = 10.0
_INTERFACES_S = 5.0


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


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. `declared` is None where nothing was declared: then it is derived.

    `image` is where the trainer's image is mounted. `plan` is our part in the rendezvous, None
    where none is asked for, and why not where the start is ordered.
    """

    declared: Needs | None
    environment: Mapping[str, str]
    fail_on: str
    fail_on_unknown: bool
    image: str | None = None
    plan: Plan | OrderedStart | None = None

    @property
    def asks_driver(self) -> bool:
        """Whether the driver is asked even where no need calls for it."""
        return self.image is not None or isinstance(self.plan, Plan)


def run(request: Request, checks: Registry, say: Callable[[str], None]) -> Outcome:
    """Look, try, meet the others where that is asked for, and judge.

    `say` is told in words how a wait for others goes.
    """
    subject = Subject("Container", os.uname().nodename)
    with LiveHost(programs=host_readings.PROGRAMS) as live:
        recorder = Recorder(live)
        needs = request.declared
        if needs is None:
            needs = derived(request.environment, recorder)
        own = _read(needs, subject, recorder, request)
        levels = _image(request.image)
        module = text(recorder, "/proc/driver/nvidia/version")
        facts = _facts(own, levels, module, request)
        found = diagnosis.diagnose(checks, facts)
        if isinstance(request.plan, Plan):
            met = _met(own, levels, recorder, request, found, say)
            if met is not None:
                facts.append(met)
                found = diagnosis.diagnose(checks, facts)
    blind = needs == Needs() and request.image is None and request.plan is None
    if blind:
        found = msgspec.structs.replace(found, unknown=(_BLIND, *found.unknown))
    built = diagnosis.report(
        found,
        ReportSubject(subject.kind, subject.name),
        observed_at=host_readings.now(),
        needed_unknown=blind,
        facts={"preflight": _told(needs, levels, facts, request)},
    )
    return Outcome(built, _exit(built, found.needed_unknown or blind, request))


_BLIND = Unknown(
    "what this container needs",
    "nothing is declared, and it was given neither a GPU that NVML can tell of nor an RDMA device: "
    "give it the trainer's resources, or say --require",
)


def _facts(
    own: OwnContainer, levels: ImageLevels | None, module: str | None, request: Request
) -> list[object]:
    facts: list[object] = [own]
    if isinstance(own.gpus, NodeGpus):
        facts.append(own.gpus)
    if own.needs.nvlink and own.node.topology is not None:
        # Whether CPUs are near is asked with `numa`; here only NVLink is.
        topology = own.node.topology
        facts.append(topology if own.needs.numa else topology.without_cpus())
    facts += own_cuda.stacks(own, levels, module)
    if isinstance(request.plan, OrderedStart):
        facts.append(request.plan)
    return facts


def _image(root: str | None) -> ImageLevels | None:
    if root is None:
        return None
    with LiveHost(root) as mounted:
        return image.read(mounted, root)


def _met(
    own: OwnContainer,
    levels: ImageLevels | None,
    host: Host,
    request: Request,
    found: diagnosis.Diagnosis,
    say: Callable[[str], None],
) -> Rendezvous | None:
    """Meet the others; a member that fails by itself tells them so and does not wait."""
    assert isinstance(request.plan, Plan)
    environment = request.environment
    own_report = diagnosis.report(found, ReportSubject("Container"), observed_at=None)
    ended = _exit(own_report, found.needed_unknown, request)
    if ended is not Exit.PASSED:
        roots = [own_report.finding(root) for root in own_report.root_ids[:1]]
        why = f"{roots[0].runbook} {roots[0].name}" if roots else "a need could not be proved"
        rendezvous.stay_away(own, host, environment, request.plan, why, say)
        return None
    nccl = (levels.nccl if levels is not None else None) or environment.get("NCCL_VERSION")
    return rendezvous.meet(own, host, environment, request.plan, nccl, say)


def _told(
    needs: Needs, levels: ImageLevels | None, facts: list[object], request: Request
) -> dict[str, object]:
    told: dict[str, object] = {
        "needs": _published(needs), "derived": request.declared is None,
    }  # fmt: skip
    if levels is not None:
        told["image"] = {"cuda": str(levels.cuda) if levels.cuda else None, "nccl": levels.nccl}
    for part in facts:
        if isinstance(part, Rendezvous):
            told["rendezvous"] = {
                "members": [msgspec.to_builtins(member) for member in part.members],
                "failed": part.failed,
            }
    return told


def _published(needs: Needs) -> dict[str, object]:
    return {
        name: str(value) if name == "cuda" else value
        for name in needs.__struct_fields__
        if (value := getattr(needs, name))
    }


def _exit(report: Report, needed_unknown: bool, request: Request) -> Exit:
    """The worst root decides; with none that fails, an unproved need does, if it shall."""
    fail_on = request.fail_on
    least = None if fail_on == "never" else Severity(fail_on).rank
    for root in map(report.finding, report.root_ids):
        if least is not None and root.severity.rank >= least:
            return _whose(root)
    return Exit.UNKNOWN if needed_unknown and request.fail_on_unknown else Exit.PASSED


def _whose(root: Finding) -> Exit:
    """Return who can help. Whom to blame decides, but for an image and a driver that do not fit.

    Whichever of them is wrong, a node with another driver may do: a wrong retry costs some seconds
    within backoffLimit, a wrong FailJob the job.
    """
    if root.layer is Layer.DRIVER or root.name == "image-requirement-unsatisfied":
        return Exit.NODE
    return _BY_BLAME[root.blame]


def _read(needs: Needs, subject: Subject, host: Host, request: Request) -> OwnContainer:
    """Read and try side by side: each waits for the kernel or for the driver."""
    first = request.environment.get("MASTER_ADDR") or None
    tries = {
        "shared": needs.shm and proofs.allocate_shared(needs.shm),
        "huge": needs.hugepages and proofs.map_huge_pages(needs.hugepages),
        "resolved": needs.bootstrap and first and proofs.resolve(first, needs.bootstrap),
    }
    asks = needs.wants_gpus or request.asks_driver
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(read_gpus, _NVML_S, subject=subject) if asks else None
        interfaces = pool.submit(_interfaces)
        node = _node(host, subject)
        gpus = None if asked is None else asked.result()
    node = machine.with_gpus(host, node, gpus if isinstance(gpus, NodeGpus) else None)
    return OwnContainer(
        needs=needs,
        node=node,
        gpus=gpus,
        gpu_nodes=gpu_nodes(host),
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


def _locked(host: Host, size: int) -> Proof:
    tried = host.try_lock(size)
    if isinstance(tried, Missing):
        return Proof(size, 0, tried.errno, tried.note)
    return Proof(size, 0 if tried else size, tried)
