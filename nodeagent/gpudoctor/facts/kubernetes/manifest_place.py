"""A manifest beside a live cluster: the nodes, quotas, runtime classes and pools it would meet.

What runs there now is left out: a queue or the end of another job makes room, nothing makes a
node larger.
"""

from __future__ import annotations

from decimal import Decimal

import msgspec

from gpudoctor.facts.kubernetes import fields, parse, placement, quotas
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.manifests import Manifest
from gpudoctor.facts.kubernetes.model import Pod
from gpudoctor.facts.kubernetes.placement import NodeFit
from gpudoctor.facts.kubernetes.quotas import ResourceQuota
from gpudoctor.publish.names import NAMESPACE, POOLS
from gpudoctor.report import Evidence


class Pools(msgspec.Struct, frozen=True):
    """What the policy gpudoctor-pools goes by: None for what its ConfigMap does not limit."""

    gpus_per_node: Decimal | None
    offers: frozenset[str] | None
    path: str


class PlacedManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest with what the cluster would have for it.

    `fits` has every node with all that it can give, None where nodes were not read, and
    `runtime_classes` the names of those that exist, None likewise.
    """

    manifest: Manifest
    fits: tuple[NodeFit, ...] | None = None
    runtime_classes: frozenset[str] | None = None
    quotas: tuple[ResourceQuota, ...] = ()
    pools: Pools | None = None

    @property
    def pod(self) -> Pod:
        """The pod that the template makes."""
        return self.manifest.pod


def read(cluster: Cluster, manifest: Manifest, namespace: str | None) -> PlacedManifest:
    """Put the manifest beside the cluster; `namespace` holds for one that names none."""
    pod = _with_runtime_class(cluster, manifest.pod)
    classes = cluster.of_kind("node.k8s.io", "RuntimeClass")
    return PlacedManifest(
        manifest=manifest,
        fits=tuple(placement.fit(pod, node, ()) for node in cluster.nodes.values())
        if cluster.scope.has_all("Node")
        else None,
        runtime_classes=frozenset(fields.text(one, "metadata", "name") or "" for one in classes)
        if cluster.scope.has_all("RuntimeClass")
        else None,
        quotas=quotas.read(
            cluster.of_kind("", "ResourceQuota"), manifest.pod.meta.namespace or namespace
        ),
        pools=_pools(cluster),
    )


def _with_runtime_class(cluster: Cluster, pod: Pod) -> Pod:
    """Add the tolerations and selectors that the API server adds of the pod's RuntimeClass."""
    if pod.runtime_class is None:
        return pod
    found = cluster.one("node.k8s.io", "RuntimeClass", pod.runtime_class, None)
    if found is None:
        return pod
    added = parse.pod({"spec": fields.mapping(found, "scheduling")})
    return msgspec.structs.replace(
        pod,
        tolerations=(*pod.tolerations, *added.tolerations),
        node_selector=pod.node_selector | added.node_selector,
    )


def _pools(cluster: Cluster) -> Pools | None:
    found = cluster.one("", "ConfigMap", POOLS, NAMESPACE)
    if found is None:
        return None
    data = fields.text_map(found, "data")
    offers = data.get("offers")
    return Pools(
        gpus_per_node=fields.quantity(data.get("gpusPerNode")),
        offers=None if offers is None else frozenset(offers.split(",")),
        path=f"ConfigMap/{NAMESPACE}/{POOLS}",
    )


def evidence(pools: Pools, key: str, value: str) -> Evidence:
    """Return what the pools' ConfigMap says under a key."""
    return Evidence(pools.path, f"data.{key}", value)
