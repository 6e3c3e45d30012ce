"""The controller as installed: its own account's rights, the chart's policies, real processes.

What it is given to do comes from agents of the fleet, each with the token of its own pod.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from gpudoctor.controller.loop import Controller
from gpudoctor.controller.nodes import Node
from gpudoctor.controller.tainting import Tainter
from gpudoctor.controller.term import Settings
from gpudoctor.controller.writer import Writer
from gpudoctor.publish import diagnosis, names, targets
from gpudoctor.publish.status import Status
from gpudoctor.report import Verdict
from gpudoctor.sources.kubernetes.client import connect
from tests import helm
from tests.cluster import accounts, fleet, objects, stage
from tests.cluster.accounts import Right
from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.control_plane import LOOPBACK, ControlPlane, free_ports
from tests.cluster.fleet import Simulated
from tests.cluster.installed import NAMESPACE, Installed, installed

pytestmark = pytest.mark.cluster

GPUS = ("ctl-a", "ctl-b", "ctl-c")
TIMEOUT = 12.0
PERIOD = 1.0
FOREIGN = {"key": "example.com/dedicated", "value": "a", "effect": "NoSchedule"}
LEADER: JSON = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": names.LEADER_LEASE, "namespace": NAMESPACE},
}
POOLS: JSON = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": names.POOLS, "namespace": NAMESPACE},
}
GROUP = f"{names.GROUP}/{names.VERSION}"


@pytest.fixture(scope="module")
def chart(control_plane: ControlPlane, admin: Admin) -> Iterator[Installed]:
    with installed(control_plane, admin, GPUS) as made:
        yield made


@pytest.fixture(scope="module")
def kubeconfig(chart: Installed) -> Path:
    """The controller's own account."""
    return chart.controller().kubeconfig


@pytest.fixture
def agents(chart: Installed) -> Iterator[dict[str, Simulated]]:
    with fleet.running(
        Simulated(node, chart.agent(node).kubeconfig, NAMESPACE, PERIOD) for node in GPUS
    ) as started:
        fleet.after_rounds(started.values(), 2)
        yield started


@contextlib.contextmanager
def working(
    kubeconfig: Path,
    said: list[str],
    *,
    taint: bool = False,
    timeout: float = TIMEOUT,
    period: float = PERIOD,
) -> Iterator[Controller]:
    """A controller in a thread, which gives the lead back at the end."""
    settings = Settings(namespace=NAMESPACE, timeout=timeout, period=period, share=0.3, taint=taint)
    controller = Controller(settings, "tested", lambda: connect(str(kubeconfig)), said.append)
    stop = threading.Event()
    thread = threading.Thread(target=controller.run, args=(f"{LOOPBACK}:0", stop))
    thread.start()
    try:
        yield controller
    finally:
        stop.set()
        controller.wake()
        thread.join()


def node_of(admin: Admin, name: str) -> JSON:
    return admin.get({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})


def keys_of(admin: Admin, name: str) -> set[str]:
    metadata = node_of(admin, name)["metadata"]
    pairs = metadata.get("labels", {}) | metadata.get("annotations", {})
    return {key for key in pairs if names.is_ours(key)}


def agent_lease(node: str) -> JSON:
    return LEADER | {"metadata": {"name": names.agent_lease(node), "namespace": NAMESPACE}}


def condition_of(admin: Admin, name: str) -> JSON:
    found = node_of(admin, name)["status"]["conditions"]
    return next((one for one in found if one["type"] == names.NODE_CONDITION), {})


def diagnosis_of(admin: Admin, target: targets.Target) -> JSON:
    """The Diagnosis, empty if there is none."""
    named = f"metadata.name={target.diagnosis}"
    found = admin.list(GROUP, "Diagnosis", target.namespace or NAMESPACE, fieldSelector=named)
    return found[0] if found else {}


def taints_of(admin: Admin, name: str) -> list[JSON]:
    found: list[JSON] = node_of(admin, name)["spec"].get("taints", [])
    return found


class TestSilence:
    def test_what_a_silent_agent_said_is_taken_back_and_comes_back_with_it(
        self, admin: Admin, kubeconfig: Path, agents: dict[str, Simulated]
    ) -> None:
        said: list[str] = []
        dead, node = agents["ctl-a"], targets.node("ctl-a")
        with working(kubeconfig, said):
            assert keys_of(admin, "ctl-a") == dead.desired().keys()
            dead.stop()
            wait_for("end of the labels", lambda: not keys_of(admin, "ctl-a"))
            silent = wait_for(
                "AgentSilent",
                lambda: (
                    (found := condition_of(admin, "ctl-a"))["reason"] == "AgentSilent" and found
                ),
            )
            assert silent["status"] == "Unknown"
            assert f"Lease {NAMESPACE}/agent-ctl-a for {TIMEOUT:.0f} s" in silent["message"]
            wait_for("stale mark", lambda: diagnosis_of(admin, node)["status"].get("stale"))
            assert keys_of(admin, "ctl-b") == agents["ctl-b"].desired().keys()
            dead.start()
            wait_for("labels", lambda: keys_of(admin, "ctl-a") == dead.desired().keys())
            wait_for("condition", lambda: condition_of(admin, "ctl-a")["status"] == "True")
            wait_for("fresh Diagnosis", lambda: "stale" not in diagnosis_of(admin, node)["status"])
        assert "agents are back: ctl-a" in said

    def test_the_nodes_clocks_do_not_matter(
        self, admin: Admin, kubeconfig: Path, agents: dict[str, Simulated]
    ) -> None:
        """An agent's Lease with a time of 1987 or of next year is as good as any, if it moves."""
        said: list[str] = []
        stop = threading.Event()
        lease = agent_lease("ctl-b")

        def skew() -> None:
            # No two alike: of two values in turn the looks might hit the same one each time.
            for number in itertools.count():
                if stop.wait(0.2):
                    return
                time = f"{2050 if number % 2 else 1987}-01-01T00:00:00.{number:06}Z"
                with contextlib.suppress(requests.HTTPError):
                    admin.merge(lease, {"spec": {"renewTime": time}})

        agents["ctl-b"].stop()
        agents["ctl-a"].stop()
        thread = threading.Thread(target=skew)
        thread.start()
        try:
            with working(kubeconfig, said):
                wait_for("end of the other's labels", lambda: not keys_of(admin, "ctl-a"))
                assert keys_of(admin, "ctl-b") == agents["ctl-b"].desired().keys()
        finally:
            stop.set()
            thread.join()

    def test_a_lease_that_someone_edited_is_renewed_all_the_same(
        self, admin: Admin, agents: dict[str, Simulated]
    ) -> None:
        """The one who edits owns the field, and an apply that does not insist is a conflict."""
        lease, by_hand = agent_lease("ctl-b"), "1987-01-01T00:00:00.000000Z"
        admin.merge(lease, {"spec": {"renewTime": by_hand, "holderIdentity": "someone"}})
        agent = agents["ctl-b"]
        wait_for("renewal", lambda: admin.get(lease)["spec"]["renewTime"] > by_hand)
        assert admin.get(lease)["spec"]["holderIdentity"] == "agent-of-ctl-b"
        assert not [line for line in agent.told if "not published" in line]

    def test_pods_of_the_node_and_a_key_that_someone_wrote_by_hand(
        self, chart: Installed, admin: Admin, kubeconfig: Path, agents: dict[str, Simulated]
    ) -> None:
        stage.make_namespace(admin, "ctl-tenant")
        pod = stage.create(admin, "ctl-tenant", objects.gpu_pod(1, on="ctl-a"))
        target = targets.pod("ctl-tenant", pod["metadata"]["name"], pod["metadata"]["uid"])
        other = stage.create(admin, "ctl-tenant", objects.gpu_pod(1, "train-1", on="ctl-b"))
        beside = targets.pod("ctl-tenant", "train-1", other["metadata"]["uid"])
        for one, node in ((target, "ctl-a"), (beside, "ctl-b")):
            status = Status(verdict="healthy", node=node)
            chart.agent(node).send(diagnosis.object_write(one, NAMESPACE))
            chart.agent(node).send(diagnosis.status_write(one, NAMESPACE, status))
        note = {"annotations": {names.label("note"): "x"}, "labels": {names.label("x"): "1"}}
        admin.merge(node_of(admin, "ctl-a"), {"metadata": note})
        try:
            with working(kubeconfig, []):
                agents["ctl-a"].stop()
                wait_for("stale", lambda: diagnosis_of(admin, target)["status"].get("stale"))
                assert keys_of(admin, "ctl-a") == set()
                assert "stale" not in diagnosis_of(admin, beside)["status"]
        finally:
            stage.clear(admin, "ctl-tenant", [])

    def test_a_node_that_is_no_more_leaves_no_lease_and_no_diagnosis(
        self, chart: Installed, admin: Admin, kubeconfig: Path
    ) -> None:
        gone = admin.create(objects.node("ctl-gone", gpus=8, labels=objects.hardware()))
        lease = old_lease(admin, "ctl-gone")
        old_diagnosis(admin, "ctl-gone")
        with working(kubeconfig, []):
            admin.delete(gone)
            wait_for("end of the Lease", lambda: not admin.exists(lease))
            node = targets.node("ctl-gone")
            wait_for("end of the Diagnosis", lambda: not diagnosis_of(admin, node))


class TestTaint:
    def test_set_while_failing_and_lifted_after(
        self, admin: Admin, kubeconfig: Path, agents: dict[str, Simulated]
    ) -> None:
        ours = {"key": names.TAINT, "effect": "NoSchedule"}
        admin.merge(node_of(admin, "ctl-a"), {"spec": {"taints": [FOREIGN]}})
        try:
            with working(kubeconfig, [], taint=True):
                agents["ctl-a"].says = Verdict.FAILING
                wait_for("taint", lambda: taints_of(admin, "ctl-a") == [FOREIGN, ours])
                agents["ctl-a"].says = Verdict.WARNING
                wait_for("no taint", lambda: taints_of(admin, "ctl-a") == [FOREIGN])
                agents["ctl-a"].says = Verdict.FAILING
                wait_for("taint", lambda: ours in taints_of(admin, "ctl-a"))
                agents["ctl-a"].stop()
                wait_for("end of the labels", lambda: not keys_of(admin, "ctl-a"))
                assert ours in taints_of(admin, "ctl-a"), "nobody said that it is well again"
            with working(kubeconfig, []):
                wait_for(
                    "lifted as the option is off", lambda: ours not in taints_of(admin, "ctl-a")
                )
            assert taints_of(admin, "ctl-a") == [FOREIGN]
        finally:
            admin.merge(node_of(admin, "ctl-a"), {"spec": {"taints": None}})

    def test_a_foreign_taint_that_comes_in_between_survives(
        self, admin: Admin, kubeconfig: Path
    ) -> None:
        """Between our reading of the list and our write, someone else writes it, each time."""
        intruders = iter(range(1, 4))

        class Slow(Writer):
            def node(self, name: str) -> Node:
                found = super().node(name)
                if number := next(intruders, None):
                    new = {"key": f"example.com/{number}", "effect": "NoSchedule"}
                    taints = [*taints_of(admin, name), new]
                    admin.merge(node_of(admin, name), {"spec": {"taints": taints}})
                return found

        with connect(str(kubeconfig)) as client:
            tainter = Tainter(Slow(client, lambda: True), lambda _: None, wanted=True)
            tainter._put("ctl-c")
            assert [one["key"] for one in taints_of(admin, "ctl-c")] == [
                "example.com/1",
                "example.com/2",
                "example.com/3",
                names.TAINT,
            ]
            tainter._lift("ctl-c")
        assert names.TAINT not in {one["key"] for one in taints_of(admin, "ctl-c")}
        admin.merge(node_of(admin, "ctl-c"), {"spec": {"taints": None}})


class TestPools:
    @pytest.fixture
    def tenant(self, admin: Admin) -> Iterator[str]:
        """A namespace in which the policy gpudoctor-pools refuses."""
        labels = {"gpudoctor.io/admission": "deny"}
        metadata = {"name": "ctl-pools", "labels": labels}
        made = [admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})]
        objects_of = helm.template("--set", "policies.enabled=true")
        made += [
            admin.create(one)
            for one in objects_of
            if one["metadata"]["name"].startswith("gpudoctor-pools") and one["kind"] != "ConfigMap"
        ]
        yield "ctl-pools"
        for one in reversed(made):
            admin.delete(one)

    def test_a_pool_that_does_not_exist_is_refused_until_a_node_offers_it(
        self, admin: Admin, kubeconfig: Path, tenant: str, agents: dict[str, Simulated]
    ) -> None:
        for agent in agents.values():
            agent.labels = {"gpu-count": "8", "rdma": "none", "gdr": "none", "nvlink": "none"}

        def asking(gpus: int, needs: str = "") -> JSON:
            pod = objects.gpu_pod(gpus)
            pod["metadata"] |= {
                "namespace": tenant,
                "annotations": {"gpudoctor.io/require": needs} if needs else {},
            }
            return pod

        def refused(pod: JSON, words: str) -> bool:
            answer = admin.try_create(pod)
            return not answer.ok and words in answer.text

        with working(kubeconfig, []):
            wait_for("refusal of RDMA", lambda: refused(asking(8, "rdma"), "no pool of this"))
            wait_for("refusal of 16", lambda: refused(asking(16), "than any node has: 8"))
            assert admin.try_create(asking(8)).ok
            agents["ctl-b"].labels = {
                "gpu-count": "16",
                "rdma": "ib",
                "gdr": "none",
                "nvlink": "none",
            }
            wait_for("RDMA", lambda: admin.try_create(asking(16, "rdma")).ok)
            assert refused(asking(8, "nvlink"), "there is: rdma")
        assert admin.get(POOLS)["data"] == {"gpusPerNode": "16", "offers": "rdma"}

    def test_what_an_autoscaler_makes_on_demand_is_offered_and_kept(
        self, admin: Admin, kubeconfig: Path, agents: dict[str, Simulated]
    ) -> None:
        for agent in agents.values():
            agent.labels = {"gpu-count": "8", "rdma": "none", "gdr": "none", "nvlink": "none"}
        fleet.after_rounds(agents.values(), 3)
        if admin.exists(POOLS):
            admin.delete(POOLS)
        admin.create(POOLS | {"data": {"onDemand": "32,nvlink"}})
        expected = {"gpusPerNode": "32", "offers": "nvlink", "onDemand": "32,nvlink"}
        with working(kubeconfig, []):
            wait_for("the pools", lambda: admin.get(POOLS)["data"] == expected)

    def test_keys_that_a_site_keeps_by_hand_stay(
        self, admin: Admin, kubeconfig: Path, agents: dict[str, Simulated]
    ) -> None:
        if admin.exists(POOLS):
            admin.delete(POOLS)
        admin.create(POOLS | {"data": {"gpusPerNode": "99"}})
        said: list[str] = []
        with working(kubeconfig, said):
            wait_for("a word about it", lambda: any("kept by someone else" in s for s in said))
        assert admin.get(POOLS)["data"]["gpusPerNode"] == "99"
        admin.delete(POOLS)


class Process:
    """`gpudoctor controller` as the Deployment runs it."""

    def __init__(self, name: str, kubeconfig: Path) -> None:
        self.name = name
        [self.port] = free_ports(1)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpudoctor", "controller", "--agent-timeout", "4",
             "--period", "1", "--kubeconfig", str(kubeconfig),
             "--listen", f"{LOOPBACK}:{self.port}"],
            env=os.environ | {"POD_NAME": name, "POD_NAMESPACE": NAMESPACE},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def metrics(self) -> str:
        """The page, empty while nobody answers."""
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(f"http://{LOOPBACK}:{self.port}/metrics", timeout=10).text
        return ""

    def end(self) -> tuple[int, str]:
        """The exit status and what it said."""
        self._process.terminate()
        _, said = self._process.communicate(timeout=30)
        return self._process.returncode, said

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def holder(admin: Admin) -> str:
    if not admin.exists(LEADER):
        return ""
    identity: str = admin.get(LEADER)["spec"].get("holderIdentity") or ""
    return identity.partition("_")[0]


def test_a_leader_that_stands_still_loses_the_lead_and_one_that_ends_gives_it(
    admin: Admin, kubeconfig: Path, chart: Installed
) -> None:
    one, two = Process("one", kubeconfig), Process("two", kubeconfig)
    try:
        first = wait_for("leader", lambda: holder(admin))
        led, other = (one, two) if first == "one" else (two, one)
        wait_for("metric", lambda: "gpudoctor_controller_leader 1.0" in led.metrics())
        wait_for("the other", lambda: "gpudoctor_controller_leader 0.0" in other.metrics())
        led.send(signal.SIGSTOP)
        wait_for("another leader", lambda: holder(admin) == other.name, 90)
        led.send(signal.SIGCONT)
        wait_for("the end of its lead", lambda: "gpudoctor_controller_leader 0.0" in led.metrics())
        assert holder(admin) == other.name
        status, said = other.end()
        assert status == 0, said
        wait_for("the first again", lambda: holder(admin) == led.name)
        status, said = led.end()
        assert (status, said.count("leads now"), said.count("leads no longer")) == (0, 2, 2)
        assert "Traceback" not in said
        assert holder(admin) == ""
    finally:
        one.kill()
        two.kill()


def test_the_brake_holds_flips_until_a_person_takes_it_off(
    admin: Admin, kubeconfig: Path, agents: dict[str, Simulated]
) -> None:
    said: list[str] = []
    lease = LEADER | {"metadata": LEADER["metadata"]}

    def failing() -> int:
        return sum(names.label("verdict") in keys_of(admin, node) and
                   node_of(admin, node)["metadata"]["labels"][names.label("verdict")] == "failing"
                   for node in GPUS)  # fmt: skip

    with working(kubeconfig, said, period=20):
        wait_for("lead", lambda: "leads now" in said and admin.exists(lease))
        put = {"metadata": {"annotations": {names.BRAKE: "2026-11-29T19:00:00Z tried by hand"}}}
        admin.merge(lease, put)
        wait_for("word of it", lambda: "the brake was put on by hand" in said)
        for agent in agents.values():
            agent.says = Verdict.FAILING
        fleet.after_rounds(agents.values(), 4)
        assert failing() == 0
        message = condition_of(admin, "ctl-a")["message"]
        assert (
            "Held by the cluster-wide brake since 2026-11-29T19:00:00Z (tried by hand)" in message
        )
        off: JSON = {"metadata": {"annotations": {names.BRAKE: None}}}
        admin.merge(lease, off)
        wait_for("word of it", lambda: "the brake was taken off by hand" in said)
        wait_for("the flips", lambda: failing() == len(GPUS))


@dataclass(frozen=True)
class Granted:
    """A right of the controller's role: in the whole cluster, or in its own namespace."""

    kind: str
    right: Right

    def __str__(self) -> str:
        return f"{self.right}{' here' if self.kind == 'Role' else ''}"


def role(kind: str) -> JSON:
    return helm.only(helm.template(), kind, names.CONTROLLER)


def granted() -> list[Granted]:
    return [
        Granted(kind, Right(group, resource, verb))
        for kind in ("ClusterRole", "Role")
        for rule in role(kind)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def part(*rights: str) -> frozenset[str]:
    return frozenset(rights)


# Rights whose want does not hide that of another in the same part.
PARTS = (
    part("list nodes"),
    part("watch nodes", "list leases here"),
    part("get nodes", "delete leases here", "get configmaps here"),
    part("patch nodes", "patch configmaps here", "delete diagnoses here"),
    part("patch nodes/status", "create configmaps here"),
    part("list diagnoses"),
    part("patch diagnoses/status"),
    part("get leases here"),
    part("create leases here"),
    part("patch leases here"),
)


def account_without(
    control_plane: ControlPlane, admin: Admin, name: str, missing: frozenset[str]
) -> Path:
    """The kubeconfig of an account with the controller's roles, less some rights."""
    group = "rbac.authorization.k8s.io"
    here = {"name": name, "namespace": NAMESPACE}
    admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here})
    left = [one for one in granted() if str(one) not in missing]
    for kind, metadata in (("ClusterRole", {"name": name}), ("Role", here)):
        rules = [
            {
                "apiGroups": [one.right.group],
                "resources": [one.right.resource],
                "verbs": [one.right.verb],
            }
            for one in left
            if one.kind == kind
        ]
        api = {"apiVersion": f"{group}/v1", "metadata": metadata}
        admin.create(api | {"kind": kind, "rules": rules})
        admin.create(
            api
            | {
                "kind": f"{kind}Binding",
                "roleRef": {"apiGroup": group, "kind": kind, "name": name},
                "subjects": [{"kind": "ServiceAccount", **here}],
            }
        )
    accounts.wait_until_granted(admin, NAMESPACE, name, left[-1].right)
    token = {"token": admin.token(NAMESPACE, name)}
    return control_plane.write_kubeconfig(name, token, NAMESPACE)


def test_each_right_is_tried() -> None:
    assert sorted(right for one in PARTS for right in one) == sorted(map(str, granted()))


@pytest.mark.parametrize("missing", PARTS, ids=lambda part: ", ".join(sorted(part)))
def test_a_right_that_is_missing_is_said(
    control_plane: ControlPlane,
    admin: Admin,
    chart: Installed,
    agents: dict[str, Simulated],
    missing: frozenset[str],
) -> None:
    account = f"ctl-less-{PARTS.index(missing)}"
    config = account_without(control_plane, admin, account, missing)
    old_lease(admin, "ctl-none")
    old_diagnosis(admin, "ctl-none")
    for one, verb in ((POOLS, "create configmaps here"), (LEADER, "create leases here")):
        if verb in missing:
            admin.delete(one)
    if "patch configmaps here" in missing:
        agents["ctl-c"].labels["gpu-count"] = "64"
    agents["ctl-b"].says = Verdict.FAILING
    chart.controller().send(diagnosis.fresh_write(targets.node("ctl-a"), NAMESPACE))
    agents["ctl-a"].stop()
    said: list[str] = []
    with working(config, said, taint=True, timeout=4):
        for right in (one.right for one in granted() if str(one) in missing):
            wait_for_word(said, f"needs {right.verb} {_resource(right)}")


def wait_for_word(said: list[str], words: str) -> None:
    wait_for(words, lambda: any(words in line for line in said), 60)


def _resource(right: Right) -> str:
    """As messages name it: with its group, before the subresource."""
    resource, slash, sub = right.resource.partition("/")
    return f"{resource}{right.group and '.' + right.group}{slash}{sub}"


def old_lease(admin: Admin, node: str) -> JSON:
    """The Lease of an agent that will not come back."""
    labels = {"app.kubernetes.io/name": "gpudoctor", "app.kubernetes.io/component": "agent"}
    metadata = {"name": names.agent_lease(node), "namespace": NAMESPACE, "labels": labels}
    lease = LEADER | {"metadata": metadata}
    lease["spec"] = {"renewTime": "2026-11-29T19:00:00.000000Z"}
    return lease if admin.exists(lease) else admin.create(lease)


def old_diagnosis(admin: Admin, node: str) -> None:
    """What that agent said of its node."""
    metadata = {"name": names.node_diagnosis(node), "namespace": NAMESPACE}
    made: JSON = {"apiVersion": GROUP, "kind": "Diagnosis", "metadata": metadata}
    if not admin.exists(made):
        admin.create(made | {"status": {"node": node, "verdict": "healthy"}})


def test_clean_up_leaves_nothing(
    control_plane: ControlPlane, chart: Installed, admin: Admin, agents: dict[str, Simulated]
) -> None:
    for agent in agents.values():
        agent.stop()
    with working(chart.controller().kubeconfig, [], taint=True):
        wait_for("the pools", lambda: admin.exists(POOLS))
    foreign = {"example.com/kept": "1"}
    admin.merge(
        node_of(admin, "ctl-a"),
        {
            "metadata": {"labels": foreign, "annotations": {names.label("note"): "x"}},
            "spec": {"taints": [FOREIGN, {"key": names.TAINT, "effect": "NoSchedule"}]},
        },
    )
    account = cleanup_account(control_plane, admin)
    answer = subprocess.run(
        [sys.executable, "-m", "gpudoctor", "controller", "--clean-up",
         "--kubeconfig", str(account)],
        env=os.environ | {"POD_NAMESPACE": NAMESPACE},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Node/ctl-a: taint gpudoctor.io/unhealthy:NoSchedule\n" in answer.stdout
    assert answer.stdout.splitlines()[-1].startswith("removed: ")
    everything = json.dumps(admin.list("v1", "Node"))
    assert "gpudoctor.io/" not in everything.replace("f:gpudoctor.io/", "")
    assert admin.list(GROUP, "Diagnosis") == []
    assert admin.list("coordination.k8s.io/v1", "Lease", NAMESPACE) == []
    assert not admin.exists(POOLS)
    node = node_of(admin, "ctl-a")
    assert node["spec"]["taints"] == [FOREIGN]
    assert node["metadata"]["labels"]["example.com/kept"] == "1"
    again = subprocess.run(
        [sys.executable, "-m", "gpudoctor", "controller", "--clean-up",
         "--kubeconfig", str(account)],
        env=os.environ | {"POD_NAMESPACE": NAMESPACE},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (again.returncode, again.stdout) == (0, "nothing of ours was left\n")


def cleanup_account(control_plane: ControlPlane, admin: Admin) -> Path:
    """The account of the post-delete hook, as the chart makes it."""
    account = "gpudoctor-cleanup"
    for one in helm.template():
        if one["metadata"]["name"] == account and one["kind"] != "Job":
            admin.create(one)
    accounts.wait_until_granted(admin, NAMESPACE, account, Right("", "nodes", "patch"))
    token = {"token": admin.token(NAMESPACE, account)}
    return control_plane.write_kubeconfig(account, token, NAMESPACE)
