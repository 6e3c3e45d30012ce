"""What the kubelet gave, tied to the containers that run: by name, id, UUID, minor and index."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor import readings, registry
from gpudoctor.facts.node import allotments
from gpudoctor.facts.node.allotments import Allotment, Claimed, Names
from gpudoctor.facts.node.model import MigDevice
from gpudoctor.readings import host
from gpudoctor.report import Report, Unknown
from gpudoctor.sources.bundle import Bundle, HostRecording
from gpudoctor.sources.host.recorded import RecordedHost
from tests import kubelet
from tests.facts.node.test_containers import ID, tree
from tests.machines import on_disk

CHECKS = registry.load()
FIRST, SECOND = "0000:1b:00.0", "0000:9d:00.0"
UUIDS = [f"GPU-8f2c1d90-3e5a-4b17-9c2e-5da9abb5176{index}" for index in range(2)]
ENDED = "e" * 64


def node(*pods: dict[str, Any], answer: Any = None) -> dict[str, Any]:
    """The node of the containers' tests, with a kubelet that gave devices to pods."""
    recorded = tree()
    for minor, address in enumerate((FIRST, SECOND)):
        recorded[f"/proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t {UUIDS[minor]}\nDevice Minor: \t {minor}\n"
        )
    recorded["/var/log/containers"] = {
        "dir": [f"trainer-0_ml_main-{ID}.log", f"ended_ml_main-{ENDED}.log", "other.txt"]
    }
    recorded["cmd:pod-resources"] = json.dumps(answer or {"podResources": pods})
    return recorded


def judge(recorded: dict[str, Any]) -> Report:
    bundle = Bundle(hosts={"local": HostRecording(tree=recorded)})
    return readings.judge(host.read_recorded(bundle), CHECKS)


def test_a_running_container_is_told_from_one_that_has_ended() -> None:
    answer = judge(
        node(
            kubelet.pod("trainer-0", gpu=[UUIDS[0]], cpus=(4, 5)),
            kubelet.pod("ended", gpu=[UUIDS[0]]),
            kubelet.pod("idle"),
        )
    )
    told = answer.facts["kubelet"]
    assert [(one["pod"], one["running"]) for one in told] == [
        ("trainer-0", True),
        ("ended", False),
    ]
    (child,) = answer.children
    facts = child.facts["container"]
    assert (facts["namespace"], facts["pod"], facts["container"]) == ("ml", "trainer-0", "main")
    assert facts["allotted"]["devices"] == {"nvidia.com/gpu": [UUIDS[0]]}
    assert facts["allotted"]["cpus"] == [4, 5]
    assert facts["gpus"] == [FIRST], "what was given, not all that a privileged container has"


def test_without_privilege_the_kubelet_still_says_which_gpus() -> None:
    recorded = node(kubelet.pod("trainer-0", gpu=[UUIDS[1]]))
    for path in ("/proc/40/root/dev", "/proc/40/root/dev/infiniband", "/proc/40/environ"):
        recorded[path] = {"errno": "EACCES"}
    (child,) = judge(recorded).children
    assert child.facts["container"]["gpus"] == [SECOND]
    assert child.unknown == ()


def test_containers_that_cannot_be_tied_to_names() -> None:
    recorded = node(kubelet.pod("trainer-0", gpu=[UUIDS[0]]))
    recorded["/var/log/containers"] = {"errno": "EACCES"}
    answer = judge(recorded)
    assert answer.facts["kubelet"][0]["running"] is None
    assert answer.children[0].facts["container"]["gpus"] == [SECOND]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([UUIDS[1]], (SECOND,)),
        ([f"{UUIDS[1]}::7", f"{UUIDS[1]}::0"], (SECOND,)),
        ([UUIDS[0].upper().replace("GPU-", "GPU-")], (FIRST,)),
        (["nvidia1", "nvidia0"], (SECOND, FIRST)),
        (["1", "0::2"], (SECOND, FIRST)),
        (["MIG-8f2c1d90-3e5a-4b17-9c2e-5da9abb51763"], None),
        ([UUIDS[0], "7"], None),
        (["nvidia0/gi3"], (FIRST,)),
        (["1:0", "1:2"], (SECOND,)),
        ([f"MIG-{UUIDS[1]}/3/0"], (SECOND,)),
        (["nvidia9/gi3"], None),
        ([], ()),
    ],
)
def test_device_ids_of_all_plugins(ids: list[str], expected: tuple[str, ...] | None) -> None:
    allotment = Allotment(names=Names("ml", "p", "c"), devices={"nvidia.com/gpu": tuple(ids)})
    assert allotments.gpus(RecordedHost(node()), allotment) == expected


def test_other_resources_are_no_gpus() -> None:
    devices = {"rdma/hca_shared": ("0", "1"), "nvidia.com/gpu.shared": (UUIDS[0],)}
    allotment = Allotment(names=Names("ml", "p", "c"), devices=devices)
    assert allotments.gpus(RecordedHost(node()), allotment) == (FIRST,)


def test_dra_devices_are_told_and_not_guessed() -> None:
    claimed = {"driverName": "gpu.nvidia.com", "poolName": "n1", "deviceName": "gpu-0"}
    pod = kubelet.pod("trainer-0")
    pod["containers"][0]["dynamicResources"] = [{"claimResources": [claimed]}]
    (child,) = judge(node(pod)).children
    facts = child.facts["container"]
    assert facts["allotted"]["claimed"] == ["gpu.nvidia.com/n1/gpu-0"]
    assert facts["gpus"] == [FIRST], "the card with that minor number"


MIG = "MIG-00000000-0000-5000-8000-000000000001"
ON_SECOND = MigDevice(uuid=MIG, gpu=SECOND, index=0, profile="1g.10gb", gpu_instance=7)


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"])
@pytest.mark.parametrize("given", [MIG, f"{MIG}::3", MIG.upper()])
def test_a_mig_device_is_a_part_of_its_card(resource: str, given: str) -> None:
    allotment = Allotment(names=Names("ml", "p", "c"), devices={resource: (given,)})
    host = RecordedHost(node())
    assert allotments.gpus(host, allotment, [ON_SECOND]) == (SECOND,)
    assert allotments.mig_devices(allotment, [ON_SECOND]) == (ON_SECOND,)
    assert allotments.gpus(host, allotment) is None, "NVML alone knows the card of a UUID"


@pytest.mark.parametrize(
    ("claimed", "expected"),
    [
        ([("gpu.nvidia.com", "gpu-1")], (SECOND,)),
        ([("gpu.nvidia.com", "gpu-1-mig-19-2-1"), ("gpu.nvidia.com", "gpu-0")], (SECOND, FIRST)),
        ([("gpu.nvidia.com", "gpu-1-mig-1g10gb-19-4")], (SECOND,)),
        ([("gpu.nvidia.com", "gpu-7")], None),
        ([("gpu.nvidia.com", "gpu-vfio-0")], None),
        ([("dra.net", "eth1"), ("compute-domain.nvidia.com", "channel-0")], ()),
    ],
)
def test_claimed_devices(claimed: list[tuple[str, str]], expected: tuple[str, ...] | None) -> None:
    devices = tuple(Claimed(driver, "n1", device) for driver, device in claimed)
    allotment = Allotment(names=Names("ml", "p", "c"), devices={}, claimed=devices)
    assert allotments.gpus(RecordedHost(node()), allotment) == expected


def test_a_container_with_a_mig_device_says_which_card_and_group() -> None:
    pod = kubelet.pod("trainer-0")
    pod["containers"][0]["devices"] = [
        {"resourceName": "nvidia.com/mig-1g.10gb", "deviceIds": [MIG]}
    ]
    recorded = node(pod)
    for path in ("/proc/40/root/dev", "/proc/40/root/dev/infiniband", "/proc/40/environ"):
        recorded[path] = {"errno": "EACCES"}
    instance = {"uuid": MIG, "index": 0, "name": "NVIDIA A100 MIG 1g.10gb", "gpu_instance": 7}
    lines = [[None, "init", True], [0, "pci", "00000000:9D:00.0"], [0, "mig_mode", [1, 1]],
             [0, "links", []], [0, "mig_devices", [instance]]]  # fmt: skip
    recorded["cmd:nvml"] = "".join(json.dumps(line) + "\n" for line in lines)
    answer = judge(recorded)
    (child,) = answer.children
    assert child.facts["container"]["gpus"] == [SECOND]
    (device,) = child.facts["container"]["mig"]
    assert (device["uuid"], device["gpu"], device["profile"]) == (MIG, SECOND, "1g.10gb")
    (placed,) = answer.facts["topology"]["mig"]
    assert (placed["gpu"], placed["gpu_instance"], placed["nvlink_island"]) == ("GPU0", 7, [])


def test_protobuf_json_as_grpcurl_prints_it() -> None:
    devices = [
        {"resourceName": "nvidia.com/gpu", "deviceIds": [one], "topology": {"nodes": [{"ID": "1"}]}}
        for one in UUIDS
    ]
    container = {"name": "main", "devices": devices, "cpuIds": ["0", "128"]}
    pods = [{"name": "p", "namespace": "ml", "containers": [container]}]
    found = allotments.parse(json.dumps({"podResources": pods}))
    assert isinstance(found, tuple)
    assert found[0].devices == {"nvidia.com/gpu": tuple(UUIDS)}, "one entry a NUMA node"
    assert found[0].cpus == {0, 128}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"error": {"code": "DEADLINE_EXCEEDED", "details": ""}}, "DEADLINE_EXCEEDED"),
        ({"error": {"code": "UNAVAILABLE", "details": "refused"}}, "UNAVAILABLE: refused"),
        ([], "the kubelet's answer ended early"),
    ],
)
def test_no_answer_is_unknown_with_its_reason(answer: Any, why: str) -> None:
    recorded = node()
    recorded["cmd:pod-resources"] = json.dumps(answer)
    unknown = Unknown("devices that the kubelet gave out", why)
    assert unknown in judge(recorded).unknown


@settings(deadline=None, max_examples=100)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner)
    | st.dictionaries(st.sampled_from(["podResources", "containers", "devices", "name", "error",
        "cpuIds", "deviceIds"]), inner), max_leaves=8))  # fmt: skip
def test_no_answer_makes_it_raise(answer: Any) -> None:
    allotments.parse(json.dumps(answer))
    allotments.parse(json.dumps(answer)[:-1])


def test_live_from_a_mounted_host_root() -> None:
    recorded = node()
    del recorded["cmd:pod-resources"]
    files = {path: entry for path, entry in recorded.items() if isinstance(entry, str)}
    # The path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        root = Path(folder)
        on_disk(files, root)
        (root / "var/log/containers").mkdir(parents=True)
        (root / f"var/log/containers/trainer-0_ml_main-{ID}.log").touch()
        encoded = kubelet.encode({"podResources": [kubelet.pod("trainer-0", gpu=[UUIDS[1]])]})
        with kubelet.serving(root, lambda _: encoded):
            reading = host.read_live(folder)
    (child,) = readings.judge(reading, CHECKS).children
    assert child.facts["container"]["pod"] == "trainer-0"
    assert child.facts["container"]["gpus"] == [SECOND]
