"""`gpudoctor fleet`: all nodes at a glance, from what their agents published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.publish import diagnosis, names, targets
from gpudoctor.report import Report, Verdict
from tests.cli.running import run
from tests.publish.reports import of_node, port_down

NOW = "2026-11-20T09:00:00Z"
H100 = {"gpu_model": ("h100", "…"), "driver": ("580126009", "…"), "gpu_count": ("8", "…")}


def of(report: Report, **status: Any) -> dict[str, Any]:
    target = targets.node(report.subject.name or "")
    made: dict[str, Any] = json.loads(diagnosis.object_write(target, "gpudoctor").body)
    found = diagnosis.of(report, period_seconds=60)
    return made | {"status": json.loads(msgspec.json.encode(found)) | status}


def well(number: int, **labels: Any) -> dict[str, Any]:
    return of(of_node(f"gpu-{number}", Verdict.HEALTHY, **H100 | labels))


def fleet() -> list[dict[str, Any]]:
    """Nine alike, one that differs, one that fails, one that is stale."""
    stale = {"since": "2026-11-20T08:50:00Z", "why": "Lease agent-gpu-12 was not renewed"}
    return [
        *(well(n) for n in range(1, 10)),
        well(10, driver=("570172008", "…")),
        of(port_down("gpu-11")),
        of(of_node("gpu-12", Verdict.HEALTHY, **H100), stale=stale),
    ]


def write(folder: Path, objects: list[dict[str, Any]]) -> str:
    path = folder / "fleet.json"
    bundle = {"schema": "gpudoctor.io/bundle/v1", "now": NOW, "objects": objects}
    path.write_text(json.dumps(bundle))
    return str(path)


def test_the_fleet_at_a_glance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run(monkeypatch, ["fleet", "--from", write(tmp_path, fleet())])
    assert result.status == 1
    text = " ".join(result.out.split())
    assert "12 nodes: 10 healthy, 1 failing, 1 not heard" in text
    assert "NET004 rdma-port-down (error), 1 node: gpu-11" in text
    assert "gpu-10: driver is 570.172.08; of 9 of 10 h100 nodes it is 580.126.09" in text
    assert "gpu-12 (1): its Diagnosis is stale: marked stale: Lease agent-gpu-12" in text


def test_json_has_every_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = write(tmp_path, fleet())
    answer = json.loads(run(monkeypatch, ["fleet", "--from", source, "-o", "json"]).out)
    assert len(answer["children"]) == 12
    assert answer["facts"]["fleet"]["verdicts"] == {"healthy": 10, "failing": 1}
    assert [odd["node"] for odd in answer["facts"]["fleet"]["odd_ones_out"]] == ["gpu-10"]


def test_an_agent_whose_lease_is_old_is_not_heard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": names.agent_lease("gpu-1"), "namespace": "gpudoctor"},
        "spec": {"renewTime": "2026-11-20T08:55:00.000000Z"},
    }
    source = write(tmp_path, [lease, well(1), well(2)])
    result = run(monkeypatch, ["fleet", "--from", source])
    assert "2 nodes: 1 healthy, 1 not heard" in result.out
    assert "its agent was last heard 300 s ago" in " ".join(result.out.split())
    assert result.status == 3


def test_a_gpu_node_without_an_agent_is_not_heard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def node(name: str, gpus: str, **labels: str) -> dict[str, Any]:
        status = {"capacity": {"nvidia.com/gpu": gpus, "cpu": "8"}}
        metadata = {"name": name, "labels": labels}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}

    card = "feature.node.kubernetes.io/pci-10de.present"
    nodes = [
        node("gpu-1", "8"),
        node("gpu-2", "8"),
        node("gpu-3", "0", **{card: "true"}),
        node("cpu-1", "0", **{card: "false"}),
    ]
    result = run(monkeypatch, ["fleet", "--from", write(tmp_path, [well(1), *nodes])])
    assert "gpu-2, gpu-3 (2): no agent has published a Diagnosis of it" in result.out
    assert "cpu-1" not in result.out


def test_what_may_not_be_read_is_not_taken_for_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the right to list nodes, one that has no agent would not be missed."""
    path = tmp_path / "fleet.json"
    bundle = {"schema": "gpudoctor.io/bundle/v1", "now": NOW, "objects": [well(1)]}
    path.write_text(json.dumps(bundle | {"scope": {"denied": ["list nodes"]}}))
    result = run(monkeypatch, ["fleet", "--from", str(path)])
    assert "Not known: list nodes: denied" in result.out
    assert result.status == 3


def test_without_any_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run(monkeypatch, ["fleet", "--from", write(tmp_path, [])])
    assert result.status == 2
    assert "no Diagnosis of a node is in the input" in result.err
    assert "-n" in result.err


def test_many_kinds_of_nodes_are_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    objects = [well(n, gpu_count=(str(n), "…")) for n in range(1, 40)]
    result = run(monkeypatch, ["fleet", "--from", write(tmp_path, objects)])
    assert "and 19 more kinds, 19 nodes in all: -o json" in result.out
