"""Examples and policies against the real API server, which takes no field that it does not know."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.test_injection import first_line
from tests.cluster.test_scheduler_truth import version

pytestmark = pytest.mark.cluster

DAEMONSET = Path(__file__).parents[2] / "daemonset"
NAMESPACE = "examples"
FILES = sorted([*DAEMONSET.glob("examples/*.yaml"), *DAEMONSET.glob("manifests/policies/*.yaml")])


def _pods_of(obj: JSON) -> Iterator[JSON]:
    """A RayCluster's pods: its operator is not here, its templates are the server's own kind."""
    spec = obj["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        template = copy.deepcopy(group["template"])
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "ray"} | template.get("metadata", {}),
            "spec": template["spec"],
        }


def objects() -> Iterator[object]:
    for file in FILES:
        for obj in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            # Kueue's own kinds are of Kueue's server.
            if obj["apiVersion"].startswith("kueue"):
                continue
            for one in _pods_of(obj) if obj["kind"] == "RayCluster" else [obj]:
                name = one["metadata"]["name"]
                yield pytest.param(one, id=f"{file.stem}-{one['kind']}-{name}")


@pytest.fixture(scope="module")
def namespace(admin: Admin) -> Iterator[str]:
    made = admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": NAMESPACE},
    }
    wait_for("default service account", lambda: admin.exists(account))
    yield NAMESPACE
    admin.delete(made)


@pytest.mark.parametrize("obj", list(objects()))
def test_the_server_takes_it_to_the_letter(
    admin: Admin, namespace: str, line: str, obj: JSON
) -> None:
    since = first_line(obj)
    if version(line) < version(since):
        pytest.skip(f"served from Kubernetes {since} on")
    placed = copy.deepcopy(obj)
    if obj["kind"] in ("Pod", "Job", "Service", "Secret", "ConfigMap", "NetworkPolicy"):
        placed["metadata"]["namespace"] = namespace
    answer = admin.try_create(placed, strict=True)
    assert answer.ok, answer.text
    assert "Warning" not in answer.headers, answer.headers["Warning"]


def test_a_wrong_field_is_not_taken(admin: Admin, namespace: str) -> None:
    wrong = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "t", "namespace": namespace},
        "spec": {"clusterIP": "None", "publishNotReadyAdresses": True},
    }
    answer = admin.try_create(wrong, strict=True)
    assert answer.status_code == 400
    assert "publishNotReadyAdresses" in answer.text
