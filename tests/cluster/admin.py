"""What the tests do to the cluster: create objects, write their status, and wait for a condition.

Plain requests with the administrator's certificate, so that nothing under test arranges its own
test.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import requests

from tests.cluster.control_plane import ControlPlane

JSON = dict[str, Any]
T = TypeVar("T")

WAIT_SECONDS = 30.0
_TIMEOUT_SECONDS = 30.0
_DELETE_ALL_SECONDS = 300
"""The server deletes one after the other: 3,000 pods take it a minute on a busy machine."""

_NAMESPACED = {
    "ConfigMap": "configmaps",
    "DaemonSet": "daemonsets",
    "Diagnosis": "diagnoses",
    "Deployment": "deployments",
    "Event": "events",
    "Job": "jobs",
    "JobSet": "jobsets",
    "LeaderWorkerSet": "leaderworkersets",
    "Lease": "leases",
    "LimitRange": "limitranges",
    "NetworkPolicy": "networkpolicies",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "ResourceQuota": "resourcequotas",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "StatefulSet": "statefulsets",
}
_CLUSTER_WIDE = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "CustomResourceDefinition": "customresourcedefinitions",
    "DeviceClass": "deviceclasses",
    "DeviceTaintRule": "devicetaintrules",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "Namespace": "namespaces",
    "Node": "nodes",
    "PersistentVolume": "persistentvolumes",
    "PriorityClass": "priorityclasses",
    "ResourceSlice": "resourceslices",
    "RuntimeClass": "runtimeclasses",
    "StorageClass": "storageclasses",
    "SubjectAccessReview": "subjectaccessreviews",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


class Admin:
    """The cluster administrator. Each method raises requests.HTTPError with the server's words."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._url = control_plane.url
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = str(control_plane.authority)
        certificate, key = control_plane.admin_certificate
        self._session.cert = (str(certificate), str(key))

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def create(self, manifest: JSON) -> JSON:
        """Create the object, with its status where the manifest has one."""
        created = self._send("POST", _collection(manifest), manifest)
        if "status" in manifest:
            created = self.set_status(created, manifest["status"])
        return created

    def try_create(self, manifest: JSON, *, strict: bool = False) -> requests.Response:
        """What the server would answer to the creation, by a dry run: nothing is kept.

        `strict` has it refuse fields that it does not know.
        """
        path = f"{_collection(manifest)}?dryRun=All{'&fieldValidation=Strict' * strict}"
        return self._request("POST", path, manifest, "json")

    def set_status(self, manifest: JSON, status: JSON) -> JSON:
        """Merge this into the object's status, as its kubelet or controller would."""
        return self._send(
            "PATCH", f"{_path(manifest)}/status", {"status": status}, "merge-patch+json"
        )

    def merge(self, manifest: JSON, change: JSON) -> JSON:
        """Merge this into the object."""
        return self._send("PATCH", _path(manifest), change, "merge-patch+json")

    def get(self, manifest: JSON) -> JSON:
        """Read the object again."""
        return self._send("GET", _path(manifest))

    def exists(self, manifest: JSON) -> bool:
        """Whether the object is there."""
        return self._request("GET", _path(manifest), None, "json").status_code != 404

    def list(self, api_version: str, kind: str, namespace: str = "", **query: str) -> list[JSON]:
        """All objects of a kind, in one namespace where one is given."""
        of = {"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace}}
        query_string = "&".join(f"{key}={value}" for key, value in query.items())
        items: list[JSON] = self._send("GET", f"{_collection(of)}?{query_string}")["items"]
        return items

    def delete(self, manifest: JSON) -> None:
        """Delete the object at once, without the grace that only a kubelet would end."""
        body = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        response = self._request("DELETE", _path(manifest), body, "json")
        if response.status_code != 404:
            _raise(response)

    def delete_all(self, api_version: str, kind: str, namespace: str) -> None:
        """Delete all objects of the kind in the namespace, in one request, however many."""
        of = {"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace}}
        body = {"gracePeriodSeconds": 0}
        _raise(self._request("DELETE", _collection(of), body, "json", _DELETE_ALL_SECONDS))

    def token(
        self, namespace: str, account: str, seconds: int = 3600, pod: JSON | None = None
    ) -> str:
        """A token of the service account; the server gives none for less than 600 s.

        Bound to a pod, as the kubelet asks for it, it has the pod's node in it.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        spec: JSON = {"expirationSeconds": seconds}
        if pod is not None:
            reference = {key: pod["metadata"][key] for key in ("name", "uid")}
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **reference}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token: str = self._send("POST", path, body)["status"]["token"]
        return token

    def _send(self, method: str, path: str, body: JSON | None = None, media: str = "json") -> JSON:
        response = self._request(method, path, body, media)
        _raise(response)
        answer: JSON = response.json()
        return answer

    def _request(
        self,
        method: str,
        path: str,
        body: JSON | None,
        media: str,
        seconds: float = _TIMEOUT_SECONDS,
    ) -> requests.Response:
        return self._session.request(
            method,
            self._url + path,
            json=body,
            headers={"Content-Type": f"application/{media}"},
            timeout=seconds,
        )


def wait_for(what: str, ask: Callable[[], T | None], seconds: float = WAIT_SECONDS) -> T:
    """Ask until the answer is true; AssertionError names what did not happen in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"within {seconds:.0f} s: no {what}")
        time.sleep(0.05)


def _raise(response: requests.Response) -> None:
    if not response.ok:
        raise requests.HTTPError(
            f"{response.request.method} {response.url}: {response.text}", response=response
        )


def _path(manifest: JSON) -> str:
    return f"{_collection(manifest)}/{manifest['metadata']['name']}"


def _collection(manifest: JSON) -> str:
    version, kind = manifest["apiVersion"], manifest["kind"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if kind in _CLUSTER_WIDE:
        return f"{root}/{_CLUSTER_WIDE[kind]}"
    namespace = manifest["metadata"].get("namespace")
    return f"{root}/namespaces/{namespace}/{_NAMESPACED[kind]}" if namespace else (
        f"{root}/{_NAMESPACED[kind]}"
    )  # fmt: skip
