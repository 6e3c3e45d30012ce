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


def test_what_a_description_does_not_print_is_not_taken_as_absent() -> None:
    report = explain(DATA / "trainer.pod.txt")
    assert "missing-ipc-lock" not in {finding.name for finding in report.findings}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_what_a_windows_shell_writes(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "described"
    text = (DATA / "big70b-0.pod.txt").read_text().replace("\n", "\r\n")
    path.write_bytes(text.encode(encoding))
    assert explain(path).roots == ("liveness-kills-loading-model",)


def test_a_pod_described_twice_is_one(tmp_path: Path) -> None:
    path = tmp_path / "described"
    text = (DATA / "big70b-0.pod.txt").read_text()
    path.write_text(f"{text}\n\n{text}")
    assert explain(path).subject.name == "big70b-0"


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


PASTED_EVENTS = """Events:
  Type     Reason     Age                 From               Message
  ----     ------     ----                ----               -------
  Normal   Scheduled  9m                  default-scheduler  Successfully assigned ml/a-0 to gpu-1
  Warning  BackOff    2s (x31 over 8m4s)  kubelet            Back-off restarting failed container
"""


def test_the_events_of_a_description_alone(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_text(PASTED_EVENTS)
    assert kind_of(path) == "kubectl-events"
    subject = explain(path).subject
    assert (subject.namespace, subject.name, subject.node) == ("ml", "a-0", "gpu-1")
    path.write_text(
        "Warning  FailedScheduling  5m  default-scheduler  0/3 nodes are available: 3 Insufficient "
        "nvidia.com/gpu.\n"
    )
    report = explain(path)
    assert (report.verdict, report.subject.name) == ("failing", "(unnamed)")
    assert report.observed_at is None


def test_a_table_of_pods_gets_a_word_about_what_to_give(tmp_path: Path) -> None:
    path = tmp_path / "pods"
    path.write_text("NAMESPACE   NAME   READY   STATUS    AGE\nml  a  0/1  Pending  5m\n")
    with pytest.raises(InputError, match="the table that `kubectl get` prints"):
        explain(path)
    path.write_text("NAME   MAJ:MIN RM  SIZE TYPE MOUNTPOINTS\nsda  8:0  0  100G  disk\n")
    with pytest.raises(InputError, match="not recognised"):
        explain(path)
