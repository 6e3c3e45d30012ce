"""A job whose ranks wait for a member that cannot run: its trouble is the one root of the job."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gpudoctor import readings
from gpudoctor.readings import kubernetes
from gpudoctor.report import Report
from tests import cases_joined

RUNS = {"running": {"startedAt": "2026-11-20T08:01:00Z"}}
BEFORE, AT_THE_END, AFTER = (f"2026-11-20T08:{minute}Z" for minute in ("20:00", "31:05", "32:00"))
HANGS = "nccl-collective-timeout"
NEVER_BEGAN = "nccl-init-incomplete"


def ended(code: int, reason: str, at: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}


def member(number: int, state: dict[str, Any], **status: Any) -> dict[str, Any]:
    """A pod of the job: a copy of a training pod of the cases."""
    case = cases_joined.load("01-memlock-seen-in-the-process")
    pod: dict[str, Any] = copy.deepcopy(case["objects"][0])
    pod["metadata"] |= {"name": f"w-{number}", "uid": f"uid-{number}"}
    pod["spec"]["nodeName"] = f"gpu-{1 + number % 2}"
    ready = status.get("ready", False)
    pod["status"]["conditions"][1]["status"] = str(ready)
    pod["status"]["containerStatuses"][0] |= {
        "state": state,
        "ready": ready,
        "lastState": status.get("last", {}),
        "restartCount": status.get("restarts", 0),
    }
    return pod


def unscheduled(number: int) -> list[dict[str, Any]]:
    """A member that no node has room for, and what the scheduler says of it."""
    said = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    pod = member(number, RUNS)
    del pod["spec"]["nodeName"]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod["status"] = {"phase": "Pending", "conditions": [condition | {"message": said}]}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "refused", "namespace": "train"},
        "involvedObject": {"kind": "Pod", "name": f"w-{number}", "namespace": "train"},
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": said,
        "source": {"component": "default-scheduler"},
        "lastTimestamp": AT_THE_END,
    }
    return [pod, event]


def start(number: int, *, whole: bool = True) -> str:
    """What NCCL logs of the start of one of three ranks."""
    head = f"w-{number}:77:86 [0] NCCL INFO "
    comm = f"comm 0x55aa rank {number} nranks 3 cudaDev 0 nvmlDev 0 busId 13000 commId 0xabc1"
    lines = [
        f"Bootstrap : Using eth0:10.42.3.{number + 10}<0>",
        "Using network IB",
        f"ncclCommInitRank {comm} - Init START",
    ]
    if whole:
        lines += [
            f"Channel 00/0 : {number}[0] -> {(number + 1) % 3}[0] [send] via NET/IB/0/GDRDMA",
            f"ncclCommInitRank {comm} - Init COMPLETE",
        ]
    return "".join(f"{head}{line}\n" for line in lines)


def closed(number: int) -> str:
    return (
        f"\nw-{number}:77:140 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by "
        f"remote peer w-2.train<40112>\nw-{number}:77:140 [0] NCCL INFO proxy.cc:1458 -> 6\n"
    )


def gave_up(number: int) -> str:
    return (
        f"[rank{number}]:[E1120 PGNCCL.cpp:629] [Rank {number}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=121, OpType=ALLREDUCE, Timeout(ms)=600000) ran for "
        "600012 milliseconds before timing out.\n"
        f"[rank{number}]:[E1120 PGNCCL.cpp:1834] [PG ID 0 PG GUID 0 Rank {number}] failure "
        "detected by watchdog at work sequence id: 121 PG status: last enqueued work: 121, last "
        "completed work: 120\n"
    )


def never_came(number: int) -> str:
    return f"torch.distributed.DistStoreError: wait timeout after 600000ms ({number})\n"


def ask(objects: list[dict[str, Any]], logs: dict[int, str]) -> Report:
    case = cases_joined.load("01-memlock-seen-in-the-process")
    nodes = [obj for obj in case["objects"] if obj["kind"] == "Node"]
    case |= {
        "objects": [*objects, *nodes],
        "logs": {f"train/w-{number}/main": log for number, log in logs.items()},
        "hosts": {},
    }
    source = kubernetes.Input(cases_joined.bundle(case))
    entries = kubernetes.pods_of_job(source, "job", "train", None)
    reading = kubernetes.read_job(source, "job", "train", None, entries)
    return readings.judge(reading, cases_joined.checks())


FAILED = ended(1, "Error", AT_THE_END)
OOM = ended(137, "OOMKilled", BEFORE)
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
CRASH = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
HANGING = {number: start(number) + gave_up(number) for number in (0, 1)}
STARTING = {number: start(number, whole=False) + never_came(number) for number in (0, 1)}
BROKEN = {number: start(number) + closed(number) for number in (0, 1)}


def two(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [member(0, state), member(1, state)]


@pytest.mark.parametrize(
    ("objects", "logs", "root", "effect"),
    [
        ([*two(FAILED), member(2, OOM)], BROKEN | {2: start(2)}, "oom-killed",
         "nccl-peer-connection-closed"),
        ([*two(FAILED), member(2, OOM)], HANGING | {2: start(2)}, "oom-killed", HANGS),
        ([*two(RUNS), member(2, PULL)], STARTING, "image-pull-failing", NEVER_BEGAN),
        ([*two(RUNS), *unscheduled(2)], STARTING, "gpu-capacity-exhausted", NEVER_BEGAN),
        ([*two(RUNS), member(2, CRASH, last=ended(1, "Error", BEFORE), restarts=5)], STARTING,
         "application-error", NEVER_BEGAN),
    ],
    ids=["lost", "waited for", "no image", "no room", "crashes before NCCL"],
)  # fmt: skip
def test_the_members_trouble_is_the_one_root(
    objects: list[dict[str, Any]], logs: dict[int, str], root: str, effect: str
) -> None:
    report = ask(objects, logs)
    assert report.root_ids == (f"{root}@Pod/train/w-2",)
    assert (
        report.finding(report.root_ids[0]).id
        in report.finding(f"{effect}@job/train/train").caused_by
    )
    assert not [gap for gap in report.unknown if "first rank" in gap.what]


ALIVE = (
    "[rank2]:[E1120 PGNCCL.cpp:1834] [PG ID 0 PG GUID 0 Rank 2] Observed flight recorder "
    "dump signal from another rank via TCPStore. last enqueued work: 119, last completed work: "
    "119\n"
)


@pytest.mark.parametrize(
    ("objects", "logs", "root"),
    [
        ([*two(FAILED), member(2, ended(143, "Error", AFTER))], HANGING | {2: start(2)}, HANGS),
        ([*two(FAILED), member(2, RUNS, ready=True)], HANGING, HANGS),
        ([*two(FAILED), member(2, FAILED)], HANGING | {2: start(2) + ALIVE}, HANGS),
        ([*two(RUNS), member(2, RUNS)], STARTING, NEVER_BEGAN),
    ],
    ids=["ended after the others", "is well", "was alive and behind", "nothing known of it"],
)
def test_what_happens_to_a_member_later_or_not_at_all_is_no_cause(
    objects: list[dict[str, Any]], logs: dict[int, str], root: str
) -> None:
    report = ask(objects, logs)
    assert report.root_ids == (f"{root}@job/train/train",)


def test_how_the_waiting_pods_end_follows_from_the_hang() -> None:
    report = ask([*two(FAILED), member(2, FAILED)], HANGING | {2: start(2) + ALIVE})
    assert {child.root_ids for child in report.children} == {(f"{HANGS}@job/train/train",)}


def test_a_pod_of_another_job_is_no_member() -> None:
    other = member(2, PULL)
    other["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "other"}
    report = ask([*two(RUNS), other], STARTING)
    assert report.root_ids == (f"{NEVER_BEGAN}@job/train/train",)


def test_of_many_members_with_one_trouble_a_few_are_named() -> None:
    """Forty of forty-two have no image: the root is one name, not forty findings of it."""
    missing = [member(number, PULL) for number in range(2, 42)]
    logs = {n: log.replace("nranks 3", "nranks 42") for n, log in STARTING.items()}
    report = ask([*two(RUNS), *missing], logs)
    assert report.roots == ("image-pull-failing",)
    assert 0 < len(report.root_ids) <= 16


def test_a_trouble_that_does_not_stop_a_member_is_no_cause() -> None:
    """A member whose shared memory may be too small runs, and is waited for all the same."""
    slow = member(2, RUNS, ready=True)
    del slow["spec"]["containers"][0]["resources"]["limits"]["rdma/hca"]
    del slow["spec"]["containers"][0]["resources"]["requests"]["rdma/hca"]
    report = ask([*two(RUNS), slow], STARTING)
    assert f"{NEVER_BEGAN}@job/train/train" in report.root_ids
