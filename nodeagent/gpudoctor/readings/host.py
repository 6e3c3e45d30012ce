"""A host or container, recorded or live, for `gpudoctor check` without a pod."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpudoctor.facts.node import allotments, containers, cpulist, machine, rdma
from gpudoctor.facts.node import system as system_facts
from gpudoctor.facts.node.allotments import Allotment, Names
from gpudoctor.facts.node.containers import Container
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_reader import parse_gpus
from gpudoctor.facts.node.model import MigDevice, NodeFacts, WorkloadFacts
from gpudoctor.facts.node.system import System
from gpudoctor.readings import Reading
from gpudoctor.report import ReportSubject, Subject, Unknown
from gpudoctor.sources import pod_resources
from gpudoctor.sources.bundle import Bundle, HostRecording
from gpudoctor.sources.child import Answer
from gpudoctor.sources.host import Host, names
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorded import RecordedHost
from gpudoctor.sources.host.recorder import Recorder
from gpudoctor.sources.nvml import read_nvml
from gpudoctor.sources.system import WAITING, read_system

LOCAL = "local"
_NVML, _NVML_LATE, _NVML_STUCK = "nvml", "nvml, killed", "nvml, hangs"
_NVML_DEADLINE_S = 5.0
_SHOWN = 5
_OF_A_PROCESS = re.compile(r"^/proc/(?!1/)[0-9]+/")
_SYSTEM, _SYSTEM_WAITING = "system", "system waiting"
_SYSTEM_DEADLINE_S = 5.0
_KUBELET = "pod-resources"
_KUBELET_DEADLINE_S = 5.0
PROGRAMS = ("nvidia-smi topo -m",)
"""The only program that a live check starts: where there are GPUs and NVML tells no NVLinks."""


class Services(msgspec.Struct, frozen=True):
    """What is asked of the live host beyond its files; `root` is where its root is mounted."""

    root: str = ""

    @property
    def is_here(self) -> bool:
        """Whether the host is the one that we run on, with its driver's library."""
        return not self.root


def read_recorded(bundle: Bundle) -> Reading:
    """Read all hosts of a bundle: one as the subject itself, several as children."""
    readings = [
        _recorded(name, recording, bundle) for name, recording in sorted(bundle.hosts.items())
    ]
    if len(readings) == 1:
        return readings[0]
    return Reading(
        subject=ReportSubject("Hosts"),
        facts=(),
        children=tuple(readings),
        observed_at=bundle.now,
        needed_unknown=not readings,
    )


def _recorded(name: str, recording: HostRecording, bundle: Bundle) -> Reading:
    roots = bundle.scope.roots
    host = RecordedHost(recording.tree, roots)
    later = None
    if recording.tree_later:
        later = RecordedHost(recording.tree | recording.tree_later, roots)
    return read(Recorder(host), name, bundle.now, later)


def read_live(host_root: str | None = None) -> Reading:
    """Read this host or container, or the host whose root is mounted at `host_root`."""
    with LiveHost(host_root, programs=PROGRAMS) as live:
        return read(Recorder(live), LOCAL, now(), services=Services(host_root or ""))


def now() -> str:
    """Return the time as reports and bundles write it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(
    recorder: Recorder,
    name: str,
    observed_at: str | None,
    later: Host | None = None,
    *,
    services: Services | None = None,
) -> Reading:
    """Read a host and the containers on it through a recorder.

    The recorder also knows what hung and what was refused. `later` is a second observation, for
    the growth of counters. `services` are asked where their files show that they are there.
    """
    subject = Subject("Host" if name == LOCAL else "Node", name)
    is_here = services is not None and services.is_here
    with ThreadPoolExecutor(1) as pool:  # side by side: both wait for the kernel
        asked = pool.submit(read_system, _SYSTEM_DEADLINE_S) if is_here else None
        facts = machine.read(recorder, subject, later)
        system = _system(recorder, _SYSTEM, None if asked is None else asked.result())
    facts = machine.with_system(recorder, facts, system)
    ask_nvml = is_here and bool(facts.gpus)
    nvml = _nvml(recorder, subject, ask=ask_nvml)
    facts = machine.with_gpus(recorder, facts, nvml if isinstance(nvml, NodeGpus) else None)
    told = _kubelet(recorder, services)
    given_out = None if told is None else allotments.parse(told)
    found = containers.find(recorder, given_out if isinstance(given_out, tuple) else ())
    workloads = [containers.workload(recorder, container, facts) for container in found]
    children = tuple(
        _container(container, workload, facts.mig, observed_at)
        for container, workload in zip(found, workloads, strict=True)
        if workload is not None
    )
    unseen = [
        container
        for container, workload in zip(found, workloads, strict=True)
        if workload is None and container.gpu_minors is None
    ]
    silence = None if told is None else allotments.silence(told, subject)
    facts = msgspec.structs.replace(facts, stuck=recorder.stuck(), refused=recorder.refused())
    if facts.stuck or silence or (isinstance(nvml, NodeGpus) and nvml.hung_in):
        facts, nvml = _who_waits(recorder, facts, nvml, is_here=is_here)
    reading = _host(facts, nvml, children, observed_at)
    aside = [*_refused(facts, unseen), *([given_out] if isinstance(given_out, Unknown) else [])]
    aside += system.unknown
    published = dict(reading.published)
    if isinstance(given_out, tuple):
        running = None
        if allotments.names_by_id(recorder) is not None:
            running = {one.allotment.names for one in found if one.allotment is not None}
        published["kubelet"] = _told(given_out, running)
    return msgspec.structs.replace(
        reading,
        facts=reading.facts if silence is None else (*reading.facts, silence),
        unknown=(*reading.unknown, *aside),
        published=published,
    )


def _system(recorder: Recorder, key: str, answer: Answer | str | None) -> System:
    """Return what udev and psutil say, live or recorded; nothing where they were not asked."""
    if isinstance(answer, Answer):
        recorder.note(key, answer.text)
        return system_facts.parse(answer.text)
    if isinstance(answer, str):
        return System(unknown=(Unknown("devices and interfaces", answer),))
    printed = recorder.run([key])
    return system_facts.parse(printed) if isinstance(printed, str) else System()


def _who_waits(
    recorder: Recorder, facts: NodeFacts, nvml: NodeGpus | Unknown | None, *, is_here: bool
) -> tuple[NodeFacts, NodeGpus | Unknown | None]:
    """Add the processes that wait in the kernel, now that something hangs."""
    answer = read_system(_SYSTEM_DEADLINE_S, WAITING) if is_here else None
    waiting = _system(recorder, _SYSTEM_WAITING, answer).waiting or ()
    if isinstance(nvml, NodeGpus):
        nvml = msgspec.structs.replace(nvml, waiting=waiting)
    return msgspec.structs.replace(facts, waiting=waiting), nvml


def _kubelet(recorder: Recorder, services: Services | None) -> str | None:
    """Return what the kubelet answered, live or recorded; None if there is none."""
    if services is None:
        printed = recorder.run([_KUBELET])
        return printed if isinstance(printed, str) else None
    if pod_resources.NAME not in names(recorder, pod_resources.FOLDER):
        return None
    answer = pod_resources.read_pod_resources(_KUBELET_DEADLINE_S, services.root)
    recorder.note(_KUBELET, answer)
    return answer


def _told(given_out: tuple[Allotment, ...], running: set[Names] | None) -> list[dict[str, Any]]:
    """Return the kubelet's whole list; None of `running` where containers cannot be tied to it."""
    return [
        msgspec.to_builtins(one.names)
        | {"running": None if running is None else one.names in running}
        | allotments.published(one)
        for one in given_out
    ]


def _nvml(recorder: Recorder, subject: Subject, *, ask: bool) -> NodeGpus | Unknown | None:
    """Return what NVML says, live or recorded; None where it was not asked."""
    if ask:
        answer = read_nvml(_NVML_DEADLINE_S)
        if isinstance(answer, str):
            return Unknown("NVML", answer)
        late = _NVML_LATE if answer.ended else _NVML_STUCK
        recorder.note(_NVML if answer.in_time else late, answer.text)
        return parse_gpus(answer, subject)
    for key in (_NVML, _NVML_LATE, _NVML_STUCK):
        printed = recorder.run([key])
        if isinstance(printed, str):
            return parse_gpus(Answer(printed, key == _NVML, key != _NVML_STUCK), subject)
    return None


def _host(
    facts: NodeFacts,
    nvml: NodeGpus | Unknown | None,
    children: tuple[Reading, ...],
    observed_at: str | None,
) -> Reading:
    parts: tuple[object, ...] = (facts,) if isinstance(nvml, Unknown | None) else (facts, nvml)
    published: dict[str, Any] = {"host": published_facts(facts)}
    if isinstance(nvml, NodeGpus):
        published["nvml"] = nvml.published()
    if facts.topology is not None:
        parts += (facts.topology,)
        published["topology"] = facts.topology.published()
    needed = (*_needed(facts), *((nvml,) if isinstance(nvml, Unknown) else ()))
    return Reading(
        subject=ReportSubject(facts.subject.kind, facts.subject.name),
        facts=parts,
        children=children,
        published=published,
        observed_at=observed_at,
        unknown=needed,
        needed_unknown=bool(needed),
    )


def _container(
    container: Container,
    workload: WorkloadFacts,
    mig: Sequence[MigDevice],
    observed_at: str | None,
) -> Reading:
    unknown = []
    if workload.given is None:
        why = f"/proc/{container.pid}/root needs CAP_SYS_PTRACE"
        unknown.append(Unknown("GPUs of this container", why))
    return Reading(
        subject=ReportSubject("Container", workload.subject.name),
        facts=(workload,),
        published={
            "container": {
                "id": container.container_id,
                "pod_uid": container.pod_uid,
                **_names(container, mig),
                "pid": int(container.pid),
                "gpus": None if workload.given is None else list(workload.given),
                "rdma_devices": [
                    hca.name
                    for hca in workload.hcas or ()
                    if hca.uverbs in {node.name for node in workload.verbs or ()}
                ],
                "libraries": container.libraries,
                **process_facts(workload),
            }
        },
        observed_at=observed_at,
        unknown=tuple(unknown),
        needed_unknown=bool(unknown),
    )


def _names(container: Container, mig: Sequence[MigDevice]) -> dict[str, Any]:
    """Return what Kubernetes calls a container and what it was given, where that is known."""
    if container.allotment is None:
        return {}
    return {
        **msgspec.to_builtins(container.allotment.names),
        "allotted": allotments.published(container.allotment),
        "mig": [
            msgspec.to_builtins(device)
            for device in allotments.mig_devices(container.allotment, mig)
        ],
    }


def _refused(facts: NodeFacts, unseen: Sequence[Container]) -> Iterator[Unknown]:
    """What this user may not see, and a verdict can do without.

    The kernel shows the configuration space beyond 64 bytes, another user's environment and the
    files of containers to privileged users only. If they made the verdict "unknown", each run of
    a plain user and each run in a pod would end with status 3, and the status would say nothing.
    They can hide at worst a warning about this host (ACS) or the affairs of others; what could
    hide that GPUs, RDMA or locked memory do not work is in `_needed`.
    """
    concerned = facts.gpus or facts.hcas or not facts.pci_whole
    if facts.acs.denied and concerned:
        yield Unknown(
            "acs-state",
            f"{len(facts.acs.denied)} PCI bridges hide their capabilities from this user "
            f"({facts.acs.denied[0]}); read them as root with `lspci -vvv`",
        )
    if facts.gpus and facts.hcas == () and facts.in_container is not True:
        yield Unknown(
            "RDMA",
            "no RDMA device is here; whether this host should have one, only a site profile says "
            "(--profile). Without one, traffic between nodes takes TCP",
        )
    if unseen:
        why = f"{len(unseen)} not seen into: /proc/{unseen[0].pid}/root needs CAP_SYS_PTRACE"
        yield Unknown("devices of containers", why)
    others = [path for path in facts.refused if not _OF_A_PROCESS.match(path)]
    yield from (Unknown(path, "denied") for path in others[:_SHOWN])


def _needed(facts: NodeFacts) -> list[Unknown]:
    """What a verdict on any GPU host needs and this one does not say."""
    missing = []
    if not facts.gpus:
        why = "the PCI bus shows none" if facts.pci_whole else "PCI devices were not read"
        missing.append(Unknown("NVIDIA GPUs", why))
    if facts.hcas is None:
        missing.append(Unknown("RDMA devices", "/sys/class/infiniband was not read"))
    if facts.hcas and rdma.DEV in facts.refused:
        missing.append(Unknown("RDMA device nodes", f"{rdma.DEV} may not be listed"))
    if facts.process is None or (
        facts.process.memlock_soft is None and facts.process.lock_tried is None
    ):
        missing.append(Unknown("memlock limit", "the process's limits were not read"))
    return missing


def process_facts(facts: WorkloadFacts) -> dict[str, Any]:
    """Return what a report says of the process that was looked at."""
    process = facts.process
    cpus = process.cpus if process is not None else None
    return {
        "gpu_numa": sorted({gpu.numa for gpu in facts.own_gpus if gpu.numa is not None}),
        "pod_cpu_numa": sorted(node.number for node in facts.numa if cpus and node.cpus & cpus),
        "cpus": None if cpus is None else cpulist.render(cpus),
        "memlock_soft_bytes": process.memlock_soft if process is not None else None,
        "cap_ipc_lock": process.ipc_lock if process is not None else None,
        "lock_tried": process.lock_tried if process is not None else None,
        "shm_bytes": process.shm_bytes if process is not None else None,
        "shm_used_bytes": process.shm_used if process is not None else None,
    }


def published_facts(facts: NodeFacts) -> dict[str, Any]:
    """Return what a report says of a host under `facts.host`."""
    hcas, models = facts.hcas or (), facts.models or {}
    rates = Counter(port.rate for hca in hcas for port in hca.ports if port.is_active and port.rate)
    return {
        **process_facts(facts),
        "gpus": {
            gpu.address: {"numa": gpu.numa, "model": models.get(gpu.address) or gpu.model}
            for gpu in facts.gpus
        },
        "rdma_devices": [hca.name for hca in hcas],
        "rdma_interfaces": {hca.name: list(hca.interfaces) for hca in hcas if hca.interfaces},
        "interfaces": None
        if facts.interfaces is None
        else {
            one.name: {"up": one.up, "mtu": one.mtu, "has_address": bool(one.addresses)}
            for one in facts.interfaces
        },
        "active_ports_by_rate": {
            f"{rate:g}": count for rate, count in sorted(rates.items(), reverse=True)
        },
        "roce_v2_ipv4_gid_index": {
            hca.name: index
            for hca in hcas
            for port in hca.ports
            if (index := port.roce_v2_ipv4_index) is not None
        },
        "driver": facts.gpudirect.driver,
        "dma_buf": facts.gpudirect.dma_buf,
        "peermem_loaded": facts.gpudirect.peermem_loaded,
        "virtual": facts.virtual,
        "hugepages": {
            str(pages.size): {"total": pages.total, "free": pages.free} for pages in facts.hugepages
        },
    }
