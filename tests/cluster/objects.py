"""Manifests as a person, a kubelet or a driver writes them, small, for the real API server."""

from __future__ import annotations

from typing import Any

from tests.cluster.admin import JSON

GPU = "nvidia.com/gpu"
DRA_DRIVER = "gpu.nvidia.com"
DRA = "resource.k8s.io/v1"
ZONE = "topology.kubernetes.io/zone"


def node(
    name: str,
    *,
    gpus: int | None = None,
    healthy: int | None = None,
    labels: JSON | None = None,
    taints: list[JSON] | None = None,
    cordoned: bool = False,
    ready: bool = True,
    offers: JSON | None = None,
) -> JSON:
    """A node with 64 CPUs; `gpus` in capacity, `healthy` of them (all) in allocatable.

    `offers` adds to both maps or replaces what is in them.
    """
    common = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    common |= offers or {}
    capacity = common | ({} if gpus is None else {GPU: str(gpus)})
    allocatable = common | (
        {} if gpus is None else {GPU: str(gpus if healthy is None else healthy)}
    )
    spec: JSON = {"taints": taints or []}
    if cordoned:
        spec["unschedulable"] = True
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "False",
                    "reason": "KubeletReady" if ready else "KubeletNotReady",
                    "message": "kubelet is posting ready status"
                    if ready
                    else "container runtime network not ready",
                }
            ],
        },
    }


def hardware(product: str = "NVIDIA-H100-80GB-HBM3", count: int = 8) -> JSON:
    """The labels of GPU feature discovery."""
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.product": product,
        "feature.node.kubernetes.io/pci-10de.present": "true",
    }


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> JSON:
    """A taint of a node or a device."""
    return {"key": key, "value": value, "effect": effect}


def pod(
    name: str = "train-0",
    *,
    limits: JSON | None = None,
    on: str | None = None,
    labels: JSON | None = None,
    container: JSON | None = None,
    **spec: Any,
) -> JSON:
    """A pod of one container, bound and running where `on` names a node."""
    main = {
        "name": "main",
        "image": "example.com/train:1",
        "resources": {"limits": limits or {}},
    } | (container or {})
    manifest: JSON = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [main]} | spec,
    }
    if on is not None:
        manifest["spec"]["nodeName"] = on
        manifest["status"] = {"phase": "Running"}
    return manifest


def gpu_pod(count: int = 1, name: str = "train-0", **more: Any) -> JSON:
    """A pod that asks for whole GPUs of the device plugin."""
    return pod(name, limits={GPU: str(count)}, **more)


def busy(node_name: str, gpus: int, **more: Any) -> JSON:
    """A running pod that holds GPUs of a node."""
    return gpu_pod(gpus, f"holds-{node_name}", on=node_name, **more)


def elsewhere(manifest: JSON) -> JSON:
    """The same object in the namespace `default` instead of the situation's own."""
    return manifest | {"metadata": manifest["metadata"] | {"namespace": "default"}}


def device_class(name: str = DRA_DRIVER, **spec: Any) -> JSON:
    """A class of all devices of the NVIDIA driver."""
    selector = {"cel": {"expression": f"device.driver == '{DRA_DRIVER}'"}}
    return {
        "apiVersion": DRA,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [selector]} | spec,
    }


def device(name: str, product: str = "NVIDIA A100-SXM4-80GB", **more: Any) -> JSON:
    """A GPU as the DRA driver publishes it."""
    attributes = {"type": {"string": "gpu"}, "productName": {"string": product}}
    return {"name": name, "attributes": attributes} | more


def resource_slice(node_name: str, devices: list[JSON], slices: int = 1) -> JSON:
    """One slice of the node's pool, which is complete when all of its `slices` are there."""
    return {
        "apiVersion": DRA,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-{DRA_DRIVER}"},
        "spec": {
            "driver": DRA_DRIVER,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": slices},
            "devices": devices,
        },
    }


def claim(name: str = "gpus", device_class_name: str = DRA_DRIVER, **exactly: Any) -> JSON:
    """A claim of one device of a class."""
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class_name} | exactly}
    return {
        "apiVersion": DRA,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def claiming_pod(name: str = "train-0", claim_name: str = "gpus", **more: Any) -> JSON:
    """A pod that uses a claim."""
    return pod(
        name,
        container={"resources": {"claims": [{"name": "gpu"}]}},
        resourceClaims=[{"name": "gpu", "resourceClaimName": claim_name}],
        **more,
    )


def volume(name: str, zone: str) -> JSON:
    """A volume that only nodes of one zone can mount, kept for the claim `data`."""
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": name,
            "csi": {"driver": "disk.example.com", "volumeHandle": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }


def volume_claim(storage_class: str, name: str = "data") -> JSON:
    """A claim of a volume of that class."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "10Gi"}},
        },
    }


def mounts(claim_name: str = "data") -> list[JSON]:
    """The volumes of a pod that uses that claim."""
    return [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]


def priority_class(name: str, value: int) -> JSON:
    """A priority; higher ones preempt lower ones."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }
