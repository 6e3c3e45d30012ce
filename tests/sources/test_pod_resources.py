"""The kubelet's socket, served by a real gRPC server: what it says, and what it fails to say."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor import readings, registry
from gpudoctor.readings import host as hosts
from gpudoctor.readings import host_facts
from gpudoctor.readings.host_facts import Services
from gpudoctor.sources.bundle import Bundle, HostRecording
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder
from gpudoctor.sources.pod_resources import read_pod_resources
from gpudoctor.sources.pod_resources_child import decode
from tests import kubelet

PLENTY_S = 30.0
SHORT_S = 0.5
GPU = "GPU-8f2c1d90-3e5a-4b17-9c2e-5da9abb51763"
CLAIM = {
    "className": "gpu",
    "claimName": "two",
    "claimNamespace": "ml",
    "claimResources": [
        {
            "cdiDevices": [{"name": "k8s.gpu.nvidia.com/device=gpu-0"}],
            "driverName": "gpu.nvidia.com",
            "poolName": "n1",
            "deviceName": "gpu-0",
            "shareId": "later-field",
        }
    ],
}
FULL = {
    "podResources": [
        kubelet.pod("trainer-0", gpu=[GPU, f"{GPU}::3"], cpus=(0, 2, 300)),
        {"name": "idle", "namespace": "kube-system", "containers": [{"name": "pause"}]},
        {
            "name": "dra",
            "namespace": "ml",
            "cpuIds": [7],
            "containers": [
                {
                    "name": "main",
                    "dynamicResources": [CLAIM],
                    "memory": [{"memoryType": "hugepages-2Mi", "size": str(1 << 40)}],
                }
            ],
        },
    ]
}


@pytest.fixture
def root() -> Iterator[Path]:
    # The path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        yield Path(folder)


def ask(root: Path, deadline_s: float = PLENTY_S) -> dict[str, Any]:
    answer = json.loads(read_pod_resources(deadline_s, str(root)))
    assert isinstance(answer, dict)
    return answer


def test_what_the_kubelet_gave(root: Path) -> None:
    with kubelet.serving(root, lambda _: kubelet.encode(FULL)):
        trainer, idle, dra = ask(root)["podResources"]
    (main,) = trainer["containers"]
    assert (trainer["namespace"], trainer["name"], main["name"]) == ("ml", "trainer-0", "main")
    assert main["devices"] == [
        {
            "resourceName": "nvidia.com/gpu",
            "deviceIds": [GPU, f"{GPU}::3"],
            "topology": {"nodes": [{"ID": 1}]},
        }
    ]
    assert main["cpuIds"] == [0, 2, 300]
    assert idle["containers"] == [{"name": "pause"}]
    (claimed,) = dra["containers"][0]["dynamicResources"][0]["claimResources"]
    assert claimed["deviceName"] == "gpu-0"
    assert claimed["cdiDevices"] == [{"name": "k8s.gpu.nvidia.com/device=gpu-0"}]
    assert dra["containers"][0]["memory"][0]["size"] == 1 << 40


def test_a_busy_node_passes_the_default_message_size(root: Path) -> None:
    pods = [kubelet.pod(f"p{i}", gpu=[f"{GPU}::{j}" for j in range(1000)]) for i in range(110)]
    encoded = kubelet.encode({"podResources": pods})
    assert len(encoded) > 4 << 20
    with kubelet.serving(root, lambda _: encoded):
        assert len(ask(root)["podResources"]) == 110


def test_a_kubelet_that_does_not_answer(root: Path) -> None:
    release = threading.Event()

    def stuck(_: Any) -> bytes:
        release.wait()
        return b""

    with kubelet.serving(root, stuck):
        assert ask(root, SHORT_S)["error"]["code"] == "DEADLINE_EXCEEDED"
        release.set()


def test_a_kubelet_that_is_frozen_takes_the_connection_and_no_more(root: Path) -> None:
    with kubelet.frozen(root):
        assert ask(root, SHORT_S)["error"]["code"] == "DEADLINE_EXCEEDED"


def test_a_hung_kubelet_is_a_finding_of_its_own(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_facts, "_KUBELET_DEADLINE_S", SHORT_S)
    with kubelet.frozen(root), LiveHost(str(root)) as live:
        recorder = Recorder(live)
        reading = hosts.read(recorder, hosts.LOCAL, None, services=Services(str(root)))
    answer = readings.judge(reading, registry.load())
    assert "kubelet-not-answering" in answer.roots
    assert any("DEADLINE_EXCEEDED" in unknown.why for unknown in answer.unknown)
    bundle = Bundle(hosts={hosts.LOCAL: HostRecording(tree=recorder.tree)})
    replayed = readings.judge(hosts.read_recorded(bundle), registry.load())
    assert "kubelet-not-answering" in replayed.roots


@pytest.mark.parametrize("code", ["UNAVAILABLE", "PERMISSION_DENIED", "NO_GRPCIO"])
def test_a_kubelet_that_refuses_does_not_hang(code: str) -> None:
    tree = {"cmd:pod-resources": json.dumps({"error": {"code": code, "details": ""}})}
    bundle = Bundle(hosts={hosts.LOCAL: HostRecording(tree=tree)})
    answer = readings.judge(hosts.read_recorded(bundle), registry.load())
    assert "kubelet-not-answering" not in answer.roots
    assert any(code in unknown.why for unknown in answer.unknown)


def test_a_socket_that_nobody_serves(root: Path) -> None:
    (root / kubelet.FOLDER).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(root / kubelet.FOLDER / "kubelet.sock"))
    assert ask(root)["error"]["code"] == "UNAVAILABLE"


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"])
def test_refusals_keep_their_name_and_reason(root: Path, code: str) -> None:
    def refuse(context: Any) -> bytes:
        context.abort(grpc.StatusCode[code], "not today")
        return b""

    with kubelet.serving(root, refuse):
        assert ask(root) == {"error": {"code": code, "details": "not today"}}


def test_an_answer_that_is_no_message(root: Path) -> None:
    with kubelet.serving(root, lambda _: b"\x0a\xff"):
        assert ask(root)["error"]["code"] == "DATA_LOSS"


TEXT = st.text(max_size=12)
DEVICES = st.fixed_dictionaries({"resourceName": TEXT, "deviceIds": st.lists(TEXT, max_size=3)})
CONTAINER = st.fixed_dictionaries(
    {
        "name": TEXT,
        "devices": st.lists(DEVICES, max_size=2),
        "cpuIds": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4),
    }
)
POD = st.fixed_dictionaries({"name": TEXT, "containers": st.lists(CONTAINER, max_size=2)})


def whole(value: Any) -> Any:
    """Leave out what protobuf does not send: empty texts and lists."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items() if item not in ("", [])}
    return [whole(item) for item in value] if isinstance(value, list) else value


@settings(deadline=None, max_examples=100)
@given(st.lists(POD, max_size=3))
def test_reads_what_the_protobuf_runtime_writes(pods: list[dict[str, Any]]) -> None:
    message = {"podResources": pods}
    assert decode(kubelet.encode(message)) == whole(message)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60))
def test_garbage_is_a_value_error_or_a_message(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(decode(data), dict)
