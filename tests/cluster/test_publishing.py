"""What publish/ declares, on the real API server: it is taken, seen, owned, and taken back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpudoctor.publish import condition, diagnosis, events, labels, names, targets
from gpudoctor.publish.targets import Target
from gpudoctor.publish.writes import Write
from gpudoctor.report import Evidence, Report, ReportSubject, Verdict
from gpudoctor.sources.kubernetes.client import Client, connect
from gpudoctor.sources.kubernetes.errors import ConflictError, NotFoundError, RefusedError
from tests.cluster import objects
from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.control_plane import ControlPlane
from tests.publish.reports import of_node, port_down

pytestmark = pytest.mark.cluster

CRD = Path(__file__).parents[2] / "daemonset" / "chart" / "templates" / "diagnosis-crd.yaml"
NOW = "2026-11-20T08:21:00Z"
NODE = "published-1"
SPACE = "published"


@pytest.fixture(scope="module")
def client(control_plane: ControlPlane) -> Iterator[Client]:
    with connect(str(control_plane.admin_kubeconfig)) as connection:
        yield connection


@pytest.fixture(scope="module", autouse=True)
def crd(admin: Admin) -> JSON:
    manifest: JSON = yaml.safe_load(CRD.read_text())
    if not admin.exists(manifest):
        admin.create(manifest)
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})

    def established() -> JSON | None:
        found = admin.get(manifest)
        conditions = {c["type"]: c["status"] for c in found.get("status", {}).get("conditions", [])}
        return found if conditions.get("Established") == "True" else None

    return wait_for("Diagnosis CRD", established)


def send(client: Client, write: Write | None) -> JSON:
    assert write is not None
    answer: JSON = msgspec.json.decode(
        client.send(
            write.method,
            write.path,
            write.body,
            content_type=write.content_type,
            query=write.query,
            what=write.what,
        )
    )
    return answer


def object_of(kind: str, name: str, namespace: str = "", version: str = "v1") -> JSON:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def diagnosis_of(target: Target) -> JSON:
    version = f"{names.GROUP}/{names.VERSION}"
    return object_of("Diagnosis", target.diagnosis, target.namespace or SPACE, version)


def our_labels(node: JSON) -> dict[str, str]:
    every = node["metadata"].get("labels", {})
    return {key: value for key, value in every.items() if key.startswith(names.GROUP)}


def our_conditions(node: JSON) -> list[JSON]:
    every = node.get("status", {}).get("conditions", [])
    return [one for one in every if one["type"] == names.NODE_CONDITION]


def test_the_schema_is_structural(crd: JSON) -> None:
    types = {one["type"]: one["status"] for one in crd["status"]["conditions"]}
    assert types["Established"] == "True"
    assert types.get("NonStructuralSchema", "False") == "False"
    assert types["NamesAccepted"] == "True"


def test_labels_are_set_and_cleared_again(client: Client, admin: Admin) -> None:
    facts = {
        "driver": ("580126009", "…"), "gpu-model": ("h100", "…"), "shm-mib": ("64", "…"),
        "clique": ("2f7a2f0e-3b1d-4d3e-9b6a-7c1c9e1f0a11.32766", "…"),
    }  # fmt: skip
    wanted = labels.desired(of_node(NODE, Verdict.HEALTHY, **facts)) | {
        "gpudoctor.io/memlock-mib": "64"
    }
    assert our_labels(send(client, labels.write(NODE, wanted))) == wanted
    # The same once more changes nothing: no new version of the object, so no event for watchers.
    before = admin.get(object_of("Node", NODE))["metadata"]["resourceVersion"]
    send(client, labels.write(NODE, wanted))
    assert admin.get(object_of("Node", NODE))["metadata"]["resourceVersion"] == before
    assert our_labels(send(client, labels.write(NODE, {}))) == {}


def test_no_label_has_a_minus_sign_in_front(client: Client) -> None:
    """Why no limit is a large number and not -1."""
    with pytest.raises(RefusedError, match="must start and end with an alphanumeric"):
        send(client, labels.write(NODE, {"gpudoctor.io/memlock-mib": "-1"}))


def test_a_label_that_another_owns_is_left_to_him(client: Client, admin: Admin) -> None:
    key, other = names.label("rack"), names.label("driver")
    node = object_of("Node", NODE)
    foreign = {"metadata": {"labels": {key: "by-hand"}}}
    admin._send("PATCH", f"/api/v1/nodes/{NODE}", foreign, "merge-patch+json")
    wanted = {key: "r7", other: "580126009"}
    with pytest.raises(ConflictError) as refused:
        send(client, labels.write(NODE, wanted))
    assert labels.contested(str(refused.value)) == {key}
    rest = {name: value for name, value in wanted.items() if name != key}
    send(client, labels.write(NODE, rest))
    assert our_labels(admin.get(node)) == {key: "by-hand", other: "580126009"}
    send(client, labels.write(NODE, {}))
    assert our_labels(admin.get(node)) == {key: "by-hand"}
    gone = {"metadata": {"labels": {key: None}}}
    admin._send("PATCH", f"/api/v1/nodes/{NODE}", gone, "merge-patch+json")


def test_the_condition_is_set_and_cleared_beside_the_kubelet_s(
    client: Client, admin: Admin
) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    admin.set_status(object_of("Node", NODE), {"conditions": [ready]})
    [bad] = our_conditions(send(client, condition.write(NODE, port_down(NODE), None, NOW)))
    assert (bad["status"], bad["reason"]) == ("False", "RdmaPortDown")
    assert condition.write(NODE, port_down(NODE), bad, NOW) is None
    well = of_node(NODE, Verdict.HEALTHY)
    node = send(client, condition.write(NODE, well, bad, "2026-11-20T08:22:00Z"))
    [good] = our_conditions(node)
    assert (good["status"], good["lastTransitionTime"]) == ("True", "2026-11-20T08:22:00Z")
    assert "Ready" in {one["type"] for one in node["status"]["conditions"]}


def test_a_diagnosis_is_made_filled_marked_and_shown(
    client: Client, admin: Admin, control_plane: ControlPlane
) -> None:
    target = targets.node(NODE)
    status = diagnosis.of(port_down(NODE), period_seconds=60)
    with pytest.raises(NotFoundError):
        send(client, diagnosis.status_write(target, SPACE, status))
    made = send(client, diagnosis.object_write(target, SPACE))
    assert "status" not in made
    filled = send(client, diagnosis.status_write(target, SPACE, status))
    as_json = json.loads(msgspec.json.encode(status))
    assert filled["status"] == as_json, "nothing was pruned"
    shown = kubectl(control_plane, "get", "gdx", "-n", SPACE)
    header, row = (line.split() for line in shown.splitlines())
    assert header == ["NAME", "VERDICT", "ROOT", "NODE", "AGE"]
    assert row[:4] == [f"node-{NODE}", "failing", "rdma-port-down", NODE]
    # The server publishes the schema of a new kind a little after it serves the kind.
    explain = ("explain", "diagnosis.status.findings")
    wait_for("explanation", lambda: "evidence" in _kubectl(control_plane, *explain).stdout)
    marked = send(client, diagnosis.stale_write(target, SPACE, NOW, "its agent is silent"))
    assert marked["status"]["stale"] == {"since": NOW, "why": "its agent is silent"}
    assert marked["status"]["verdict"] == "failing"
    again = send(client, diagnosis.status_write(target, SPACE, status))
    assert again["status"]["stale"], "the mark is the controller's to take away"
    unmarked = send(client, diagnosis.fresh_write(target, SPACE))
    assert unmarked["status"] == as_json
    before = unmarked["metadata"]["resourceVersion"]
    same = send(client, diagnosis.status_write(target, SPACE, status))
    assert same["metadata"]["resourceVersion"] == before
    admin.set_status(diagnosis_of(target), {"verdict": "healthy", "root": None})
    again = send(client, diagnosis.status_write(target, SPACE, status))
    assert again["status"] == as_json, "what was edited by hand is no conflict"


def test_a_status_that_is_not_of_the_schema_is_refused(client: Client) -> None:
    target = targets.node(NODE)
    write = diagnosis.status_write(target, SPACE, diagnosis.of(port_down(NODE), period_seconds=60))
    wrong = json.loads(write.body)
    wrong["status"]["verdict"] = "splendid"
    with pytest.raises(RefusedError, match="splendid"):
        send(client, msgspec.structs.replace(write, body=json.dumps(wrong).encode()))


def test_a_pod_s_diagnosis_goes_when_the_pod_goes(client: Client, admin: Admin) -> None:
    made = admin.create(
        object_of("Pod", "trainer-0", SPACE)
        | {"spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "example.com/a"}]}}
    )
    pod = targets.pod(SPACE, "trainer-0", made["metadata"]["uid"])
    send(client, diagnosis.object_write(pod, "elsewhere"))
    subject = ReportSubject("Pod", "trainer-0", SPACE, NODE)
    report = msgspec.structs.replace(port_down(NODE), subject=subject)
    status = diagnosis.of(report, period_seconds=60, node_diagnosis=f"{SPACE}/node-{NODE}")
    send(client, diagnosis.status_write(pod, "elsewhere", status))
    admin.delete(made)
    wait_for("end of the pod's Diagnosis", lambda: not admin.exists(diagnosis_of(pod)))


@pytest.mark.parametrize("kind", ["Node", "Pod"])
def test_events_are_counted_and_found_by_kubectl(
    client: Client, admin: Admin, control_plane: ControlPlane, kind: str
) -> None:
    target = targets.node(NODE) if kind == "Node" else targets.pod(SPACE, "trainer-1", "uid-7")
    well, bad = of_node(NODE, Verdict.HEALTHY), port_down(NODE)
    tally: dict[str, events.Series] = {}
    before: Report | None = None
    for minute, report in enumerate([bad, well, bad, bad, well]):
        now = f"2026-11-20T08:2{minute}:00Z"
        found = events.changes(before, report, target=target, node=NODE, now=now, tally=tally)
        for write in found.writes:
            send(client, write)
        before, tally = report, found.tally
    shown = admin.list("v1", "Event", target.namespace or "default")
    mine = {
        one["reason"]: one
        for one in shown
        # Others' events may be about nothing that has a name.
        if one["involvedObject"].get("name") == target.name and one["source"].get("host") == NODE
    }
    assert set(mine) == {"RdmaPortDown", "RdmaPortDownGone"}
    assert [one["count"] for one in mine.values()] == [2, 2]
    if kind == "Node":
        described = kubectl(control_plane, "describe", "node", NODE)
        assert "RdmaPortDown" in described


def _kubectl(control_plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "kubectl"
    return subprocess.run(
        [program, "--kubeconfig", control_plane.admin_kubeconfig, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def kubectl(control_plane: ControlPlane, *arguments: str) -> str:
    done = _kubectl(control_plane, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_any_value_may_be_in_a_diagnosis(client: Client) -> None:
    """The bounds of the agent are within those of the schema."""
    target = targets.node(NODE)
    long = msgspec.structs.replace(
        port_down(NODE).findings[0], title="ü" * 4000, detail="x " * 9000
    )
    report = msgspec.structs.replace(port_down(NODE), findings=(long,) * 90)
    status: Any = diagnosis.of(report, period_seconds=60)
    answer = send(client, diagnosis.status_write(target, SPACE, status))
    assert len(msgspec.json.encode(answer)) < diagnosis.MOST_BYTES


def gpudoctor(control_plane: ControlPlane, *arguments: str) -> Any:
    """What a command answers as JSON, with the administrator's kubeconfig."""
    done = subprocess.run(
        [sys.executable, "-m", "gpudoctor", *arguments, "-o", "json",
         "--kubeconfig", control_plane.admin_kubeconfig],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1, 3), done.stderr
    return json.loads(done.stdout)


def publish(client: Client, target: Target, report: Report) -> None:
    send(client, diagnosis.object_write(target, SPACE))
    send(client, diagnosis.status_write(target, SPACE, diagnosis.of(report, period_seconds=60)))


def test_a_node_s_labels_and_the_fleet_are_read_back(
    client: Client, admin: Admin, control_plane: ControlPlane
) -> None:
    report = of_node(NODE, Verdict.HEALTHY, driver=("580126009", "NVIDIA driver 580.126.09"))
    publish(client, targets.node(NODE), report)
    send(client, labels.write(NODE, labels.desired(report)))
    answer = gpudoctor(control_plane, "labels", "--node", NODE, "-n", SPACE)
    assert answer["facts"]["labels_now"] == labels.desired(report)
    assert answer["facts"]["labels"]["driver"]["value"] == "580126009"
    silent = admin.create(objects.node("gpu-silent", gpus=8, labels=objects.hardware()))
    fleet = gpudoctor(control_plane, "fleet", "-n", SPACE)
    assert NODE in {child["subject"]["name"] for child in fleet["children"]}
    assert fleet["facts"]["fleet"]["silent"] == {
        "gpu-silent": "no agent has published a Diagnosis of it"
    }
    admin.delete(silent)
    send(client, labels.write(NODE, {}))


def test_check_uses_what_the_agent_published_about_a_pod_while_it_is_fresh(
    client: Client, admin: Admin, control_plane: ControlPlane
) -> None:
    gpus = {"nvidia.com/gpu": "8"}
    admin.set_status(object_of("Node", NODE), {"capacity": gpus, "allocatable": gpus})
    send(client, condition.write(NODE, port_down(NODE), None, NOW))
    main = {"name": "main", "image": "example.com/a", "resources": {"limits": gpus}}
    made = admin.create(
        object_of("Pod", "trainer-9", SPACE) | {"spec": {"nodeName": NODE, "containers": [main]}}
    )
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": NOW, "startedAt": NOW}
    admin.set_status(
        made,
        {"phase": "Failed", "containerStatuses": [
            {"name": "main", "ready": False, "restartCount": 0, "image": "a", "imageID": "",
             "state": {"terminated": ended}}]},
    )  # fmt: skip
    pod = targets.pod(SPACE, "trainer-9", made["metadata"]["uid"])
    [found] = port_down(NODE).findings
    seen = Evidence(f"{NODE}:/sys/class/infiniband/mlx5_3/ports/1/state", None, "1: DOWN")
    known = msgspec.structs.replace(
        found, name="nic-port-down", code="NET002", runbook="NET002", evidence=(seen,)
    )
    report = msgspec.structs.replace(
        port_down(NODE),
        subject=ReportSubject("Pod", "trainer-9", SPACE, NODE),
        findings=(known,),
        roots=(known.name,),
    )
    publish(client, pod, report)
    answer = gpudoctor(control_plane, "check", "--pod", f"{SPACE}/trainer-9")
    assert answer["roots"][0] == "nic-port-down"
    [root] = [one for one in answer["findings"] if one["name"] == "nic-port-down"]
    assert root["evidence"][0]["object"] == f"Diagnosis/{SPACE}/pod-trainer-9"
    send(client, diagnosis.stale_write(pod, SPACE, NOW, "its agent is silent"))
    stale = gpudoctor(control_plane, "check", "--pod", f"{SPACE}/trainer-9")
    assert "nic-port-down" not in stale["roots"]
    assert any("stale, so not used" in one["why"] for one in stale["unknown"])
    admin.delete(made)
