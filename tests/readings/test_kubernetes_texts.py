"""`explain` on what kubectl prints: recognised, and answered about the right pods and nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpudoctor import readings, registry
from gpudoctor.errors import InputError
from gpudoctor.report import Report
from gpudoctor.sources.text import open_input

DATA = Path(__file__).parents[1] / "data" / "describe"


def explain(path: Path) -> Report:
    with open_input(str(path)) as text:
        return readings.judge(readings.recognise(text).read(text), registry.load())


def kind_of(path: Path) -> str:
    with open_input(str(path)) as text:
        return readings.recognise(text).name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("trainer.pod.txt", "kubectl-describe"),
        ("operator.nodes.txt", "kubectl-describe"),
        ("v1.20.pod.txt", "kubectl-describe"),
        ("events.txt", "kubectl-events"),
        ("get-events.txt", "kubectl-events"),
        ("get-events-wide.txt", "kubectl-events"),
    ],
)
def test_recognised(name: str, kind: str) -> None:
    assert kind_of(DATA / name) == kind


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n",
        '{"apiVersion": "v1", "items": [], "kind": "List"}',
        '{"apiVersion":"v1","kind":"Pod"}\n{"apiVersion":"v1","kind":"Node"}\n',
    ],
)
def test_dumps_are_recognised(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dump"
    path.write_text(text)
    assert kind_of(path) == "kubernetes-objects"


def test_a_described_pod_is_the_subject() -> None:
    report = explain(DATA / "big70b-0.pod.txt")
    assert (report.subject.kind, report.subject.namespace, report.subject.name) == (
        "Pod",
        "serve",
        "big70b-0",
    )
    assert report.roots == ("liveness-kills-loading-model",)
    assert any("does not print" in unknown.why for unknown in report.unknown)


def test_described_nodes_are_children() -> None:
    report = explain(DATA / "operator.nodes.txt")
    assert [child.subject.name for child in report.children] == ["cp-1", "gpu-1", "gpu-2"]


def test_pods_of_events() -> None:
    report = explain(DATA / "get-events.txt")
    assert (report.subject.kind, report.subject.name) == ("Pod", "trainer-1")
    assert report.verdict == "failing"


def test_events_without_a_warning_tell_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_text(
        "LAST SEEN   TYPE     REASON   OBJECT   MESSAGE\n1m  Normal   Pulled   pod/a    ok\n"
    )
    report = explain(path)
    assert report.verdict == "unknown"
    assert report.unknown[0].what == "the pods"


def test_a_dump_is_about_its_gpu_pods_that_are_not_well(tmp_path: Path) -> None:
    def pod(name: str, phase: str, ready: str) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "ml"},
            "spec": {
                "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
            },
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        }

    path = tmp_path / "dump.json"
    items = [pod("well", "Running", "True"), pod("bad", "Failed", "False")]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    report = explain(path)
    assert [child.subject.name for child in report.children] == ["bad"]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "ConfigMap"}))
    with pytest.raises(InputError, match="neither a GPU pod nor a node"):
        explain(path)
