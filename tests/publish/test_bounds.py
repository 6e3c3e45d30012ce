"""Whatever a report says, what is written of it is valid and of bounded size."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
from hypothesis import given, settings

from gpudoctor.publish import condition, diagnosis, events, labels, metrics, targets
from gpudoctor.publish.crd import crd
from gpudoctor.report import Report
from tests.publish.strategies import reports

NOW = "2026-11-20T08:21:00Z"
KEY = re.compile(r"gpudoctor\.io/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
NODE = targets.node("gpu-1")


def body(write: Any) -> Any:
    return json.loads(write.body)


@given(reports())
@settings(max_examples=40, deadline=None)
def test_labels_are_such_as_the_server_takes(report: Report) -> None:
    for key, value in labels.desired(report).items():
        assert KEY.fullmatch(key)
        assert VALUE.fullmatch(value)
    assert body(labels.write("gpu-1", labels.desired(report)))["kind"] == "Node"


@given(reports())
@settings(max_examples=40, deadline=None)
def test_a_condition_has_a_reason_and_a_short_message(report: Report) -> None:
    found = condition.of(report, note="held by the brake")
    assert found.status in ("True", "False", "Unknown")
    assert REASON.fullmatch(found.reason)
    assert len(found.message.encode()) <= condition.MOST_BYTES
    assert "\n" not in found.message


@given(reports())
@settings(max_examples=40, deadline=None)
def test_a_diagnosis_agrees_with_its_schema_and_is_small(report: Report) -> None:
    status = diagnosis.of(report, period_seconds=60)
    write = diagnosis.status_write(NODE, "gpudoctor", status)
    assert len(write.body) < diagnosis.MOST_BYTES
    assert VALIDATOR.is_valid(body(write))
    assert status.left_out == len(report.findings) - len(status.findings)


@given(reports("Pod"))
@settings(max_examples=40, deadline=None)
def test_events_are_few_and_short(report: Report) -> None:
    pod = targets.pod("ml", "trainer-0", "uid")
    found = events.changes(None, report, target=pod, node="gpu-1", now=NOW, tally={})
    assert len(found.writes) <= events.MOST_AT_ONCE
    for write in found.writes:
        event = body(write)
        assert len(event["message"].encode()) <= events.MOST_BYTES
        assert REASON.fullmatch(event["reason"])
        assert len(event["metadata"]["name"]) <= 253


@given(reports())
@settings(max_examples=30, deadline=None)
def test_metrics_are_text_that_prometheus_reads(report: Report) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    text = metrics.render(report, metrics.AgentState(period_seconds=60), {}).decode()
    assert {family.name for family in text_string_to_metric_families(text)} >= {
        "gpudoctor_node_verdict"
    }
