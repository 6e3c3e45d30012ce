"""The chart's admission policies: an agent writes its own node and our keys, and nothing else.

Each write is sent twice: as the agent may send it, and changed in the one point that is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gpudoctor.publish import diagnosis, labels, lease, names, taint, targets, writes
from gpudoctor.publish.status import Status
from gpudoctor.publish.writes import Write
from gpudoctor.sources.kubernetes.errors import ForbiddenError, RefusedError
from tests.cluster import stage
from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.control_plane import ControlPlane
from tests.cluster.installed import NAMESPACE, Installed, Sender, installed
from tests.cluster.objects import gpu_pod

pytestmark = pytest.mark.cluster

MINE, OTHER = "gpu-a", "gpu-b"
TENANT = "tenant-a"
CONDITION = {
    "type": names.NODE_CONDITION,
    "status": "False",
    "reason": "DriverNotLoaded",
    "message": "DRV001",
}
LABEL = names.label("verdict")


@pytest.fixture(scope="module")
def chart(control_plane: ControlPlane, admin: Admin) -> Iterator[Installed]:
    with installed(control_plane, admin, (MINE, OTHER)) as made:
        stage.make_namespace(admin, TENANT)
        yield made
        stage.clear(admin, TENANT, [])


@pytest.fixture(scope="module")
def mine(chart: Installed) -> Sender:
    sender = chart.agent(MINE)
    wait_for("policies in force", lambda: refusal(sender, label(OTHER)))
    return sender


@pytest.fixture(scope="module")
def other(chart: Installed) -> Sender:
    return chart.agent(OTHER)


@pytest.fixture(scope="module")
def controller(chart: Installed, mine: Sender) -> Sender:
    return chart.controller()


@pytest.fixture(scope="module")
def pods(chart: Installed) -> dict[str, targets.Target]:
    """A running GPU pod of a tenant on each node."""
    found = {}
    for node in (MINE, OTHER):
        manifest = gpu_pod(1, f"train-{node}", on=node)
        made = stage.create(chart.admin, TENANT, manifest)
        found[node] = targets.pod(TENANT, made["metadata"]["name"], made["metadata"]["uid"])
    return found


def refusal(sender: Sender, write: Write) -> str:
    """The server's words, "" where it took the write."""
    try:
        sender.send(write)
    except (RefusedError, ForbiddenError) as error:
        return str(error)
    return ""


def merge(path: str, change: JSON) -> Write:
    return writes.patch("a change", path, writes.MERGE, change, names.AGENT)


def node_path(node: str) -> str:
    return f"/api/v1/nodes/{node}"


def label(node: str, key: str = LABEL, value: str | None = "healthy") -> Write:
    return merge(node_path(node), {"metadata": {"labels": {key: value}}})


def condition(node: str, **changed: str) -> Write:
    fields = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node},
        "status": {"conditions": [CONDITION | changed]},
    }
    return writes.apply("condition", f"{node_path(node)}/status", fields, names.AGENT)


def event(node: str, about: JSON, **changed: Any) -> Write:
    namespace = about.get("namespace", "default")
    name = f"{about['name']}.{node}"
    fields = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", **about},
        "type": "Warning",
        "reason": "DriverNotLoaded",
        "message": "DRV001",
        "reportingComponent": names.AGENT,
        "reportingInstance": node,
        **changed,
    }
    path = f"/api/v1/namespaces/{namespace}/events/{name}"
    return writes.apply("Event", path, fields, names.AGENT)


def renewal(node: str) -> Write:
    from datetime import UTC, datetime

    return lease.renew(node, NAMESPACE, "pod", datetime.now(UTC), 60)


def node_of(admin: Admin, name: str) -> JSON:
    return admin.get({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})


def about_node(name: str) -> JSON:
    return {"kind": "Node", "name": name, "uid": name}


class TestNodes:
    def test_labels_of_its_own_node(self, chart: Installed, mine: Sender) -> None:
        before = node_of(chart.admin, MINE)["metadata"]["labels"]
        mine.send(labels.write(MINE, {LABEL: "failing", names.label("gpu-count"): "8"}))
        after = node_of(chart.admin, MINE)["metadata"]["labels"]
        assert after == before | {LABEL: "failing", names.label("gpu-count"): "8"}
        mine.send(labels.write(MINE, {}))
        assert node_of(chart.admin, MINE)["metadata"]["labels"] == before

    def test_condition_of_its_own_node(self, chart: Installed, mine: Sender) -> None:
        before = node_of(chart.admin, MINE)["status"]
        mine.send(condition(MINE))
        after = node_of(chart.admin, MINE)["status"]
        [ours] = [one for one in after["conditions"] if one["type"] == names.NODE_CONDITION]
        assert ours["reason"] == "DriverNotLoaded"
        assert after | {"conditions": before["conditions"]} == before
        mine.send(condition(MINE, status="True", reason="Healthy"))
        gone = {"type": names.NODE_CONDITION, "$patch": "delete"}
        change = {"status": {"conditions": [gone]}}
        path = f"{node_path(MINE)}/status"
        mine.send(writes.patch("away", path, writes.STRATEGIC, change, names.AGENT))
        assert node_of(chart.admin, MINE)["status"] == before

    def test_no_other_node(self, mine: Sender) -> None:
        for write in (label(OTHER), condition(OTHER)):
            assert f"the agent of node {MINE} may write that node alone, not {OTHER}" in refusal(
                mine, write
            )

    @pytest.mark.parametrize("field", ["labels", "annotations"])
    @pytest.mark.parametrize("path", [node_path(MINE), f"{node_path(MINE)}/status"])
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("example.com/mine", "1"),
            ("nvidia.com/gpu.present", None),
            ("nvidia.com/gpu.count", "9"),
            ("gpudoctor.io.example.com/x", "1"),
            ("node-role.kubernetes.io/control-plane", ""),
        ],
    )
    def test_no_other_key(
        self, chart: Installed, mine: Sender, field: str, path: str, key: str, value: str | None
    ) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": MINE}}
        if field == "annotations" and value != "1":
            notes = {"annotations": {key: "x"}}
            chart.admin.merge(node, {"metadata": notes})
        said = refusal(mine, merge(path, {"metadata": {field: {key: value}}}))
        assert "an agent may change labels and annotations of gpudoctor.io/ alone" in said

    def test_no_spec(self, mine: Sender) -> None:
        for spec in ({"unschedulable": True}, {"taints": [{"key": "a", "effect": "NoExecute"}]}):
            said = refusal(mine, merge(node_path(MINE), {"spec": spec}))
            assert "an agent may not change the spec of a node" in said

    @pytest.mark.parametrize(
        "status",
        [
            {"allocatable": {"nvidia.com/gpu": "4"}},
            {"capacity": {"example.com/new": "4"}},
            {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
            {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}},
            {"conditions": [{"type": "Ready", "status": "False"}]},
            {"conditions": []},
        ],
        ids=lambda status: next(iter(status)),
    )
    def test_no_other_status(self, mine: Sender, status: JSON) -> None:
        said = refusal(mine, merge(f"{node_path(MINE)}/status", {"status": status}))
        assert "an agent may change the condition gpudoctor.io/Healthy" in said

    def test_another_condition_next_to_ours(self, mine: Sender) -> None:
        said = refusal(mine, condition(MINE, type="example.com/Healthy"))
        assert "an agent may change the condition gpudoctor.io/Healthy" in said

    def test_no_finalizer(self, mine: Sender) -> None:
        said = refusal(mine, merge(node_path(MINE), {"metadata": {"finalizers": ["a.io/b"]}}))
        assert "may not change finalizers" in said

    def test_a_node_as_large_as_a_kubelet_makes_it(self, chart: Installed, mine: Sender) -> None:
        images = [
            {"names": [f"registry.example.com/team/image-{n}@sha256:{n:064}"], "sizeBytes": n + 1}
            for n in range(50)
        ]
        node = node_of(chart.admin, MINE)
        notes = {f"example.com/note-{n}": "x" * 2000 for n in range(40)}
        chart.admin.set_status(node, {"images": images})
        chart.admin.merge(node, {"metadata": {"annotations": notes}})
        mine.send(label(MINE))
        mine.send(condition(MINE))
        mine.send(label(MINE, value=None))


class TestTokens:
    def test_a_token_of_no_pod_writes_nothing(self, chart: Installed, mine: Sender) -> None:
        token = chart.admin.token(NAMESPACE, names.AGENT)
        unbound = Sender(chart.kubeconfig("unbound", token))
        for write in (label(MINE), condition(MINE), renewal(MINE)):
            assert "this token is not bound to a pod on a node" in refusal(unbound, write)


class TestLeases:
    def test_its_own_and_no_other(self, mine: Sender, other: Sender) -> None:
        mine.send(renewal(MINE))
        mine.send(renewal(MINE))
        said = f"the agent of node {MINE} may renew the Lease agent-{MINE} alone"
        assert said in refusal(mine, renewal(OTHER))
        other.send(renewal(OTHER))
        assert said in refusal(mine, renewal(OTHER))

    def test_not_the_leaders(self, mine: Sender, controller: Sender) -> None:
        path = lease.leases_path(NAMESPACE)
        body = msgspec.json.encode(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": names.LEADER_LEASE},
                "spec": {"holderIdentity": "me"},
            }
        )
        lead = Write(what="leader Lease", method="POST", path=path, body=body)
        assert "may renew the Lease" in refusal(mine, lead)
        controller.send(lead)
        brake = {"metadata": {"annotations": {names.BRAKE: "now"}}}
        assert "may renew the Lease" in refusal(mine, merge(f"{path}/{names.LEADER_LEASE}", brake))
        away = Write(what="end", method="DELETE", path=f"{path}/{names.LEADER_LEASE}")
        assert "may not" in refusal(mine, away)  # RBAC
        controller.send(away)


class TestEvents:
    def test_of_its_node_and_a_pod(self, mine: Sender, pods: dict[str, targets.Target]) -> None:
        about = {"kind": "Pod", "namespace": TENANT, "name": pods[MINE].name}
        for count in (1, 2):
            mine.send(event(MINE, about_node(MINE), count=count))
            mine.send(event(MINE, about, count=count))

    @pytest.mark.parametrize(
        "changed",
        [
            {"reportingInstance": OTHER},
            {"reportingInstance": ""},
            {"reportingComponent": "kubelet"},
            {"involvedObject": {"apiVersion": "v1", **about_node(OTHER)}},
        ],
        ids=str,
    )
    def test_not_in_anothers_name(self, mine: Sender, changed: JSON) -> None:
        said = refusal(mine, event(MINE, about_node(MINE), **changed))
        assert f"have reportingComponent gpudoctor-agent and reportingInstance {MINE}" in said

    def test_not_anothers(self, mine: Sender, other: Sender) -> None:
        write = event(OTHER, about_node(OTHER))
        other.send(write)
        taken = event(OTHER, about_node(OTHER), reportingInstance=MINE, message="all is well")
        assert "have reportingComponent" in refusal(mine, taken)


class TestDiagnoses:
    def write(self, target: targets.Target, node: str) -> tuple[Write, Write]:
        status = Status(verdict="failing", node=node, message="DRV001")
        return (
            diagnosis.object_write(target, NAMESPACE),
            diagnosis.status_write(target, NAMESPACE, status),
        )

    def test_of_its_node_and_its_pods(self, mine: Sender, pods: dict[str, targets.Target]) -> None:
        for target in (targets.node(MINE), pods[MINE]):
            for _ in range(2):
                for write in self.write(target, MINE):
                    mine.send(write)

    def test_not_of_another_node(self, mine: Sender) -> None:
        made, _ = self.write(targets.node(OTHER), MINE)
        assert f"may write the Diagnosis node-{MINE}" in refusal(mine, made)

    def test_not_of_a_node_in_a_tenants_namespace(self, mine: Sender) -> None:
        made, _ = self.write(targets.node(MINE), MINE)
        path = made.path.replace(f"/{NAMESPACE}/", f"/{TENANT}/")
        fields = msgspec.json.decode(made.body)
        fields["metadata"]["namespace"] = TENANT
        elsewhere = msgspec.structs.replace(made, path=path, body=msgspec.json.encode(fields))
        assert f"may write the Diagnosis node-{MINE}" in refusal(mine, elsewhere)

    def test_not_with_another_node_in_it(
        self, mine: Sender, pods: dict[str, targets.Target]
    ) -> None:
        for node in (OTHER, ""):
            made, status = self.write(pods[MINE], node)
            mine.send(made)
            said = f"may write a Diagnosis with status.node {MINE} alone"
            assert said in refusal(mine, status)

    def test_not_what_another_agent_wrote(
        self, mine: Sender, other: Sender, pods: dict[str, targets.Target]
    ) -> None:
        for write in self.write(pods[OTHER], OTHER):
            other.send(write)
        made, status = self.write(pods[OTHER], MINE)
        # The same owner again changes nothing; another would have the object collected.
        fields = msgspec.json.decode(made.body)
        fields["metadata"]["ownerReferences"] = []
        bare = writes.patch("disown", made.path, writes.MERGE, fields, names.AGENT)
        for write in (bare, status):
            said = refusal(mine, write)
            assert f"may write a Diagnosis with status.node {MINE} alone" in said


class TestController:
    def test_our_keys_of_any_node(self, chart: Installed, mine: Sender, controller: Sender) -> None:
        mine.send(label(MINE))
        mine.send(condition(MINE))
        controller.send(label(MINE, value=None))
        controller.send(condition(MINE, status="Unknown", reason="AgentSilent"))
        node = node_of(chart.admin, MINE)
        assert LABEL not in node["metadata"]["labels"]

    def test_its_own_taint_next_to_others(self, chart: Installed, controller: Sender) -> None:
        node = node_of(chart.admin, MINE)
        foreign = {"key": "example.com/dedicated", "value": "a", "effect": "NoSchedule"}
        node = chart.admin.merge(node, {"spec": {"taints": [foreign]}})
        put = taint.put(MINE, node["metadata"]["resourceVersion"], node["spec"]["taints"])
        assert put is not None
        controller.send(put)
        node = node_of(chart.admin, MINE)
        assert {one["key"] for one in node["spec"]["taints"]} == {foreign["key"], names.TAINT}
        said = refusal(controller, merge(node_path(MINE), {"spec": {"taints": []}}))
        assert "the controller may change the taint gpudoctor.io/unhealthy of a node" in said
        lift = taint.lift(MINE, node["metadata"]["resourceVersion"], node["spec"]["taints"])
        assert lift is not None
        controller.send(lift)
        assert node_of(chart.admin, MINE)["spec"]["taints"] == [foreign]
        chart.admin.merge(node, {"spec": {"taints": None}})

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"spec": {"unschedulable": True}}, "and nothing else of its spec"),
            ({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, "and nothing else"),
            ({"metadata": {"labels": {"example.com/a": "1"}}}, "of gpudoctor.io/ alone"),
            ({"metadata": {"annotations": {"example.com/a": "1"}}}, "of gpudoctor.io/ alone"),
            ({"metadata": {"finalizers": ["a.io/b"]}}, "may not change finalizers"),
        ],
        ids=str,
    )
    def test_nothing_else(self, controller: Sender, change: JSON, said: str) -> None:
        assert said in refusal(controller, merge(node_path(OTHER), change))

    def test_no_other_status(self, controller: Sender) -> None:
        change = {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}
        said = refusal(controller, merge(f"{node_path(OTHER)}/status", change))
        assert "the controller may change the condition gpudoctor.io/Healthy" in said


def test_others_are_left_alone(chart: Installed, mine: Sender) -> None:
    """The kubelet and administrators write nodes as before."""
    node = node_of(chart.admin, OTHER)
    changed = chart.admin.merge(
        node, {"metadata": {"labels": {LABEL: "healthy", "example.com/a": "1"}}}
    )
    assert changed["metadata"]["labels"]["example.com/a"] == "1"
    away: dict[str, None] = {LABEL: None, "example.com/a": None}
    chart.admin.merge(node, {"metadata": {"labels": away}})


def test_the_policies_are_well_typed(chart: Installed) -> None:
    """The controller manager checks the types of expressions, against the CRD, too."""
    group = "admissionregistration.k8s.io/v1"

    def checked() -> list[JSON] | None:
        policies = [
            one
            for one in chart.admin.list(group, "ValidatingAdmissionPolicy")
            if one["metadata"]["name"].startswith("gpudoctor-")
        ]
        done = [one for one in policies if one.get("status", {}).get("observedGeneration")]
        return policies if len(done) == len(policies) == 3 else None

    for policy in wait_for("types checked", checked):
        warnings = policy["status"].get("typeChecking", {}).get("expressionWarnings", [])
        assert warnings == [], policy["metadata"]["name"]
