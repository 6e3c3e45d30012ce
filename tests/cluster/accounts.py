"""Service accounts with the roles that the project ships, whole or with one right taken away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.control_plane import ControlPlane

RBAC = Path(__file__).parents[2] / "daemonset" / "manifests" / "rbac"
_GROUP = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Right:
    """One verb on one resource of a group."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


def shipped(name: str) -> frozenset[Right]:
    """The rights of a role that the project ships: `pod-owner` or `operator`."""
    role = yaml.safe_load((RBAC / f"{name}.yaml").read_text())
    return frozenset(
        Right(group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def kubeconfig_with(
    control_plane: ControlPlane,
    admin: Admin,
    namespace: str,
    name: str,
    rights: Iterable[Right],
    *,
    cluster_wide: bool,
) -> Path:
    """Make an account that has these rights, in its namespace or everywhere; its kubeconfig."""
    granted = list(rights)
    for manifest in _manifests(namespace, name, granted, cluster_wide):
        admin.create(manifest)
    wait_until_granted(admin, namespace, name, granted[-1])
    token = admin.token(namespace, name)
    return control_plane.write_kubeconfig(f"{namespace}-{name}", {"token": token}, namespace)


def wait_until_granted(admin: Admin, namespace: str, name: str, right: Right) -> None:
    """Wait until the authorizer has seen the binding."""
    wait_for(f"rights of {name}", lambda: _may(admin, namespace, name, right))


def _manifests(
    namespace: str, name: str, rights: Iterable[Right], cluster_wide: bool
) -> Iterator[JSON]:
    prefix = "Cluster" if cluster_wide else ""
    bound_name = f"{namespace}-{name}"
    metadata: JSON = {"name": bound_name} | ({} if cluster_wide else {"namespace": namespace})
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
    }
    yield {
        "apiVersion": f"{_GROUP}/v1",
        "kind": f"{prefix}Role",
        "metadata": metadata,
        "rules": [
            {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}
            for right in rights
        ],
    }
    yield {
        "apiVersion": f"{_GROUP}/v1",
        "kind": f"{prefix}RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _GROUP, "kind": f"{prefix}Role", "name": bound_name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def _may(admin: Admin, namespace: str, name: str, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    review = admin.create(
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{name}",
                "resourceAttributes": {
                    "namespace": namespace,
                    "group": right.group,
                    "resource": resource,
                    "subresource": subresource,
                    "verb": right.verb,
                },
            },
        }
    )
    return bool(review["status"]["allowed"])
