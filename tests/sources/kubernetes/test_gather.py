"""What is asked for one diagnosis: the requests and the bundle, from a small API of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gpudoctor.errors import InputError
from gpudoctor.sources import bundle as bundles
from gpudoctor.sources.bundle import Bundle
from gpudoctor.sources.kubernetes import gather
from gpudoctor.sources.kubernetes.access import Access, Cluster, Fixed
from gpudoctor.sources.kubernetes.client import Client
from gpudoctor.sources.kubernetes.errors import ForbiddenError, UnreachableError
from tests.sources.kubernetes.api_server import (
    UNSERVED,
    Answer,
    ApiServer,
    Asked,
    forbidden,
    serving,
    status,
)

PLURALS = {
    "networkattachmentdefinitions": "network-attachment-definitions",
    "runtimeclasss": "runtimeclasses",
    "deviceclasss": "deviceclasses",
    "diagnosiss": "diagnoses",
}


def plural(kind: str) -> str:
    simple = kind.lower() + "s"
    return PLURALS.get(simple, simple)


class World:
    """Answers as an API server that holds these objects and logs, minus what is `denied`."""

    def __init__(self, objects: list[dict[str, Any]], logs: dict[str, str] | None = None) -> None:
        self.objects = objects
        self.logs = logs or {}
        self.denied: set[str] = set()
        self.used: set[str] = set()
        self.versions = {found["apiVersion"] for found in objects}

    def __call__(self, asked: Asked) -> Answer:
        parts = asked.path.strip("/").split("/")
        version = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
        rest = parts[2 if parts[0] == "api" else 3 :]
        namespace = None
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource = rest[0]
        verb = "get" if len(rest) > 1 else "list"
        what = resource + ("/log" if rest[-1] == "log" and len(rest) == 3 else "")
        where = f" in {namespace}" if namespace else ""
        verb = "get" if what.endswith("/log") else verb
        self.used.add(f"{verb} {what}")
        if f"{verb} {what}{where}" in self.denied or f"{verb} {what}" in self.denied:
            return forbidden(what, verb)
        if what.endswith("/log"):
            return self.log(f"{namespace}/{rest[1]}/{asked.query['container']}", asked.query)
        if version not in {"v1", "apps/v1", *self.versions}:
            return UNSERVED
        found = [o for o in self.objects if self.matches(o, version, resource, namespace)]
        if verb == "get":
            found = [o for o in found if o["metadata"]["name"] == rest[1]]
            absent = status(404, f'{resource} "{rest[1]}" not found', name=rest[1])
            return Answer(found[0]) if found else absent
        return self.page([o for o in found if self.selected(o, asked.query)], resource)

    def log(self, key: str, query: dict[str, str]) -> Answer:
        text = self.logs.get(key + ("!previous" if "previous" in query else ""))
        if text is None:
            return status(400, "previous terminated container not found")
        if "tailLines" in query:
            text = "".join(text.splitlines(keepends=True)[-int(query["tailLines"]) :])
        return Answer(raw=text.encode()[: int(query["limitBytes"])])

    def matches(self, o: dict[str, Any], version: str, resource: str, ns: str | None) -> bool:
        here = ns is None or o["metadata"].get("namespace") == ns
        return o["apiVersion"] == version and plural(o["kind"]) == resource and here

    def selected(self, o: dict[str, Any], query: dict[str, str]) -> bool:
        for clause in filter(None, query.get("fieldSelector", "").split(",")):
            path, _, wanted = clause.partition("=")
            value: Any = o
            for name in path.rstrip("!").split("."):
                value = (value or {}).get(name, "")
            if (value == wanted) == path.endswith("!"):
                return False
        labels = o["metadata"].get("labels") or {}
        clauses = filter(None, query.get("labelSelector", "").split(","))
        return all(labels.get(c.split("=")[0]) == c.split("=")[1] for c in clauses)

    def page(self, found: list[dict[str, Any]], resource: str) -> Answer:
        bare = [{k: v for k, v in o.items() if k not in ("apiVersion", "kind")} for o in found]
        return Answer({"kind": f"{resource}List", "items": bare, "metadata": {}})


def pod(name: str = "trainer-0", namespace: str = "ml", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}",
                     **more.get("metadata", {})},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
                 **more.get("spec", {})},
        "status": {"phase": "Pending", **more.get("status", {})},
    }  # fmt: skip


def running(restarts: int = 0, **state: Any) -> dict[str, Any]:
    last = {"lastState": {"terminated": {"exitCode": 1}}} if restarts else {}
    return {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {"name": "main", "ready": True, "restartCount": restarts,
             "state": state or {"running": {}}, **last}
        ],
    }  # fmt: skip


def node(name: str = "n1", gpus: str | None = "8", capacity: str | None = None) -> dict[str, Any]:
    allocatable = {"cpu": "64", **({"nvidia.com/gpu": gpus} if gpus else {})}
    full = {**allocatable, **({"nvidia.com/gpu": capacity} if capacity else {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"capacity": full, "allocatable": allocatable}}  # fmt: skip


def event(about: dict[str, Any], reason: str, message: str = "") -> dict[str, Any]:
    meta = about["metadata"]
    return {
        "apiVersion": "v1", "kind": "Event", "reason": reason, "message": message,
        "metadata": {"name": f"{meta['name']}.{reason}",
                     "namespace": meta.get("namespace", "default")},
        "involvedObject": {"kind": about["kind"], "name": meta["name"],
                           "namespace": meta.get("namespace"), "uid": meta.get("uid")},
    }  # fmt: skip


def plugin_pod(node_name: str = "n1", **status: Any) -> dict[str, Any]:
    return pod(
        f"nvidia-device-plugin-{node_name}", "gpu-operator",
        metadata={"ownerReferences": [
            {"kind": "DaemonSet", "name": "nvidia-device-plugin", "controller": True}]},
        spec={"nodeName": node_name, "containers": [{"name": "plugin"}],
              "volumes": [{"configMap": {"name": "plugin-config"}}]},
        status={"phase": "Running", "containerStatuses": [
            {"name": "plugin", "ready": True, "state": {"running": {}}}], **status},
    )  # fmt: skip


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with serving(lambda _: UNSERVED) as server:
        yield server


@pytest.fixture
def client(api: ApiServer) -> Iterator[Client]:
    access = Access(cluster=Cluster(server=api.url), credentials=Fixed(), origin="test")
    with Client(access, sleep=lambda _: None) as made:
        yield made


def names(found: Bundle) -> set[str]:
    decoded = [json.loads(bytes(raw)) for raw in found.objects]
    assert all(o["apiVersion"] and o["kind"] for o in decoded)
    return {f"{o['kind']}/{o['metadata']['name']}" for o in decoded}


def paths(api: ApiServer) -> list[str]:
    return [asked.path.removeprefix("/api/v1/").removeprefix("/apis/") for asked in api.asked]


def test_running_pod(api: ApiServer, client: Client) -> None:
    mine = pod(spec={"nodeName": "n1"}, status=running())
    other = pod("other", "prod", spec={"nodeName": "n1"}, status=running())
    elsewhere = pod("elsewhere", "prod", spec={"nodeName": "n2"}, status=running())
    objects = [mine, other, elsewhere, node(), node("n2"), event(mine, "Pulled")]
    api.answer = World(objects, {"ml/trainer-0/main": "NCCL INFO Using network Socket\n"})
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert names(found) == {"Pod/trainer-0", "Pod/other", "Node/n1", "Event/trainer-0.Pulled"}
    assert found.logs == {"ml/trainer-0/main": "NCCL INFO Using network Socket\n"}
    assert found.scope.objects == "partial"
    assert found.scope.denied == ()
    assert not {"Node", "Pod"} & set(found.scope.complete_kinds)
    assert found.now is not None
    assert len(api.asked) <= 8


def test_bundle_is_replayed_as_it_was(api: ApiServer, client: Client) -> None:
    api.answer = World([pod(), node()])
    found = gather.gather_pod(client, "ml", "trainer-0")
    again = bundles.decode(msgspec.json.encode(found), "saved")
    assert again.scope == found.scope
    assert "Node" in again.scope.complete_kinds
    assert names(again) == names(found)


def test_restarted_pod_has_both_logs(api: ApiServer, client: Client) -> None:
    logs = {"ml/trainer-0/main": "now", "ml/trainer-0/main!previous": "before"}
    api.answer = World([pod(spec={"nodeName": "n1"}, status=running(2)), node()], logs)
    assert gather.gather_pod(client, "ml", "trainer-0").logs == logs


def test_waiting_for_restart_has_one_log(api: ApiServer, client: Client) -> None:
    crashed = pod(
        spec={"nodeName": "n1"}, status=running(2, waiting={"reason": "CrashLoopBackOff"})
    )
    api.answer = World([crashed, node()], {"ml/trainer-0/main": "last words"})
    assert gather.gather_pod(client, "ml", "trainer-0").logs == {"ml/trainer-0/main": "last words"}
    assert sum(path.endswith("/log") for path in paths(api)) == 1


def test_no_log_is_asked_of_what_never_ran(api: ApiServer, client: Client) -> None:
    created = pod(spec={"nodeName": "n1"}, status={"containerStatuses": [
        {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]})  # fmt: skip
    api.answer = World([created, node()])
    assert gather.gather_pod(client, "ml", "trainer-0").logs == {}
    assert not any(path.endswith("/log") for path in paths(api))


def test_long_log_is_read_at_both_ends(
    api: ApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_LOG_HEAD_BYTES", 100)
    monkeypatch.setattr(gather, "_LOG_TAIL_LINES", 3)
    lines = [f"line {number}\n" for number in range(1000)]
    world = World(
        [pod(spec={"nodeName": "n1"}, status=running()), node()],
        {"ml/trainer-0/main": "".join(lines)},
    )
    api.answer = world
    text = gather.gather_pod(client, "ml", "trainer-0").logs["ml/trainer-0/main"]
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 997\nline 998\nline 999\n")
    assert "the middle of a long log was not read" in text
    monkeypatch.setattr(gather, "_LOG_TAIL_LINES", 10)
    world.logs["ml/trainer-0/main"] = "".join(lines[:18])
    text = gather.gather_pod(client, "ml", "trainer-0").logs["ml/trainer-0/main"]
    assert text == "".join(lines[:18])


def test_pending_pod(api: ApiServer, client: Client) -> None:
    waiting = pod()
    taking = pod("taking", "prod", spec={"nodeName": "n1"}, status={"phase": "Running"})
    ended = pod("ended", "prod", spec={"nodeName": "n1"}, status={"phase": "Succeeded"})
    unbound = pod("unbound", "prod")
    api.answer = World(
        [waiting, taking, ended, unbound, node(), event(waiting, "FailedScheduling")]
    )
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert names(found) == {
        "Pod/trainer-0", "Pod/taking", "Node/n1", "Event/trainer-0.FailedScheduling",
    }  # fmt: skip
    assert {"Node", "Pod", "DaemonSet"} <= set(found.scope.complete_kinds)
    assert len(api.asked) <= 9


def test_pending_pod_reads_the_software_of_poor_nodes(api: ApiServer, client: Client) -> None:
    stuck = plugin_pod(
        containerStatuses=[{"name": "plugin", "state": {"waiting": {}}}],
        initContainerStatuses=[
            {"name": "done", "state": {"terminated": {"exitCode": 0}}},
            {"name": "toolkit-validation", "state": {"running": {}}},
        ],
    )
    daemon_set = {"apiVersion": "apps/v1", "kind": "DaemonSet",
                  "metadata": {"name": "nvidia-device-plugin", "namespace": "gpu"}}  # fmt: skip
    config_map = {"apiVersion": "v1", "kind": "ConfigMap",
                  "metadata": {"name": "plugin-config", "namespace": "gpu-operator"}}  # fmt: skip
    key = "gpu-operator/nvidia-device-plugin-n1/toolkit-validation"
    objects = [pod(), node(gpus=None), stuck, daemon_set, config_map]
    api.answer = World(objects, {key: "waiting for nvidia container stack to be setup"})
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert list(found.logs) == [key]
    assert {"DaemonSet/nvidia-device-plugin", "ConfigMap/plugin-config"} <= names(found)


def test_unhealthy_device_reads_the_plugins_log(api: ApiServer, client: Client) -> None:
    key = "gpu-operator/nvidia-device-plugin-n1/plugin"
    for mine in (pod(), pod(spec={"nodeName": "n1"})):
        api.answer = World([mine, node(gpus="7", capacity="8"), plugin_pod()], {key: "Xid=79"})
        assert gather.gather_pod(client, "ml", "trainer-0").logs == {key: "Xid=79"}


def kueue(kind: str, name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind,
            "metadata": {"name": name, **metadata}}  # fmt: skip


def test_pod_held_by_a_queue(api: ApiServer, client: Client) -> None:
    gated = pod(
        metadata={"labels": {"kueue.x-k8s.io/queue-name": "team"},
                  "annotations": {"kueue.x-k8s.io/workload": "sft"}},
        spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
    )  # fmt: skip
    objects = [
        gated, node(), kueue("Workload", "sft", namespace="ml"),
        kueue("LocalQueue", "team", namespace="ml"), kueue("ClusterQueue", "cq"),
        kueue("ResourceFlavor", "h100"),
    ]  # fmt: skip
    api.answer = World(objects)
    found = gather.gather_pod(client, "ml", "trainer-0")
    queues = {"Workload/sft", "LocalQueue/team", "ClusterQueue/cq", "ResourceFlavor/h100"}
    assert queues <= names(found)
    assert {"ClusterQueue", "LocalQueue"} <= set(found.scope.complete_kinds)
    assert len(api.asked) <= 9


def test_member_of_a_volcano_group(api: ApiServer, client: Client) -> None:
    member = pod(metadata={"annotations": {"scheduling.k8s.io/group-name": "pg"},
                           "labels": {"volcano.sh/job-name": "j"}})  # fmt: skip
    peer = pod("trainer-1", metadata={"labels": {"volcano.sh/job-name": "j"}})
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
             "metadata": {"name": "pg", "namespace": "ml"}}  # fmt: skip
    queue = {**group, "kind": "Queue", "metadata": {"name": "default"}}
    api.answer = World([member, peer, group, queue, node(), event(group, "Unschedulable")])
    found = gather.gather_pod(client, "ml", "trainer-0")
    wanted = {"PodGroup/pg", "Queue/default", "Pod/trainer-1", "Event/pg.Unschedulable"}
    assert wanted <= names(found)
    assert len(api.asked) <= 9


def test_claims_of_an_old_server(api: ApiServer, client: Client) -> None:
    mine = pod(
        spec={"nodeName": "n1", "resourceClaims": [{"name": "gpu"}]},
        status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "gpu-x"}]},
    )
    old = "resource.k8s.io/v1beta1"
    claim = {"apiVersion": old, "kind": "ResourceClaim",
             "metadata": {"name": "gpu-x", "namespace": "ml"}}  # fmt: skip
    offer = {"apiVersion": old, "kind": "ResourceSlice", "metadata": {"name": "s1"},
             "spec": {"nodeName": "n1"}}  # fmt: skip
    api.answer = World([mine, node(), claim, offer])
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert {"ResourceClaim/gpu-x", "ResourceSlice/s1"} <= names(found)
    assert "ResourceClaim" in found.scope.complete_kinds
    assert len(api.asked) <= 8


@pytest.mark.parametrize(
    "networks", ["rdma-net", "ml/rdma-net@net1", '[{"name": "rdma-net", "namespace": "ml"}]']
)
def test_network_attachments(api: ApiServer, client: Client, networks: str) -> None:
    mine = pod(metadata={"annotations": {"k8s.v1.cni.cncf.io/networks": networks}},
               spec={"nodeName": "n1"})  # fmt: skip
    attachment = {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
                  "metadata": {"name": "rdma-net", "namespace": "ml"}}  # fmt: skip
    api.answer = World([mine, node(), attachment])
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert "NetworkAttachmentDefinition/rdma-net" in names(found)
    api.answer = World([mine, node()])  # absent, or not even served: known not to exist
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert "NetworkAttachmentDefinition" in found.scope.complete_kinds


def test_volumes_and_kubelet_settings_when_spoken_of(api: ApiServer, client: Client) -> None:
    mine = pod(spec={"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]})
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
             "metadata": {"name": "data", "namespace": "ml"}}  # fmt: skip
    api.answer = World([mine, node(), claim])
    assert "PersistentVolumeClaim/data" not in names(gather.gather_pod(client, "ml", "trainer-0"))
    told = event(mine, "FailedScheduling", "1 node(s) had volume node affinity conflict")
    api.answer = World([mine, node(), claim, told])
    assert "PersistentVolumeClaim/data" in names(gather.gather_pod(client, "ml", "trainer-0"))
    settings = {"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "kubelet-config", "namespace": "kube-system"}}  # fmt: skip
    refused = pod(spec={"nodeName": "n1"}, status={"reason": "TopologyAffinityError"})
    api.answer = World([refused, node(), settings])
    assert "ConfigMap/kubelet-config" in names(gather.gather_pod(client, "ml", "trainer-0"))


@pytest.mark.parametrize(
    ("right", "denied", "settled"),
    [
        ("list events", "list events in namespace ml", True),
        ("list nodes", "list nodes", False),
        ("list pods", "list pods (cluster-wide)", True),
        ("list daemonsets", "list daemonsets.apps (cluster-wide)", True),
    ],
)
def test_what_is_denied_is_noted_and_the_rest_read(
    api: ApiServer, client: Client, right: str, denied: str, settled: bool
) -> None:
    world = World([pod("solo"), node()])
    world.denied = {right}
    api.answer = world
    found = gather.gather_pod(client, "ml", "solo")
    assert found.scope.denied == (denied,)
    assert "Pod/solo" in names(found)
    assert ("Node" in found.scope.complete_kinds) is settled


def test_owner_of_a_namespace(api: ApiServer, client: Client) -> None:
    mine = pod(spec={"nodeName": "n1"}, status=running())
    world = World([mine, pod("trainer-1", status=running()), node()], {"ml/trainer-0/main": "log"})
    world.denied = {"get nodes", "list pods"}
    api.answer = world
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert found.scope.denied == (
        "get nodes", "list pods (cluster-wide)", "list pods in namespace ml",
    )  # fmt: skip
    assert found.logs == {"ml/trainer-0/main": "log"}
    world.denied = {"get pods/log"}
    assert gather.gather_pod(client, "ml", "trainer-0").scope.denied == (
        "get pods/log in namespace ml",
    )


def test_without_the_pod_there_is_nothing_to_say(api: ApiServer, client: Client) -> None:
    world = World([pod("trainer-1"), pod("unlike")])
    api.answer = world
    with pytest.raises(InputError, match=r'"trainer-0" not found; near .* ml: trainer-1$'):
        gather.gather_pod(client, "ml", "trainer-0")
    with pytest.raises(InputError, match="namespace empty has 0 pods"):
        gather.gather_pod(client, "empty", "trainer-0")
    world.denied = {"get pods"}
    with pytest.raises(ForbiddenError, match="needs get pods in namespace ml"):
        gather.gather_pod(client, "ml", "trainer-1")


def test_server_that_breaks_off_in_the_middle(api: ApiServer, client: Client) -> None:
    world = World([pod(), node()])

    def answer(asked: Asked) -> Answer:
        if asked.path.endswith("/nodes"):
            return Answer({}, cut_at=0)
        return world(asked)

    api.answer = answer
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert len(found.scope.denied) == 1
    assert found.scope.denied[0].startswith("list nodes: ")
    assert found.scope.complete_kinds == ()
    api.answer = lambda _: Answer({}, cut_at=0)
    with pytest.raises(UnreachableError):
        gather.gather_pod(client, "ml", "trainer-0")


def test_node(api: ApiServer, client: Client) -> None:
    broken = node(gpus="7", capacity="8")
    mine = pod(spec={"nodeName": "n1"}, status=running())
    key = "gpu-operator/nvidia-device-plugin-n1/plugin"
    api.answer = World([broken, mine, plugin_pod(), event(broken, "NodeNotReady")], {key: "Xid=79"})
    found = gather.gather_node(client, "n1")
    assert {"Node/n1", "Pod/trainer-0", "Event/n1.NodeNotReady"} <= names(found)
    assert found.logs == {key: "Xid=79"}
    assert len(api.asked) <= 8


def test_selected_pods(api: ApiServer, client: Client) -> None:
    labels = {"labels": {"app": "llm"}}
    well = pod("llm-0", metadata=labels, spec={"nodeName": "n1"}, status=running())
    sick = pod("llm-1", metadata=labels, spec={"nodeName": "n1"}, status=running(1))
    other = pod("other")
    objects = [well, sick, other, node(), event(sick, "BackOff"), event(other, "Pulled")]
    api.answer = World(objects, {"ml/llm-1/main": "a", "ml/llm-1/main!previous": "b"})
    found = gather.gather_selected(client, "ml", "app=llm")
    assert names(found) == {
        "Pod/llm-0", "Pod/llm-1", "Node/n1", "Event/llm-1.BackOff",
    }  # fmt: skip
    assert set(found.logs) == {"ml/llm-1/main", "ml/llm-1/main!previous"}


def test_selected_without_any_pod(api: ApiServer, client: Client) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota",
             "metadata": {"name": "gpus", "namespace": "ml"}}  # fmt: skip
    api.answer = World([quota])
    assert names(gather.gather_selected(client, "ml", "app=none")) == {"ResourceQuota/gpus"}


def test_all_gpu_pods(api: ApiServer, client: Client) -> None:
    mine = pod(spec={"nodeName": "n1"}, status=running())
    waiting = pod("waiting", "prod")
    web = pod("web", "shop", spec={"nodeName": "n2", "containers": [{"name": "web"}]})
    beside = pod("beside", "shop", spec={"nodeName": "n1", "containers": [{"name": "web"}]})
    api.answer = World(
        [mine, waiting, web, beside, node(), node("n2", gpus=None), event(web, "Pulled")],
        {"ml/trainer-0/main": "log"},
    )
    found = gather.gather_gpu_pods(client)
    assert names(found) == {
        "Pod/trainer-0", "Pod/waiting", "Pod/beside", "Node/n1", "Node/n2",
    }  # fmt: skip
    assert {"Node", "Pod"} <= set(found.scope.complete_kinds)
    assert sum(path == "pods" for path in paths(api)) == 1


def test_first_failed_peer_has_its_log(api: ApiServer, client: Client) -> None:
    labels = {"labels": {"batch.kubernetes.io/job-name": "train"}}
    mine = pod("w-0", metadata=labels, spec={"nodeName": "n1"}, status=running())

    def failed(name: str, at: str) -> dict[str, Any]:
        end = {"terminated": {"exitCode": 1, "finishedAt": at}}
        return pod(name, metadata=labels, spec={"nodeName": "n2"}, status={
            "phase": "Failed", "containerStatuses": [{"name": "main", "state": end}]})  # fmt: skip

    later, first = failed("w-1", "2026-01-01T00:05:00Z"), failed("w-2", "2026-01-01T00:01:00Z")
    api.answer = World(
        [mine, later, first, node()],
        {"ml/w-0/main": "a", "ml/w-1/main": "b", "ml/w-2/main": "CUDA error"},
    )
    found = gather.gather_pod(client, "ml", "w-0")
    assert found.logs == {"ml/w-0/main": "a", "ml/w-2/main": "CUDA error"}
    assert {"Pod/w-1", "Pod/w-2"} <= names(found)
    assert len(api.asked) <= 8


def test_refused_devices_read_the_plugins_log(api: ApiServer, client: Client) -> None:
    message = "Pod was rejected: Allocate failed due to no healthy devices present"
    mine = pod(spec={"nodeName": "n1"}, status={"phase": "Failed", "message": message})
    key = "gpu-operator/nvidia-device-plugin-n1/plugin"
    api.answer = World([mine, node(), plugin_pod()], {key: "restarting"})
    assert gather.gather_pod(client, "ml", "trainer-0").logs == {key: "restarting"}


def test_numbered_pods_without_labels_are_peers(api: ApiServer, client: Client) -> None:
    mine = pod("ddp-0", spec={"nodeName": "n1"}, status=running())
    peer, other = pod("ddp-1"), pod("ddp-web-1")
    api.answer = World([mine, peer, other, node()])
    assert names(gather.gather_pod(client, "ml", "ddp-0")) == {"Pod/ddp-0", "Pod/ddp-1", "Node/n1"}


def test_budget_of_many_pods_is_kept(
    api: ApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_BUDGET_OF_MANY", 6)
    claim = [{"name": "gpu"}]
    sick = [
        pod(f"w{number}", metadata={"labels": {"app": "w"}},
            spec={"nodeName": "n1", "resourceClaims": claim}, status=running(1),)
        for number in range(20)
    ]  # fmt: skip
    api.answer = World([*sick, node()])
    found = gather.gather_selected(client, "ml", "app=w")
    assert {f"Pod/w{number}" for number in range(20)} <= names(found)
    assert len(api.asked) <= 8
    assert found.scope.complete_kinds == ()


def test_pods_are_not_settled_while_unbound_members_are_unread(
    api: ApiServer, client: Client
) -> None:
    labels = {"labels": {"kueue.x-k8s.io/pod-group-name": "sft"}}
    gate = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    members = [pod(f"sft-{number}", metadata=labels, spec=gate) for number in range(3)]
    world = World([*members, node()])
    api.answer = world
    found = gather.gather_pod(client, "ml", "sft-0")
    assert {"Pod/sft-1", "Pod/sft-2"} <= names(found)
    assert "Pod" in found.scope.complete_kinds
    world.denied = {"list pods in ml"}
    found = gather.gather_pod(client, "ml", "sft-0")
    assert "Pod" not in found.scope.complete_kinds


def claimed(name: str, namespace: str) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace}}  # fmt: skip


def test_extended_resource_by_dra_needs_class_slices_and_all_claims(
    api: ApiServer, client: Client
) -> None:
    said = "0/1 nodes are available: 1 cannot allocate all claims."
    mine = pod(status={"conditions": [{"type": "PodScheduled", "message": said}]})
    v1 = "resource.k8s.io/v1"
    offered = [
        {"apiVersion": v1, "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}},
        {"apiVersion": v1, "kind": "ResourceSlice", "metadata": {"name": "n1-gpu"}},
    ]
    api.answer = World([mine, node(gpus=None), *offered, claimed("theirs", "prod")])
    found = gather.gather_pod(client, "ml", "trainer-0")
    wanted = {"DeviceClass/gpu.nvidia.com", "ResourceSlice/n1-gpu", "ResourceClaim/theirs"}
    assert wanted <= names(found)
    assert "ResourceClaim" in found.scope.complete_kinds


def test_claims_of_other_namespaces_that_are_denied_leave_the_kind_open(
    api: ApiServer, client: Client
) -> None:
    said = "0/1 nodes are available: 1 cannot allocate all claims."
    mine = pod(
        spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]},
        status={"conditions": [{"type": "PodScheduled", "message": said}]},
    )
    api.answer = world = World([mine, node(), claimed("mine", "ml")])
    world.denied = {"list resourceclaims"}
    found = gather.gather_pod(client, "ml", "trainer-0")
    assert "ResourceClaim/mine" in names(found)
    assert "ResourceClaim" not in found.scope.complete_kinds
    assert "list resourceclaims.resource.k8s.io (cluster-wide)" in found.scope.denied


def job(name: str = "trainer") -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "ml"}}


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"batch.kubernetes.io/job-name": "trainer"}},
        {"ownerReferences": [{"kind": "RayCluster", "name": "trainer", "controller": True}]},
    ],
)
def test_job_is_read_in_its_namespace(
    api: ApiServer, client: Client, metadata: dict[str, Any]
) -> None:
    mine = pod(metadata=metadata, spec={"nodeName": "n1"}, status=running())
    other = pod("other", metadata={"labels": {"job-name": "other"}})
    api.answer = World([mine, other, node()])
    found = gather.gather_job(client, "ml", "job", "trainer")
    assert names(found) == {"Pod/trainer-0", "Node/n1"}
    assert paths(api)[0] == "namespaces/ml/pods"


def test_pod_that_a_controller_was_refused_to_make(api: ApiServer, client: Client) -> None:
    said = event(job(), "FailedCreate", "exceeded quota: gpus") | {"type": "Warning"}
    api.answer = World([said])
    assert names(gather.gather_pod(client, "ml", "trainer-7x2kq")) == {"Event/trainer.FailedCreate"}
    found = gather.gather_job(client, "ml", "job", "trainer")
    assert names(found) == {"Event/trainer.FailedCreate"}
    with pytest.raises(InputError, match="not found"):
        gather.gather_pod(client, "ml", "server-0")
