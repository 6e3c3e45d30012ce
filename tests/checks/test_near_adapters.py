"""An adapter idle beside a GPU that talks across the machine: reasons, and what is none of it."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.report import Blame, Finding, Report
from tests import cases_joined

NAME = "nccl-near-adapter-idle"


def ask(start: str, *, near: bool = False, **changes: Any) -> Report:
    """Ask about a case with another environment, other files, and other words in its log."""
    name = next(name for name in cases_joined.NAMES if name.startswith(start))
    case = cases_joined.near(name) if near else cases_joined.load(name)
    tree = case["hosts"]["gpu-1"]["tree"]
    tree |= changes.get("tree", {})
    if "environment" in changes:
        tree["/proc/4242/environ"] = changes["environment"]
    for old, new in changes.get("log", {}).items():
        case["logs"] = {key: log.replace(old, new) for key, log in case["logs"].items()}
    return cases_joined.ask(case)


def found(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.name == NAME]


def test_says_who_uses_what_and_why_not_the_other() -> None:
    (finding,) = found(ask("26"))
    assert finding.title == (
        "Ranks 4, 5, 6, 7: the network by mlx5_0, mlx5_1, mlx5_2, mlx5_3, far from the GPU; idle "
        "beside it: mlx5_4, mlx5_5, mlx5_6, mlx5_7"
    )
    assert "rank 4 (GPU 0000:93:00.0, NUMA node 1) uses mlx5_0 at SYS" in finding.detail
    assert finding.detail.count("NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3 leaves it out") == 1
    shown = {(item.object, item.path, item.value) for item in finding.evidence}
    place = "gpu-1:/sys/bus/pci/devices/0000:93:00.0"
    assert {(place, "mlx5_0", "SYS"), (place, "mlx5_4", "PIX")} <= shown
    assert ("gpu-1:/sys/bus/pci/devices/0000:a3:00.0", "mlx5_5", "PIX") in shown


@pytest.mark.parametrize(
    ("start", "blame", "words"),
    [
        ("13", Blame.PLACEMENT, "the pod was not given it"),
        ("26", Blame.REQUEST, "leaves it out"),
        ("27", Blame.NODE, "its port is DOWN"),
        ("28", Blame.PLACEMENT, "the pod was not given it"),
        ("29", Blame.REQUEST, "NCCL_TOPO_FILE=/etc/nccl/topo.xml describes another machine"),
    ],
)
def test_reason(start: str, blame: Blame, words: str) -> None:
    (finding,) = found(ask(start))
    assert (finding.blame, words in finding.detail) == (blame, True)


def test_the_filter_may_stand_in_the_log_alone() -> None:
    said = "w-0:77:86 [0] NCCL INFO NCCL_IB_HCA set to =mlx5_0,mlx5_1,mlx5_2,mlx5_3\n"
    report = ask(
        "26",
        environment="",
        log={"w-0:77:86 [0] NCCL INFO Using": said + "w-0:77:86 [0] NCCL INFO Using"},
    )
    (finding,) = found(report)
    assert "NCCL_IB_HCA==mlx5_0" in finding.detail
    assert not found(ask("26", environment=""))


PORTS = (
    "/sys/devices/pci0000:{bus}/0000:{bus}:01.0/0000:{below}1:00.0/0000:{below}2:01.0/"
    "0000:{below}4:00.0/infiniband/{name}"
)


def near_ones(**files: str) -> dict[str, str]:
    """Files of the four adapters of socket 1."""
    tree: dict[str, str] = {}
    for index, bus in enumerate(("90", "a0", "b0", "c0")):
        folder = PORTS.format(bus=bus, below=bus[0], name=f"mlx5_{4 + index}")
        tree |= {f"{folder}/{name}": text for name, text in files.items()}
    return tree


@pytest.mark.parametrize(
    "tree",
    [
        near_ones(hca_type="MT41692\n"),
        near_ones(**{"ports/1/rate": "25 Gb/sec (1X EDR)\n"}),
        near_ones(**{"ports/1/link_layer": "Ethernet\n"}),
    ],
    ids=["another model", "a slower port", "another network"],
)
def test_a_nic_for_something_else_beside_the_gpu(tree: dict[str, str]) -> None:
    assert not found(ask("26", tree=tree))


def test_a_port_that_was_never_cabled_is_not_idle() -> None:
    folder = PORTS.format(bus="90", below="9", name="mlx5_4")
    assert not found(ask("27", tree={f"{folder}/ports/1/phys_state": "3: Disabled\n"}))


@pytest.mark.parametrize(
    ("log", "ranks"),
    [
        ({"busId": "bus"}, None),
        ({"busId 93000": "busId 13", "busId a3000": "busId 13"}, "Ranks 6, 7"),
        ({"via NET/IB/": "via NET/Socket/", "Using network IB": "Using network Socket"}, None),
        ({"[0]mlx5_0:1/IB [1]mlx5_1:1/IB": "[0]mlx5_0+mlx5_1:1/IB [1]x:1/IB"}, "Ranks 4, 6, 7"),
    ],
    ids=["no address of a GPU", "addresses cut off", "over TCP", "an adapter of no machine"],
)
def test_what_the_log_does_not_tell(log: dict[str, str], ranks: str | None) -> None:
    titles = [finding.title.partition(":")[0] for finding in found(ask("26", log=log))]
    assert titles == ([ranks] if ranks else [])


def test_a_log_with_two_lists_of_one_host() -> None:
    line = "w-0:77:86 [0] NCCL INFO Using network IB"
    other = "w-0:77:86 [0] NCCL INFO NET/IB : Using [0]mlx5_7:1/IB [RO]; OOB eth0:10.42.3.17<0>\n"
    assert not found(ask("26", log={line: other + line}))


def test_a_virtual_machine_is_unknown() -> None:
    report = ask("28", near=True)
    assert "how far the pod's GPUs are from its adapters" in {gap.what for gap in report.unknown}
    assert not found(report)


def test_rails_shared_by_the_rings_are_no_fault() -> None:
    """NCCL_CROSS_NIC=0 lets a rank send by the adapter that another rank's data came in by."""
    assert not found(ask("29", near=True, environment="NCCL_CROSS_NIC=0\0"))
