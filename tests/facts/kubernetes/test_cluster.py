"""The index of an input: what goes where, what is skipped, and that no JSON stops it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import components, fields, health, situation
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.model import Scope
from tests import kubernetes_objects as k8s

MODEST = settings(deadline=None, max_examples=60)


def raw(*texts: str | bytes) -> Cluster:
    found = [msgspec.Raw(t.encode() if isinstance(t, str) else t) for t in texts]
    return Cluster(found, Scope())


def test_where_each_kind_goes() -> None:
    job = k8s.custom("batch/v1", "Job", "train", "team")
    volcano = k8s.custom("batch.volcano.sh/v1alpha1", "Job", "train", "team")
    found = k8s.cluster(k8s.node(), k8s.pod(), k8s.event(k8s.pod(), "A", "b"), k8s.daemon(), job)
    assert list(found.nodes) == ["gpu-1"]
    assert [entry.name for entry in found.pods] == ["train-0"]
    assert [event.reason for event in found.events] == ["A"]
    assert [each.meta.name for each in found.daemon_sets] == ["nvidia-device-plugin"]
    assert found.of_kind("batch", "Job") == [job]
    assert found.of_kind("batch.volcano.sh", "Job") == []
    assert k8s.cluster(volcano).of_kind("batch.volcano.sh", "Job") == [volcano]
    assert found.unreadable == 0


def test_other_groups_pods_are_no_pods() -> None:
    found = k8s.cluster(k8s.custom("metrics.k8s.io/v1", "Pod", "a", "team"))
    assert found.pods == []


def test_events_of_both_apis() -> None:
    new = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "regarding": {"kind": "Pod", "name": "a", "namespace": "team"},
        "note": "said",
        "reportingController": "scheduler",
        "series": {"count": 9, "lastObservedTime": "2026-11-20T09:00:00.000000Z"},
        "eventTime": "2026-11-20T08:00:00.000000Z",
    }
    event = k8s.cluster(new).events[0]
    assert (event.about.name, event.message, event.component) == ("a", "said", "scheduler")
    assert (event.count, event.seen) == (9, fields.moment("2026-11-20T09:00:00Z"))


def test_events_in_the_order_they_were_seen() -> None:
    pod = k8s.pod(meta={"uid": "new"})
    late, early, other, past = (
        k8s.event(pod, reason, "x", seen=f"2026-11-20T08:{minute}:00Z")
        for reason, minute in (("late", "20"), ("early", "10"), ("other", "15"), ("past", "05"))
    )
    timeless = k8s.event(pod, "timeless", "x")
    for key in ("firstTimestamp", "lastTimestamp"):
        timeless[key] = None
    del timeless["metadata"]["creationTimestamp"]
    other["involvedObject"]["namespace"] = "elsewhere"
    past["involvedObject"]["uid"] = "old"
    late["involvedObject"]["uid"] = "new"
    found = k8s.cluster(late, early, other, past, timeless)

    def reasons(*about: Any) -> list[str]:
        return [event.reason for event in found.events_of("Pod", "train-0", *about)]

    assert reasons("team", "new") == ["timeless", "early", "late"]
    assert reasons("team") == ["timeless", "past", "early", "late"]
    assert reasons(None) == ["timeless", "past", "early", "other", "late"]
    assert found.events_of("Node", "train-0", None) == []


def test_occupants_are_bound_and_not_ended() -> None:
    found = k8s.cluster(
        k8s.held("gpu-1", "2"),
        k8s.pod("done", node="gpu-1", phase="Succeeded"),
        k8s.pod("broken", node="gpu-1", phase="Failed"),
        k8s.pod("waiting"),
        k8s.held("gpu-2", "1", name="there"),
    )
    assert [held.name for held in found.occupants("gpu-1")] == ["holder"]
    assert [held.name for held in found.occupants("gpu-2")] == ["there"]
    assert found.occupants("gpu-3") == []


def test_one() -> None:
    found = k8s.cluster(
        k8s.custom("x/v1", "Thing", "a", "team"),
        k8s.custom("x/v1", "Thing", "a", "other"),
        k8s.custom("x/v1", "Thing", "b", "team"),
    )

    def namespace(name: str, of: str | None) -> str | None:
        return fields.text(found.one("x", "Thing", name, of), "metadata", "namespace")

    assert namespace("a", "other") == "other"
    assert namespace("a", None) == "team"
    assert found.one("x", "Thing", "c", "team") is None
    assert found.one("y", "Thing", "a", "team") is None


def test_pod_is_read_once_and_has_a_namespace() -> None:
    pod = k8s.pod()
    del pod["metadata"]["namespace"]
    found = k8s.cluster(pod)
    first = found.pod(found.pods[0])
    assert first.meta.namespace == "default"
    assert found.pod(found.pods[0]) is first


def test_owned_by() -> None:
    owned = k8s.pod("a", meta={"ownerReferences": [k8s.owner("Job", "train")]})
    loose = k8s.pod(
        "b", meta={"ownerReferences": [k8s.owner("Job", "train") | {"controller": False}]}
    )
    found = k8s.cluster(owned, loose, k8s.pod("c"))
    assert [pod.meta.name for pod in found.owned_by("team", "Job/train")] == ["a"]
    assert list(found.owned_by("other", "Job/train")) == []


def test_derived_is_built_once() -> None:
    calls = []

    def build(cluster: Cluster) -> int:
        calls.append(cluster)
        return len(cluster.pods)

    found = k8s.cluster(k8s.pod())
    assert (found.derived(build), found.derived(build)) == (1, 1)
    assert calls == [found]


@pytest.mark.parametrize(
    ("texts", "unreadable"),
    [
        (["{}"], 0),
        (["{", "[]", "7", "null", '"x"', ""], 6),
        (["[" * 100_000], 1),
        ([b"\xff\xfe"], 1),
        ([b'{"kind": "\xff"}'], 1),
    ],
)
def test_what_is_not_an_object_is_counted(texts: list[str | bytes], unreadable: int) -> None:
    assert raw(*texts).unreadable == unreadable


@pytest.mark.parametrize(
    ("texts", "now"),
    [
        (['{"a": {"lastTransitionTime": "2026-11-20T08:00:00Z"}}'], "2026-11-20T08:00:00Z"),
        (
            [
                '{"creationTimestamp": "2026-11-20T08:00:00Z", "startedAt":"2026-11-20T08:00:01Z"}',
                '{"eventTime": "2026-11-20T08:00:00.5Z"}',
            ],
            "2026-11-20T08:00:01Z",
        ),
        (['{"note": "2026-11-20T08:00:00Z"}'], None),
        ([], None),
    ],
)
def test_now_is_the_newest_time_in_the_input(texts: list[str], now: str | None) -> None:
    assert raw(*texts).now == fields.moment(now)


def test_now_that_is_given() -> None:
    assert k8s.cluster(k8s.pod(), now="2027-01-01T00:00:00Z").now == fields.moment(
        "2027-01-01T00:00:00Z"
    )


SCALARS = st.none() | st.booleans() | st.integers(-5, 10**18) | st.text(max_size=6)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "name",
                        "namespace",
                        "labels",
                        "annotations",
                        "nodeName",
                        "containers",
                        "env",
                    ),
                    *(
                        "resources",
                        "limits",
                        "requests",
                        "conditions",
                        "containerStatuses",
                        "state",
                    ),
                    *(
                        "waiting",
                        "taints",
                        "allocatable",
                        "capacity",
                        "ownerReferences",
                        "template",
                    ),
                    *(
                        "spec",
                        "metadata",
                        "status",
                        "phase",
                        "nvidia.com/gpu",
                        "tolerations",
                        "type",
                    ),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
OBJECTS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["Pod", "Node", "Event", "DaemonSet", "ConfigMap", "Job"]) | JSON,
        "apiVersion": st.sampled_from(["v1", "apps/v1", "events.k8s.io/v1"]) | JSON,
    },
    optional={"metadata": JSON, "spec": JSON, "status": JSON, "data": JSON, "regarding": JSON},
)


@MODEST
@given(st.lists(OBJECTS | JSON, max_size=4))
def test_any_json(objects: list[Any]) -> None:
    found = Cluster([msgspec.Raw(msgspec.json.encode(obj)) for obj in objects], Scope())
    parts = components.read(found)
    for entry in found.pods:
        case = situation.read(found, found.pod(entry), {}, parts)
        assert health.assess(case).state in health.State


@MODEST
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_bytes(texts: list[bytes]) -> None:
    assert raw(*texts).unreadable <= len(texts)
