"""Reasons that NCCL does not print, derived on the pod's machine, each with its near miss."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.report import Report, Severity
from tests import cases_joined


def ask(
    start: str,
    environment: str | None = None,
    tree: dict[str, Any] | None = None,
    said: tuple[str, str] = ("", ""),
) -> Report:
    """Ask about a case with another environment of its process, other things on its machine, and
    something else said in its log."""
    case = cases_joined.load(next(name for name in cases_joined.NAMES if name.startswith(start)))
    changed = case["hosts"]["gpu-1"]["tree"]
    if environment is not None:
        changed["/proc/4242/environ"] = environment
    changed.update(tree or {})
    case["logs"] = {key: log.replace(*said) for key, log in case["logs"].items()}
    return cases_joined.ask(case)


def loud(report: Report) -> set[str]:
    return {f.name for f in report.findings if f.severity is not Severity.INFO}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("NCCL_IB_DISABLE=1\0", True),
        ("NCCL_IB_DISABLE=0\0", False),
        ("NCCL_IB_DISABLE=\0", False),
        ("", False),
    ],
)
def test_ib_disabled(environment: str, said: bool) -> None:
    report = ask("11", environment)
    assert ("nccl-ib-disabled-by-env" in loud(report)) is said
    assert "nccl-socket-fallback" in loud(report)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("mlx5_bond_0", True),
        ("=mlx5", True),
        ("^mlx5", True),
        ("mlx5_9,mlx5_8", True),
        ("mlx5", False),
        ("mlx5_2:1", False),
        ("^mlx5_0", False),
        ("=mlx5_7", False),
    ],
)
def test_filtered(value: str, said: bool) -> None:
    report = ask("12", f"NCCL_IB_HCA={value}\0")
    assert ("nccl-env-names-missing-device" in loud(report)) is said


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("NCCL_NET_GDR_LEVEL=LOC\0", True),
        ("NCCL_NET_GDR_LEVEL=loc\0", True),
        ("NCCL_NET_GDR_LEVEL=0\0", True),
        ("NCCL_NET_GDR_LEVEL=SYS\0", False),
        ("", False),
    ],
)
def test_gdr_level(environment: str, said: bool) -> None:
    report = ask("14", environment)
    assert ("gdr-disabled-by-env" in loud(report)) is said
    assert "gdr-not-used" in loud(report)


PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.126.09\n"
VIRTUAL = {"/proc/cpuinfo": "flags : fpu hypervisor\n"}
ALSO_NEAR = {
    "/proc/4242/root/dev/infiniband": {"dir": ["uverbs0", "uverbs6"]},
    "/proc/4242/root/dev/infiniband/uverbs0": {"char": [231, 192], "mode": "0666"},
}


GRACE = {
    "/proc/driver/nvidia/gpus/0000:13:00.0/information": "Model: \t\t NVIDIA GB200\n",
}


@pytest.mark.parametrize(
    ("environment", "tree", "log", "said"),
    [
        ("", {}, ("", ""), {"gdr-disabled-distance"}),
        ("NCCL_NET_GDR_LEVEL=SYS\0", {}, ("", ""), set()),
        ("NCCL_NET_GDR_LEVEL=4\0", {}, ("", ""), set()),
        ("NCCL_NET_GDR_LEVEL=PHB\0", {}, ("", ""), {"gdr-disabled-distance"}),
        ("NCCL_NET_GDR_LEVEL=P2C\0", {}, ("", ""), set()),
        ("", VIRTUAL, ("", ""), set()),
        ("", ALSO_NEAR, ("mlx5_6", "mlx5_0"), set()),
        ("", ALSO_NEAR, ("", ""), {"gdr-disabled-distance"}),
        ("NCCL_IB_HCA=mlx5_6\0", ALSO_NEAR, ("", ""), {"gdr-disabled-distance"}),
        ("", {}, ("busId", "bus"), {"gdr-disabled-distance"}),
        ("", GRACE, ("", ""), set()),
        ("", {"/proc/driver/nvidia/version": PROPRIETARY}, ("", ""), {"gdr-unavailable"}),
    ],
    ids=["far", "told to go far", "told so by number", "not told to go that far",
         "a level that we do not know", "a virtual machine", "the near one is used",
         "the far one is used although", "the near one is left out", "which GPU is not in the log",
         "coherent memory", "no way into GPU memory at all"],
)  # fmt: skip
def test_distance(
    environment: str, tree: dict[str, Any], log: tuple[str, str], said: set[str]
) -> None:
    found = loud(ask("13", environment, tree, log))
    assert found & {"gdr-disabled-distance", "gdr-disabled-by-env", "gdr-unavailable"} == said
    assert "gdr-not-used" in found
