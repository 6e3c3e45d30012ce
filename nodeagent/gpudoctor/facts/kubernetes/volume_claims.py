"""The PersistentVolumeClaims of a pod: whether they are bound, and what is said of those that are
not.
"""

from __future__ import annotations

from gpudoctor.facts.kubernetes import fields, parse
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.model import Pod, VolumeClaim


def read(cluster: Cluster, pod: Pod) -> tuple[VolumeClaim, ...]:
    """Return the claims of the pod's volumes that are in the input."""
    names = dict.fromkeys(volume.claim for volume in pod.volumes if volume.claim)
    found = []
    for name in names:
        obj = cluster.one("", "PersistentVolumeClaim", name, pod.meta.namespace)
        if obj is None:
            continue
        said = cluster.events_of("PersistentVolumeClaim", name, pod.meta.namespace)
        found.append(
            VolumeClaim(
                meta=parse.meta(obj),
                phase=fields.text(obj, "status", "phase") or "",
                storage_class=fields.text(obj, "spec", "storageClassName") or "",
                modes=fields.texts(obj, "spec", "accessModes"),
                said=said[-1] if said else None,
            )
        )
    return tuple(found)
