"""The agent as a process, with the token of its pod, against the real API server and the chart.

Nothing here is arranged by the agent's own code: the chart's roles and admission policies are in
force, and the administrator looks at what came of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudoctor.publish import names
from tests.agent import running
from tests.agent.running import Agent
from tests.cluster import stage
from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.control_plane import ControlPlane
from tests.cluster.installed import NAMESPACE, Installed, installed
from tests.cluster.objects import gpu_pod
from tests.machines import on_disk, whole_machine

pytestmark = pytest.mark.cluster

NODE, OTHER = "gpu-agent-a", "gpu-agent-b"
TENANT = "tenant-agent"
VERDICT = names.label("verdict")
FAILING = "failing"


@pytest.fixture(scope="module")
def chart(control_plane: ControlPlane, admin: Admin) -> Iterator[Installed]:
    with installed(control_plane, admin, (NODE, OTHER)) as made:
        stage.make_namespace(admin, TENANT)
        yield made
        stage.clear(admin, TENANT, [])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine whose RDMA devices have no device nodes."""
    folder = tmp_path / "host"
    on_disk(whole_machine(), folder)
    return folder


def heal(root: Path) -> None:
    (root / "sys/class/infiniband").rename(root / "sys/class/infiniband.gone")


@pytest.fixture
def agent(chart: Installed, root: Path, tmp_path: Path) -> Iterator[Agent]:
    kubeconfig = chart.kubeconfig("agent-process", chart.agent_token(NODE))
    words = running.command(kubeconfig, root=root, node=NODE)
    with running.running(words, tmp_path / "log") as process:
        yield process


def the(kind: str, name: str, namespace: str = "", version: str = "v1") -> JSON:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def diagnosis(admin: Admin, name: str, namespace: str) -> JSON | None:
    version = f"{names.GROUP}/{names.VERSION}"
    wanted = the("Diagnosis", name, namespace, version)
    return admin.get(wanted) if admin.exists(wanted) else None


def label(admin: Admin, node: str = NODE) -> str | None:
    found: str | None = admin.get(the("Node", node))["metadata"].get("labels", {}).get(VERDICT)
    return found


def condition(admin: Admin) -> JSON:
    every = admin.get(the("Node", NODE))["status"].get("conditions", [])
    return next((one for one in every if one["type"] == names.NODE_CONDITION), {})


def renewed(admin: Admin) -> str | None:
    lease = the("Lease", names.agent_lease(NODE), NAMESPACE, "coordination.k8s.io/v1")
    found: str | None = admin.get(lease)["spec"]["renewTime"] if admin.exists(lease) else None
    return found


def reasons(admin: Admin) -> set[str]:
    """The reasons of the Events about the node."""
    events = admin.list("v1", "Event", "default")
    return {event["reason"] for event in events if event["involvedObject"]["name"] == NODE}


def renewal_after(admin: Admin, before: str | None) -> None:
    wait_for("renewal", lambda: renewed(admin) not in (before, None))


def rounds(admin: Admin, count: int) -> None:
    """Wait for so many renewals of the agent's Lease."""
    for _ in range(count):
        renewal_after(admin, renewed(admin))


def versions(admin: Admin, pod: str) -> list[str]:
    """The versions of all that is written by the agent but its Lease."""
    found = [
        admin.get(the("Node", NODE)),
        diagnosis(admin, names.node_diagnosis(NODE), NAMESPACE),
        diagnosis(admin, names.pod_diagnosis(pod), TENANT),
    ]
    return [one["metadata"]["resourceVersion"] for one in found if one is not None]


def test_an_agent_publishes_with_its_own_token_and_is_quiet_at_rest(
    admin: Admin, agent: Agent, root: Path
) -> None:
    made = stage.create(admin, TENANT, gpu_pod(1, "trainer", on=NODE))
    pod = made["metadata"]["name"]
    stage.create(admin, TENANT, gpu_pod(1, "elsewhere", on=OTHER))
    wait_for("label", lambda: label(admin) == FAILING)
    wait_for("condition", lambda: condition(admin).get("status") == "False")
    assert "NET" in condition(admin)["message"]
    of_node = wait_for(
        "Diagnosis of the node", lambda: diagnosis(admin, names.node_diagnosis(NODE), NAMESPACE)
    )
    assert of_node["status"]["verdict"] == FAILING
    of_pod = wait_for(
        "Diagnosis of the pod", lambda: diagnosis(admin, names.pod_diagnosis(pod), TENANT)
    )
    (owner,) = of_pod["metadata"]["ownerReferences"]
    assert owner["uid"] == made["metadata"]["uid"]
    assert "blockOwnerDeletion" not in owner
    assert diagnosis(admin, names.pod_diagnosis("elsewhere"), TENANT) is None
    assert label(admin, OTHER) is None

    rounds(admin, 3)
    before = versions(admin, pod)
    assert len(before) == 3
    rounds(admin, 4)
    assert versions(admin, pod) == before

    heal(root)
    wait_for("end of the condition", lambda: condition(admin).get("status") != "False")
    wait_for("end of the label", lambda: label(admin) != FAILING)
    wanted = {"RdmaDeviceNodeMissing", "RdmaDeviceNodeMissingGone"}
    wait_for("Events of both", lambda: wanted <= reasons(admin))
    assert "not published" not in agent.said()
    assert agent.stop() == 0


def test_after_a_crash_of_the_api_server_all_is_true_once_two_rounds_agree(
    control_plane: ControlPlane, admin: Admin, agent: Agent, root: Path
) -> None:
    wait_for("label", lambda: label(admin) == FAILING)
    control_plane.kill_api_server()
    heal(root)  # what happens in the meantime
    wait_for("word of the outage", lambda: "cannot be read" in agent.said())
    control_plane.start_api_server()
    # A renewal from before the crash, a round that was under way, and the two that have to agree.
    for _ in range(4):
        rounds(admin, 1)
        if label(admin) != FAILING and condition(admin).get("status") != "False":
            break
    assert label(admin) != FAILING
    assert condition(admin).get("status") != "False"
    pod = stage.create(admin, TENANT, gpu_pod(1, "after", on=NODE))["metadata"]["name"]
    wait_for("pod seen again", lambda: diagnosis(admin, names.pod_diagnosis(pod), TENANT))


def test_killed_again_and_again_it_leaves_nothing_stale(
    chart: Installed, admin: Admin, root: Path, tmp_path: Path
) -> None:
    kubeconfig = chart.kubeconfig("agent-process", chart.agent_token(NODE))
    words = running.command(kubeconfig, root=root, node=NODE)
    with running.running(words, tmp_path / "log"):
        wait_for("label", lambda: label(admin) == FAILING)
    heal(root)
    for life in range(6):
        before = renewed(admin)
        with running.running(words, tmp_path / "log") as one:
            if life % 2:
                renewal_after(admin, before)
            else:
                wait_for("start", one.port)
            one.kill()
        if life % 2:
            assert label(admin) != FAILING
            assert condition(admin).get("status") != "False"


def test_it_says_in_one_line_what_it_may_not_do(
    chart: Installed, root: Path, tmp_path: Path
) -> None:
    """The token of another node's agent: the policy refuses, and names the node."""
    kubeconfig = chart.kubeconfig("agent-process", chart.agent_token(OTHER))
    words = running.command(kubeconfig, root=root, node=NODE)
    with running.running(words, tmp_path / "log") as stranger:
        wait_for("refusal", lambda: "may write that node alone" in stranger.said())
        assert "Traceback" not in stranger.said()
        lines = [line for line in stranger.said().splitlines() if "that node alone" in line]
        assert len(lines) == len(set(lines))
