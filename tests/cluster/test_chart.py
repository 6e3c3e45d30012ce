"""The chart on a cluster: installed, upgraded and uninstalled by helm; and who may do what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpudoctor.publish import diagnosis, names, targets
from gpudoctor.publish.status import Status
from gpudoctor.report import Verdict
from gpudoctor.sources.kubernetes import client, kinds
from gpudoctor.sources.kubernetes.errors import ForbiddenError
from tests import helm
from tests.cluster import accounts, fleet, stage
from tests.cluster import test_injection as injection
from tests.cluster.accounts import Right
from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fleet import Simulated
from tests.cluster.installed import NAMESPACE, Installed, installed
from tests.cluster.objects import gpu_pod
from tests.cluster.test_scheduler_truth import version

pytestmark = pytest.mark.cluster

NODES = ("chart-a", "chart-b")
TENANTS = ("tenant-one", "tenant-two")
RBAC = "rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def chart(control_plane: ControlPlane, admin: Admin) -> Iterator[Installed]:
    with installed(control_plane, admin, NODES) as made:
        yield made


def run_helm(chart: Installed, *arguments: str) -> subprocess.CompletedProcess[str]:
    return helm.run(
        *arguments, "--namespace", NAMESPACE, kubeconfig=chart.control_plane.admin_kubeconfig
    )


def account_with(chart: Installed, namespace: str, name: str, role: str) -> Path:
    """An account that a RoleBinding in its namespace gives a ClusterRole; its kubeconfig."""
    metadata = {"name": name, "namespace": namespace}
    chart.admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    chart.admin.create(
        {
            "apiVersion": RBAC,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role,
            },
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        }
    )  # fmt: skip
    right = Right(names.GROUP, names.DIAGNOSES, "list")
    accounts.wait_until_granted(chart.admin, namespace, name, right)
    token = {"token": chart.admin.token(namespace, name)}
    return chart.control_plane.write_kubeconfig(f"{namespace}-{name}", token, namespace)


class TestInstall:
    def test_an_agent_on_each_node(self, chart: Installed) -> None:
        for node in NODES:
            pod = chart.agent_pod(node)
            assert pod["spec"]["priority"] == 2000001000  # system-node-critical
            assert pod["spec"]["serviceAccountName"] == names.AGENT
            # What the API server made of it is still what the chart says.
            [container] = pod["spec"]["containers"]
            assert container["securityContext"]["capabilities"] == {
                "drop": ["ALL"],
                "add": ["SYS_PTRACE", "SYSLOG"],
            }
            recursive = {
                mount["mountPath"]: mount.get("recursiveReadOnly")
                for mount in container["volumeMounts"]
            }
            assert recursive["/host/proc"] == recursive["/host/sys"] == "IfPossible"

    def test_the_plain_manifests_are_accepted_as_they_are(self, chart: Installed) -> None:
        """The server takes all that it knows, and finds no field that it would drop."""
        kubectl = Path(sys.executable).with_name("kubectl")
        files = set((helm.CHART.parent / "manifests").rglob("*.yaml"))
        if version(chart.control_plane.line) < version(injection.SINCE):
            files.remove(helm.CHART.parent / injection.POLICY)
        answer = subprocess.run(
            [
                kubectl, f"--kubeconfig={chart.control_plane.admin_kubeconfig}", "apply",
                "--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts",
                *(f"--filename={path}" for path in sorted(files)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        assert "daemonset.apps/gpudoctor-agent serverside-applied" in answer.stdout

    def test_an_upgrade_keeps_what_was_found(self, chart: Installed) -> None:
        sender = chart.agent(NODES[0])
        target = targets.node(NODES[0])
        status = Status(verdict="healthy", node=NODES[0])
        sender.send(diagnosis.object_write(target, NAMESPACE))
        sender.send(diagnosis.status_write(target, NAMESPACE, status))
        answer = run_helm(
            chart, "upgrade", "gpudoctor", str(helm.CHART), "--set=policies.enabled=true"
        )
        assert answer.returncode == 0, answer.stderr
        [kept] = chart.admin.list("gpudoctor.io/v1alpha1", "Diagnosis", NAMESPACE)
        assert kept["status"]["verdict"] == "healthy"
        answer = run_helm(chart, "rollback", "gpudoctor", "1")
        assert answer.returncode == 0, answer.stderr


@pytest.fixture(scope="module")
def found(chart: Installed) -> Iterator[dict[str, str]]:
    """A pod with a Diagnosis in each tenant's namespace: namespace -> Diagnosis."""
    sender = chart.agent(NODES[0])
    made = {}
    for namespace in TENANTS:
        stage.make_namespace(chart.admin, namespace)
        pod = stage.create(chart.admin, namespace, gpu_pod(1, on=NODES[0]))
        target = targets.pod(namespace, pod["metadata"]["name"], pod["metadata"]["uid"])
        status = Status(verdict="failing", node=NODES[0])
        sender.send(diagnosis.object_write(target, NAMESPACE))
        sender.send(diagnosis.status_write(target, NAMESPACE, status))
        made[namespace] = target.diagnosis
    sender.send(diagnosis.object_write(targets.node(NODES[0]), NAMESPACE))
    yield made
    for namespace in TENANTS:
        stage.clear(chart.admin, namespace, [])


class TestTenants:
    @pytest.mark.parametrize("role", ["gpudoctor-pod-owner", "view"])
    def test_reads_his_own_and_no_other(
        self, chart: Installed, found: dict[str, str], role: str
    ) -> None:
        mine, other = TENANTS
        kubeconfig = account_with(chart, mine, f"reads-by-{role}", role)
        with client.connect(str(kubeconfig)) as tenant:
            read = json.loads(bytes(tenant.get(kinds.DIAGNOSIS, found[mine], mine)))
            assert read["status"]["verdict"] == "failing"
            assert len(tenant.list(kinds.DIAGNOSIS, mine).objects) == 1
            node = targets.node(NODES[0]).diagnosis
            for namespace, name in ((other, found[other]), (NAMESPACE, node)):
                with pytest.raises(ForbiddenError):
                    tenant.get(kinds.DIAGNOSIS, name, namespace)
                with pytest.raises(ForbiddenError):
                    tenant.list(kinds.DIAGNOSIS, namespace)
            with pytest.raises(ForbiddenError):
                tenant.list(kinds.DIAGNOSIS)
            path = f"/apis/gpudoctor.io/v1alpha1/namespaces/{mine}/diagnoses/{found[mine]}"
            with pytest.raises(ForbiddenError):
                tenant.send("DELETE", path, what="deletion of his own")


def granted() -> list[Right]:
    """The rights of the agent's two roles."""
    return [
        Right(group, resource, verb)
        for kind in ("ClusterRole", "Role")
        for rule in helm.only(helm.template(), kind, names.AGENT)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


# What an agent says of a right that it lacks. Server-side apply asks for create where the
# object is not there yet, and the server's refusal is the same as that of the patch.
SAID = {
    "get nodes": "needs get nodes",
    "patch nodes": "patch labels of Node/{node}",
    "patch nodes/status": "patch condition of Node/{node}",
    # The child is told of the first, so that its report says so.
    "list pods": "needs list pods",
    "watch pods": "needs watch pods",
    "create events": "patch Event GpuLost about Node/{node}",
    "patch events": "patch Event GpuLost about Node/{node}",
    "create diagnoses": "patch Diagnosis of Node/{node}",
    "patch diagnoses": "patch Diagnosis of Node/{node}",
    "patch diagnoses/status": "patch status of the Diagnosis of Node/{node}",
    "get leases": "the brake cannot be read",
    "create leases": "patch Lease agent-{node}",
    "patch leases": "patch Lease agent-{node}",
}


class TestRights:
    """Each right of the agent is needed: without it something stays undone, and that is said."""

    def test_all_are_known(self) -> None:
        assert sorted(SAID) == sorted(map(str, granted()))

    @pytest.mark.parametrize("missing", SAID)
    def test_one_that_is_missing_is_said(
        self, control_plane: ControlPlane, chart: Installed, missing: str
    ) -> None:
        node = NODES[1]
        for lying in (
            ("coordination.k8s.io/v1", "Lease", names.agent_lease(node)),
            ("gpudoctor.io/v1alpha1", "Diagnosis", names.node_diagnosis(node)),
        ):
            version, kind, name = lying
            metadata = {"name": name, "namespace": NAMESPACE}
            chart.admin.delete({"apiVersion": version, "kind": kind, "metadata": metadata})
        account = "less-" + missing.replace(" ", "-").replace("/", "-")
        kubeconfig = accounts.kubeconfig_with(
            control_plane, chart.admin, NAMESPACE, account,
            (right for right in granted() if str(right) != missing), cluster_wide=True,
        )  # fmt: skip
        agent = Simulated(node, kubeconfig, NAMESPACE, 1.0)
        words = SAID[missing].format(node=node)

        def said() -> str | None:
            every = [*agent.told, *agent.bundle.decode().split(chr(34))]
            return next((one for one in every if words in one), None)

        with fleet.running([agent]):
            fleet.after_rounds([agent], 3)
            agent.says = Verdict.FAILING
            found = wait_for(f"{words!r}", said, 60)
        assert "needs" in found, found

    def test_with_all_of_them_nothing_is_missed(self, chart: Installed) -> None:
        node = NODES[1]
        agent = Simulated(node, chart.agent(node).kubeconfig, NAMESPACE, 1.0)
        agent.says = Verdict.FAILING
        with fleet.running([agent]):
            wait_for("labels", lambda: names.label("verdict") in _labels(chart.admin, node))
            fleet.after_rounds([agent], 3)
        assert [one for one in agent.told if "may not" in one or "needs" in one] == []


def _labels(admin: Admin, node: str) -> JSON:
    found = admin.get({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    labels: JSON = found["metadata"]["labels"]
    return labels


def test_uninstall_leaves_nothing_of_ours(chart: Installed) -> None:
    """With the hook: its command runs here with the hook's account, since no kubelet runs it."""
    admin, node = chart.admin, NODES[0]
    agent = Simulated(node, chart.agent(node).kubeconfig, NAMESPACE, 1.0)
    agent.says = Verdict.FAILING
    with fleet.running([agent]):
        wait_for("labels", lambda: names.label("verdict") in _labels(admin, node))
    assert _ours(admin)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(run_helm, chart, "uninstall", "gpudoctor", "--timeout=120s")
        wait_for("the hook's Job", lambda: admin.exists(_HOOK), 60)
        hook = admin.get(_HOOK)
        pod = wait_for("the Job's pod", lambda: _pod_of(admin, hook), 60)
        answer = _run_the_hook(chart, hook)
        assert answer.returncode == 0, answer.stderr
        admin.set_status(pod, _SUCCEEDED)
        ended = ending.result()
    assert ended.returncode == 0, ended.stderr
    assert "removed: " in answer.stdout
    assert _ours(admin) == []
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        assert not _named(admin.list(RBAC, kind))
    group = "admissionregistration.k8s.io/v1"
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        assert not _named(admin.list(group, kind))
    for group_version, kind in (("v1", "ServiceAccount"), ("batch/v1", "Job"), (RBAC, "Role")):
        assert not _named(admin.list(group_version, kind, NAMESPACE))


_HOOK = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "gpudoctor-cleanup", "namespace": NAMESPACE},
}
_SUCCEEDED = {
    "phase": "Succeeded",
    "containerStatuses": [
        {
            "name": "cleanup", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "reason": "Completed"}},
        }
    ],
}  # fmt: skip


def _run_the_hook(chart: Installed, job: JSON) -> subprocess.CompletedProcess[str]:
    [container] = job["spec"]["template"]["spec"]["containers"]
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    kubeconfig = chart.kubeconfig("hook", chart.admin.token(NAMESPACE, account))
    return subprocess.run(
        [sys.executable, "-m", "gpudoctor", *container["args"], f"--kubeconfig={kubeconfig}"],
        env=os.environ | {"POD_NAMESPACE": NAMESPACE},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _pod_of(admin: Admin, job: JSON) -> JSON | None:
    name = job["metadata"]["name"]
    found = admin.list("v1", "Pod", NAMESPACE, labelSelector=f"job-name={name}")
    return {"apiVersion": "v1", "kind": "Pod"} | found[0] if found else None


def _named(objects: list[JSON]) -> set[str]:
    """Those of the objects' names that the chart uses."""
    of_the_chart = {one["metadata"]["name"] for one in helm.template()}
    return {one["metadata"]["name"] for one in objects} & of_the_chart


def _ours(admin: Admin) -> list[str]:
    """All keys of ours that nodes have, and the Leases in our namespace."""
    found = []
    for node in admin.list("v1", "Node"):
        keys = [*node["metadata"].get("labels", {}), *node["metadata"].get("annotations", {})]
        keys += [one["type"] for one in node["status"].get("conditions", [])]
        keys += [one["key"] for one in node["spec"].get("taints", [])]
        found += [key for key in keys if names.is_ours(key)]
    leases = admin.list("coordination.k8s.io/v1", "Lease", NAMESPACE)
    return found + [one["metadata"]["name"] for one in leases]
