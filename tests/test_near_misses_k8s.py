"""Changes to a case that must change the answer: what was the cause no longer is, or another is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import cases_k8s
from tests.cases_k8s import find, subject

Case = dict[str, Any]


def say(case: Case, message: str) -> None:
    """Let the scheduler say something else, in the event and in the condition."""
    for obj in case["objects"]:
        if obj["kind"] == "Event" and obj["reason"] == "FailedScheduling":
            obj["message"] = message
    for condition in subject(case)["status"].get("conditions", []):
        if condition["type"] == "PodScheduled":
            condition["message"] = message


def advertise(
    case: Case, node: str, resource: str, amount: str, healthy: str | None = None
) -> None:
    status = find(case, "Node", node)["status"]
    status["capacity"][resource] = amount
    status["allocatable"][resource] = healthy or amount


def occupy(case: Case, node: str, amounts: dict[str, str], name: str = "other") -> None:
    case["objects"].append(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "elsewhere"},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "resources": {"limits": amounts}}],
            },
            "status": {"phase": "Running"},
        }
    )


def restored_and_full(case: Case) -> None:
    for node in ("gpu-1", "gpu-2"):
        advertise(case, node, "nvidia.com/gpu", "8")
        occupy(case, node, {"nvidia.com/gpu": "8"}, f"holder-{node}")


def driver_runs_again(case: Case) -> None:
    for obj in case["objects"]:
        if "nvidia-driver-daemonset" in obj["metadata"]["name"] and obj["kind"] == "Pod":
            obj["status"]["containerStatuses"][0].update(
                {"ready": True, "restartCount": 0, "lastState": {}, "state": {"running": {}}}
            )


def plugin_crashes(case: Case) -> None:
    driver_runs_again(case)
    for obj in case["objects"]:
        if "device-plugin-daemonset-" in obj["metadata"]["name"] and obj["kind"] == "Pod":
            obj["status"]["initContainerStatuses"] = []
            obj["status"]["containerStatuses"][0].update(
                {
                    "restartCount": 9,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
                }
            )


def plugin_tolerates(case: Case) -> None:
    template = find(case, "DaemonSet", "nvdp-nvidia-device-plugin")["spec"]["template"]["spec"]
    template["tolerations"].append({"operator": "Exists"})


def nodes_advertise_but_taint_not_tolerated(case: Case) -> None:
    for node in ("g-a", "g-b"):
        advertise(case, node, "nvidia.com/gpu", "4")
    subject(case)["spec"]["tolerations"] = []
    say(case, "0/2 nodes are available: 2 node(s) had untolerated taint(s).")


def all_healthy_and_in_use(case: Case) -> None:
    advertise(case, "h100-03", "nvidia.com/gpu", "8")
    occupy(case, "h100-03", {"nvidia.com/gpu": "1"})


def wants_what_is_healthy(case: Case) -> None:
    limits = subject(case)["spec"]["containers"][0]["resources"]
    limits["limits"] = limits["requests"] = {"nvidia.com/gpu": "7"}
    occupy(case, "h100-03", {"nvidia.com/gpu": "6"})


def one_card_more(case: Case) -> None:
    advertise(case, "edge-2", "nvidia.com/gpu", "2")
    occupy(case, "edge-2", {"nvidia.com/gpu": "2"})


def no_replacement(case: Case) -> None:
    case["objects"].remove(find(case, "Pod", "chat-6c9f7d-bbbbb"))


def still_unhealthy(case: Case) -> None:
    no_replacement(case)
    advertise(case, "infer-02", "nvidia.com/gpu", "2", "0")


def refused_for_numbers(case: Case) -> None:
    subject(case)["status"]["message"] = (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        "nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected"
    )


def refused_for_resources(case: Case) -> None:
    subject(case)["status"].update(
        reason="OutOfnvidia.com/gpu",
        message="Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 4, "
        "used: 6, capacity: 8",
    )


def one_node_free(case: Case) -> None:
    case["objects"].remove(find(case, "Pod", "infer-1"))
    subject(case)["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "500"


def total_too_small(case: Case) -> None:
    for number in range(1, 5):
        occupy(case, f"f-{number}", {"nvidia.com/gpu": "3"}, f"more-{number}")


def selector_of_no_node(case: Case) -> None:
    subject(case)["spec"]["nodeSelector"] = {"pool": "gold"}
    say(case, "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.")


def adapters_found(case: Case) -> None:
    for node in ("ib-1", "ib-2"):
        advertise(case, node, "rdma/rdma_shared_device_a", "63")
        occupy(case, node, {"nvidia.com/gpu": "8"}, f"holder-{node}")


def rdma_requested(case: Case) -> None:
    container = subject(case)["spec"]["containers"][0]
    container["resources"]["limits"]["rdma/hca_shared"] = "1"
    container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}


def node_without_rdma(case: Case) -> None:
    for node in ("ib-5", "ib-6"):
        status = find(case, "Node", node)["status"]
        del status["allocatable"]["rdma/hca_shared"], status["capacity"]["rdma/hca_shared"]


def nccl_on_ib(case: Case) -> None:
    key = next(iter(case["logs"]))
    case["logs"][key] = "ddp-0:9:9 [0] NCCL INFO Using network IB\n"


def shm_mounted_and_oom(case: Case) -> None:
    case["logs"] = {}
    for status in subject(case)["status"]["containerStatuses"]:
        status["lastState"] = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


def gpu_memory_instead(case: Case) -> None:
    key = next(iter(case["logs"]))
    case["logs"][key] = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def killed_by_the_kernel(case: Case) -> None:
    for status in subject(case)["status"]["containerStatuses"]:
        status["lastState"]["terminated"].update(reason="OOMKilled", exitCode=137)


def died_by_itself(case: Case) -> None:
    case["objects"] = [obj for obj in case["objects"] if obj.get("reason") != "Killing"]
    for status in subject(case)["status"]["containerStatuses"]:
        status["lastState"]["terminated"].update(reason="Error", exitCode=1)


def upgrade_done(case: Case) -> None:
    node = find(case, "Node", "pool-a1")
    labels = node["metadata"]["labels"]
    labels["nvidia.com/gpu-driver-upgrade-state"] = "upgrade-done"
    labels["nvidia.com/gpu.deploy.device-plugin"] = "true"
    labels["nvidia.com/gpu.deploy.container-toolkit"] = "true"
    advertise(case, "pool-a1", "nvidia.com/gpu", "8")


def upgrade_done_and_full(case: Case) -> None:
    upgrade_done(case)
    node = find(case, "Node", "pool-a1")
    node["spec"] = {}
    occupy(case, "pool-a1", {"nvidia.com/gpu": "8"})


def restarted_with_error(case: Case) -> None:
    status = subject(case)["status"]
    status["conditions"] = [{"type": "Ready", "status": "False"}]
    status["containerStatuses"][0].update(
        ready=False,
        restartCount=3,
        state={"waiting": {"reason": "CrashLoopBackOff"}},
        lastState={"terminated": {"exitCode": 1, "reason": "Error"}},
    )


def image_gone(case: Case) -> None:
    status = subject(case)["status"]
    status["conditions"] = [{"type": "Ready", "status": "False"}]
    status["containerStatuses"][0].update(
        ready=False,
        state={"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}},
    )


def device_turns_unhealthy(case: Case) -> None:
    devices = subject(case)["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]
    devices["resources"][0]["health"] = "Unhealthy"


def lost_one_not_held(case: Case) -> None:
    for status in find(case, "Pod", "detector-a")["status"]["containerStatuses"]:
        status.pop("allocatedResourcesStatus")


def other_layout_failed(case: Case) -> None:
    find(case, "Node", "mig-a")["metadata"]["labels"]["nvidia.com/mig.config"] = "all-3g.40gb"


def other_product_selected(case: Case) -> None:
    subject(case)["spec"]["nodeSelector"]["nvidia.com/gpu.product"] = "NVIDIA-H100-80GB-HBM3"


def variable_fits(case: Case) -> None:
    case["logs"] = {"serve/tpenv-0/vllm": "ValueError: no such model\n"}
    subject(case)["spec"]["containers"][0]["env"][0]["value"] = "4"


def ended_with_traceback(case: Case) -> None:
    case["logs"] = {"phys/md-0/main": "ValueError: negative time step\n"}


def no_claim_on_the_node(case: Case) -> None:
    case["objects"] = [
        obj
        for obj in case["objects"]
        if obj["kind"] not in ("ResourceClaim", "ResourceSlice")
        and obj["metadata"]["name"] != "exp-0"
    ]


CHANGES: list[tuple[str, Callable[[Case], None], set[str], set[str]]] = [
    # case, change, roots that must be there, findings that must not be there (above info)
    ("01", restored_and_full, {"gpu-capacity-exhausted"}, {"driver-container-failing"}),
    ("01", driver_runs_again, {"gpu-resource-not-advertised"}, {"driver-container-failing"}),
    ("01", plugin_crashes, {"device-plugin-crashing"}, {"driver-container-failing"}),
    ("02", plugin_tolerates, {"gpu-resource-not-advertised"}, {"device-plugin-blocked-by-taint"}),
    (
        "02",
        nodes_advertise_but_taint_not_tolerated,
        {"missing-toleration"},
        {"device-plugin-blocked-by-taint", "gpu-resource-not-advertised"},
    ),
    (
        "03",
        all_healthy_and_in_use,
        {"gpu-capacity-exhausted"},
        {"gpu-unhealthy-shrinks-allocatable"},
    ),
    (
        "03",
        wants_what_is_healthy,
        {"gpu-capacity-exhausted"},
        {"gpu-unhealthy-shrinks-allocatable"},
    ),
    ("04", one_card_more, {"gpu-fragmentation"}, {"request-exceeds-largest-node"}),
    ("05", no_replacement, {"admission-rejected-devices-not-ready"}, set()),
    ("05", still_unhealthy, {"gpu-unhealthy-shrinks-allocatable"}, set()),
    (
        "05",
        refused_for_numbers,
        {"admission-stale-device-accounting"},
        {"admission-rejected-devices-not-ready"},
    ),
    (
        "06",
        refused_for_resources,
        {"admission-stale-device-accounting"},
        {"numa-alignment-rejected"},
    ),
    ("10", one_node_free, {"non-gpu-resource-exhausted"}, {"gpu-fragmentation"}),
    ("10", total_too_small, {"gpu-capacity-exhausted"}, {"gpu-fragmentation"}),
    ("10", selector_of_no_node, {"node-selector-mismatch"}, {"gpu-fragmentation"}),
    ("13", adapters_found, {"gpu-capacity-exhausted"}, {"rdma-resource-zero"}),
    ("14", rdma_requested, {"rdma-device-absent"}, {"rdma-not-requested"}),
    ("14", node_without_rdma, set(), {"rdma-not-requested"}),
    ("14", nccl_on_ib, set(), {"rdma-not-requested"}),
    ("15", shm_mounted_and_oom, {"oom-killed"}, {"shm-too-small"}),
    ("15", gpu_memory_instead, {"gpu-out-of-memory"}, {"shm-too-small"}),
    ("16", killed_by_the_kernel, {"oom-killed"}, {"liveness-kills-loading-model"}),
    ("16", died_by_itself, {"application-error"}, {"liveness-kills-loading-model"}),
    (
        "19",
        upgrade_done,
        {"missing-toleration", "node-cordoned"},
        {"driver-upgrade-in-progress"},
    ),
    ("19", upgrade_done_and_full, {"gpu-capacity-exhausted"}, {"missing-toleration"}),
    ("18", restarted_with_error, {"application-error"}, set()),
    ("18", image_gone, {"image-pull-failing"}, {"application-error"}),
    ("18", device_turns_unhealthy, {"gpu-unhealthy-shrinks-allocatable"}, set()),
    (
        "26",
        lost_one_not_held,
        {"gpu-unhealthy-shrinks-allocatable"},
        {"gpu-lost-blocks-allocation"},
    ),
    ("27", other_layout_failed, {"mig-resource-name-mismatch"}, {"mig-config-failed"}),
    (
        "31",
        other_product_selected,
        {"node-selector-mismatch"},
        {"node-selector-label-changed-by-sharing"},
    ),
    ("56", no_claim_on_the_node, {"gpu-memory-leak"}, {"dra-device-plugin-double-allocation"}),
    ("67", variable_fits, {"application-error"}, {"tensor-parallel-exceeds-gpus"}),
    ("80", ended_with_traceback, {"application-error"}, {"insufficient-evidence"}),
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
