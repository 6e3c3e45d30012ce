"""What of a kernel log still holds: for the machine now, and for a pod in its time."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from gpudoctor import readings
from gpudoctor.readings import host, kubernetes
from gpudoctor.report import Report, Severity
from gpudoctor.sources.bundle import Bundle, HostRecording
from tests import cases_joined
from tests.machines import BOOTED, gpu_node

DAY = 86400
NOW = "2026-11-22T11:06:40Z"  # four days after the boot
GPU = "0000:33:00"
LOST = "pid=1, name=python3, GPU has fallen off the bus."
FAULT = "pid=1, name=python3, Ch 00000008, intr 00000000. MMU Fault"


def log(code: int, text: str, days: float) -> str:
    return f"<4>[{days * DAY:12.6f}] NVRM: Xid (PCI:{GPU}): {code}, {text}\n"


def nvml(**gpu: Any) -> str:
    """NVML's answers of a machine whose eight GPUs work, but for what is said of the third."""
    case = cases_joined.load("23-own-gpu-is-hot")
    hot: str = case["hosts"]["gpu-1"]["tree"]["cmd:nvml"]
    lines = [line for line in hot.splitlines() if '"clock_reasons"' not in line]
    for name, value in gpu.items():
        lines.insert(-1, json.dumps([2, name, value]))
    return "\n".join(lines) + "\n"


def ask(tree: dict[str, Any]) -> Report:
    recorded = Bundle(now=NOW, hosts={"gpu-1": HostRecording(tree=gpu_node() | tree)})
    return readings.judge(host.read_recorded(recorded), cases_joined.checks())


def loud(report: Report) -> set[str]:
    return {f.name for f in report.findings if f.severity is not Severity.INFO}


def test_boot_and_now_are_as_the_tests_say() -> None:
    assert dt.datetime.fromisoformat(NOW).timestamp() == BOOTED + 4 * DAY


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (log(79, LOST, 0.5), {"gpu-lost"}),
        (log(31, FAULT, 0.5), set()),
        (log(31, FAULT, 3.5), {"gpu-application-fault"}),
    ],
    ids=["lost for days", "a fault of yesterday", "a fault of today"],
)
def test_without_nvml_what_lasts_is_said(text: str, said: set[str]) -> None:
    assert loud(ask({"cmd:dmesg": text})) == said


@pytest.mark.parametrize(
    ("days", "gpu", "said"),
    [
        (0.5, {}, set()),
        (3.9, {}, {"gpu-lost"}),
        (0.5, {"handle": {"code": 15, "why": "GPU is lost"}}, {"gpu-lost"}),
        (0.5, {"recovery_action": 1}, {"gpu-lost", "gpu-needs-reset"}),
    ],
    ids=["works again", "works again since today", "still lost", "waits for a reset"],
)
def test_nvml_tells_whether_it_is_over(days: float, gpu: dict[str, Any], said: set[str]) -> None:
    report = ask({"cmd:dmesg": log(79, LOST, days), "cmd:nvml": nvml(**gpu)})
    assert loud(report) == said
    if days > 1 and not gpu:
        (found,) = [one for one in report.findings if one.name == "gpu-lost"]
        assert found.severity is Severity.WARNING, "over, and to be looked into"


def test_what_the_driver_said_at_boot_is_over_when_all_gpus_answer() -> None:
    mismatch = (
        "<4>[  100.000000] NVRM: API mismatch: the client has the version 580.126.09, but\n"
        "<4>[  100.000001] NVRM: this kernel module has the version 580.95.05.  Please\n"
    )
    assert loud(ask({"cmd:dmesg": mismatch})) == {"driver-library-mismatch"}
    assert loud(ask({"cmd:dmesg": mismatch, "cmd:nvml": nvml()})) == set()


def pod(case: cases_joined.Case) -> Report:
    source = kubernetes.Input(cases_joined.bundle(case))
    entry = kubernetes.find_pod(source.cluster, "llm-0", None)
    return readings.judge(kubernetes.read_pod(source, entry), cases_joined.checks())


CUDA = "RuntimeError: CUDA error: unknown error\n"
OWN = "ValueError: no such model\n"


@pytest.mark.parametrize(
    ("words", "certainty"), [(CUDA, "likely"), (OWN, None), (None, "possible")]
)
def test_without_a_time_the_pods_own_words_decide(words: str | None, certainty: str | None) -> None:
    case = cases_joined.load("03-own-gpu-fell-off-the-bus")
    case["logs"] = {} if words is None else {"serve/llm-0/main": words}
    case["hosts"]["gpu-1"]["tree"]["/proc/stat"] = {"errno": "EACCES"}
    found = [one for one in pod(case).findings if one.name == "gpu-lost"]
    assert [str(one.certainty) for one in found] == ([] if certainty is None else [certainty])
