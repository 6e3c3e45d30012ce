"""What a node advertises beside what its machine has: both directions, near misses, recovery."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor import readings, registry
from gpudoctor.readings import kubernetes
from gpudoctor.report import Finding
from gpudoctor.sources.bundle import Bundle, HostRecording, Scope
from tests.kubernetes_objects import node
from tests.machines import DEVICES, whole_machine

GONE, HIDDEN = "gpu-advertised-not-present", "gpu-present-not-advertised"
DRIVER = "/proc/driver/nvidia/gpus"


def cards(tree: dict[str, Any]) -> list[str]:
    """The addresses of the GPUs of a machine."""
    links = {path: entry for path, entry in tree.items() if path.startswith(f"{DEVICES}/")}
    folders = {
        path: "/sys" + entry["link"].removeprefix("../../..") for path, entry in links.items()
    }
    gpus = (path for path in links if tree[f"{folders[path]}/vendor"] == "0x10de\n")
    return sorted(path.rpartition("/")[2] for path in gpus)


def machine(on_bus: int = 8, with_driver: int | None = None, **drivers: str) -> dict[str, Any]:
    tree = whole_machine()
    for card in cards(tree)[on_bus:]:
        del tree[f"{DEVICES}/{card}"]
    listed = [path.rpartition("/")[2] for path in tree if path.startswith(f"{DEVICES}/")]
    tree[DEVICES] = {"dir": sorted(listed)}
    if with_driver is not None:
        tree[DRIVER] = {"dir": cards(tree)[:with_driver]}
    for card in cards(tree)[: 1 if drivers else 0]:
        tree[f"{DEVICES}/{card}/driver"] = {"link": f"../../bus/pci/drivers/{drivers['first']}"}
    return tree


def found(tree: dict[str, Any], **of_node: Any) -> dict[str, Finding]:
    """The two findings by name, as far as they are there."""
    objects = (msgspec.Raw(msgspec.json.encode(node("gpu-1", **of_node))),)
    given = Bundle(
        scope=Scope(objects="complete", roots=("/sys", "/proc/driver")),
        objects=objects,
        hosts={"gpu-1": HostRecording(tree=tree)},
    )
    report = readings.judge(
        kubernetes.read_node(kubernetes.Input(given), "gpu-1"), registry.load(())
    )
    return {one.name: one for one in report.findings if one.name in (GONE, HIDDEN)}


def gpus(allocatable: int, capacity: int | None = None) -> dict[str, Any]:
    counted = {"allocatable": {"nvidia.com/gpu": str(allocatable)}}
    return counted | ({} if capacity is None else {"capacity": {"nvidia.com/gpu": str(capacity)}})


@pytest.mark.parametrize(
    ("tree", "where"),
    [
        (machine(on_bus=7), "/sys/bus/pci/devices"),
        (machine(on_bus=8, with_driver=7), "/proc/driver/nvidia/gpus"),
    ],
)
def test_more_are_advertised_than_there_are(tree: dict[str, Any], where: str) -> None:
    finding = found(tree, **gpus(8))[GONE]
    assert "1 would be given" in finding.detail
    assert finding.evidence[-1].object.endswith(where)
    assert finding.evidence[-1].value == "7"
    assert str(finding.subject) == "Node/gpu-1"


def test_more_are_there_than_are_advertised() -> None:
    finding = found(machine(), **gpus(6))[HIDDEN]
    assert finding.title == "2 GPUs of gpu-1 are not advertised as nvidia.com/gpu"


UPGRADE = {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}


@pytest.mark.parametrize(
    ("tree", "of_node"),
    [
        pytest.param(machine(), gpus(8), id="recovered"),
        pytest.param(machine(with_driver=8), gpus(8), id="recovered, with the driver's count"),
        pytest.param(machine(7), gpus(7, 8), id="the plugin marked it unhealthy"),
        pytest.param(machine(), gpus(7, 8), id="unhealthy, and on the bus"),
        pytest.param(machine(), gpus(0, 0), id="nothing is advertised: another finding"),
        pytest.param(machine(), {"allocatable": {}}, id="never advertised, as with DRA"),
        pytest.param(
            machine(), gpus(32) | {"labels": {"nvidia.com/gpu.replicas": "4"}}, id="time-slicing"
        ),
        pytest.param(
            machine(),
            gpus(56) | {"labels": {"nvidia.com/gpu.product": "NVIDIA-H100-MIG-1g.10gb"}},
            id="MIG, strategy single",
        ),
        pytest.param(
            machine(),
            {"allocatable": {"nvidia.com/gpu": "6", "nvidia.com/mig-1g.10gb": "14"}},
            id="MIG, strategy mixed",
        ),
        pytest.param(
            machine(with_driver=0), gpus(8) | {"labels": UPGRADE}, id="the driver is upgraded"
        ),
        pytest.param(machine(first="vfio-pci"), gpus(7), id="one is for a virtual machine"),
    ],
)
def test_near_misses(tree: dict[str, Any], of_node: dict[str, Any]) -> None:
    assert found(tree, **of_node) == {}


def test_a_bus_that_was_not_listed_whole_tells_nothing() -> None:
    tree = machine(on_bus=3)
    del tree[DEVICES]
    given = tree | {DEVICES: {"errno": "EACCES"}}
    assert found(given, **gpus(8)) == {}
