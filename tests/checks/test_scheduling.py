"""Placement: full, split, too small, closed and gated nodes, each at its boundary."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.report import Report
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, finding_of, held, loud, shown, told

GPU = "nvidia.com/gpu"
NO_GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
TAINT = {"key": "team", "value": "ml", "effect": "NoSchedule"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
CAPACITY = {"gpu-capacity-exhausted", "gpu-fragmentation", "request-exceeds-largest-node"}


def waiting(
    gpus: int | str = 1, message: str = NO_GPU, also: Object | None = None, **more: Any
) -> Object:
    limits = {GPU: str(gpus)} | (also or {})
    return k8s.pod(limits=limits, conditions=k8s.pending(message), **more)


def full(name: str = "gpu-1", in_use: int = 8, **more: Any) -> list[Object]:
    """A node with 8 GPUs and a pod that has some of them."""
    return [k8s.node(name, **more), held(name, str(in_use), name=f"holder-{name}")]


class TestCapacity:
    def test_all_in_use(self) -> None:
        report = ask(waiting(2), *full(in_use=7), *full("gpu-2"))
        found = finding_of(report, "gpu-capacity-exhausted")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == ("gpu-capacity-exhausted",)
        assert shown(found).splitlines() == [
            "Node/gpu-1 allocatable minus bound pods [nvidia.com/gpu] 8 - 7 = 1 free",
            "Node/gpu-2 allocatable minus bound pods [nvidia.com/gpu] 8 - 8 = 0 free",
            "Pod/other/holder-gpu-2 requests[nvidia.com/gpu] 8 on gpu-2",
            "Pod/other/holder-gpu-1 requests[nvidia.com/gpu] 7 on gpu-1",
            "Pod/team/train-0 spec.containers[main].resources.limits[nvidia.com/gpu] 2",
            f"Pod/team/train-0 status.conditions[PodScheduled] Unschedulable {NO_GPU}",
        ]
        assert found.detail == (
            "The 2 nodes that the pod may use have 1 nvidia.com/gpu free together; it needs 2 on "
            "one node."
        )
        assert found.title == "All suitable nvidia.com/gpu are in use; team/train-0 asks for 2"
        assert [e.note for e in found.evidence if "limits" in (e.path or "")] == [None]

    def test_split_over_nodes(self) -> None:
        report = ask(waiting(4), *full(in_use=6), *full("gpu-2", in_use=5))
        found = finding_of(report, "gpu-fragmentation")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == ("gpu-fragmentation",)
        assert found.detail == (
            "5 nvidia.com/gpu are free on 2 nodes, at most 3 on one, and the pod needs 4 on one "
            "node."
        )
        assert found.title == (
            "5 nvidia.com/gpu are free, but no single node has the 4 that team/train-0 needs"
        )

    def test_larger_than_any_node(self) -> None:
        small = k8s.node("gpu-2", allocatable={GPU: "4"})
        report = ask(waiting(9), small, k8s.node())
        found = finding_of(report, "request-exceeds-largest-node")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == ("request-exceeds-largest-node",)
        assert shown(found).splitlines()[:3] == [
            "Pod/team/train-0 spec.containers[main].resources.limits[nvidia.com/gpu] 9",
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] 8 of capacity 8",
            "Node/gpu-2 status.allocatable[nvidia.com/gpu] 4 of capacity 4",
        ]
        assert "need 9 nvidia.com/gpu together on one node; the largest node it may use has 8" in (
            found.detail
        )

    @pytest.mark.parametrize(
        ("wanted", "in_use", "expected"),
        [
            (8, (0,), None),
            (8, (1,), "gpu-capacity-exhausted"),
            (9, (0,), "request-exceeds-largest-node"),
            (1, (7,), None),
            (1, (8,), "gpu-capacity-exhausted"),
            (4, (6, 6), "gpu-fragmentation"),
            (4, (6, 7), "gpu-capacity-exhausted"),
            (4, (6, 4), None),
            (4, (5, 5, 8), "gpu-fragmentation"),
            (8, (8, 0), None),
        ],
    )
    def test_boundary(self, wanted: int, in_use: tuple[int, ...], expected: str | None) -> None:
        nodes = [obj for n, used in enumerate(in_use) for obj in full(f"gpu-{n}", used)]
        found = loud(ask(waiting(wanted), *nodes)) & CAPACITY
        assert found == ({expected} if expected else set())

    def test_over_committed_node_has_none_free(self) -> None:
        found = finding_of(ask(waiting(1), *full(in_use=9)), "gpu-capacity-exhausted")
        assert "The only node that the pod may use has 0 nvidia.com/gpu free" in found.detail

    def test_ended_pods_and_the_pod_itself_hold_nothing(self) -> None:
        done = k8s.pod("done", limits={GPU: "8"}, node="gpu-1", phase="Succeeded")
        assert loud(ask(waiting(8), k8s.node(), done)) & CAPACITY == set()

    @pytest.mark.parametrize(
        "closed",
        [
            {"taints": [TAINT]},
            {"unschedulable": True},
            {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
        ],
        ids=["taint", "cordon", "not-ready"],
    )
    def test_a_node_that_is_closed_is_no_room(self, closed: Object) -> None:
        report = ask(waiting(8), *full(), k8s.node("gpu-2", **closed))
        assert report.roots == ("gpu-capacity-exhausted",)

    def test_selected_node_is_full_and_another_is_free(self) -> None:
        pod = waiting(8, spec={"nodeSelector": {"pool": "gold"}})
        nodes = [*full(labels={"pool": "gold"}), k8s.node("gpu-2")]
        assert ask(pod, *nodes).roots == ("gpu-capacity-exhausted",)

    def test_broken_node_is_the_nearer_cause(self) -> None:
        broken = k8s.node("gpu-2", allocatable={}, labels={"nvidia.com/gpu.present": "true"})
        report = ask(waiting(), *full(), broken)
        assert report.roots == ("gpu-resource-not-advertised",)
        assert told(finding_of(report, "gpu-capacity-exhausted"))[0] == "info"

    def test_unhealthy_devices_are_the_story_instead(self) -> None:
        node = k8s.node(allocatable={GPU: "7"}, capacity={GPU: "8"})
        assert ask(waiting(8), node).roots == ("gpu-unhealthy-shrinks-allocatable",)

    def test_nodes_that_the_input_lacks(self) -> None:
        message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
        found = finding_of(
            ask(waiting(message=message), *full(), complete=False), "gpu-capacity-exhausted"
        )
        assert told(found)[1] == "likely"
        assert found.detail.endswith(
            "2 more nodes that the scheduler counted are not in the input."
        )

    def test_four_nodes_are_shown(self) -> None:
        nodes = [obj for n in range(5) for obj in full(f"gpu-{n}")]
        found = finding_of(ask(waiting(), *nodes), "gpu-capacity-exhausted")
        assert sum("minus bound pods" in line for line in shown(found).splitlines()) == 4

    def test_each_resource_is_judged_by_itself(self) -> None:
        node = k8s.node(allocatable={GPU: "8", "nvidia.com/mig-1g.10gb": "7"})
        holder = held("gpu-1", "7", "nvidia.com/mig-1g.10gb")
        report = ask(waiting(1, also={"nvidia.com/mig-1g.10gb": "1"}), node, holder)
        found = finding_of(report, "gpu-capacity-exhausted")
        assert "nvidia.com/mig-1g.10gb" in found.title

    def test_the_four_largest_holders_are_shown(self) -> None:
        sizes = {"a": 1, "b": 4, "c": 1, "d": 1, "e": 1}
        holders = [held("gpu-1", str(size), name=name) for name, size in sizes.items()]
        holders[2]["metadata"]["deletionTimestamp"] = k8s.CREATED
        found = finding_of(ask(waiting(), k8s.node(), *holders), "gpu-capacity-exhausted")
        shown_holders = [e for e in found.evidence if e.object.startswith("Pod/other/")]
        assert [(e.object[-1], e.value) for e in shown_holders] == [
            ("b", "4 on gpu-1"),
            ("a", "1 on gpu-1"),
            ("c", "1 on gpu-1"),
            ("d", "1 on gpu-1"),
        ]
        assert [e.note for e in shown_holders] == [None, None, "terminating", None]

    def test_two_containers_ask_together(self) -> None:
        containers = [k8s.container(name, {GPU: "5"}) for name in ("a", "b")]
        pod = k8s.pod(containers=containers, conditions=k8s.pending(NO_GPU))
        found = finding_of(ask(pod, k8s.node()), "request-exceeds-largest-node")
        assert found.evidence[0].path == "spec.containers[*].resources.limits[nvidia.com/gpu]"
        assert found.evidence[0].value == "10"
        assert found.evidence[0].note == "sum over containers a, b"


class TestOtherResources:
    NAME = "non-gpu-resource-exhausted"

    def test_memory(self) -> None:
        message = "0/1 nodes are available: 1 Insufficient memory."
        holder = k8s.pod("h", "other", limits={"memory": "500Gi"}, node="gpu-1", phase="Running")
        report = ask(waiting(1, message, {"memory": "64Gi"}), k8s.node(), holder)
        found = finding_of(report, "non-gpu-resource-exhausted")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines()[:2] == [
            "Node/gpu-1 allocatable minus bound pods [memory] "
            "12.0 Gi free of 512.0 Gi, wanted 64.0 Gi",
            "Pod/team/train-0 spec.containers[main].resources.limits[memory] 68719476736",
        ]
        assert "gpu-1 has the pod's GPUs free, but too little memory." in found.detail

    @pytest.mark.parametrize(
        ("also", "gpus_in_use", "expected"),
        [
            ({"cpu": "64"}, 0, False),
            ({"cpu": "64001m"}, 0, True),
            ({"cpu": "63999m"}, 0, False),
            ({"cpu": "65"}, 8, False),
            ({"memory": "512Gi"}, 0, False),
            ({"memory": "513Gi"}, 0, True),
            ({"vendor.example/thing": "1"}, 0, True),
            ({"nvidia.com/gpumem": "4000"}, 0, False),
            ({"rdma/hca_shared": "1"}, 0, False),
            ({"hugepages-2Mi": "2Mi"}, 0, False),
        ],
    )
    def test_boundary(self, also: Object, gpus_in_use: int, expected: bool) -> None:
        report = ask(waiting(1, also=also), *full(in_use=gpus_in_use))
        assert (self.NAME in loud(report)) is expected

    def test_rdma_that_is_there_and_used_up(self) -> None:
        node = k8s.node(allocatable={GPU: "8", "rdma/hca": "1"})
        report = ask(waiting(1, also={"rdma/hca": "1"}), node, held("gpu-1", "1", "rdma/hca"))
        assert report.roots == (self.NAME,)

    def test_one_node_with_room_is_enough(self) -> None:
        holder = k8s.pod("h", limits={"cpu": "64"}, node="gpu-1", phase="Running")
        report = ask(waiting(1, also={"cpu": "8"}), k8s.node(), k8s.node("gpu-2"), holder)
        assert self.NAME not in loud(report)

    def test_the_commonest_shortage_is_named_first(self) -> None:
        tall = {"cpu": "2", "memory": "1Ti"}
        wide = {"cpu": "2", "memory": "1Gi"}
        nodes = [k8s.node("a", allocatable={GPU: "8"} | tall)]
        nodes += [k8s.node(n, allocatable={GPU: "8"} | wide) for n in ("b", "c")]
        nodes += [k8s.node("d", allocatable={GPU: "8", "cpu": "64", "memory": "1Gi"})]
        nodes += [k8s.node("e", allocatable={GPU: "8", "cpu": "64", "memory": "1Gi"})]
        report = ask(waiting(1, also={"cpu": "8", "memory": "64Gi"}), *nodes)
        assert "for want of memory, cpu, not of GPUs" in finding_of(report, self.NAME).title

    @pytest.mark.parametrize(("slots", "expected"), [("1", True), ("2", False)])
    def test_slots_for_pods(self, slots: str, expected: bool) -> None:
        node = k8s.node(allocatable={GPU: "8", "pods": slots})
        report = ask(waiting(), node, held("gpu-1", "0"))
        assert (self.NAME in loud(report)) is expected
        if expected:
            found = finding_of(report, self.NAME)
            assert "allocatable minus bound pods [pods] 0 free of 1, wanted 1" in shown(found)
            assert "resources.limits[pods]" not in shown(found)

    def test_node_that_does_not_say_how_many_slots_it_has(self) -> None:
        node = k8s.node(allocatable={GPU: "8"})
        del node["status"]["allocatable"]["pods"]
        assert self.NAME not in loud(ask(waiting(), node, held("gpu-1", "0")))


class TestNoGpuNode:
    NAME = "no-gpu-node"

    def test_words(self) -> None:
        report = ask(waiting(), k8s.node(allocatable={}))
        found = finding_of(report, "no-gpu-node")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            f"Pod/team/train-0 status.conditions[PodScheduled] Unschedulable {NO_GPU}",
            "Pod/team/train-0 spec.containers[main].resources.limits[nvidia.com/gpu] 1",
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] no such key",
        ]
        assert "The cluster has 1 node, without nvidia.com/gpu" in found.detail

    @pytest.mark.parametrize(
        ("message", "expected"),
        [("no nodes available to schedule pods", True), (NO_GPU, False), ("odd", False)],
    )
    def test_cluster_without_nodes(self, message: str, expected: bool) -> None:
        report = ask(waiting(message=message))
        assert (self.NAME in loud(report)) is expected
        if expected:
            assert finding_of(report, self.NAME).detail == "The cluster has no nodes."

    def test_pod_that_the_scheduler_has_not_refused(self) -> None:
        gated = waiting(spec={"schedulingGates": [{"name": "a/b"}]})
        assert self.NAME not in loud(ask(gated, k8s.node(allocatable={})))
        bound = waiting(node="gpu-1")
        assert self.NAME not in loud(ask(bound, k8s.node(allocatable={})))

    @pytest.mark.parametrize(
        ("message", "node"),
        [
            (NO_GPU, k8s.node()),
            (NO_GPU, k8s.node(allocatable={GPU: "0"})),
            (NO_GPU, k8s.node(allocatable={}, labels={"nvidia.com/gpu.present": "true"})),
            (NO_GPU, k8s.node(allocatable={"nvidia.com/mig-1g.10gb": "1"})),
            (NO_GPU.replace("0/1", "0/2"), k8s.node(allocatable={})),
            ("0/1 nodes are available: 1 Insufficient cpu.", k8s.node(allocatable={})),
        ],
        ids=["offered", "zero", "labelled", "slices", "nodes-missing", "other-words"],
    )
    def test_near_misses(self, message: str, node: Object) -> None:
        assert self.NAME not in loud(ask(waiting(message=message), node))


class TestMissingToleration:
    NAME = "missing-toleration"

    def test_words(self) -> None:
        message = "0/1 nodes are available: 1 node(s) had untolerated taint {team: ml}."
        report = ask(waiting(message=message), k8s.node(taints=[TAINT]))
        found = finding_of(report, "missing-toleration")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            "Node/gpu-1 spec.taints team=ml:NoSchedule",
            "Node/gpu-1 allocatable minus bound pods [nvidia.com/gpu] 8 - 0 = 8 free",
            f"Pod/team/train-0 status.conditions[PodScheduled] Unschedulable {message}",
        ]
        assert found.fix == (
            "If the pod may run there, add to spec.tolerations: "
            '{key: team, operator: Equal, value: "ml", effect: NoSchedule}'
        )
        assert "the taint team=ml:NoSchedule, which the pod has no toleration for" in found.detail

    def test_a_taint_without_a_value(self) -> None:
        taint = {"key": "team", "effect": "NoSchedule"}
        fix = finding_of(ask(waiting(), k8s.node(taints=[taint])), "missing-toleration").fix
        assert fix is not None
        assert fix.endswith("{key: team, operator: Exists, effect: NoSchedule}")

    @pytest.mark.parametrize(
        ("toleration", "expected"),
        [
            ({"key": "team", "value": "ml", "effect": "NoSchedule"}, False),
            ({"key": "team", "operator": "Exists"}, False),
            ({"operator": "Exists"}, False),
            ({"key": "team", "value": "other", "effect": "NoSchedule"}, True),
            ({"key": "team", "value": "ml", "effect": "NoExecute"}, True),
            ({"key": "other", "operator": "Exists"}, True),
            ({"value": "ml"}, True),
        ],
    )
    def test_tolerations(self, toleration: Object, expected: bool) -> None:
        pod = waiting(spec={"tolerations": [toleration]})
        assert (self.NAME in loud(ask(pod, k8s.node(taints=[TAINT])))) is expected

    @pytest.mark.parametrize(
        ("effect", "expected"),
        [("NoSchedule", True), ("NoExecute", True), ("PreferNoSchedule", False)],
    )
    def test_effects(self, effect: str, expected: bool) -> None:
        node = k8s.node(taints=[TAINT | {"effect": effect}])
        assert (self.NAME in loud(ask(waiting(), node))) is expected

    def test_an_open_node_makes_the_taint_no_cause(self) -> None:
        report = ask(waiting(), *full(), k8s.node("gpu-2", taints=[TAINT]))
        assert self.NAME not in loud(report)

    def test_tainted_node_without_the_gpus(self) -> None:
        report = ask(waiting(), k8s.node(taints=[TAINT], allocatable={}))
        assert self.NAME not in loud(report)

    def test_roomy_nodes_before_full_ones(self) -> None:
        other = {"key": "other", "effect": "NoSchedule"}
        report = ask(waiting(), *full(taints=[TAINT]), k8s.node("gpu-2", taints=[other]))
        found = finding_of(report, self.NAME)
        assert found.title == "team/train-0 does not tolerate other:NoSchedule on gpu-2"

    def test_nearest_nodes_alone(self) -> None:
        two = k8s.node("gpu-2", taints=[TAINT], unschedulable=True)
        report = ask(waiting(), k8s.node(taints=[TAINT]), two)
        assert report.roots == (self.NAME,)
        assert "on gpu-1" in finding_of(report, self.NAME).title
        assert "gpu-2" not in finding_of(report, self.NAME).title

    def test_a_broken_node_that_is_open_is_nearer_than_full_closed_ones(self) -> None:
        broken = k8s.node("gpu-2", allocatable={}, labels={"nvidia.com/gpu.present": "true"})
        report = ask(waiting(), *full(taints=[TAINT]), broken)
        assert report.roots == ("gpu-resource-not-advertised",)


class TestSelectors:
    NAME = "node-selector-mismatch"

    def test_words(self) -> None:
        message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
        pod = waiting(message=message, spec={"nodeSelector": {"pool": "gold"}})
        report = ask(pod, k8s.node(labels={"pool": "silver"}), k8s.node("gpu-2"))
        found = finding_of(report, "node-selector-mismatch")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            "Pod/team/train-0 spec.nodeSelector, spec.affinity.nodeAffinity pool=gold",
            "Node/gpu-1 metadata.labels[pool] silver",
            "Node/gpu-2 metadata.labels[pool] no such label",
            f"Pod/team/train-0 status.conditions[PodScheduled] Unschedulable {message}",
        ]
        assert "The pod wants nodes with pool=gold. No node with its GPUs free has that." in (
            found.detail
        )

    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ({"operator": "In", "values": ["gold", "silver"]}, False),
            ({"operator": "In", "values": ["gold"]}, True),
            ({"operator": "NotIn", "values": ["silver"]}, True),
            ({"operator": "NotIn", "values": ["gold"]}, False),
            ({"operator": "Exists"}, False),
            ({"operator": "DoesNotExist"}, True),
        ],
    )
    def test_affinity(self, expression: Object, expected: bool) -> None:
        terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool"} | expression]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        pod = waiting(spec={"affinity": {"nodeAffinity": required}})
        report = ask(pod, k8s.node(labels={"pool": "silver"}))
        assert (self.NAME in loud(report)) is expected

    def test_preferred_affinity_keeps_nobody_out(self) -> None:
        preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
        pod = waiting(spec={"affinity": {"nodeAffinity": preferred}})
        assert self.NAME not in loud(ask(pod, k8s.node()))

    @pytest.mark.parametrize("reason", ["NodeAffinity", "NodeSelectorMismatching"])
    def test_refused_by_the_kubelet(self, reason: str) -> None:
        pod = k8s.pod(
            node="gpu-1",
            phase="Failed",
            status={"reason": reason, "message": "Predicate NodeAffinity failed"},
            spec={"nodeSelector": {"pool": "gold"}},
        )
        found = finding_of(ask(pod, k8s.node()), self.NAME)
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert "when its kubelet looked: pool=gold." in found.detail
        assert shown(found) == (
            f"Pod/team/train-0 status.reason ({reason}) Predicate NodeAffinity failed\n"
            "Node/gpu-1 metadata.labels do not match pool=gold"
        )
        now = finding_of(ask(pod, k8s.node(labels={"pool": "gold"})), self.NAME)
        assert "they match now" in now.detail
        other = k8s.pod(node="gpu-1", phase="Failed", status={"reason": "Evicted"})
        assert self.NAME not in loud(ask(other, k8s.node()))


class TestNodeNotReady:
    NAME = "node-not-ready"

    @pytest.mark.parametrize("key", ["not-ready", "unreachable", "disk-pressure"])
    def test_tainted_by_the_node_controller(self, key: str) -> None:
        taint = {"key": f"node.kubernetes.io/{key}", "effect": "NoSchedule"}
        ready = k8s.condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting")
        report = ask(waiting(), k8s.node(taints=[taint], conditions=[ready]))
        found = finding_of(report, "node-not-ready")
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines()[:2] == [
            "Node/gpu-1 status.conditions[Ready] Unknown NodeStatusUnknown Kubelet stopped posting",
            f"Node/gpu-1 spec.taints node.kubernetes.io/{key}:NoSchedule",
        ]

    def test_node_without_conditions(self) -> None:
        taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
        node = k8s.node(taints=[taint])
        node["status"]["conditions"] = []
        found = finding_of(ask(waiting(), node), self.NAME)
        assert "status.conditions[Ready] not there" in shown(found)

    def test_near_misses(self) -> None:
        taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
        pod = waiting(spec={"tolerations": [{"operator": "Exists"}]})
        assert self.NAME not in loud(ask(pod, k8s.node(taints=[taint])))
        soft = taint | {"effect": "PreferNoSchedule"}
        assert self.NAME not in loud(ask(waiting(), k8s.node(taints=[soft])))
        closed = k8s.node("gpu-2", taints=[taint])
        assert self.NAME not in loud(ask(waiting(), *full(), closed))


class TestCordon:
    NAME = "node-cordoned"

    def test_words(self) -> None:
        node = k8s.node(
            unschedulable=True,
            taints=[CORDON],
            labels={"maintenance": "march", "zone": "a"},
            annotations={"cordoned-by": "ops", "note": "x"},
        )
        report = ask(waiting(), node)
        found = finding_of(report, "node-cordoned")
        assert told(found) == ("error", "certain", "Node/gpu-1")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines()[0] == "Node/gpu-1 spec.unschedulable true"
        assert found.evidence[0].note == "maintenance=march, cordoned-by=ops"

    def test_nobody_says_who(self) -> None:
        found = finding_of(ask(waiting(), k8s.node(unschedulable=True)), self.NAME)
        assert found.evidence[0].note is None

    def test_near_misses(self) -> None:
        tolerating = waiting(spec={"tolerations": [CORDON | {"operator": "Exists"}]})
        node = k8s.node(unschedulable=True, taints=[CORDON])
        assert self.NAME not in loud(ask(tolerating, node))
        assert self.NAME not in loud(ask(waiting(), k8s.node("gpu-2", unschedulable=True), *full()))
        empty = k8s.node(unschedulable=True, allocatable={})
        assert self.NAME not in loud(ask(waiting(), empty))


SCHEDULER_KNOWS = [
    ("1 node(s) had volume node affinity conflict", "volume-affinity-conflict"),
    ("1 node(s) didn't match PersistentVolume's node affinity", "volume-affinity-conflict"),
    ("1 node(s) had no available volume zone", "volume-affinity-conflict"),
    ("pod has unbound immediate PersistentVolumeClaims", "volume-unbound"),
    ('persistentvolumeclaim "data-0" not found', "volume-unbound"),
    ("1 node(s) didn't find available persistent volumes to bind", "volume-unbound"),
    (
        "1 node(s) didn't match pod topology spread constraints",
        "topology-spread-unsatisfied",
    ),
    ("1 node(s) didn't match pod anti-affinity rules", "pod-affinity-unsatisfied"),
    ("1 node(s) didn't match pod affinity rules", "pod-affinity-unsatisfied"),
    ("1 node(s) didn't match pod affinity/anti-affinity rules", "pod-affinity-unsatisfied"),
    (
        "1 node(s) didn't have free ports for the requested pod ports",
        "host-port-taken",
    ),
]


class TestSchedulerKnows:
    NAMES = frozenset(name for _, name in SCHEDULER_KNOWS)

    @pytest.mark.parametrize(("reason", "name"), SCHEDULER_KNOWS)
    def test_its_own_words(self, reason: str, name: str) -> None:
        message = f"0/1 nodes are available: {reason}."
        pod = waiting(message=message)
        report = ask(pod, k8s.node())
        found = finding_of(report, name)
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (name,)
        assert "The scheduler says: " in found.detail
        assert "gpu-1 has the GPUs free." in found.detail
        assert found.evidence[0].value == message
        assert "[nvidia.com/gpu] 8 - 0 = 8 free" in shown(found)

    @pytest.mark.parametrize(("reason", "name"), SCHEDULER_KNOWS)
    def test_full_nodes_are_the_cause_instead(self, reason: str, name: str) -> None:
        message = f"0/2 nodes are available: 1 Insufficient nvidia.com/gpu, {reason}."
        report = ask(waiting(message=message), *full())
        assert report.roots == ("gpu-capacity-exhausted",)
        assert name not in {finding.name for finding in report.findings}

    @pytest.mark.parametrize(("reason", "name"), SCHEDULER_KNOWS)
    def test_without_nodes_it_is_likely(self, reason: str, name: str) -> None:
        message = f"0/1 nodes are available: {reason}."
        found = finding_of(ask(waiting(message=message), complete=False), name)
        assert told(found)[1] == "likely"
        assert "has the GPUs free" not in found.detail

    def test_pod_without_gpus(self) -> None:
        message = "0/1 nodes are available: 1 node(s) had volume node affinity conflict."
        pod = k8s.pod(limits={}, conditions=k8s.pending(message))
        assert told(finding_of(ask(pod), "volume-affinity-conflict"))[1] == "certain"

    def test_the_claims_are_shown(self) -> None:
        message = "0/1 nodes are available: 1 node(s) had volume node affinity conflict."
        volumes = [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}},
            {"name": "tmp", "emptyDir": {}},
        ]
        found = finding_of(
            ask(waiting(message=message, spec={"volumes": volumes}), k8s.node()),
            "volume-affinity-conflict",
        )
        assert "Pod/team/train-0 spec.volumes[data] data-0" in shown(found).splitlines()
        assert "spec.volumes[tmp]" not in shown(found)
        ports = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod "
        other = ask(waiting(message=ports + "ports.", spec={"volumes": volumes}), k8s.node())
        assert "spec.volumes" not in shown(finding_of(other, "host-port-taken"))

    def test_other_words(self) -> None:
        report = ask(waiting(message="0/1 nodes are available: 1 node(s) were odd."), k8s.node())
        assert loud(report) & self.NAMES == set()


class TestWithoutNodes:
    def ask(self, message: str, gpus: int = 1) -> Report:
        return ask(waiting(gpus, message), complete=False)

    def test_taints(self) -> None:
        message = "0/3 nodes are available: 3 node(s) had untolerated taint {team: ml}."
        found = finding_of(self.ask(message), "missing-toleration")
        assert told(found) == ("error", "likely", "Pod/team/train-0")
        assert found.title == "team/train-0 does not tolerate team=ml on 3 nodes"
        assert found.evidence[0].value == message

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ("0/3 nodes are available: 3 node(s) had untolerated taint {a: b}.", True),
            ("0/3 nodes are available: 3 node(s) had untolerated taint(s).", True),
            ("0/1 nodes are available: 1 node(s) had untolerated taint(s).", True),
            ("node(s) had untolerated taint(s)", False),
            ("0/4 nodes are available: 3 node(s) had untolerated taint {a: b}.", False),
            (
                "0/3 nodes are available: 1 node(s) had untolerated taint {a: b}, 2 node(s) had "
                "untolerated taint {c: d}.",
                True,
            ),
            (
                "0/3 nodes are available: 3 node(s) had untolerated taint {a: b}, "
                "1 Insufficient nvidia.com/gpu.",
                False,
            ),
        ],
    )
    def test_all_nodes_must_be_tainted(self, message: str, expected: bool) -> None:
        assert ("missing-toleration" in loud(self.ask(message))) is expected

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.", True),
            ("0/3 nodes are available: 3 node(s) didn't match node selector.", True),
            (
                "0/3 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
                False,
            ),
            ("node(s) didn't match Pod's node affinity/selector", False),
        ],
    )
    def test_selectors(self, message: str, expected: bool) -> None:
        report = self.ask(message)
        assert ("node-selector-mismatch" in loud(report)) is expected
        if expected:
            found = finding_of(report, "node-selector-mismatch")
            assert told(found) == ("error", "likely", "Pod/team/train-0")
            assert "None of the 3 nodes matches" in found.detail

    def test_one_node_that_is_not_selected(self) -> None:
        message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
        assert "node-selector-mismatch" in loud(self.ask(message))

    @pytest.mark.parametrize(("victims", "expected"), [(3, True), (2, False), (0, False)], ids=str)
    def test_room_that_others_have(self, victims: int, expected: bool) -> None:
        message = (
            "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are "
            f"available: {victims} No preemption victims found for incoming pod, "
            f"{3 - victims} Preemption is not helpful for scheduling."
        )
        report = self.ask(message, 2)
        assert ("gpu-capacity-exhausted" in loud(report)) is expected
        if expected:
            found = finding_of(report, "gpu-capacity-exhausted")
            assert told(found) == ("error", "possible", "Pod/team/train-0")
            assert "found 3 nodes that would have room" in found.detail
            assert found.title == "All suitable nvidia.com/gpu are in use; team/train-0 asks for 2"

    def test_cpu_is_no_gpu(self) -> None:
        message = (
            "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available: "
            "3 No preemption victims found for incoming pod."
        )
        assert "gpu-capacity-exhausted" not in loud(self.ask(message))


class TestGated:
    NAME = "scheduling-gated"

    def pod(self, *gates: str, **more: Any) -> Object:
        spec = {"schedulingGates": [{"name": gate} for gate in gates]}
        return k8s.pod(conditions=k8s.pending(k8s.GATED, "SchedulingGated"), spec=spec, **more)

    def test_words(self) -> None:
        report = ask(self.pod("example.com/wait", "example.com/also"), k8s.node())
        found = finding_of(report, "scheduling-gated")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found) == (
            "Pod/team/train-0 spec.schedulingGates example.com/wait, example.com/also"
        )
        assert "until its gate example.com/wait, example.com/also is removed" in found.detail

    def test_near_misses(self) -> None:
        assert self.NAME not in loud(ask(self.pod("kueue.x-k8s.io/admission"), k8s.node()))
        assert self.NAME not in loud(ask(self.pod(), k8s.node()))
        assert self.NAME not in loud(ask(self.pod("a/b", node="gpu-1"), k8s.node()))
        assert self.NAME not in loud(ask(self.pod("a/b", phase="Succeeded"), k8s.node()))
