"""Many agents and their controller on a real API server: what they write, and what they survive.

FLEET_AGENTS says how many (default 20). What was written is what the server's audit log says.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudoctor.agent.truth import FLIPS
from gpudoctor.controller.cleanup import CleanUp
from gpudoctor.controller.loop import Controller
from gpudoctor.controller.term import Settings
from gpudoctor.publish import names
from gpudoctor.report import Verdict
from gpudoctor.sources.kubernetes.client import connect
from tests.cluster import fleet
from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.control_plane import LOOPBACK, ControlPlane, running
from tests.cluster.fleet import Simulated, after_rounds
from tests.cluster.installed import NAMESPACE, Installed, installed

pytestmark = pytest.mark.cluster

COUNT = int(os.environ.get("FLEET_AGENTS", "20"))
PERIOD = max(1.5, COUNT / 25)
TIMEOUT = 5 * PERIOD
LONG = 60 + 20 * PERIOD
OUTAGE_ROUNDS = 2
VERDICT = names.label("verdict")
ACCOUNTS = {
    f"system:serviceaccount:{NAMESPACE}:{name}": name for name in (names.AGENT, names.CONTROLLER)
}
READS = {"get", "list", "watch"}


class Cluster:
    """A control plane of its own with the chart on it, all agents and one controller at work."""

    def __init__(
        self, control_plane: ControlPlane, admin: Admin, agents: dict[str, Simulated]
    ) -> None:
        self.control_plane = control_plane
        self.admin = admin
        self.agents = agents
        self.said: list[str] = []

    def writes(self, since: int) -> Counter[tuple[str, str]]:
        """How often who wrote which resource."""
        return Counter(
            (ACCOUNTS[request.user], request.resource)
            for request in self.control_plane.audit_log()[since:]
            if request.user in ACCOUNTS and request.verb not in READS
        )

    def mark(self) -> int:
        """Where the audit log ends now."""
        return len(self.control_plane.audit_log())

    def nodes(self) -> dict[str, JSON]:
        return {one["metadata"]["name"]: one for one in self.admin.list("v1", "Node")}

    def keys(self, node: JSON) -> dict[str, str]:
        labels = node["metadata"].get("labels", {})
        return {key: value for key, value in labels.items() if names.is_ours(key)}

    def condition(self, node: JSON) -> JSON:
        found = node["status"]["conditions"]
        return next((one for one in found if one["type"] == names.NODE_CONDITION), {})

    def is_true(self) -> bool:
        """Whether every node has exactly the labels that its agent finds."""
        return not self.untrue()

    def untrue(self) -> list[str]:
        """The nodes that have other labels than their agents find."""
        nodes = self.nodes()
        return [
            name for name, agent in self.agents.items() if self.keys(nodes[name]) != agent.desired()
        ]

    def brake(self) -> str | None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": names.LEADER_LEASE, "namespace": NAMESPACE},
        }
        found: JSON = self.admin.get(lease)["metadata"].get("annotations") or {}
        return found.get(names.BRAKE)


@pytest.fixture(scope="module")
def chart(
    programs: Path, line: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    with running(programs, tmp_path_factory.mktemp("fleet"), line) as control_plane:
        admin = Admin(control_plane)
        nodes = tuple(f"gpu-{number:03}" for number in range(COUNT))
        with installed(control_plane, admin, nodes) as made:
            yield made
        admin.close()


@pytest.fixture(scope="module")
def cluster(chart: Installed) -> Iterator[Cluster]:
    agents = [
        Simulated(node, chart.agent(node).kubeconfig, NAMESPACE, PERIOD) for node in chart.nodes
    ]
    config = str(chart.controller().kubeconfig)
    with fleet.running(agents) as started:
        whole = Cluster(chart.control_plane, chart.admin, started)
        settings = Settings(
            namespace=NAMESPACE, timeout=TIMEOUT, period=PERIOD, share=0.3, taint=False
        )
        controller = Controller(settings, "tested", lambda: connect(config), whole.said.append)
        stop = threading.Event()
        thread = threading.Thread(target=controller.run, args=(f"{LOOPBACK}:0", stop))
        thread.start()
        try:
            wait_for("all truths", whole.is_true, LONG)
            yield whole
        finally:
            stop.set()
            controller.wake()
            thread.join()


@pytest.fixture(autouse=True)
def well(cluster: Cluster) -> None:
    """Every test begins with all agents healthy and at rest."""
    for agent in cluster.agents.values():
        agent.says, agent.flaps = Verdict.HEALTHY, False
    wait_for("all truths", cluster.is_true, LONG)
    after_rounds(cluster.agents.values(), 2, LONG)


def test_at_rest_nothing_is_written_but_leases(cluster: Cluster) -> None:
    before = cluster.mark()
    after_rounds(cluster.agents.values(), 5, LONG)
    written = cluster.writes(before)
    assert {resource for _, resource in written} == {"leases"}, written
    assert written[names.AGENT, "leases"] >= 4 * COUNT


def test_whoever_flaps_is_written_a_few_times_and_then_no_more(cluster: Cluster) -> None:
    flapping = list(cluster.agents.values())[: COUNT // 2]
    before = cluster.mark()
    for agent in flapping:
        agent.flaps = True
    after_rounds(flapping, 2 * (FLIPS + 2), LONG)
    halfway = cluster.mark()
    after_rounds(flapping, 6, LONG)
    written = cluster.writes(before)
    of_nodes = written[names.AGENT, "nodes"] + written[names.AGENT, "nodes/status"]
    assert 0 < of_nodes <= 2 * (FLIPS + 1) * len(flapping), written
    late = cluster.writes(halfway)
    assert late[names.AGENT, "nodes"] == late[names.AGENT, "nodes/status"] == 0, late
    fleet.stop(flapping)
    for agent in flapping:
        agent.flaps, agent.says = False, Verdict.HEALTHY
        agent.start()  # with no memory of the flaps


def test_when_many_turn_bad_at_once_the_rest_is_held(cluster: Cluster) -> None:
    agents = list(cluster.agents.values())
    limit = max(2, int(0.3 * COUNT))
    # Those who look late count in another period: so a few more than would do.
    many = limit * 3 // 2 + 1
    first, rest = agents[:many], agents[many:]
    for agent in first:
        agent.says = Verdict.FAILING
    on = wait_for("the brake", cluster.brake, LONG)
    assert f"nodes turned failing within {PERIOD:.0f} s (limit {limit})" in on
    for agent in rest:
        agent.says = Verdict.FAILING
    after_rounds(rest, 4, LONG)
    nodes = cluster.nodes()
    assert cluster.brake() == on
    for agent in rest:
        assert cluster.keys(nodes[agent.node])[VERDICT] == "healthy"
        message = cluster.condition(nodes[agent.node])["message"]
        assert message.startswith(f"Held by the cluster-wide brake since {on.split(' ')[0]}")
    # It lets go by itself, and the truth comes, one share after the other.
    wait_for("the end of the brake", lambda: "the brake is off" in cluster.said, LONG)
    before = sum(cluster.keys(node).get(VERDICT) == "failing" for node in nodes.values())

    def is_worse() -> bool:
        now = cluster.nodes().values()
        return sum(cluster.keys(node).get(VERDICT) == "failing" for node in now) > before

    wait_for("more that are failing", is_worse, LONG)


def test_an_agent_held_down_is_taken_back_and_no_other(cluster: Cluster) -> None:
    name = next(iter(cluster.agents))
    agent = cluster.agents[name]
    agent.stop()
    wait_for("the end of its labels", lambda: not cluster.keys(cluster.nodes()[name]), LONG)
    word = f"Node/{name}: its agent is silent; what it published is taken back"
    wait_for("word of it", lambda: word in cluster.said)
    assert sum("its agent is silent" in line for line in cluster.said) == 1
    agent.start()
    wait_for("all truths", cluster.is_true, LONG)


def test_an_api_server_that_was_killed_finds_all_truths_again(cluster: Cluster) -> None:
    agents = list(cluster.agents.values())
    changed = agents[::3]
    silent = sum("silent" in line for line in cluster.said)
    cluster.control_plane.kill_api_server()
    for agent in changed:
        agent.labels["gpu-count"] = "7"
    after_rounds(agents, OUTAGE_ROUNDS, LONG)
    cluster.control_plane.start_api_server()
    ready = {agent.node: agent.rounds for agent in agents}
    wait_for("all truths", cluster.is_true, LONG)
    # One may have been under way.
    assert max(agent.rounds - ready[agent.node] for agent in agents) <= 2 + 1
    after_rounds(agents, 6, LONG)
    assert cluster.untrue() == [], cluster.said
    assert sum("silent" in line for line in cluster.said) == silent, "nobody was taken for dead"


def test_clean_up_leaves_no_key(cluster: Cluster) -> None:
    with connect(str(cluster.control_plane.admin_kubeconfig)) as client:
        fleet.stop(cluster.agents.values())
        said: list[str] = []
        told = CleanUp(client, NAMESPACE, said.append).run()
    assert told.startswith("removed: ")
    for node in cluster.nodes().values():
        assert cluster.keys(node) == {}
        assert cluster.condition(node) == {}
    assert cluster.admin.list(f"{names.GROUP}/{names.VERSION}", "Diagnosis") == []
    for agent in cluster.agents.values():
        agent.start()
