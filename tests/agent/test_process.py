"""The agent as a process: what it writes, an outage, a killed life after the other, and its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.publish import names
from gpudoctor.publish.brake import Braked
from tests import parts
from tests.agent import running
from tests.agent.running import Agent
from tests.agent.small_cluster import NODE, SmallCluster
from tests.kubernetes_objects import Object, container, node, pod
from tests.machines import on_disk, whole_machine

VERBS = "dev/infiniband"
NODE_PATH = f"/api/v1/nodes/{NODE}"


@pytest.fixture
def cluster() -> SmallCluster:
    return SmallCluster(node(NODE))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine that is well but for its RDMA device nodes, which nobody mounted."""
    folder = tmp_path / "host"
    on_disk(whole_machine(), folder)
    return folder


@pytest.fixture
def kubeconfig(cluster: SmallCluster, tmp_path: Path) -> Iterator[Path]:
    with running.api_of(cluster, tmp_path) as (_, path):
        yield path


def trainer(name: str = "train-0", uid: str = "uid-1", **more: Any) -> Object:
    limits = {"nvidia.com/gpu": "1"}
    return pod(name, "team", containers=[container(limits=limits)], node=NODE, phase="Running",
               meta={"uid": uid}, **more)  # fmt: skip


def page(agent: Agent, path: str) -> tuple[int, str]:
    """Ask the agent's own endpoint."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{agent.port()}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def heal(root: Path) -> None:
    """Mount the device nodes: a driver that is loaded, seen as plain files, is another fault."""
    (root / "sys/class/infiniband").rename(root / "sys/class/infiniband.gone")


def test_it_publishes_what_it_sees_and_then_writes_nothing_but_its_lease(
    cluster: SmallCluster, root: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    cluster.put_pod(trainer())
    with running.running(running.command(kubeconfig, root=root), tmp_path / "log") as agent:
        cluster.wait("labels", lambda: cluster.labels().get("verdict"))
        cluster.wait("condition", cluster.condition)
        cluster.wait("Diagnosis of the node", lambda: cluster.diagnosis(f"node-{NODE}"))
        cluster.wait("Diagnosis of the pod", lambda: cluster.diagnosis("pod-train-0"))
        quiet = cluster.renewals() + 2
        cluster.wait("calm", lambda: cluster.renewals() >= quiet)
        before, renewed = cluster.other_writes(), cluster.renewals()
        cluster.wait("four more rounds", lambda: cluster.renewals() >= renewed + 4)
        assert cluster.other_writes() == before
        assert page(agent, "/healthz") == (200, "ok\n")
        assert page(agent, "/readyz") == (200, "ok\n")
        code, metrics = page(agent, "/metrics")
        assert code == 200
        assert 'gpudoctor_rounds_total{result="ok"}' in metrics
        assert 'gpudoctor_node_verdict{verdict="failing"} 1.0' in metrics
        assert page(agent, "/nothing")[0] == 404
        assert agent.stop() == 0
    assert cluster.labels()["verdict"] == "failing", "an update of the DaemonSet takes nothing back"
    owner = cluster.objects["/apis/gpudoctor.io/v1alpha1/namespaces/team/diagnoses/pod-train-0"]
    (reference,) = owner["metadata"]["ownerReferences"]
    assert reference["uid"] == "uid-1"
    assert "Traceback" not in agent.said()


def test_it_does_not_take_its_own_word_for_evidence(
    cluster: SmallCluster, root: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    with running.running(running.command(kubeconfig, root=root), tmp_path / "log"):
        cluster.wait("condition", lambda: (cluster.condition() or {}).get("status") == "False")
        heal(root)
        cluster.wait("recovery", lambda: (cluster.condition() or {}).get("status") != "False")
        cluster.wait("label", lambda: cluster.labels().get("verdict") != "failing")


def test_after_an_outage_all_is_there_within_two_rounds(
    cluster: SmallCluster, root: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    with running.running(running.command(kubeconfig, root=root), tmp_path / "log") as agent:
        cluster.wait("labels", lambda: cluster.labels().get("verdict") == "failing")
        cluster.outage = 503
        refused = len(cluster.requests)
        cluster.wait("requests in the outage", lambda: len(cluster.requests) > refused + 6)
        assert page(agent, "/healthz")[0] == 200
        # What etcd forgot, and what happened meanwhile.
        cluster.node["metadata"]["labels"].pop(names.label("verdict"))
        cluster.put_pod(trainer())
        cluster.outage = 0
        renewed = cluster.renewals()
        cluster.wait("labels", lambda: cluster.labels().get("verdict") == "failing")
        assert cluster.renewals() <= renewed + 2
        cluster.wait("pod", lambda: cluster.diagnosis("pod-train-0"))
        assert "takes writes again" in agent.said() or "cannot be read" in agent.said()


def wait_for_requests(cluster: SmallCluster, count: int) -> None:
    cluster.wait("requests", lambda: len(cluster.requests) >= count)


def test_killed_at_any_moment_it_leaves_nothing_stale(
    cluster: SmallCluster, root: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    words = running.command(kubeconfig, root=root)
    with running.running(words, tmp_path / "log"):
        cluster.wait("labels", lambda: cluster.labels().get("verdict") == "failing")
    heal(root)
    renewed = cluster.renewals()
    # Each life ends with another request, so in another moment of its work.
    for life in range(9):
        asked = len(cluster.requests)
        with running.running(words, tmp_path / "log") as agent:
            wait_for_requests(cluster, asked + 1 + life)
            agent.kill()
        if cluster.renewals() > renewed:
            # It vouches for its node: then what it found of an earlier life is no longer there.
            assert cluster.labels().get("verdict") != "failing"
            renewed = cluster.renewals()
    with running.running(words, tmp_path / "log") as agent:
        cluster.wait("recovery", lambda: (cluster.condition() or {}).get("status") != "False")
        cluster.wait("label", lambda: cluster.labels().get("verdict") != "failing")
        assert "Traceback" not in agent.said()


def test_the_brake_of_the_controller_is_read_from_its_lease(
    cluster: SmallCluster, root: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    brake = Braked("2026-11-29T19:15:00Z", "4 of 12 nodes turned failing")
    path = "/apis/coordination.k8s.io/v1/namespaces/gpudoctor/leases/gpudoctor-controller"
    cluster.objects[path] = {
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": "gpudoctor-controller", "annotations": {names.BRAKE: brake.text()}},
    }
    with running.running(running.command(kubeconfig, root=root), tmp_path / "log") as agent:
        cluster.wait("condition", cluster.condition)
        condition = cluster.condition()
        assert condition is not None
        assert "brake" in condition["message"]
        assert "verdict" not in cluster.labels()
        assert "gpudoctor_held_by_brake 1.0" in page(agent, "/metrics")[1]
        cluster.objects[path]["metadata"]["annotations"].clear()
        cluster.wait("label", lambda: cluster.labels().get("verdict") == "failing")


def test_an_observed_rule_decides_nothing_and_is_shown_as_info(
    cluster: SmallCluster, root: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    words = running.command(kubeconfig, "--observe=NET", "--observe=TOP", root=root)
    with running.running(words, tmp_path / "log") as agent:
        found = cluster.wait("Diagnosis", lambda: cluster.diagnosis(f"node-{NODE}"))
        assert found["verdict"] != "failing"
        (shown,) = [one for one in found["findings"] if one["code"] == "NET008"]
        assert shown["severity"] == "info"
        metrics = page(agent, "/metrics")[1]
        assert (
            'code="NET008",name="rdma-device-node-missing",root="false",severity="info"' in metrics
        )


def test_preflights_that_failed_are_counted(
    cluster: SmallCluster, root: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    said = "gpudoctor preflight: node: DRV003 driver-not-loaded: no driver"
    ended = {"exitCode": 11, "containerID": "containerd://1", "message": said}
    statuses = [{"name": "preflight", "state": {"terminated": ended}}]
    cluster.put_pod(trainer(status={"initContainerStatuses": statuses}))
    with running.running(running.command(kubeconfig, root=root), tmp_path / "log") as agent:
        cluster.wait("round", lambda: cluster.renewals() >= 1)
        metrics = page(agent, "/metrics")[1]
        assert 'gpudoctor_preflight_failures_total{code="DRV003",outcome="node"} 1.0' in metrics


def test_without_an_api_server_it_still_looks_and_tells_its_metrics(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text("")
    nobody = running.kubeconfig("http://127.0.0.1:9", tmp_path)
    with running.running(running.command(nobody, root=root), tmp_path / "log") as agent:
        cluster = SmallCluster(node(NODE))
        cluster.wait_polling("port", agent.port)
        cluster.wait_polling(
            "round", lambda: 'rounds_total{result="ok"}' in page(agent, "/metrics")[1]
        )
        code, why = page(agent, "/readyz")
        assert code == 503
        assert "cannot be read" in why
        assert agent.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--listen=nowhere"], "--listen nowhere"),
        (["--observe=XYZ"], "--observe XYZ"),
        (["--period=0.5"], "period"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], says: str, kubeconfig: Path, root: Path, tmp_path: Path
) -> None:
    with running.running(
        running.command(kubeconfig, *arguments, root=root), tmp_path / "log"
    ) as agent:
        assert agent.process.wait(running.END_SECONDS) == 2
        assert says in agent.said()


def test_a_name_is_needed(tmp_path: Path) -> None:
    words = [*running.command(tmp_path, root=None)[:4]]
    with running.running(words, tmp_path / "log") as agent:
        assert agent.process.wait(running.END_SECONDS) == 2
        assert "NODE_NAME" in agent.said()


def test_the_parent_imports_no_rule_no_nvml_and_no_grpc() -> None:
    program = (
        "import sys, gpudoctor.agent.loop, gpudoctor.cli.agent, json\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True
    ).stdout
    loaded = {name.split(".")[0] for name in json.loads(printed)}
    assert not loaded & {"gpudoctor_checks", "pynvml", "grpc", "pyudev", "psutil", "jinja2"}
    assert not {name for name in json.loads(printed) if name.startswith("gpudoctor.facts")}


def test_a_device_that_changes_brings_the_next_round_forward(
    cluster: SmallCluster, root: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    device = next(Path("/sys/bus/pci/devices").glob("*/uevent"), None)
    if device is None or not os.access(device, os.W_OK):
        parts.missing("a PCI device whose uevent may be asked for (root)")
    assert device is not None
    # The next round by the period alone would come after about an hour.
    command = running.command(kubeconfig, root=root, period=3600)
    with running.running(command, tmp_path / "log"):
        cluster.wait("the first round", lambda: cluster.renewals() >= 1)

        def second_round() -> bool:
            device.write_text("change")
            return cluster.renewals() >= 2

        cluster.wait_polling("round after the change", second_round)
