"""A host or container, recorded or live, for `gpudoctor check` without a pod."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpudoctor.facts.kubernetes import fields
from gpudoctor.facts.node import allotments, cpulist, kernel_log, rdma
from gpudoctor.facts.node.allotments import Allotment, Names
from gpudoctor.facts.node.containers import Container
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.kernel_log import KernelLog
from gpudoctor.facts.node.model import MigDevice, NodeFacts, WorkloadFacts
from gpudoctor.facts.node.process import in_container
from gpudoctor.readings import Reading, host_facts, host_labels, kernel_time
from gpudoctor.readings.host_facts import BOOT_ID, KERNEL_LOG, HostFacts, Services
from gpudoctor.report import ReportSubject, Subject, Unknown
from gpudoctor.sources.bundle import Bundle, HostRecording
from gpudoctor.sources.host import Host, text
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorded import RecordedHost
from gpudoctor.sources.host.recorder import Recorder

LOCAL = "local"
GPUS, MEMLOCK = "NVIDIA GPUs", "memlock limit"
_SHOWN = 5
_OF_A_PROCESS = re.compile(r"^/proc/(?!1/)[0-9]+/")
PROGRAMS = ("nvidia-smi topo -m", KERNEL_LOG)
"""What a live check runs: the tool where NVML tells no NVLinks, and dmesg for the kernel log."""


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
    subject = Subject("Host" if name == LOCAL else "Node", name)
    return reading(_seen(subject, recording, bundle), bundle.now)


def _seen(subject: Subject, recording: HostRecording, bundle: Bundle) -> HostFacts:
    roots = bundle.scope.roots
    later = None
    if recording.tree_later:
        later = RecordedHost(recording.tree | recording.tree_later, roots)
    return host_facts.read(Recorder(RecordedHost(recording.tree, roots)), subject, later)


def facts_of_node(bundle: Bundle, node: str, boot_id: str) -> HostFacts | None:
    """Return what a bundle has of a node's machine, None if it is not among its hosts.

    A host that was recorded without a name is the node whose Node object tells the boot that it
    was recorded in, if what was recorded is the machine and not a container on it.
    """
    recording = bundle.hosts.get(node)
    if recording is None:
        recording = bundle.hosts.get(LOCAL)
        if recording is None or not is_node(
            RecordedHost(recording.tree, bundle.scope.roots), boot_id
        ):
            return None
    return _seen(Subject("Node", node), recording, bundle)


def is_node(host: Host, boot_id: str) -> bool:
    """Whether a tree is that of the whole machine that booted with this id.

    A container on it runs on the same boot, and shows what it was given instead of what is there.
    """
    return bool(boot_id) and text(host, BOOT_ID) == boot_id and in_container(host) is False


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
    """Read a host and the containers on it; see `host_facts.read`."""
    subject = Subject("Host" if name == LOCAL else "Node", name)
    return reading(host_facts.read(recorder, subject, later, services), observed_at)


def reading(seen: HostFacts, observed_at: str | None) -> Reading:
    """Turn what was seen of a host into a reading, with its containers as children."""
    children = tuple(
        container(one, workload, observed_at, seen.node.mig)
        for one, workload in seen.containers
        if workload is not None
    )
    facts = parts(seen, observed_at)
    needed = needs(seen)
    return Reading(
        subject=ReportSubject(seen.node.subject.kind, seen.node.subject.name),
        facts=facts,
        children=children,
        published=published(seen),
        observed_at=observed_at,
        unknown=(*needed, *aside(seen)),
        needed_unknown=bool(needed),
    )


def parts(seen: HostFacts, now: str | None) -> tuple[object, ...]:
    """Return what the checks judge of a host itself, as it is now."""
    kernel_log = kernel_time.of_machine(seen, fields.moment(now))
    known = (seen.node, seen.gpus, seen.silence, kernel_log, seen.node.topology)
    return tuple(part for part in known if part is not None and not isinstance(part, Unknown))


def published(seen: HostFacts) -> dict[str, Any]:
    """Return what a report says of a host under `facts`."""
    told: dict[str, Any] = {"host": published_facts(seen.node)}
    told["labels"] = host_labels.published(seen)
    if isinstance(seen.gpus, NodeGpus):
        told["nvml"] = seen.gpus.published()
    if seen.node.topology is not None:
        told["topology"] = seen.node.topology.published()
    if isinstance(seen.kernel_log, KernelLog):
        told["kernel"] = kernel_log.published(seen.kernel_log)
    if isinstance(seen.given_out, tuple):
        told["kubelet"] = _told(seen.given_out, _running(seen))
    return told


def _running(seen: HostFacts) -> set[Names] | None:
    """The containers of the kubelet's list that run; None where nothing ties them together."""
    if seen.ties is None:
        return None
    return {one.allotment.names for one, _ in seen.containers if one.allotment is not None}


def _told(given_out: tuple[Allotment, ...], running: set[Names] | None) -> list[dict[str, Any]]:
    """Return the kubelet's whole list; None of `running` where containers cannot be tied to it."""
    return [
        msgspec.to_builtins(one.names)
        | {"running": None if running is None else one.names in running}
        | allotments.published(one)
        for one in given_out
    ]


def container(
    found: Container,
    workload: WorkloadFacts,
    observed_at: str | None,
    mig: Sequence[MigDevice] = (),
) -> Reading:
    """Turn one container's facts into a reading."""
    unknown = []
    if workload.given is None:
        why = f"/proc/{found.pid}/root needs CAP_SYS_PTRACE"
        unknown.append(Unknown("GPUs of this container", why))
    return Reading(
        subject=ReportSubject("Container", workload.subject.name),
        facts=(workload,),
        published={
            "container": {
                "id": found.container_id,
                "pod_uid": found.pod_uid,
                **_names(found, mig),
                "pid": int(found.pid),
                "gpus": None if workload.given is None else list(workload.given),
                "rdma_devices": [
                    hca.name
                    for hca in workload.hcas or ()
                    if hca.uverbs in {node.name for node in workload.verbs or ()}
                ],
                "libraries": found.libraries,
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


def aside(seen: HostFacts) -> Iterator[Unknown]:
    """Yield what this user may not see, and a verdict can do without.

    The kernel shows the configuration space beyond 64 bytes, another user's environment and the
    files of containers to privileged users only. If they made the verdict "unknown", each run of
    a plain user and each run in a pod would end with status 3, and the status would say nothing.
    They can hide at worst a warning about this host (ACS) or the affairs of others; what could
    hide that GPUs, RDMA or locked memory do not work is in `_needed`.
    """
    facts = seen.node
    unseen = [one for one, uses in seen.containers if uses is None and one.gpu_minors is None]
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
    for part in (seen.given_out, seen.kernel_log):
        if isinstance(part, Unknown):
            yield part
    yield from seen.unknown


def needs(seen: HostFacts) -> list[Unknown]:
    """Return what a verdict on any GPU host needs and this one does not say."""
    facts = seen.node
    missing = []
    if not facts.gpus:
        why = "the PCI bus shows none" if facts.pci_whole else "PCI devices were not read"
        missing.append(Unknown(GPUS, why))
    if facts.hcas is None:
        missing.append(Unknown("RDMA devices", "/sys/class/infiniband was not read"))
    if facts.hcas and rdma.DEV in facts.refused:
        missing.append(Unknown("RDMA device nodes", f"{rdma.DEV} may not be listed"))
    if facts.process is None or (
        facts.process.memlock_soft is None and facts.process.lock_tried is None
    ):
        missing.append(Unknown(MEMLOCK, "the process's limits were not read"))
    if isinstance(seen.gpus, Unknown):
        missing.append(seen.gpus)
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
