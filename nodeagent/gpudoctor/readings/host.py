"""A host or container, recorded or live, for `gpudoctor check` without a pod."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from gpudoctor.facts.node import cpulist, machine
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.readings import Reading
from gpudoctor.report import ReportSubject, Subject, Unknown
from gpudoctor.sources.bundle import Bundle, HostRecording
from gpudoctor.sources.host import Host
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorded import RecordedHost
from gpudoctor.sources.host.recorder import Recorder

LOCAL = "local"
PROGRAMS = ("nvidia-smi topo -m",)
"""The only program that a live check starts, where there are GPUs: sysfs does not show NVLink."""


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
    return _reading(read_facts(Recorder(host), _subject(name), later), bundle.now)


def read_live(host_root: str | None = None) -> Reading:
    """Read this host or container, or the host whose root is mounted at `host_root`."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with LiveHost(host_root, programs=PROGRAMS) as live:
        return _reading(read_facts(Recorder(live), _subject(LOCAL)), now)


def read_facts(recorder: Recorder, subject: Subject, later: Host | None = None) -> NodeFacts:
    """Read a host through a recorder, which also knows what hung and what was refused."""
    facts = machine.read(recorder, subject, later)
    return msgspec.structs.replace(facts, stuck=recorder.stuck(), refused=recorder.refused())


def _subject(name: str) -> Subject:
    return Subject("Host" if name == LOCAL else "Node", name)


def _reading(facts: NodeFacts, observed_at: str | None) -> Reading:
    parts: tuple[object, ...] = (facts,)
    published: dict[str, Any] = {"host": published_facts(facts)}
    if facts.topology is not None:
        parts += (facts.topology,)
        published["topology"] = facts.topology.published()
    unknown = tuple(_unknown(facts))
    return Reading(
        subject=ReportSubject(facts.subject.kind, facts.subject.name),
        facts=parts,
        published=published,
        observed_at=observed_at,
        unknown=unknown,
        needed_unknown=bool(unknown),
    )


def _unknown(facts: NodeFacts) -> list[Unknown]:
    """What a verdict on any GPU host needs and this one does not say."""
    missing = []
    if not facts.gpus:
        why = "the PCI bus shows none" if facts.pci_whole else "PCI devices were not read"
        missing.append(Unknown("NVIDIA GPUs", why))
    if facts.hcas is None:
        missing.append(Unknown("RDMA devices", "/sys/class/infiniband was not read"))
    if facts.process is None or facts.process.memlock_soft is None:
        missing.append(Unknown("memlock limit", "the process's limits were not read"))
    return missing


def published_facts(facts: NodeFacts) -> dict[str, Any]:
    """Return what a report says of a host under `facts.host`."""
    process = facts.process
    cpus = process.cpus if process is not None else None
    hcas = facts.hcas or ()
    active = [port for hca in hcas for port in hca.ports if port.is_active and port.rate]
    rates = sorted({port.rate for port in active if port.rate}, reverse=True)
    return {
        "gpus": {gpu.address: {"numa": gpu.numa} for gpu in facts.gpus},
        "gpu_numa": sorted({gpu.numa for gpu in facts.own_gpus if gpu.numa is not None}),
        "pod_cpu_numa": sorted(node.number for node in facts.numa if cpus and node.cpus & cpus),
        "cpus": None if cpus is None else cpulist.render(cpus),
        "memlock_soft_bytes": process.memlock_soft if process is not None else None,
        "cap_ipc_lock": process.ipc_lock if process is not None else None,
        "shm_bytes": process.shm_bytes if process is not None else None,
        "rdma_devices": [hca.name for hca in hcas],
        "active_ports_by_rate": {
            f"{rate:g}": sum(1 for port in active if port.rate == rate) for rate in rates
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
    }
