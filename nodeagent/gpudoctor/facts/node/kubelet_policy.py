"""The kubelet's resource managers, from its configuration file on the node.

KubeletConfiguration (kubelet.config.k8s.io/v1beta1), where kubeadm and most distributions keep
it. What the file does not say has the kubelet's default, "none".
"""

from __future__ import annotations

from typing import Any

import msgspec

from gpudoctor.sources.host import Host, Missing, read

PATH = "/var/lib/kubelet/config.yaml"
_THROUGH_INIT = f"/proc/1/root{PATH}"
"""The same file where the host's /proc is mounted and the rest of it is not, as for the agent."""
_DEFAULT = "none"
_NUMA_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


class KubeletPolicy(msgspec.Struct, frozen=True):
    """Policies of the topology manager and of the CPU manager."""

    topology: str
    cpu: str

    @property
    def aligns(self) -> bool:
        """Whether a pod that cannot have all on one NUMA node is refused, and CPUs are pinned."""
        return self.topology in ("restricted", "single-numa-node") and self.cpu == "static"


def read_policy(host: Host) -> KubeletPolicy | str:
    """Return the kubelet's policies, or why they are not known."""
    content = read(host, PATH)
    if isinstance(content, Missing):
        why = f"{PATH}: {content.why}"
        content = read(host, _THROUGH_INIT)
        if isinstance(content, Missing):
            return why
    document = _decode(content)
    if not isinstance(document, dict) or document.get("kind") != "KubeletConfiguration":
        return f"{PATH} is no KubeletConfiguration"
    topology, cpu = (
        document.get(field) or _DEFAULT for field in ("topologyManagerPolicy", "cpuManagerPolicy")
    )
    if topology not in _NUMA_POLICIES or not isinstance(cpu, str):
        return f"{PATH}: topologyManagerPolicy {topology!r}, cpuManagerPolicy {cpu!r}"
    return KubeletPolicy(topology, cpu)


def _decode(content: str) -> Any:
    import yaml  # imported late: only nodes of a cluster have the file

    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
