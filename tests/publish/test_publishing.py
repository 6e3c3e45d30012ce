"""What is written when things change, and that it is taken back when they change again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpudoctor.publish import condition, crd, diagnosis, events, labels, metrics, names, targets
from gpudoctor.publish.events import Series
from gpudoctor.publish.writes import Write
from gpudoctor.report import Report, Severity, Unknown, Verdict
from tests.render.reports import finding, plain, two_causes

CHART = Path(__file__).parents[2] / "daemonset" / "chart" / "templates" / "diagnosis-crd.yaml"
NOW, LATER = "2026-11-20T08:21:00Z", "2026-11-20T08:22:00Z"
POD = targets.pod("ml", "trainer-0", "uid-1")


def body(write: Write | None) -> Any:
    assert write is not None
    return json.loads(write.body)


def node(verdict: Verdict, **facts: Any) -> Report:
    report = plain(verdict, "gpu-1", "Node")
    return msgspec.structs.replace(report, facts=facts)


def failing() -> Report:
    found = finding("rdma-port-down", "Port 1 of mlx5_3 is down", code="NET004")
    return msgspec.structs.replace(
        node(Verdict.FAILING), roots=(found.name,), root_ids=(found.id,), findings=(found,)
    )


# -- labels --------------------------------------------------------------------------------------


def test_a_label_that_is_no_longer_known_is_no_longer_declared() -> None:
    known = {"driver": {"value": "580126009", "because": "NVIDIA driver 580.126.09"}}
    lost = {"driver": {"value": None, "because": "/proc/driver/nvidia was not read"}}
    before = labels.desired(node(Verdict.HEALTHY, labels=known))
    after = labels.desired(node(Verdict.UNKNOWN, labels=lost))
    assert before == {
        "gpudoctor.io/driver": "580126009",
        "gpudoctor.io/verdict": "healthy",
    }
    assert after == {}
    assert body(labels.write("gpu-1", after))["metadata"] == {"name": "gpu-1", "labels": {}}


def test_a_value_that_no_label_can_have_is_left_out_with_the_reason() -> None:
    facts = {"rack": {"value": "row 7/rack 3", "because": "label rack of the node"}}
    [rack] = [one for one in labels.of(node(Verdict.HEALTHY, labels=facts)) if one.name == "rack"]
    assert rack.value is None
    assert "'row 7/rack 3' (label rack of the node) cannot be the value of a label" in rack.because


def test_a_fact_cannot_pass_for_the_verdict() -> None:
    facts = {"verdict": {"value": "healthy", "because": "a lie"}}
    assert labels.desired(node(Verdict.FAILING, labels=facts)) == {
        "gpudoctor.io/verdict": "failing"
    }


def test_the_keys_that_another_owns_are_named_by_the_refusal() -> None:
    said = (
        'conflict with "kubectl": .metadata.labels.gpudoctor.io/driver; conflicts with "nfd":\n'
        "- .metadata.labels.gpudoctor.io/gpu-count\n- .metadata.labels.example.com/driver"
    )
    assert labels.contested(said) == {"gpudoctor.io/driver", "gpudoctor.io/gpu-count"}


# -- condition -----------------------------------------------------------------------------------


def test_the_condition_names_the_root_cause_and_clears_again() -> None:
    first = body(condition.write("gpu-1", failing(), None, NOW))["status"]["conditions"][0]
    assert first["type"] == "gpudoctor.io/Healthy"
    assert (first["status"], first["reason"]) == ("False", "RdmaPortDown")
    assert first["message"].startswith("NET004 rdma-port-down: Port 1 of mlx5_3 is down")
    assert condition.write("gpu-1", failing(), first, LATER) is None
    cleared = body(condition.write("gpu-1", node(Verdict.HEALTHY), first, LATER))
    [after] = cleared["status"]["conditions"]
    assert (after["status"], after["reason"]) == ("True", "Healthy")
    assert after["lastTransitionTime"] == LATER


def test_another_cause_of_the_same_status_is_no_transition() -> None:
    first = body(condition.write("gpu-1", failing(), None, NOW))["status"]["conditions"][0]
    [after] = body(condition.write("gpu-1", two_causes(), first, LATER))["status"]["conditions"]
    assert after["reason"] == "DriverTooOld"
    assert "Also: rdma-not-requested." in after["message"]
    assert (after["lastTransitionTime"], after["lastHeartbeatTime"]) == (NOW, LATER)


def test_a_node_that_only_has_a_warning_is_well_and_the_message_says_so() -> None:
    found = finding("acs-redirect", "ACS is on", code="TOP007", severity=Severity.WARNING)
    report = msgspec.structs.replace(
        node(Verdict.WARNING), roots=(found.name,), root_ids=(found.id,), findings=(found,)
    )
    told = condition.of(report)
    assert (told.status, told.reason) == ("True", "AcsRedirect")


def test_what_cannot_be_told_is_unknown_with_the_reason() -> None:
    report = msgspec.structs.replace(
        node(Verdict.UNKNOWN), unknown=(Unknown("NVIDIA GPUs", "denied"),)
    )
    told = condition.of(report, note="held by the brake")
    assert (told.status, told.reason) == ("Unknown", "Unknown")
    assert told.message == "held by the brake not known: NVIDIA GPUs: denied"


# -- Events --------------------------------------------------------------------------------------


def change(
    before: Report | None, after: Report, tally: dict[str, Series], now: str = NOW
) -> events.Changes:
    return events.changes(before, after, target=POD, node="gpu-1", now=now, tally=tally)


def test_events_come_only_with_a_change() -> None:
    came = change(None, failing(), {})
    assert change(failing(), failing(), came.tally).writes == ()
    event = body(came.writes[0])
    assert (event["type"], event["reason"]) == ("Warning", "RdmaPortDown")
    assert event["involvedObject"]["uid"] == "uid-1"
    assert event["metadata"]["namespace"] == "ml"
    assert (event["reportingComponent"], event["reportingInstance"]) == ("gpudoctor-agent", "gpu-1")
    gone = body(change(failing(), node(Verdict.HEALTHY), came.tally).writes[0])
    assert (gone["type"], gone["reason"]) == ("Normal", "RdmaPortDownGone")


def test_what_comes_and_goes_is_one_event_that_is_counted() -> None:
    first = change(None, failing(), {})
    second = change(node(Verdict.HEALTHY), failing(), first.tally, LATER)
    one, two = body(first.writes[0]), body(second.writes[0])
    assert one["metadata"] == two["metadata"]
    assert (one["count"], two["count"]) == (1, 2)
    assert (two["firstTimestamp"], two["lastTimestamp"]) == (NOW, LATER)


def test_nothing_is_gone_while_nobody_can_tell() -> None:
    assert change(failing(), node(Verdict.UNKNOWN), {}).writes == ()


def test_a_node_s_event_is_where_kubectl_describe_looks() -> None:
    found = events.changes(
        None, failing(), target=targets.node("gpu-1"), node="gpu-1", now=NOW, tally={}
    )
    event = body(found.writes[0])
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {
        "kind": "Node", "name": "gpu-1", "apiVersion": "v1", "uid": "gpu-1",
    }  # fmt: skip


# -- Diagnosis -----------------------------------------------------------------------------------


def test_the_chart_has_the_crd_of_the_types() -> None:
    assert CHART.read_text(encoding="utf-8") == crd.text(), "run `make crd`"
    assert "{{" not in crd.text(), "helm would take it for a template"
    assert yaml.safe_load(crd.text()) == crd.crd()


def test_a_pod_s_diagnosis_goes_with_the_pod_and_never_holds_it_up() -> None:
    made = body(diagnosis.object_write(POD, "gpudoctor"))
    assert made["metadata"] == {
        "name": "pod-trainer-0",
        "namespace": "ml",
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "trainer-0", "uid": "uid-1"}
        ],
    }
    of_node = body(diagnosis.object_write(targets.node("gpu-1"), "gpudoctor"))
    assert of_node["metadata"] == {"name": "node-gpu-1", "namespace": "gpudoctor"}


def test_a_diagnosis_that_says_the_same_is_not_written_again() -> None:
    first = diagnosis.of(failing(), period_seconds=60)
    again = msgspec.structs.replace(failing(), observed_at=LATER)
    assert diagnosis.same(first, diagnosis.of(again, period_seconds=60))
    assert not diagnosis.same(first, diagnosis.of(node(Verdict.HEALTHY), period_seconds=60))


def test_long_names_are_cut_and_stay_apart() -> None:
    one, other = names.pod_diagnosis("p" * 253), names.pod_diagnosis("p" * 252 + "q")
    assert len(one) == len(other) == 253
    assert one != other
    assert names.agent_lease("gpu-1") == "agent-gpu-1"


# -- metrics -------------------------------------------------------------------------------------


def ended(message: str, container_id: str) -> dict[str, Any]:
    return {"terminated": {"message": message, "containerID": container_id, "exitCode": 11}}


def test_each_failed_preflight_is_counted_once() -> None:
    counted = metrics.PreflightFailures()
    status = {
        "state": ended("gpudoctor preflight: node: NET004 rdma-port-down: …", "containerd://b"),
        "lastState": ended("gpudoctor preflight: unknown", "containerd://a"),
    }
    passed = {"state": ended("gpudoctor preflight: passed", "containerd://c")}
    pod = {"status": {"initContainerStatuses": [status, passed, None]}}
    for _ in range(3):
        counted.observe(pod)
    assert counted.counts == {("node", "NET004"): 1, ("unknown", ""): 1}
    assert b'preflight_failures_total{code="NET004",outcome="node"} 1.0' in metrics.render(
        None, metrics.AgentState(period_seconds=60), counted.counts
    )
    broken: list[Any] = [{}, {"status": None}, {"status": {"initContainerStatuses": {}}}]
    for misshapen in broken:
        counted.observe(misshapen)


def test_metrics_of_a_node_have_no_label_that_grows_with_the_cluster() -> None:
    facts = {"gpu-count": {"value": "8", "because": ""}, "rdma": {"value": "ib", "because": ""}}
    report = msgspec.structs.replace(failing(), children=(two_causes(),), facts={"labels": facts})
    text = metrics.render(report, metrics.AgentState(period_seconds=60), {}).decode()
    assert 'gpudoctor_node_verdict{verdict="failing"} 1.0' in text
    assert "gpudoctor_node_gpu_count 8.0" in text
    assert 'gpudoctor_pods{verdict="failing"} 1.0' in text
    assert "trainer-0" not in text
    assert "mlx5_3" not in text
