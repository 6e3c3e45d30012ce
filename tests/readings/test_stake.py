"""Which of a machine's troubles are a pod's affair, told by small changes to the joined cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpudoctor.report import Report, Severity
from tests import cases_joined
from tests.machines import gpu_uuid

Case = cases_joined.Case
DENIED = {"errno": "EACCES"}


def numbered(start: str, *, near: bool = False) -> Case:
    name = next(name for name in cases_joined.NAMES if name.startswith(start))
    return cases_joined.near(name) if near else cases_joined.load(name)


def loud(report: Report) -> set[str]:
    return {f.name for f in report.findings if f.severity is not Severity.INFO}


def tree(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = case["hosts"]["gpu-1"]["tree"]
    return found


def pod(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = next(obj for obj in case["objects"] if obj["kind"] == "Pod")
    return found


def ask_for(case: Case, resource: str, amount: str) -> None:
    resources = pod(case)["spec"]["containers"][0]["resources"]
    for asked in resources.values():
        del asked["nvidia.com/gpu"]
        asked[resource] = amount


def certainty(report: Report, name: str) -> list[str]:
    return [str(found.certainty) for found in report.findings if found.name == name]


class TestWhichGpus:
    """Case 03: GPU 2 fell off the bus, and the pod has it by its device nodes."""

    def hidden(self) -> Case:
        case = numbered("03")
        tree(case)["/proc/4242/root/dev"] = DENIED
        return case

    def test_unknown_ones_are_at_most_possible(self) -> None:
        assert certainty(cases_joined.ask(self.hidden()), "gpu-lost") == ["possible"]

    def test_that_they_are_unknown_is_said(self) -> None:
        case = self.hidden()
        tree(case)["/proc/4242/environ"] = tree(case)["cmd:dmesg"] = DENIED
        unknown = {gap.what for gap in cases_joined.ask(case).unknown}
        assert {"GPUs of the pod", "kernel log"} <= unknown
        assert "environment and files of the pod's processes" in unknown
        assert cases_joined.ask(numbered("03")).unknown == ()

    def test_unknown_ones_are_nothing_to_a_pod_that_is_well(self) -> None:
        case = self.hidden() | {"objects": numbered("04", near=True)["objects"]}
        assert "gpu-lost" not in loud(cases_joined.ask(case))

    def test_by_the_status_of_the_pod(self) -> None:
        case = self.hidden()
        (status,) = pod(case)["status"]["containerStatuses"]
        devices = [{"resourceID": gpu_uuid(2), "health": "Healthy"}]
        status["allocatedResourcesStatus"] = [{"name": "nvidia.com/gpu", "resources": devices}]
        assert certainty(cases_joined.ask(case), "gpu-lost") == ["certain"]
        devices[0]["resourceID"] = gpu_uuid(1)
        assert certainty(cases_joined.ask(case), "gpu-lost") == []

    def test_by_asking_for_all(self) -> None:
        case = self.hidden()
        ask_for(case, "nvidia.com/gpu", "8")
        assert certainty(cases_joined.ask(case), "gpu-lost") == ["certain"]

    def test_a_privileged_container_has_all_device_nodes_and_not_all_gpus(self) -> None:
        case = numbered("03")
        tree(case)["/proc/4242/root/dev"] = {"dir": [f"nvidia{index}" for index in range(8)]}
        pod(case)["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        assert certainty(cases_joined.ask(case), "gpu-lost") == ["possible"]

    def test_of_a_pod_that_ended_before_it_was_lost(self) -> None:
        case = numbered("03")
        end = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-11-20T08:20:00Z"}
        pod(case)["status"]["phase"] = "Failed"
        (status,) = pod(case)["status"]["containerStatuses"]
        status.update(state={"terminated": end}, lastState={})
        assert "gpu-lost" not in loud(cases_joined.ask(case))

    def test_links_between_gpus_concern_who_has_several(self) -> None:
        case = numbered("23")
        down = [{"active": number > 2, "errors": {}} for number in range(18)]
        tree(case)["cmd:nvml"] = tree(case)["cmd:nvml"].replace(
            '[5, "processes", []]', f'[5, "processes", []]\n[5, "links", {json.dumps(down)}]'
        )
        assert loud(cases_joined.ask(case)) == {"gpu-clocks-slowed"}
        ask_for(case, "nvidia.com/gpu", "2")
        tree(case)["/proc/4242/root/dev"]["dir"].append("nvidia6")
        assert loud(cases_joined.ask(case)) == {"gpu-clocks-slowed", "nvlink-down"}


LINES = """w-0:77:86 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.42.3.17<0>
w-0:77:86 [0] NCCL INFO Using network IB
w-0:77:86 [0] NCCL INFO comm 0x55aa rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
w-0:77:86 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0{own}
w-0:77:86 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0{own}
"""


class TestWhoseNetwork:
    def two(self, own: str, other: str) -> Case:
        """Case 06, whose node gpu-1 has no way into GPU memory, with the logs of both pods."""
        case = numbered("06")
        theirs = LINES.format(own=other).replace("w-0:77", "w-1:78").replace("rank 0", "rank 1")
        case["logs"] = {
            "train/w-0/main": LINES.format(own=own),
            "train/w-1/main": theirs.replace("1[0] -> 0[0]", "0[0] -> 1[0]", 1),
        }
        return case

    def test_the_machine_explains_its_own_pod(self) -> None:
        report = cases_joined.ask(self.two("", "/GDRDMA"))
        assert report.roots == ("gdr-unavailable",)

    def test_the_machine_does_not_explain_another_pod(self) -> None:
        report = cases_joined.ask(self.two("/GDRDMA", ""))
        assert "gdr-unavailable" not in loud(report)
        assert "gdr-partial" in report.roots

    @pytest.mark.parametrize(("wants", "said"), [("1", {"nic-port-down"}), (None, set())])
    def test_a_port_concerns_who_wants_rdma(self, wants: str | None, said: set[str]) -> None:
        """No log of NCCL, and the pod is well: a weakness, told to who asked for RDMA."""
        case = numbered("05") | {"logs": {}}
        if wants is None:
            for asked in pod(case)["spec"]["containers"][0]["resources"].values():
                del asked["rdma/hca"]
            pod(case)["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        report = cases_joined.ask(case)
        assert loud(report) == said
        assert str(report.verdict) == ("warning" if said else "healthy")

    def test_a_port_that_is_down_is_not_why_others_that_are_up_are_not_used(self) -> None:
        case = numbered("11")
        port = "/sys/class/infiniband/mlx5_3/ports/1"
        tree(case).update({f"{port}/state": "1: DOWN", f"{port}/phys_state": "2: Polling"})
        report = cases_joined.ask(case)
        assert report.roots == ("nccl-ib-disabled-by-env",)
        assert "nic-port-down" not in {found.name for found in report.findings}


class TestMemlock:
    def test_channels_over_rdma_show_that_the_limit_does_no_harm(self) -> None:
        case = numbered("01")
        log = case["logs"]["train/w-0/main"]
        lines = [line for line in log.splitlines() if "reg_mr" not in line][:-1]
        channel = "w-0:77:86 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA"
        case["logs"]["train/w-0/main"] = "\n".join([*lines, channel, "ValueError: loss is NaN"])
        report = cases_joined.ask(case)
        assert report.roots == ("application-error",)
        assert "memlock-too-low" not in {found.name for found in report.findings}


def test_evidence_says_on_which_machine_it_was_read() -> None:
    report = cases_joined.ask(numbered("01"))
    (limit,) = [found for found in report.findings if found.name == "memlock-too-low"]
    assert {item.object for item in limit.evidence} == {
        "gpu-1:/proc/4242/limits",
        "gpu-1:/proc/4242/status",
    }
