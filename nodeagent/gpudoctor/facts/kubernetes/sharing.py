"""How GPUs are cut and shared around one pod: MIG, time-slicing, MPS, HAMi, Volcano vGPU.

Source: k8s-device-plugin and GPU Feature Discovery (resource names and labels), mig-parted's
manager (mig.config.state), HAMi, Volcano; facts by node are those of the nodes that the pod
could go to, or of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gpudoctor.facts.kubernetes import quotas, vgpu
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.model import Event, Pod, Resources, Scope
from gpudoctor.facts.kubernetes.placement import NodeFit
from gpudoctor.facts.kubernetes.quotas import ResourceQuota
from gpudoctor.facts.kubernetes.resources import is_accounting, is_gpu
from gpudoctor.facts.kubernetes.situation import PodLogLine, PodSituation, SchedulingFailure
from gpudoctor.facts.kubernetes.vgpu import CardNode, CardRefusal, Slice
from gpudoctor.report import Evidence

PRODUCT = "nvidia.com/gpu.product"
MIG_CONFIG = "nvidia.com/mig.config"
MIG_STATE = "nvidia.com/mig.config.state"
MIG_STRATEGY = "nvidia.com/mig.strategy"
_NVIDIA = re.compile(r"nvidia\.com/(gpu|mig-[\w.]+?)(\.shared)?")
# As text: re compiles, once, what there is a message for.
_SHARED_LIMIT = (
    r"(?s)(?:request for \"?(?P<resource>[\w./-]+)\"?.*?)?"
    r"maximum request size for shared resources is "
    r"(?P<most>\d+); found (?P<found>\d+)"
)
_RESOURCE_OF_REQUEST = r"allocation request for \"(?P<resource>[\w./-]+)\""
_SUFFIX = r"(-SHARED|-MIG-\d[\w.+]*)+$"
_MEMORY_FLAG = (
    r"--(?:gpu-memory-utilization|mem-fraction-static|kv-cache-free-gpu-mem-fraction)[= ]"
    r"(?P<value>[\d.]+)"
)
_TOTAL = (
    r"total capac(?:ity|ty) of (?P<torch>[\d.]+) GiB|\([\d.]+/(?P<vllm>[\d.]+) GiB\)"
    r"|; (?P<old>[\d.]+) GiB total capacity"
)


class SharedLimit(msgspec.Struct, frozen=True):
    """The device plugin's refusal of a request for several replicas, with where it stands."""

    resource: str
    count: int
    path: str
    field: str
    text: str


class EngineMemory(msgspec.Struct, frozen=True):
    """What the pod's log says about the GPU memory that its engine sees.

    `oom` are lines of an allocation that failed, `hook` those of the slicing library, which
    name the slice's limit in bytes; `total_gib` is the card as the process sees it.
    """

    hook: tuple[PodLogLine, ...] = ()
    oom: tuple[PodLogLine, ...] = ()
    total_gib: float | None = None
    fraction: str | None = None
    fraction_field: str = ""


class SharingSituation(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that asks for GPUs and how the nodes around it cut and name theirs.

    `fits` are the nodes that matter: all for a pod without a node, else its own.
    `wanted` are the accelerator keys it asks for, `slices` what it asks of an extender.
    """

    pod: Pod
    wanted: Resources
    fits: tuple[NodeFit, ...] = ()
    nodes_missing: int = 0
    failure: SchedulingFailure | None = None
    events: tuple[Event, ...] = ()
    slices: tuple[Slice, ...] = ()
    registered: tuple[CardNode, ...] = ()
    refusals: tuple[CardRefusal, ...] = ()
    unregistered: Evidence | None = None
    quotas: tuple[ResourceQuota, ...] = ()
    shared_limit: SharedLimit | None = None
    memory: EngineMemory = EngineMemory()
    scope: Scope = Scope()
    waits_seconds: float | None = None

    @property
    def pending(self) -> bool:
        """Whether the pod waits for a node, past any gate."""
        pod = self.pod
        return not pod.node and not pod.gates and pod.phase in ("", "Pending")


def read(cluster: Cluster, situation: PodSituation) -> SharingSituation | None:
    """Return what sharing has to do with this pod, None for a pod that asks for no GPU."""
    pod = situation.pod
    wanted = {r: a for r, a in pod.requests.items() if a > 0 and (is_gpu(r) or is_accounting(r))}
    if not wanted:
        return None
    failure = situation.failure
    created = pod.meta.created
    return SharingSituation(
        pod=pod,
        wanted=wanted,
        fits=situation.fits,
        nodes_missing=situation.nodes_missing,
        failure=failure,
        events=situation.events,
        slices=vgpu.slices(pod),
        registered=tuple(
            found for fit in situation.fits if (found := vgpu.register(fit.node)) is not None
        ),
        refusals=vgpu.refusals(situation.events, failure.raw if failure else ""),
        unregistered=_unregistered(situation),
        quotas=quotas.read(cluster.of_kind("", "ResourceQuota"), pod.meta.namespace),
        shared_limit=_shared_limit(situation),
        memory=_engine_memory(situation),
        scope=cluster.scope,
        waits_seconds=(cluster.now - created).total_seconds() if cluster.now and created else None,
    )


def family(resource: str) -> str | None:
    """Return `gpu` or the MIG profile that a key of the NVIDIA plugin counts, None for others."""
    match = _NVIDIA.fullmatch(resource)
    return match[1] if match else None


def bare_product(product: str) -> str:
    """Return a product label without what sharing appends to it."""
    return re.sub(_SUFFIX, "", product)


def _unregistered(situation: PodSituation) -> Evidence | None:
    """Where an extender says that it knows no card of the nodes."""
    for event in reversed(situation.events):
        if vgpu.says_unregistered(event.message):
            return Evidence(event.path, event.reason, event.message)
    failure = situation.failure
    if failure is not None and vgpu.says_unregistered(failure.raw):
        return failure.evidence
    return None


def _shared_limit(situation: PodSituation) -> SharedLimit | None:
    for path, field, text in _texts(situation):
        match = re.search(_SHARED_LIMIT, text)
        if match and len(match["found"]) < 10:
            named = match["resource"] or next(iter(re.findall(_RESOURCE_OF_REQUEST, text)), None)
            return SharedLimit(
                named or _first_gpu(situation.pod), int(match["found"]), path, field, text
            )
    return None


def _first_gpu(pod: Pod) -> str:
    return next((resource for resource in pod.requests if is_gpu(resource)), "GPUs")


def _texts(situation: PodSituation) -> Iterator[tuple[str, str, str]]:
    """Where a refusal of the kubelet or the runtime can stand, the pod's own status first."""
    pod = situation.pod
    yield pod.meta.path, f"status.message ({pod.reason})", pod.message
    for status in pod.statuses:
        field = f"status.containerStatuses[{status.name}].state"
        yield pod.meta.path, field, status.state.message
    for event in reversed(situation.events):
        yield event.path, event.reason, event.message


def _engine_memory(situation: PodSituation) -> EngineMemory:
    oom = situation.lines_of("gpu-oom")
    totals = [
        float(found)
        for line in (*situation.lines_of("engine-total-memory"), *oom)
        for match in re.finditer(_TOTAL, line.line.text)
        if (found := next((value for value in match.groups() if value), None))
        and found.replace(".", "", 1).isdigit()
    ]
    fraction, field = _fraction(situation.pod)
    return EngineMemory(
        hook=situation.lines_of("hami-oom"),
        oom=oom,
        total_gib=totals[-1] if totals else None,
        fraction=fraction,
        fraction_field=field,
    )


def _fraction(pod: Pod) -> tuple[str | None, str]:
    """Return the engine's memory fraction as it is written in command or args, and the field."""
    place = -1
    for container in pod.containers:
        if container.is_init:
            continue
        place += 1
        for name, words in (("args", container.args), ("command", container.command)):
            match = re.search(_MEMORY_FLAG, " ".join(words))
            if match:
                return match["value"], f"spec.containers[{place}].{name}"
    return None, ""
