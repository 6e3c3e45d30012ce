"""The mutating policy on the real API server: what it makes of a pod is what the examples show."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.test_scheduler_truth import version

pytestmark = pytest.mark.cluster

DAEMONSET = Path(__file__).parents[2] / "daemonset"
POLICY = "manifests/policies/preflight-injection.yaml"
INJECTED, PLAIN = "inject-on", "inject-off"
SINCE, IMAGE_VOLUMES_SINCE = "1.36", "1.35"


def load(name: str) -> list[JSON]:
    text = (DAEMONSET / name).read_text(encoding="utf-8")
    return [obj for obj in yaml.safe_load_all(text) if obj is not None]


def example(name: str, namespace: str) -> JSON:
    [pod] = load(f"examples/{name}.yaml")
    pod["metadata"]["namespace"] = namespace
    return pod


def first_line(obj: JSON) -> str:
    """The first Kubernetes line that serves the object as it is, without feature gates."""
    if obj["kind"].startswith("Mutating"):
        return SINCE
    volumes = obj["spec"].get("volumes", []) if obj["kind"] == "Pod" else []
    has_image = any("image" in volume for volume in volumes)
    return IMAGE_VOLUMES_SINCE if has_image else "1.30"


def parameters(**data: str) -> JSON:
    [found] = [obj for obj in load(POLICY) if obj["kind"] == "ConfigMap"]
    # The image of the examples, instead of the chart's default.
    found["data"] |= {"image": "example.com/gpudoctor:0.1.0"} | data
    return found


def stored(admin: Admin, pod: JSON) -> JSON:
    """Create the pod for good, read what the server keeps of it, and delete it."""
    admin.create(pod)
    try:
        return admin.get(pod)
    finally:
        admin.delete(pod)
        wait_for("end of the pod", lambda: not admin.exists(pod))


def preflight(pod: JSON) -> JSON | None:
    found: list[JSON] = pod["spec"].get("initContainers", [])
    return next((one for one in found if one["name"] == "preflight"), None)


@pytest.fixture(scope="module")
def policy(admin: Admin, line: str, own_namespace: str) -> Iterator[None]:
    if version(line) < version(SINCE):
        pytest.skip(f"MutatingAdmissionPolicy is served as v1 from Kubernetes {SINCE} on")
    made = []
    for name, labels in (
        (INJECTED, {"gpudoctor.io/preflight": "inject"}), (PLAIN, {}),
    ):  # fmt: skip
        metadata = {"name": name, "labels": labels}
        made.append(admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
    for namespace in (INJECTED, PLAIN):
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace},
        }
        wait_for("default service account", partial(admin.exists, account))
    made += [admin.create(obj) for obj in load(POLICY) if obj["kind"] != "ConfigMap"]
    yield
    for obj in reversed(made):
        admin.delete(obj)
    wait_for("end of the namespaces", lambda: not any(admin.exists(one) for one in made[:2]), 60)


@pytest.fixture
def images(admin: Admin, policy: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """The parameters, as the policy has heard of them."""
    wanted = parameters(**getattr(request, "param", {}))
    admin.create(wanted)

    def heard() -> bool:
        answer = admin.try_create(example("pod", INJECTED)).json()
        has_volume = any("image" in volume for volume in answer["spec"]["volumes"])
        wants_volume = wanted["data"]["imageVolume"] == "true"
        return preflight(answer) is not None and has_volume is wants_volume

    wait_for("an injected preflight", heard)
    yield
    admin.delete(wanted)
    wait_for(
        "end of the parameters",
        lambda: preflight(admin.try_create(example("pod", INJECTED)).json()) is None,
    )


@pytest.mark.parametrize(
    ("images", "shown"),
    [
        ({}, "pod-with-preflight"),
        ({"imageVolume": "true"}, "pod-with-image-volume"),
    ],
    indirect=["images"],
)
def test_the_result_is_what_the_example_shows(admin: Admin, images: None, shown: str) -> None:
    injected = stored(admin, example("pod", INJECTED))
    pasted = stored(admin, example(shown, PLAIN))
    assert injected["spec"] == pasted["spec"]
    # A pod that has it already is left as it is, wherever it is made.
    again = stored(admin, example(shown, INJECTED))
    assert again["spec"] == pasted["spec"]


def test_other_namespaces_and_pods_are_left_alone(admin: Admin, images: None) -> None:
    elsewhere = stored(admin, example("pod", PLAIN))
    assert preflight(elsewhere) is None
    without = example("pod", INJECTED)
    del without["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert preflight(stored(admin, without)) is None


def test_the_gpu_container_is_found_and_copied(admin: Admin, images: None) -> None:
    """Behind a sidecar, before another init container, with a claim, and without its secrets."""
    pod = example("pod", INJECTED)
    main = pod["spec"]["containers"][0]
    main["resources"]["claims"] = [{"name": "nics"}]
    main["env"].append({"name": "NCCL_IB_HCA", "value": "mlx5"})
    main["env"].append(
        {"name": "GPUDOCTOR_TOKEN", "valueFrom": {"secretKeyRef": {"name": "r", "key": "t"}}}
    )
    main["volumeMounts"].insert(0, {"name": "dshm", "mountPath": "/scratch"})
    pod["spec"]["resourceClaims"] = [{"name": "nics", "resourceClaimName": "nics"}]
    pod["spec"]["containers"].insert(0, {"name": "logs", "image": "example.com/logs:1"})
    pod["spec"]["initContainers"] = [{"name": "fetch", "image": "example.com/fetch:1"}]
    made = stored(admin, pod)
    found = made["spec"]["initContainers"]
    assert [one["name"] for one in found] == ["preflight", "fetch"]
    first, trainer = found[0], made["spec"]["containers"][1]
    assert first["resources"] == trainer["resources"]
    assert first["resources"]["claims"] == [{"name": "nics"}]
    assert first["securityContext"] == trainer["securityContext"]
    assert first["volumeMounts"] == [{"name": "dshm", "mountPath": "/dev/shm"}]
    names = [one["name"] for one in first["env"]]
    assert names == [
        "GPUDOCTOR_REQUIRE", "NODE_NAME", "NCCL_DEBUG", "NCCL_IB_HCA", "GPUDOCTOR_TOKEN",
    ]  # fmt: skip


def test_pods_of_a_job_carry_their_index(admin: Admin, images: None) -> None:
    spec = copy.deepcopy(example("pod", INJECTED)["spec"])
    del spec["activeDeadlineSeconds"]
    metadata = {"name": "train", "namespace": INJECTED}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "template": {"spec": spec},
        },
    }
    admin.create(job)
    selector = "batch.kubernetes.io/job-name%3Dtrain"

    def both() -> list[JSON] | None:
        pods = admin.list("v1", "Pod", INJECTED, labelSelector=selector)
        return pods if len(pods) == 2 else None

    try:
        for pod in wait_for("pods of the job", both):
            found = preflight(pod)
            assert found is not None
            assert "JOB_COMPLETION_INDEX" in [one["name"] for one in found["env"]]
    finally:
        admin.delete(job)
        wait_for(
            "end of the job's pods",
            lambda: not admin.list("v1", "Pod", INJECTED, labelSelector=selector),
        )


def test_it_fails_open(admin: Admin, policy: None) -> None:
    """Neither missing nor useless parameters keep a pod out."""
    assert preflight(stored(admin, example("pod", INJECTED))) is None
    useless = parameters()
    useless["data"] = {"imageVolume": "perhaps"}
    admin.create(useless)
    try:
        assert preflight(stored(admin, example("pod", INJECTED))) is None
    finally:
        admin.delete(useless)
