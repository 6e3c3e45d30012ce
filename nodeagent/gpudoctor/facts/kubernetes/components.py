"""The cluster's own GPU and RDMA components: drivers, toolkits, device plugins, DRA drivers.

Found by what they are (names, container names, images, labels of DaemonSets and their pods),
since every installer names them differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.model import ContainerStatus, DaemonSet, Event, Meta, Pod
from gpudoctor.report import Subject


class Role(StrEnum):
    """What a component does, in the order in which a node needs them."""

    DRIVER = "driver"
    NETWORK_DRIVER = "network-driver"
    TOOLKIT = "container-toolkit"
    DEVICE_PLUGIN = "device-plugin"
    RDMA_PLUGIN = "rdma-device-plugin"
    DRA_DRIVER = "dra-driver"
    MIG_MANAGER = "mig-manager"
    FEATURE_DISCOVERY = "feature-discovery"
    VALIDATOR = "validator"


# The first that is found decides: a DRA driver or a feature discovery pod often has
# "device-plugin" or "driver" somewhere too.
_ROLES = (
    (Role.DRA_DRIVER, ("dra-driver", "k8s-dra", "dra-kubelet", "dra-controller")),
    (
        Role.FEATURE_DISCOVERY,
        ("gpu-feature-discovery", "node-feature-discovery", "nfd-worker", "gfd"),
    ),
    (Role.VALIDATOR, ("operator-validator", "cuda-validator", "plugin-validator")),
    (Role.MIG_MANAGER, ("mig-manager",)),
    (Role.NETWORK_DRIVER, ("mofed", "ofed-driver", "doca-driver")),
    (
        Role.RDMA_PLUGIN,
        (
            "rdma-shared", "sriov-device-plugin", "sriov-network-device-plugin", "sriovdp",
            "efa-k8s-device-plugin",
        ),
    ),
    (Role.TOOLKIT, ("container-toolkit",)),
    (
        Role.DRIVER,
        (
            "nvidia-driver", "driver-daemonset", "driver-ctr", "driver-installer", "amdgpu-driver",
            "gpu-driver",
        ),
    ),
    (
        Role.DEVICE_PLUGIN,
        (
            "device-plugin", "deviceplugin", "nvdp", "gpu-plugin", "hami-device", "volcano-vgpu",
            "habana", "neuron", "ascend", "tpu-device",
        ),
    ),
)  # fmt: skip
_WHOLE_WORDS = {"gfd": r"\bgfd\b"}
"""What is short enough to stand in the random end of a pod's name."""
_VENDOR_WORDS = (
    ("nvidia.com/", r"nvidia|nvdp|hami|volcano-vgpu"),
    ("amd.com/", r"\bamd|amdgpu|rocm"),
    ("intel.com/", r"intel|xpu|i915"),
    ("habana.ai/", r"habana|gaudi"),
    ("aws.amazon.com/", r"neuron"),
    ("google.com/", r"\btpu"),
    ("huawei.com/", r"ascend|huawei|npu"),
)


class Trouble(msgspec.Struct, frozen=True):
    """A container that is not well: `kind` is crash, image, create, init, or exit."""

    kind: str
    container: str
    reason: str
    message: str
    exit_code: int | None
    restarts: int
    field: str


class Component(msgspec.Struct, frozen=True):
    """A component: its DaemonSet if the input has it, and the pods of it that the input has.

    `held` is what was last said about each of those that have not started, such as of a volume.
    """

    role: Role
    meta: Meta
    daemon_set: DaemonSet | None
    pods: tuple[Pod, ...]
    words: str
    held: tuple[Event, ...] = ()

    @property
    def subject(self) -> Subject:
        """The DaemonSet, or the pod where no DaemonSet is known."""
        return self.meta.subject

    def on(self, node: str) -> Pod | None:
        """Return its pod on that node."""
        return next((pod for pod in self.pods if pod.node == node), None)

    def holds(self, pod: Pod) -> Event | None:
        """Return what keeps its pod from starting, None where nothing is said."""
        return next((event for event in self.held if event.about == pod.subject), None)

    def serves(self, resource: str) -> bool:
        """Whether its vendor is that of the resource; True where either is not clear."""
        named = [prefix for prefix, words in _VENDOR_WORDS if re.search(words, self.words)]
        if self.role is Role.RDMA_PLUGIN or not named:
            return True
        domain = resource.partition("/")[0]
        known = any(domain.endswith(prefix.rstrip("/")) for prefix, _ in _VENDOR_WORDS)
        return not known or any(domain.endswith(prefix.rstrip("/")) for prefix in named)


def role_of(words: str) -> Role | None:
    """Return the role that these names, images and labels speak for."""
    return next(
        (role for role, telling in _ROLES if any(_is_in(words, one) for one in telling)), None
    )


def _is_in(words: str, one: str) -> bool:
    return one in words and (one not in _WHOLE_WORDS or bool(re.search(_WHOLE_WORDS[one], words)))


def read(cluster: Cluster) -> tuple[Component, ...]:
    """Return the components of the cluster, DaemonSets first, then pods without a known one."""
    found: list[Component] = []
    for daemon_set in cluster.daemon_sets:
        words = _words(daemon_set.template)
        role = role_of(words)
        if role is not None:
            pods = tuple(
                cluster.owned_by(
                    daemon_set.meta.namespace or "default", f"DaemonSet/{daemon_set.meta.name}"
                )
            )
            held = tuple(_held(cluster, pods))
            found.append(Component(role, daemon_set.meta, daemon_set, pods, words, held))
    known = {pod.meta.short for component in found for pod in component.pods}
    found += _loose(cluster, known)
    return tuple(found)


def _loose(cluster: Cluster, known: set[str]) -> Iterable[Component]:
    for entry in cluster.pods:
        owned_otherwise = entry.owner is not None and not entry.owner.startswith("DaemonSet/")
        if owned_otherwise or f"{entry.namespace}/{entry.name}" in known:
            continue
        if entry.owner is None and role_of(entry.name) is None:
            continue
        pod = cluster.pod(entry)
        words = _words(pod)
        role = role_of(words)
        # A pod that itself asks for devices is a workload, whatever it is called.
        if role is not None and not any("/" in resource for resource in pod.requests):
            yield Component(role, pod.meta, None, (pod,), words, tuple(_held(cluster, (pod,))))


def _held(cluster: Cluster, pods: Iterable[Pod]) -> Iterator[Event]:
    for pod in pods:
        if pod.phase != "Pending" or any(status.has_run for status in pod.statuses):
            continue
        events = cluster.events_of("Pod", pod.meta.name, pod.meta.namespace, pod.meta.uid)
        said = [event for event in events if event.reason in _HOLDS]
        yield from said[-1:]


def _words(pod: Pod) -> str:
    """What a component is recognised by; init containers only wait for others and say nothing."""
    named = [pod.meta.name, *pod.meta.labels.values()]
    for container in pod.containers:
        if not container.is_init:
            named += [container.name, container.image.rpartition("/")[2]]
    return " ".join(named).lower()


def troubles(pod: Pod) -> tuple[Trouble, ...]:
    """Return what is wrong with a pod's containers, init containers first."""
    return tuple(found for status in pod.statuses if (found := _trouble(pod, status)) is not None)


_HOLDS = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_CREATE_REASONS = ("CreateContainerError", "CreateContainerConfigError", "RunContainerError")
_HOOK_REASONS = ("PostStartHookError", "PreCreateHookError", "PreStartHookError")


def _trouble(pod: Pod, status: ContainerStatus) -> Trouble | None:
    list_name = "initContainerStatuses" if status.is_init else "containerStatuses"
    field = f"status.{list_name}[{status.name}]"
    state, end = status.state, status.latest_end

    def trouble(kind: str, reason: str, message: str) -> Trouble:
        exit_code = end.exit_code if end else None
        return Trouble(kind, status.name, reason, message, exit_code, status.restarts, field)

    if state.kind == "waiting" and state.reason in _IMAGE_REASONS:
        return trouble("image", state.reason, state.message)
    if state.kind == "waiting" and state.reason in _CREATE_REASONS:
        return trouble("create", state.reason, state.message)
    if state.kind == "waiting" and state.reason in _HOOK_REASONS:
        return trouble("crash", state.reason, state.message)
    failed = end is not None and end.exit_code not in (0, None)
    if state.kind == "waiting" and state.reason == "CrashLoopBackOff":
        return trouble("crash", state.reason, end.message if end else state.message)
    if failed and end is not None and (state.kind == "terminated" or status.restarts):
        return trouble("exit", end.reason, end.message)
    if status.is_init and state.kind == "running" and not _is_sidecar(pod, status.name):
        return trouble("init", "still running", "")
    return None


def _is_sidecar(pod: Pod, name: str) -> bool:
    container = pod.container(name)
    return container is not None and container.is_sidecar
