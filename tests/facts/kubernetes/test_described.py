"""`kubectl describe` text; the data is real output of kubectl 1.37, but for that of v1.20."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import ages, described, parse

DATA = Path(__file__).parents[2] / "data" / "describe"
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def text(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def only(name: str) -> dict[str, Any]:
    [subject] = described.read(text(name), NOW).subjects
    return subject


def events(source: str, now: datetime | None = NOW) -> list[dict[str, Any]]:
    return [found for found in described.read(source, now).others if found["kind"] == "Event"]


def test_pod_metadata_and_placement() -> None:
    pod = only("trainer.pod.txt")
    assert pod["metadata"] == {
        "name": "trainer-0",
        "namespace": "ml",
        "labels": {"app": "trainer", "job-name": "trainer"},
        "annotations": {
            "k8s.v1.cni.cncf.io/network-status": pod["metadata"]["annotations"][
                "k8s.v1.cni.cncf.io/network-status"
            ],
            "k8s.v1.cni.cncf.io/networks": "rdma-net",
            "note": "two\nlines: here",
        },
        "ownerReferences": [{"kind": "Job", "name": "trainer", "controller": True}],
    }
    spec = pod["spec"]
    assert (spec["nodeName"], spec["priority"], spec["runtimeClassName"]) == (
        "gpu-1",
        1000,
        "nvidia",
    )
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100", "zone": "a"}
    assert spec["tolerations"] == [
        {"operator": "Exists"},
        {"operator": "Equal", "key": "dedicated", "value": "ml", "effect": "NoSchedule"},
        {
            "operator": "Exists",
            "key": "node.kubernetes.io/not-ready",
            "effect": "NoExecute",
            "tolerationSeconds": 300,
        },
        {"operator": "Exists", "key": "nvidia.com/gpu", "effect": "NoSchedule"},
        {"operator": "Exists", "key": "spot"},
    ]


def test_pod_containers() -> None:
    main, side = only("trainer.pod.txt")["spec"]["containers"]
    assert main["command"] == ["/bin/bash", "-c"]
    assert main["args"] == [
        "export NCCL_DEBUG=INFO\nif true; then\n  torchrun \\\n    --nproc-per-node 8 train.py\nfi"
    ]
    assert main["resources"]["limits"] == {
        "cpu": "96",
        "memory": "900Gi",
        "nvidia.com/gpu": "8",
        "rdma/hca": "1",
    }
    assert main["env"] == [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "EMPTY", "value": ""},
        {"name": "MULTI", "value": "one\ntwo: 2"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
        {"name": "CFG", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    assert main["volumeMounts"] == [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "dshm", "mountPath": "/dev/shm", "readOnly": False},
    ]
    assert main["livenessProbe"]["initialDelaySeconds"] == 120
    assert main["startupProbe"]["failureThreshold"] == 60
    assert side["name"] == "side"
    [fetch] = only("trainer.pod.txt")["spec"]["initContainers"]
    assert fetch["command"] == ["sh", "-c", "set -e\n  cp /a /b\necho done"]


def test_pod_volumes() -> None:
    volumes = {volume["name"]: volume for volume in only("trainer.pod.txt")["spec"]["volumes"]}
    assert volumes["dshm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert volumes["scratch"]["emptyDir"] == {}
    assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "data-0"}
    assert volumes["host"]["hostPath"] == {"path": "/dev/infiniband"}


def test_a_message_of_several_lines_does_not_end_the_container() -> None:
    main, side = only("trainer.pod.txt")["status"]["containerStatuses"]
    ended = main["lastState"]["terminated"]
    assert ended["message"].splitlines()[0] == "Traceback (most recent call last):"
    assert ended["message"].splitlines()[-2:] == ["Name: looks like a field", "Ready: not a field"]
    assert (ended["exitCode"], ended["finishedAt"]) == (1, "2026-11-20T08:09:00Z")
    assert (main["ready"], main["restartCount"]) == (False, 7)
    assert main["state"] == {"waiting": {"reason": "CrashLoopBackOff"}}
    assert side["state"] == {"running": {"startedAt": "2026-11-20T08:02:00Z"}}
    [failed] = only("asr-0.pod.txt")["status"]["containerStatuses"]
    assert "nvidia-container-cli: requirement error" in failed["lastState"]["terminated"]["message"]
    assert failed["lastState"]["terminated"]["exitCode"] == 128


def test_events_of_a_pod() -> None:
    first, second = events(text("trainer.pod.txt"))
    assert first["involvedObject"] == {"kind": "Pod", "name": "trainer-0", "namespace": "ml"}
    assert (first["type"], first["reason"], first["count"]) == ("Warning", "BackOff", 31)
    assert first["lastTimestamp"] == "2026-11-11T12:00:00Z"
    assert second["message"] == 'Container image "example/train:7"  already  present on machine'
    [failed] = events(text("asr-0.pod.txt"))
    assert failed["message"].endswith("or use an earlier cuda container: unknown")


def test_old_text() -> None:
    pod = only("v1.20.pod.txt")
    assert pod["metadata"]["deletionTimestamp"] == "2026-11-20T11:56:48Z"
    [status] = pod["status"]["containerStatuses"]
    assert status["lastState"]["terminated"]["finishedAt"] == "2021-06-08T09:05:01Z"
    assert pod["spec"]["containers"][0]["livenessProbe"]["failureThreshold"] == 3
    rows = events(text("v1.20.pod.txt"))
    assert [row["source"]["component"] for row in rows] == [
        "default-scheduler",
        "kubelet",
        "kubelet",
    ]
    assert rows[0]["lastTimestamp"] is None
    assert (rows[1]["firstTimestamp"], rows[1]["lastTimestamp"]) == (
        "2026-11-20T11:55:06Z",
        "2026-11-20T11:57:55Z",
    )


def test_without_now_the_newest_event_is_as_old_as_the_newest_date() -> None:
    source = text("v1.20.pod.txt")
    assert described.read(source).now == datetime(2021, 6, 8, 9, 5, 42, tzinfo=UTC)
    assert events(source, None)[-1]["lastTimestamp"] == "2021-06-08T09:05:02Z"
    pending = "Name:  a\nNamespace:  b\nQoS Class:  BestEffort\nEvents:\n"
    pending += "  Warning  FailedScheduling  5m (x12 over 30m)  default-scheduler  0/3 nodes\n"
    assert described.read(pending).now == ages.EPOCH


def test_node() -> None:
    found = described.read(text("gpu-1.node.txt"), NOW)
    [node] = found.subjects
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert node["spec"] == {
        "unschedulable": True,
        "taints": [
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        ],
    }
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"] == "containerd://2.3.3"
    health, ready = node["status"]["conditions"]
    assert (health["type"], health["status"], health["message"]) == (
        "GpuHealth",
        "Unknown",
        "GPU 3 has   fallen off the bus",
    )
    assert ready["lastHeartbeatTime"] == "2026-11-20T08:09:00Z"
    [event] = [other for other in found.others if other["kind"] == "Event"]
    assert event["involvedObject"] == {"kind": "Node", "name": "gpu-1"}


def held(source: str) -> dict[str, dict[str, str]]:
    pods = [other for other in described.read(source, NOW).others if other["kind"] == "Pod"]
    return {
        pod["metadata"]["name"]: pod["spec"]["containers"][0]["resources"]["requests"]
        for pod in pods
    }


def test_what_a_node_has_given_away_is_not_free() -> None:
    node, pod = text("gpu-1.node.txt"), text("trainer.pod.txt")
    assert held(node) == {
        "trainer-0": {"cpu": "96", "memory": "900Gi"},
        "(pods of gpu-1)": {"nvidia.com/gpu": "8"},
    }
    # With the pod's own description in the text, its devices count once.
    assert held(f"{node}\n\n{pod}") == {"(pods of gpu-1)": {"nvidia.com/gpu": "0"}}


def test_several_objects_in_one_text() -> None:
    found = described.read(text("operator.nodes.txt"))
    assert [node["metadata"]["name"] for node in found.subjects] == ["cp-1", "gpu-1", "gpu-2"]
    assert found.subjects[0]["spec"]["taints"] == [
        {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    ]
    assert described.starts(text("operator.nodes.txt")) == 3


@pytest.mark.parametrize("margin", ["    ", "> ", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quoted_and_windows_text_reads_the_same(margin: str, end: str) -> None:
    for name in ("trainer.pod.txt", "gpu-1.node.txt", "asr-0.pod.txt"):
        plain = text(name)
        quoted = end.join(margin + line for line in plain.split("\n"))
        assert described.read(quoted, NOW) == described.read(plain, NOW)


def test_prompt_before_and_colour_inside() -> None:
    source = "$ kubectl describe pod asr-0\n" + text("asr-0.pod.txt").replace(
        "CrashLoopBackOff", "\x1b[31mCrashLoopBackOff\x1b[0m"
    )
    [pod] = described.read(source, NOW).subjects
    assert parse.pod(pod).statuses[0].state.reason == "CrashLoopBackOff"


def test_columns_that_lost_their_blanks() -> None:
    source = (
        "Name: a\nNamespace: b\nQoS Class: BestEffort\nEvents:\n"
        " Type Reason Age From Message\n ---- ------ ---- ---- -------\n"
        " Warning FailedScheduling 5m3s (x12 over 30m) default-scheduler 0/3 nodes are available\n"
    )
    [event] = events(source)
    assert (event["source"]["component"], event["message"], event["count"]) == (
        "default-scheduler",
        "0/3 nodes are available",
        12,
    )


def test_events_of_other_kinds_keep_their_object() -> None:
    source = (
        "Name:  trainer\nNamespace:  ml\nLabels:  <none>\nKind:  PyTorchJob\nEvents:\n"
        "  Warning  FailedCreate  1m  job-controller  exceeded quota: gpus\n"
    )
    found = described.read(source, NOW)
    assert found.subjects == ()
    assert found.others[0]["involvedObject"]["kind"] == "PyTorchJob"


@pytest.mark.parametrize("name", ["trainer.pod.txt", "gpu-1.node.txt", "v1.20.pod.txt"])
def test_text_cut_off_anywhere(name: str) -> None:
    whole = text(name)
    for end in range(0, len(whole), 97):
        for subject in described.read(whole[:end], NOW).subjects:
            getattr(parse, subject["kind"].lower())(subject)


PIECES = st.sampled_from(
    [line for path in sorted(DATA.glob("*.txt")) for line in path.read_text().split("\n")]
)


@settings(deadline=None, max_examples=80)
@given(st.lists(PIECES | st.text(max_size=30), max_size=40))
def test_anything_reads(lines: list[str]) -> None:
    found = described.read("Name:  a\nNamespace:  b\n" + "\n".join(lines), None)
    for subject in found.subjects:
        getattr(parse, subject["kind"].lower())(subject)


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=60))
def test_ages_of_anything(written: str) -> None:
    ages.seen(written)
    ages.moment(written)
    assert (ages.age_seconds(written) or 0) >= 0


def test_ages() -> None:
    assert ages.age_seconds("2d3h") == 2 * 86400 + 3 * 3600
    assert ages.age_seconds("<unknown>") is None
    assert ages.age_seconds("999999999y") is None
    assert ages.seen("5m (x12 over 30m)") == ages.Seen(300, 1800, 12)
    assert ages.moment("Mon, 01 Jan 0001 00:00:00 +0000") is None
