"""Everything that is read of one machine at one time, before it is said what it means.

The files, the driver through NVML, the kubelet's socket, the kernel log, and each container with
what it uses. A reading of the host alone, of a node with its Kubernetes objects, and of a pod on
it are all made from this one look.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec

from gpudoctor.facts.node import (
    allotments,
    container_defaults,
    containers,
    kubelet_policy,
    machine,
)
from gpudoctor.facts.node import system as system_facts
from gpudoctor.facts.node.allotments import Allotment, KubeletSilence, Names
from gpudoctor.facts.node.container_defaults import ContainerDefaults
from gpudoctor.facts.node.containers import Container
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_reader import parse_gpus
from gpudoctor.facts.node.kernel_log import KernelLog
from gpudoctor.facts.node.kubelet_policy import KubeletPolicy
from gpudoctor.facts.node.model import NodeFacts, WorkloadFacts
from gpudoctor.facts.node.system import System
from gpudoctor.report import Subject, Unknown
from gpudoctor.sources import pod_resources
from gpudoctor.sources.child import Answer
from gpudoctor.sources.host import UNREAD, Host, names, text
from gpudoctor.sources.host.recorder import Recorder
from gpudoctor.sources.nvml import read_nvml
from gpudoctor.sources.system import WAITING, read_system

KERNEL_LOG = "dmesg"
_NVML, _NVML_LATE, _NVML_STUCK = "nvml", "nvml, killed", "nvml, hangs"
_NVML_DEADLINE_S = 5.0
_KUBELET = "pod-resources"
_KUBELET_DEADLINE_S = 5.0
_SYSTEM, _SYSTEM_WAITING = "system", "system waiting"
_SYSTEM_DEADLINE_S = 5.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MODULE = "/proc/driver/nvidia/version"
_BOOT = re.compile(r"^btime (\d+)$", re.MULTILINE)


class Services(msgspec.Struct, frozen=True):
    """What is asked of the live host beyond its files; `root` is where its root is mounted.

    `kubelet` asks for the pod resources: `(deadline in seconds, root) -> answer`.
    """

    root: str = ""
    kubelet: Callable[[float, str], str] = pod_resources.read_pod_resources

    @property
    def is_here(self) -> bool:
        """Whether the host is the one that we run on, with its driver's library."""
        return not self.root


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One machine. `containers` are all that its /proc shows, with the facts of those that use
    GPUs or RDMA; `gpus` is what NVML says, `given_out` what the kubelet gave to containers, each
    None where nobody asked; `silence` says that the kubelet did not answer, `unknown` what udev
    and psutil did not tell. `ties` are the containers' names by id, None if they were not seen.
    `gpus_given` has the addresses that an allotment means, None where that cannot be told, and
    `uuids` the address of each GPU by its UUID in lower case. `booted` is when it started,
    `module` what the loaded kernel module says of its version.
    """

    node: NodeFacts
    gpus: NodeGpus | Unknown | None = None
    containers: tuple[tuple[Container, WorkloadFacts | None], ...] = ()
    given_out: tuple[Allotment, ...] | Unknown | None = None
    silence: KubeletSilence | None = None
    unknown: tuple[Unknown, ...] = ()
    gpus_given: dict[Names, tuple[str, ...] | None] = {}
    uuids: dict[str, str] = {}
    ties: dict[str, Names] | None = None
    kernel_log: KernelLog | Unknown | None = None
    booted: datetime | None = None
    module: str | None = None
    policy: KubeletPolicy | str = "not read"
    defaults: ContainerDefaults | None = None


def read(
    recorder: Recorder,
    subject: Subject,
    later: Host | None = None,
    services: Services | None = None,
    told: NodeGpus | Unknown | None = None,
) -> HostFacts:
    """Read a host and the containers on it through a recorder.

    The recorder also knows what hung and what was refused. `later` is a second observation, for
    the growth of counters. `services` are asked where their files show that they are there;
    without them a recording answers in their place. `told` is what another process of this
    machine got from NVML.
    """
    is_here = services is not None and services.is_here
    with ThreadPoolExecutor(1) as pool:  # side by side: both wait for the kernel
        asked = pool.submit(read_system, _SYSTEM_DEADLINE_S) if is_here else None
        facts = machine.read(recorder, subject, later)
        system = _system(recorder, _SYSTEM, None if asked is None else asked.result())
    facts = machine.with_system(recorder, facts, system)
    recorder.read_bytes(BOOT_ID)  # by which a recording is known to be of a node
    nvml = told if told is not None and facts.gpus else None
    nvml = nvml or _nvml(recorder, subject, ask=is_here and bool(facts.gpus))
    facts = machine.with_gpus(recorder, facts, nvml if isinstance(nvml, NodeGpus) else None)
    answer = _kubelet(recorder, services)
    given_out = None if answer is None else allotments.parse(answer)
    silence = None if answer is None else allotments.silence(answer, subject)
    allotted = given_out if isinstance(given_out, tuple) else ()
    found = containers.find(recorder, allotted)
    workloads = containers.workloads(recorder, found, facts)
    refused = recorder.refused()
    concerned = facts.gpus or facts.hcas or not facts.pci_whole
    kernel_log = _kernel_log(recorder, subject) if services is None or concerned else None
    facts = msgspec.structs.replace(facts, stuck=recorder.stuck(), refused=refused)
    if facts.stuck or silence or (isinstance(nvml, NodeGpus) and nvml.hung_in):
        facts, nvml = _who_waits(recorder, facts, nvml, is_here=is_here)
    return HostFacts(
        node=facts,
        gpus=nvml,
        containers=tuple(zip(found, workloads, strict=True)),
        given_out=given_out,
        silence=silence,
        unknown=system.unknown,
        gpus_given={one.names: allotments.gpus(recorder, one, facts.mig) for one in allotted},
        uuids=allotments.addresses(recorder)[0],
        ties=allotments.names_by_id(recorder) if allotted else None,
        kernel_log=kernel_log,
        booted=_booted(recorder) if isinstance(kernel_log, KernelLog) else None,
        module=(text(recorder, _MODULE) or "").partition("\n")[0] or None,
        policy=kubelet_policy.read_policy(recorder),
        defaults=container_defaults.read(recorder, found),
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
    answer = services.kubelet(_KUBELET_DEADLINE_S, services.root)
    recorder.note(_KUBELET, answer)
    return answer


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


def _kernel_log(recorder: Recorder, subject: Subject) -> KernelLog | Unknown | None:
    """Return what the kernel's ring buffer holds of the GPUs; None where nobody looked."""
    printed = recorder.run([KERNEL_LOG])
    if isinstance(printed, str):
        from gpudoctor.facts.node.kernel_log_reader import read_kernel_log  # few hosts give one

        return read_kernel_log([printed.encode()], subject, KERNEL_LOG)
    return None if printed.errno == UNREAD else Unknown("kernel log", printed.why)


def _booted(host: Host) -> datetime | None:
    """Return when the machine started, to which the stamps of its kernel log are relative."""
    match = _BOOT.search(text(host, "/proc/stat") or "")
    return datetime.fromtimestamp(int(match[1]), UTC) if match else None
