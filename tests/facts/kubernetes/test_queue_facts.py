"""Queues, gangs and DRA read from objects of any shape: nothing raises, owners are followed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import dra, parse, queues, sharing
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object

ANY: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
KINDS: tuple[tuple[str, str, Object], ...] = (
    ("kueue.x-k8s.io/v1beta2", "Workload", {"queueName": "lq", "podSets": []}),
    ("kueue.x-k8s.io/v1beta1", "LocalQueue", {"clusterQueue": "x"}),
    ("kueue.x-k8s.io/v1beta1", "ClusterQueue", {"resourceGroups": [{"flavors": [{}]}]}),
    ("kueue.x-k8s.io/v1beta1", "ResourceFlavor", {"topologyName": "x"}),
    ("scheduling.volcano.sh/v1beta1", "PodGroup", {"minMember": 2}),
    ("scheduling.volcano.sh/v1beta1", "Queue", {"capability": {}}),
    ("resource.k8s.io/v1", "ResourceClaim", {"devices": {"requests": [{}]}}),
    ("resource.k8s.io/v1", "ResourceSlice", {"pool": {}, "devices": [{}]}),
    ("resource.k8s.io/v1", "DeviceClass", {"selectors": [{}]}),
    ("resource.nvidia.com/v1beta1", "ComputeDomain", {}),
)


def spoilt(obj: Object, path: list[str], value: Any) -> Object:
    """Put the value somewhere in the object, so that a field has a shape it must not have."""
    here = obj
    for key in path[:-1]:
        inner = here.get(key)
        if not isinstance(inner, dict):
            break
        here = inner
    here[path[-1]] = value
    return obj


@settings(deadline=None, max_examples=120)
@given(
    kind=st.sampled_from(KINDS),
    path=st.sampled_from(
        [
            ["spec"],
            ["status"],
            ["metadata"],
            ["status", "conditions"],
            ["status", "allocation"],
            ["status", "admission"],
            ["spec", "devices"],
            ["spec", "podSets"],
            ["spec", "pool"],
            ["spec", "resourceGroups"],
            ["spec", "minMember"],
        ]
    ),
    value=ANY,
)
def test_objects_of_any_shape(kind: tuple[str, str, Object], path: list[str], value: Any) -> None:
    api, name, spec = kind
    odd = spoilt(k8s.custom(api, name, "x", "team", spec=dict(spec)), path, value)
    pod = k8s.pod(
        meta={
            "labels": {"kueue.x-k8s.io/queue-name": "lq", "kueue.x-k8s.io/pod-group-name": "x"},
            "annotations": {"scheduling.k8s.io/group-name": "x"},
        },
        spec={
            "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
            "resourceClaims": [{"name": "r", "resourceClaimName": "x"}],
        },
    )
    cluster = k8s.cluster(pod, odd, k8s.node())
    situation = k8s.situation_of(cluster)
    assert queues.read(cluster, situation) is not None
    assert dra.read(cluster, situation) is not None
    assert sharing.read(cluster, situation) is not None


def test_nothing_of_it_concerns_a_plain_pod() -> None:
    cluster = k8s.cluster(k8s.pod(limits={"cpu": "1"}), k8s.node())
    situation = k8s.situation_of(cluster)
    assert queues.read(cluster, situation) is None
    assert dra.read(cluster, situation) is None
    assert sharing.read(cluster, situation) is None


def test_ancestors_by_owner_references_and_labels() -> None:
    job = k8s.custom(
        "batch/v1", "Job", "node-0", "team", ownerReferences=[k8s.owner("JobSet", "js")]
    )
    jobset = k8s.custom(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "js",
        "team",
        ownerReferences=[k8s.owner("TrainJob", "tj")],
    )
    pod = k8s.pod(meta={"ownerReferences": [k8s.owner("Job", "node-0")]})
    cluster = k8s.cluster(pod, job, jobset)
    found = queues.ancestors(cluster, parse.meta(pod))
    assert found == {"Pod/train-0", "Job/node-0", "JobSet/js", "TrainJob/tj"}


def test_owners_in_a_circle_end() -> None:
    first = k8s.custom("batch/v1", "Job", "a", "team", ownerReferences=[k8s.owner("Job", "a")])
    pod = k8s.pod(meta={"ownerReferences": [k8s.owner("Job", "a")]})
    cluster = k8s.cluster(pod, first)
    assert queues.ancestors(cluster, parse.meta(pod)) == {"Pod/train-0", "Job/a"}


def test_job_that_is_suspended_has_no_pods() -> None:
    job = k8s.custom("batch/v1", "Job", "j", "team", spec={"suspend": True}, uid="job-uid")
    workload = k8s.custom(
        "kueue.x-k8s.io/v1beta2", "Workload", "w", "team", spec={"queueName": "lq"}
    )
    workload["metadata"]["ownerReferences"] = [k8s.owner("Job", "j", uid="job-uid")]
    found = queues.read_job(k8s.cluster(job, workload), job)
    assert found is not None
    assert found.held
    assert found.kueue is not None
    assert found.kueue.workload is not None
    assert found.kueue.workload.meta.name == "w"


@pytest.mark.parametrize("spec", [{}, {"suspend": False}])
def test_job_that_nothing_holds(spec: Object) -> None:
    job = k8s.custom("batch/v1", "Job", "j", "team", spec=spec)
    assert queues.read_job(k8s.cluster(job), job) is None


@pytest.mark.parametrize(
    ("resource", "family"),
    [
        ("nvidia.com/gpu", "gpu"),
        ("nvidia.com/gpu.shared", "gpu"),
        ("nvidia.com/mig-1g.10gb.me", "mig-1g.10gb.me"),
        ("nvidia.com/mig-1g.5gb.shared", "mig-1g.5gb"),
        ("amd.com/gpu", None),
        ("nvidia.com/gpumem", None),
    ],
)
def test_family_of_a_key(resource: str, family: str | None) -> None:
    assert sharing.family(resource) == family


def test_bare_product() -> None:
    name = "NVIDIA-A100-SXM4-40GB"
    for suffix in ("", "-SHARED", "-MIG-1g.5gb", "-MIG-1g.10gb.me-SHARED"):
        assert sharing.bare_product(name + suffix) == name
