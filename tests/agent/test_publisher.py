"""What a row of reports writes to a node, its Diagnosis and its pods: set, left alone, cleared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.agent import node_object
from gpudoctor.agent.clock import ServerClock
from gpudoctor.agent.feature_file import FeatureFile
from gpudoctor.agent.outbox import Outbox
from gpudoctor.agent.publisher import RESENT_ROUNDS, Pod, Publisher
from gpudoctor.publish.brake import Braked
from gpudoctor.publish.writes import Write
from gpudoctor.report import Report, ReportSubject, Severity, Subject, Unknown, Verdict
from gpudoctor.sources.kubernetes.faults import refusal
from tests.agent.small_cluster import NODE, SmallCluster
from tests.kubernetes_objects import node
from tests.render.reports import finding
from tests.sources.kubernetes.api_server import Asked, status

LABELS = {"driver": {"value": "580126009", "because": "NVIDIA driver 580.126.09"}}
TRAINER = Pod("team", "train-0", "uid-1")
CONDITION, NODE_LABELS = f"/api/v1/nodes/{NODE}/status", f"/api/v1/nodes/{NODE}"


def report(
    *roots: str,
    labels: dict[str, Any] | None = None,
    unknown: str = "",
    pods: tuple[Report, ...] = (),
    detail: str = "",
) -> Report:
    """A node's report with these root causes; one that cannot tell with `unknown`."""
    subject = Subject("Node", NODE)
    found = tuple(finding(name, name, subject=subject, detail=detail) for name in roots)
    verdict = Verdict.FAILING if roots else Verdict.HEALTHY
    return Report(
        subject=ReportSubject("Node", NODE),
        observed_at="2026-11-20T08:00:00Z",
        verdict=Verdict.UNKNOWN if unknown else verdict,
        roots=roots,
        root_ids=tuple(one.id for one in found),
        findings=found,
        unknown=(Unknown("NVML", unknown),) if unknown else (),
        children=pods,
        facts={"labels": LABELS if labels is None else labels},
    )


def of_pod(*roots: str, verdict: Verdict = Verdict.HEALTHY) -> Report:
    found = tuple(
        finding(name, name, severity=Severity.ERROR, subject=Subject("Pod", "train-0", "team"))
        for name in roots
    )
    return Report(
        subject=ReportSubject("Pod", "train-0", "team", NODE),
        observed_at="2026-11-20T08:00:00Z",
        verdict=Verdict.FAILING if roots else verdict,
        roots=roots,
        root_ids=tuple(one.id for one in found),
        findings=found,
        unknown=(),
    )


class Life:
    """An agent's publisher from its start on, beside a cluster that may outlive it."""

    def __init__(self, cluster: SmallCluster, features: Path | None = None) -> None:
        self.cluster = cluster
        self.brake: Braked | None = None
        self.asked_for_brake = 0
        self.said: list[str] = []
        self.time = 0.0
        self.outbox = Outbox(
            self._send, most_delay_s=1, said=self.said.append, clock=lambda: self.time
        )
        file = FeatureFile(features, 60, self.said.append) if features else None
        self.publisher = Publisher(
            NODE, "gpudoctor", 60, self.outbox, ServerClock(), self._braked, file
        )
        self._number = 0

    def see(self, *reports: Report, pods: tuple[Pod, ...] = (TRAINER,)) -> list[str]:
        """Play rounds that see these reports; what was written, by path."""
        before = len(self.cluster.writes)
        for one in reports:
            self._number += 1
            self.time += 3600
            found = node_object.read(msgspec.Raw(json.dumps(self.cluster.node).encode()))
            self.publisher.round(self._number, one, found, pods)
            self.outbox.flush()
        return self.cluster.writes[before:]

    def _braked(self) -> Braked | None:
        self.asked_for_brake += 1
        return self.brake

    def _send(self, write: Write) -> None:
        headers = {"Content-Type": write.content_type}
        asked = Asked(write.path, write.query, headers, None, write.method, write.body)
        answer = self.cluster.answer(asked)
        if answer.status >= 300:
            raise refusal(answer.status, answer.encoded(), write.what, "https://api", "test")


@pytest.fixture
def cluster() -> SmallCluster:
    return SmallCluster(node(NODE))


@pytest.fixture
def life(cluster: SmallCluster) -> Life:
    return Life(cluster)


def events(writes: list[str]) -> int:
    return sum("/events/" in write for write in writes)


def test_two_rounds_set_labels_and_condition_and_then_nothing_is_written(life: Life) -> None:
    first = life.see(report())
    assert not [write for write in first if "/nodes/" in write]
    assert set(life.see(report())) == {NODE_LABELS, CONDITION}
    assert life.cluster.labels() == {"driver": "580126009", "verdict": "healthy"}
    condition = life.cluster.condition()
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "Healthy")
    assert life.see(*[report()] * 50) == []


def test_a_fault_is_set_and_cleared_again_everywhere(life: Life) -> None:
    life.see(report(), report())
    assert life.see(report("gpu-lost")) == []
    written = life.see(report("gpu-lost"))
    assert set(written) >= {NODE_LABELS, CONDITION}
    assert events(written) == 1
    condition = life.cluster.condition()
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "GpuLost")
    assert life.cluster.labels()["verdict"] == "failing"
    diagnosis = life.cluster.diagnosis(f"node-{NODE}")
    assert diagnosis is not None
    assert diagnosis["root"] == "gpu-lost"

    written = life.see(report(), report())
    assert events(written) == 1, "an Event says that it is gone"
    condition = life.cluster.condition()
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "Healthy")
    assert life.cluster.labels()["verdict"] == "healthy"
    diagnosis = life.cluster.diagnosis(f"node-{NODE}")
    assert diagnosis is not None
    assert "root" not in diagnosis


def test_each_label_is_set_and_goes_with_its_fact(life: Life) -> None:
    wanted = {name: {"value": "1", "because": ""} for name in ("cuda", "gpu-count", "rdma-rails")}
    life.see(*[report(labels=wanted)] * 2)
    for name in wanted:
        left = {key: entry for key, entry in wanted.items() if key != name}
        told = left | {name: {"value": None, "because": "the probe failed"}}
        assert NODE_LABELS in life.see(report(labels=told))
        assert name not in life.cluster.labels()
        life.see(*[report(labels=wanted)] * 2)
        assert life.cluster.labels()[name] == "1"


def test_an_unknown_verdict_takes_the_label_and_says_why(life: Life) -> None:
    life.see(report(), report())
    life.see(report(unknown="the file is old"))
    assert "verdict" not in life.cluster.labels()
    condition = life.cluster.condition()
    assert condition is not None
    assert condition["status"] == "Unknown"
    assert "the file is old" in condition["message"]


def test_flapping_input_writes_next_to_nothing(life: Life) -> None:
    life.see(report(), report())
    assert life.see(*[report("gpu-lost"), report()] * 50) == []
    unknown = [report(unknown="timed out"), report()] * 50
    first = life.see(*unknown[:2])
    assert life.see(*unknown[2:]) == []
    assert len(first) <= 4
    slow = [one for one in (report("gpu-lost"), report()) for _ in range(2)] * 50
    assert len(life.see(*slow)) < 80, "of 200 rounds"


def test_words_that_change_each_round_are_written_now_and_then(life: Life) -> None:
    life.see(*[report("nvlink-error", detail="0 errors")] * 2)
    counting = [report("nvlink-error", detail=f"{count} errors") for count in range(1, 41)]
    assert 4 <= len(life.see(*counting)) <= 10
    condition = life.cluster.condition()
    assert condition is not None
    assert condition["message"].endswith(" errors")


def test_words_of_one_odd_round_are_not_written(life: Life) -> None:
    life.see(*[report("nvlink-error", detail="0 errors")] * 20)
    assert life.see(report("nvlink-error", detail="the kubelet did not answer in time")) == []
    assert life.see(*[report("nvlink-error", detail="0 errors")] * 20) == []


def test_the_next_agent_takes_over_without_a_write_to_the_node(cluster: SmallCluster) -> None:
    Life(cluster).see(report("gpu-lost"), report("gpu-lost"))
    written = Life(cluster).see(*[report("gpu-lost")] * 5)
    assert not [write for write in written if "/nodes/" in write]
    assert events(written) == 0


def test_nothing_is_left_of_a_life_before_that_is_no_longer_so(cluster: SmallCluster) -> None:
    Life(cluster).see(report(), report())
    other = {"driver": {"value": "590000000", "because": ""}}
    Life(cluster).see(report("gpu-lost", labels=other))
    assert cluster.labels() == {}
    condition = cluster.condition()
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("Unknown", "Confirming")


def test_killed_again_and_again_it_leaves_nothing_stale(cluster: SmallCluster) -> None:
    Life(cluster).see(report(), report())
    for _ in range(10):
        Life(cluster).see(report("gpu-lost"))
        assert "verdict" not in cluster.labels()
    Life(cluster).see(report("gpu-lost"), report("gpu-lost"))
    assert cluster.labels()["verdict"] == "failing"


def test_what_somebody_took_away_comes_back(life: Life) -> None:
    life.see(report(), report())
    life.cluster.node["metadata"]["labels"] = {}
    life.cluster.node["metadata"]["managedFields"] = []
    life.cluster.node["status"]["conditions"] = []
    assert set(life.see(report())) == {NODE_LABELS, CONDITION}
    assert life.cluster.labels()["verdict"] == "healthy"


def test_a_label_that_another_owns_is_left_to_him_and_the_rest_is_written(life: Life) -> None:
    life.cluster.node["metadata"]["labels"]["gpudoctor.io/driver"] = "by-hand"
    life.see(*[report()] * 5)
    assert life.cluster.labels() == {"driver": "by-hand", "verdict": "healthy"}
    tries = [path for path in life.cluster.requests if path == f"PATCH {NODE_LABELS}"]
    assert len(tries) == 2
    assert any("driver" in line for line in life.said)
    del life.cluster.node["metadata"]["labels"]["gpudoctor.io/driver"]
    life.see(*[report()] * 20)
    assert life.cluster.labels() == {"driver": "580126009", "verdict": "healthy"}


def test_a_condition_that_the_controller_wrote_in_our_silence_is_taken_back(life: Life) -> None:
    def owned(asked: Asked) -> Any:
        forced = asked.query.get("force") == "true"
        if asked.path == CONDITION and not forced:
            return status(409, 'Apply failed: conflict with "gpudoctor-controller"')
        return None

    life.cluster.refuse = owned
    life.see(report(), report())
    condition = life.cluster.condition()
    assert condition is not None
    assert condition["status"] == "True"


BRAKED = Braked("2026-11-29T19:15:00Z", "4 of 12 nodes turned failing within 60 s (limit 3)")


def test_the_brake_holds_a_flip_to_bad_and_says_so(life: Life) -> None:
    life.see(report(), report())
    assert life.asked_for_brake == 0, "it is read only where a verdict turns bad"
    life.brake = BRAKED
    life.see(*[report("gpu-lost")] * 5)
    assert life.publisher.held
    assert life.cluster.labels()["verdict"] == "healthy"
    condition = life.cluster.condition()
    assert condition is not None
    assert condition["status"] == "True"
    assert "brake" in condition["message"]
    assert "gpu-lost" in condition["message"]
    assert life.see(*[report("gpu-lost")] * 5) == []
    life.brake = None
    life.see(report("gpu-lost"))
    assert life.cluster.labels()["verdict"] == "failing"
    assert not life.publisher.held


def test_the_brake_does_not_hold_a_recovery(life: Life) -> None:
    life.see(report("gpu-lost"), report("gpu-lost"))
    life.brake = BRAKED
    life.see(report(), report())
    assert life.cluster.labels()["verdict"] == "healthy"
    assert not life.publisher.held


def test_what_was_held_and_went_away_by_itself_is_forgotten(life: Life) -> None:
    life.see(report(), report())
    life.brake = BRAKED
    life.see(*[report("gpu-lost")] * 2)
    life.see(report())
    assert not life.publisher.held
    condition = life.cluster.condition()
    assert condition is not None
    assert condition["message"] == "nothing of severity warning or above was found"


def test_a_pod_has_its_diagnosis_while_it_is_there(life: Life) -> None:
    life.see(report(pods=(of_pod(verdict=Verdict.STARTING),)))
    found = life.cluster.diagnosis("pod-train-0")
    assert found is not None
    assert found["verdict"] == "starting"
    written = life.see(*[report(pods=(of_pod("shm-too-small"),))] * 2)
    assert events(written) == 1
    found = life.cluster.diagnosis("pod-train-0")
    assert found is not None
    assert found["root"] == "shm-too-small"
    assert life.see(*[report(pods=(of_pod("shm-too-small"),))] * 5) == []
    written = life.see(*[report(pods=(of_pod(),))] * 2)
    assert events(written) == 1
    found = life.cluster.diagnosis("pod-train-0")
    assert found is not None
    assert found["verdict"] == "healthy"


def test_a_pod_of_the_same_name_is_another_pod(life: Life) -> None:
    life.see(*[report(pods=(of_pod("shm-too-small"),))] * 3)
    life.see(report())
    written = life.see(report(pods=(of_pod("shm-too-small"),)), pods=(Pod("team", "train-0", "2"),))
    assert events(written) == 1
    made = [write for write in written if write.endswith("/diagnoses/pod-train-0")]
    assert len(made) == 1, "its owner is another"


def test_what_is_to_be_said_of_a_pod_that_is_gone_is_dropped(life: Life) -> None:
    life.cluster.outage = 503
    life.see(report(pods=(of_pod(),)))
    assert any("train-0" in key for key in life.outbox.waiting)
    life.see(report(), pods=())
    assert not any("train-0" in key for key in life.outbox.waiting)


def test_a_diagnosis_that_was_deleted_is_made_anew_with_the_next_change(life: Life) -> None:
    life.see(report(), report())
    life.cluster.objects.clear()
    life.see(report("gpu-lost"), report("gpu-lost"))
    found = life.cluster.diagnosis(f"node-{NODE}")
    assert found is not None
    assert found["root"] == "gpu-lost"


def test_an_unchanged_diagnosis_that_was_deleted_comes_back_by_itself(life: Life) -> None:
    quiet = [report()] * (RESENT_ROUNDS - 2)
    life.see(report(), report())
    stood = life.cluster.diagnosis(f"node-{NODE}")
    life.cluster.objects.clear()
    assert life.see(*quiet) == []
    life.see(report())
    assert life.cluster.diagnosis(f"node-{NODE}") == stood
    assert life.see(*quiet) == []


def test_with_nfd_the_labels_are_in_its_file_and_the_node_is_not_written(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    life = Life(cluster, tmp_path)
    file = tmp_path / "gpudoctor"
    life.see(report())
    assert "gpudoctor.io/" not in file.read_text()
    life.see(report())
    assert "gpudoctor.io/driver=580126009\ngpudoctor.io/verdict=healthy\n" in file.read_text()
    assert "# +expiry-time=" in file.read_text()
    life.see(report(unknown="the file is old", labels={}))
    assert "gpudoctor.io/" not in file.read_text()
    life.see(report(), report())
    assert not [write for write in cluster.writes if "/nodes/" in write]
    assert cluster.diagnosis(f"node-{NODE}") is not None
    assert [entry.name for entry in tmp_path.iterdir()] == ["gpudoctor"]


def test_with_nfd_the_next_agent_takes_the_labels_over(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    Life(cluster, tmp_path).see(report(), report())
    Life(cluster, tmp_path).see(report())
    assert "gpudoctor.io/driver=580126009\n" in (tmp_path / "gpudoctor").read_text()


def test_a_folder_of_nfd_that_cannot_be_written_is_said_once(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    life = Life(cluster, tmp_path / "absent")
    life.see(*[report()] * 5)
    assert len([line for line in life.said if "cannot be written" in line]) == 1
