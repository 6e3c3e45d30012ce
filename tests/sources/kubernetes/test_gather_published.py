"""What agents published is asked for where there is an agent, within the budget, and recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gpudoctor.sources import bundle as bundles
from gpudoctor.sources.kubernetes import gather, published
from gpudoctor.sources.kubernetes.access import Access, Cluster, Fixed
from gpudoctor.sources.kubernetes.client import Client
from tests.sources.kubernetes.api_server import UNSERVED, ApiServer, serving
from tests.sources.kubernetes.test_gather import World, event, names, node, paths, pod, running

HEALTHY = {"type": "gpudoctor.io/Healthy", "status": "True", "reason": "Healthy"}
VERSION = "gpudoctor.io/v1alpha1"
ASKED_FOR_POD = f"{VERSION}/namespaces/ml/diagnoses/pod-trainer-0"
ASKED_FOR_NODE = f"{VERSION}/namespaces/gpudoctor/diagnoses/node-n1"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with serving(lambda _: UNSERVED) as server:
        yield server


@pytest.fixture
def client(api: ApiServer) -> Iterator[Client]:
    access = Access(cluster=Cluster(server=api.url), credentials=Fixed(), origin="test")
    with Client(access, sleep=lambda _: None) as made:
        yield made


def watched(name: str = "n1") -> dict[str, Any]:
    """A node that has an agent."""
    made = node(name)
    made["status"]["conditions"] = [HEALTHY]
    return made


def made(name: str, namespace: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": VERSION, "kind": "Diagnosis", "metadata": metadata, "status": {}}


LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "agent-n1", "namespace": "gpudoctor"},
    "spec": {"renewTime": "2026-11-20T08:00:00.000000Z"},
}
MINE = pod(spec={"nodeName": "n1"}, status=running(2))
NODES = made("node-n1", "gpudoctor")


def test_the_pod_s_own_diagnosis_is_enough(api: ApiServer, client: Client) -> None:
    logs = {"ml/trainer-0/main": "now", "ml/trainer-0/main!previous": "before"}
    objects = [MINE, watched(), event(MINE, "BackOff"), made("pod-trainer-0", "ml"), NODES, LEASE]
    api.answer = World(objects, logs)
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert "Diagnosis/pod-trainer-0" in names(found)
    assert ASKED_FOR_NODE not in paths(api)
    assert found.logs == logs
    assert len(api.asked) <= 8
    again = bundles.decode(msgspec.json.encode(found), "saved")
    assert names(again) == names(found)


def test_without_it_the_node_s_is_read(api: ApiServer, client: Client) -> None:
    api.answer = World([MINE, watched(), NODES, LEASE], {"ml/trainer-0/main": "now"})
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert {"Diagnosis/node-n1", "Lease/agent-n1"} <= names(found)
    assert "ml/trainer-0/main" in found.logs
    assert len(api.asked) <= 8


@pytest.mark.parametrize(
    "objects",
    [[MINE, node()], [pod(spec={"nodeName": "n1", "containers": [{"name": "main"}]}), watched()]],
    ids=["no agent", "no GPU"],
)
def test_nobody_is_asked_in_vain(
    api: ApiServer, client: Client, objects: list[dict[str, Any]]
) -> None:
    api.answer = World(objects)
    gather.gather_pod(client, "ml", "trainer-0")
    assert not any("diagnoses" in path for path in paths(api))


@pytest.mark.parametrize("denied", [set(), {"get diagnoses"}])
def test_a_tenant_who_sees_no_node_asks_for_his_own(
    api: ApiServer, client: Client, denied: set[str]
) -> None:
    world = World([MINE, made("pod-trainer-0", "ml")], {"ml/trainer-0/main": "now"})
    world.denied = {"get nodes", "list pods", *denied}
    api.answer = world
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert ASKED_FOR_POD in paths(api)
    assert ASKED_FOR_NODE not in paths(api)
    assert ("Diagnosis/pod-trainer-0" in names(found)) is not bool(denied)
    # Most clusters have no agent: that one may not ask for its objects is not worth a word there.
    assert not any("diagnoses" in what for what in found.scope.denied)


def test_a_node_is_read_with_what_its_agent_published(api: ApiServer, client: Client) -> None:
    api.answer = World([watched(), NODES, LEASE])
    found = gather.gather_node(client, "n1")
    assert {"Node/n1", "Diagnosis/node-n1", "Lease/agent-n1"} <= names(found)
    api.asked.clear()
    gather.gather_node(client, "n1", "monitoring")
    assert f"{VERSION}/namespaces/monitoring/diagnoses/node-n1" in paths(api)


def test_labels_of_a_node_cost_three_requests(api: ApiServer, client: Client) -> None:
    api.answer = World([node(), NODES, LEASE])
    found = published.gather_labels(client, "n1", "gpudoctor")
    assert names(found) == {"Node/n1", "Diagnosis/node-n1", "Lease/agent-n1"}
    assert len(api.asked) == 3
    world = World([node()])
    world.denied = {"get leases"}
    api.answer = world
    found = published.gather_labels(client, "n1", "gpudoctor")
    assert names(found) == {"Node/n1"}
    assert found.scope.denied == ("get leases.coordination.k8s.io in namespace gpudoctor",)
