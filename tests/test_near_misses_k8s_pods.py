"""Changes to a case of a bound or refused pod that must change the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import cases_k8s
from tests.cases_k8s import find, subject

Case = dict[str, Any]


def events(case: Case, reason: str) -> list[Any]:
    return [obj for obj in case["objects"] if obj["kind"] == "Event" and obj["reason"] == reason]


def runs(pod: Any) -> None:
    """Let all containers of a pod run and be ready, without a restart."""
    status = pod["status"]
    status["phase"] = "Running"
    for one in (*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])):
        one.update(
            ready=True,
            started=True,
            restartCount=0,
            lastState={},
            state={"running": {"startedAt": "2026-10-05T09:01:00Z"}},
        )
    for condition in status["conditions"]:
        if condition["type"] in ("Ready", "ContainersReady", "Initialized", "PodScheduled"):
            condition["status"] = "True"


def events_of_its_own_start(case: Case) -> None:
    for event in case["objects"]:
        if event["kind"] == "Event":
            event["involvedObject"]["uid"] = subject(case)["metadata"]["uid"]


def evicted_instead(case: Case) -> None:
    subject(case)["status"].update(
        reason="Evicted", message="The node was low on resource: memory. Threshold quantity: 100Mi."
    )


def node_is_back(case: Case) -> None:
    for node in (obj for obj in case["objects"] if obj["kind"] == "Node"):
        node["spec"].pop("taints", None)
        for condition in node["status"]["conditions"]:
            condition["status"] = "True" if condition["type"] == "Ready" else "False"
    del subject(case)["metadata"]["deletionTimestamp"]
    runs(subject(case))


def out_of_gpus(case: Case) -> None:
    subject(case)["status"].update(
        reason="OutOfnvidia.com/gpu",
        message="Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 1, "
        "used: 4, capacity: 4",
    )


def gpu_node_in_use(case: Case) -> None:
    node = next(obj for obj in case["objects"] if obj["kind"] == "Node")
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        amounts |= {"nvidia.com/gpu": "2", "cpu": "96", "memory": "900Gi"}
    case["objects"].append(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "holder", "namespace": "elsewhere"},
            "spec": {
                "nodeName": node["metadata"]["name"],
                "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
            },
            "status": {"phase": "Running"},
        }
    )


def gpu_node_of_another_kind(case: Case) -> None:
    node = next(obj for obj in case["objects"] if obj["kind"] == "Node")
    node["metadata"]["labels"]["cloud.google.com/gke-accelerator"] = "nvidia-tesla-t4"
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        amounts["nvidia.com/gpu"] = "4"


def master_runs(case: Case) -> None:
    runs(find(case, "Pod", "exp-jw6qx-master-0"))


def waits_for_another_member(case: Case) -> None:
    """For one whose name begins as that of the member which does not run."""
    container = subject(case)["spec"]["initContainers"][0]
    container["command"] = [word.replace("master-0", "master-01") for word in container["command"]]


def mounted_since(case: Case) -> None:
    late = {**events(case, "Scheduled")[0], "reason": "Pulled", "message": "Successfully pulled"}
    late |= {"firstTimestamp": "2026-10-05T09:21:00Z", "lastTimestamp": "2026-10-05T09:21:00Z"}
    case["objects"].append(late)


def volume_of_a_missing_secret(case: Case) -> None:
    case["objects"].remove(events(case, "FailedAttachVolume")[0])
    (event,) = events(case, "FailedMount")
    event["message"] = 'MountVolume.SetUp failed for volume "ckpt" : secret "s3" not found'


def secret_was_made(case: Case) -> None:
    runs(subject(case))


def let_in_since(case: Case) -> None:
    (denied,) = events(case, "FailedCreatePod")
    late = {**denied, "reason": "SuccessfulCreatePod", "message": "Created pod"}
    late |= {"lastTimestamp": "2026-10-05T09:26:00Z"}
    case["objects"].append(late)
    runs(subject(case))


def quota_instead(case: Case) -> None:
    (denied,) = events(case, "FailedCreatePod")
    denied["message"] = (
        'Error creating: pods "gait-train-worker-0" is forbidden: exceeded quota: gpus, requested: '
        "requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=1, limited: "
        "requests.nvidia.com/gpu=1"
    )


def killed_while_loading(case: Case) -> None:
    (status,) = subject(case)["status"]["containerStatuses"]
    status["lastState"]["terminated"].update(
        exitCode=137, reason="Error", startedAt="2026-10-05T12:52:00Z"
    )


def oom_two_hours_ago(case: Case) -> None:
    (status,) = subject(case)["status"]["containerStatuses"]
    status["lastState"]["terminated"]["finishedAt"] = "2026-10-05T07:00:00Z"
    status["state"]["running"]["startedAt"] = "2026-10-05T07:00:10Z"


def taint_of_a_team(case: Case) -> None:
    for node in (obj for obj in case["objects"] if obj["kind"] == "Node"):
        for taint in node["spec"].get("taints", []):
            taint.update(key="dedicated", value="rendering", effect="NoSchedule")


def killed_without_a_reason(case: Case) -> None:
    case["objects"].remove(events(case, "DeadlineExceeded")[0])
    for key in ("reason", "message"):
        del subject(case)["status"][key]


def hook_finds_no_driver(case: Case) -> None:
    text = (
        "failed to create containerd task: OCI runtime create failed: error running hook #0: exit "
        "status 1, stderr: nvidia-container-cli: initialization error: nvml error: driver not "
        "loaded: unknown"
    )
    (status,) = subject(case)["status"]["containerStatuses"]
    status["lastState"]["terminated"]["message"] = text
    events(case, "Failed")[0]["message"] = f"Error: {text}"


def script_still_runs(case: Case) -> None:
    runs(subject(case))


CHANGES: list[tuple[str, Callable[[Case], None], set[str], set[str]]] = [
    ("91", events_of_its_own_start, set(), {"liveness-kills-loading-model"}),
    ("92", evicted_instead, {"evicted-node-pressure"}, {"node-not-ready"}),
    ("93", node_is_back, set(), {"node-not-ready"}),
    (
        "96",
        out_of_gpus,
        {"admission-stale-device-accounting"},
        {"non-gpu-resource-exhausted"},
    ),
    ("97", gpu_node_in_use, {"gpu-capacity-exhausted"}, {"no-gpu-node"}),
    ("99", gpu_node_of_another_kind, {"node-selector-mismatch"}, {"no-gpu-node"}),
    ("103", master_runs, {"application-error"}, {"peer-pod-failed-first"}),
    ("103", waits_for_another_member, {"application-error"}, {"peer-pod-failed-first"}),
    ("111", mounted_since, {"insufficient-evidence"}, {"volume-mount-failing"}),
    ("111", volume_of_a_missing_secret, {"pod-config-error"}, {"volume-mount-failing"}),
    ("112", secret_was_made, set(), {"pod-config-error"}),
    ("113", let_in_since, set(), {"pod-creation-denied"}),
    ("113", quota_instead, {"resourcequota-exceeded"}, {"pod-creation-denied"}),
    (
        "118",
        killed_while_loading,
        {"liveness-kills-loading-model"},
        {"application-error"},
    ),
    ("130", oom_two_hours_ago, {"oom-killed"}, set()),
    ("133", taint_of_a_team, {"missing-toleration"}, {"node-cordoned"}),
    ("134", taint_of_a_team, {"missing-toleration"}, {"node-not-ready"}),
    ("146", killed_without_a_reason, {"insufficient-evidence"}, {"deadline-exceeded"}),
    ("147", hook_finds_no_driver, {"driver-not-loaded"}, {"application-error"}),
    ("149", script_still_runs, set(), {"application-error"}),
]


@pytest.mark.parametrize(
    ("number", "change", "expected", "gone"),
    CHANGES,
    ids=[f"{number}-{change.__name__}" for number, change, _, _ in CHANGES],
)
def test_change_changes_the_answer(
    number: str, change: Callable[[Case], None], expected: set[str], gone: set[str]
) -> None:
    report, loud = cases_k8s.ask_changed(number, change)
    assert set(report.roots) == expected
    assert gone & loud == set()
