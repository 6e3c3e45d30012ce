"""CustomResourceDefinitions with the fields of JobSet and LeaderWorkerSet that policies read.

The pod templates are open, as those of the real ones nearly are: what a policy reads in them it
must find by itself.
"""

from __future__ import annotations

from tests.cluster.admin import JSON

_OPEN: JSON = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_NUMBER: JSON = {"type": "integer", "format": "int32"}


def _list(**fields: JSON) -> JSON:
    return {"type": "array", "items": _object(**fields)}


def _object(**fields: JSON) -> JSON:
    return {"type": "object", "properties": fields}


def _definition(group: str, version: str, kind: str, plural: str, spec: JSON) -> JSON:
    schema = _object(
        apiVersion={"type": "string"}, kind={"type": "string"}, metadata={"type": "object"},
        spec=spec,
    )  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # Groups of sigs.k8s.io want a reviewed or declared API.
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's own"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List",
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }  # fmt: skip


JOB_SET = _definition(
    "jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets",
    _object(replicatedJobs=_list(
        name={"type": "string"},
        replicas=_NUMBER | {"default": 1},
        template=_object(
            metadata=_OPEN, spec=_OPEN,
        ),
    )),
)  # fmt: skip
LEADER_WORKER_SET = _definition(
    "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets",
    _object(
        replicas=_NUMBER | {"default": 1},
        startupPolicy={"type": "string", "default": "LeaderCreated"},
        leaderWorkerTemplate=_object(
            size=_NUMBER | {"default": 1},
            leaderTemplate=_object(metadata=_OPEN, spec=_OPEN),
            workerTemplate=_object(metadata=_OPEN, spec=_OPEN),
        ),
    ),
)  # fmt: skip
