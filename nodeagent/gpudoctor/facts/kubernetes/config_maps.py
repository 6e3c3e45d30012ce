"""Configuration that lies in ConfigMaps: kubelet policies and RDMA device plugin pools.

Recognised by their content, since each installer names them differently. Formats:
KubeletConfiguration (kubelet.config.k8s.io/v1beta1) as kubeadm stores it; `configList` of
k8s-rdma-shared-dev-plugin and `resourceList` of the SR-IOV network device plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from gpudoctor.facts.kubernetes import fields
from gpudoctor.facts.kubernetes.fields import JsonObject

_MAX_CHARS = 256 * 1024


class RdmaPool(msgspec.Struct, frozen=True):
    """A pool of an RDMA or SR-IOV device plugin: resource name without prefix, and selectors."""

    config_map: str
    key: str
    name: str
    prefix: str | None
    selectors: str


class KubeletConfig(msgspec.Struct, frozen=True):
    """A kubelet's resource managers."""

    config_map: str
    key: str
    topology_policy: str
    topology_scope: str
    cpu_policy: str


def rdma_pools(config_maps: Iterable[JsonObject]) -> tuple[RdmaPool, ...]:
    """Return the pools of every RDMA or SR-IOV device plugin configuration."""
    return tuple(
        RdmaPool(
            config_map=path,
            key=key,
            name=fields.text(pool, "resourceName") or "",
            prefix=fields.text(pool, "resourcePrefix"),
            selectors=msgspec.json.encode({"selectors": pool.get("selectors")}).decode(),
        )
        for path, key, document in _documents(config_maps, "configList", "resourceList")
        for name in ("configList", "resourceList")
        for pool in fields.objects(document, name)
    )


def kubelet_configs(config_maps: Iterable[JsonObject]) -> tuple[KubeletConfig, ...]:
    """Return the kubelet configurations."""
    return tuple(
        KubeletConfig(
            config_map=path,
            key=key,
            topology_policy=fields.text(document, "topologyManagerPolicy") or "none",
            topology_scope=fields.text(document, "topologyManagerScope") or "container",
            cpu_policy=fields.text(document, "cpuManagerPolicy") or "none",
        )
        for path, key, document in _documents(config_maps, "KubeletConfiguration")
    )


def _documents(
    config_maps: Iterable[JsonObject], *words: str
) -> Iterator[tuple[str, str, JsonObject]]:
    """Yield ConfigMap path, data key and the decoded content of what mentions one of the words."""
    for config_map in config_maps:
        namespace = fields.text(config_map, "metadata", "namespace") or ""
        name = fields.text(config_map, "metadata", "name") or ""
        for key, content in fields.text_map(config_map, "data").items():
            if len(content) <= _MAX_CHARS and any(word in content for word in words):
                decoded = _decode(content)
                if isinstance(decoded, dict):
                    yield f"ConfigMap/{namespace}/{name}", key, decoded


def _decode(content: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        pass
    import yaml  # imported late: few inputs need it and it is slow to start

    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
