"""A job and its pods: what NCCL says for the job and why it is so at a pod are one chain."""

from __future__ import annotations

from typing import Any

from gpudoctor import readings
from gpudoctor.readings import kubernetes
from gpudoctor.report import Finding, Report
from tests import cases_joined


def ask_job(case: cases_joined.Case) -> Report:
    source = kubernetes.Input(cases_joined.bundle(case))
    entries = kubernetes.pods_of_job(source, "job", "train", None)
    reading = kubernetes.read_job(source, "job", "train", None, entries)
    return readings.judge(reading, cases_joined.checks())


def numbered(start: str, *, near: bool = False) -> cases_joined.Case:
    name = next(name for name in cases_joined.NAMES if name.startswith(start))
    return cases_joined.near(name) if near else cases_joined.load(name)


def causes(report: Report, name: str) -> dict[str, set[str]]:
    """The names of what a report gives as causes of the findings of that name, by subject."""
    names = {finding.id: finding.name for finding in report.findings}
    return {
        str(finding.subject): {names[cause] for cause in finding.caused_by}
        for finding in report.findings
        if finding.name == name
    }


def child(report: Report, name: str) -> Report:
    return next(one for one in report.children if one.subject.name == name)


def is_whole(report: Report) -> bool:
    """Whether each link of a report leads to a finding of it, and back."""
    by_id: dict[str, Finding] = {finding.id: finding for finding in report.findings}
    return all(
        finding.id in by_id[cause].explains
        for finding in report.findings
        for cause in finding.caused_by
    ) and all(
        finding.id in by_id[effect].caused_by
        for finding in report.findings
        for effect in finding.explains
    )


def test_the_cause_at_a_pod_explains_what_nccl_says_of_the_job() -> None:
    report = ask_job(numbered("01"))
    assert report.roots == ("missing-ipc-lock",)
    assert causes(report, "rdma-registration-enomem") == {
        "job/train/train": {"missing-ipc-lock", "memlock-too-low"}
    }
    assert child(report, "w-0").roots == ("missing-ipc-lock",)
    assert all(map(is_whole, (report, *report.children)))


def test_the_cause_on_a_pods_machine_does_so_too() -> None:
    report = ask_job(numbered("05"))
    assert report.roots == ("nic-port-down",)
    assert str(report.finding(report.root_ids[0]).subject) == "Node/gpu-1/mlx5_3"


def test_what_nccl_says_of_the_job_explains_how_its_pod_ends() -> None:
    report = ask_job(numbered("01", near=True))
    assert report.roots == ("rdma-registration-enomem",)
    pod = child(report, "w-0")
    assert pod.roots == ("rdma-registration-enomem",)
    assert causes(pod, "application-error") == {"Pod/train/w-0": {"rdma-registration-enomem"}}
    assert is_whole(pod)


def change_peer(case: cases_joined.Case) -> dict[str, Any]:
    pod: dict[str, Any] = next(obj for obj in case["objects"] if obj["metadata"]["name"] == "w-1")
    return pod


def test_a_cause_at_another_pod_is_not_the_cause() -> None:
    """Only w-0 is named by NCCL; that w-1 lacks the capability has done no harm there."""
    case = numbered("01", near=True)
    peer = change_peer(case)
    del peer["spec"]["containers"][0]["securityContext"]
    case["logs"]["train/w-1/main"] = (
        "RuntimeError: Failed to register memory region: Cannot allocate memory\n"
    )
    report = ask_job(case)
    assert child(report, "w-1").roots == ("missing-ipc-lock",)
    assert causes(report, "rdma-registration-enomem") == {"job/train/train": set()}


def test_nodes_that_offer_rdma_make_tcp_a_fault_of_the_job() -> None:
    quiet = (
        "w-0:77:86 [0] NCCL INFO Bootstrap : Using eth0:10.42.3.17<0>\n"
        "w-0:77:86 [0] NCCL INFO Using network Socket\n"
        "w-0:77:86 [0] NCCL INFO comm 0x55aa rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0\n"
        "w-0:77:86 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
    )
    case = numbered("05") | {"logs": {"train/w-0/main": quiet}, "hosts": {}}
    report = ask_job(case)
    assert "nccl-socket-fallback" in report.roots
    for obj in case["objects"]:
        if obj["kind"] == "Node":
            obj["status"]["allocatable"].pop("rdma/hca")
    report = ask_job(case)
    assert {finding.name for finding in report.findings} == {"nccl-socket-transport"}


def test_of_many_pods_with_one_fault_a_few_are_named() -> None:
    case = numbered("01")
    worker, node = case["objects"][0], case["objects"][2]
    case["objects"], case["hosts"] = [node], {}
    log = case["logs"].pop("train/w-0/main")
    for number in range(40):
        pod = worker | {
            "metadata": worker["metadata"] | {"name": f"w-{number}", "uid": str(number)}
        }
        case["objects"].append(pod)
        case["logs"][f"train/w-{number}/main"] = log.replace("w-0:", f"w-{number}:")
    report = ask_job(case)
    assert report.roots == ("missing-ipc-lock",)
    assert 0 < len(report.root_ids) <= 16
    assert len(report.children) == 40
    assert is_whole(report)
