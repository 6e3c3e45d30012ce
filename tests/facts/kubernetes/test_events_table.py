"""The tables of `kubectl get events` and `kubectl events`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import events_table, parse

DATA = Path(__file__).parents[2] / "data" / "describe"
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

GET = (DATA / "get-events.txt").read_text()
WIDE = (DATA / "get-events-wide.txt").read_text()


def rows(text: str) -> list[dict[str, Any]]:
    return events_table.read(text, NOW)


def test_get_events() -> None:
    found = rows(GET)
    assert [event["reason"] for event in found] == [
        "Scheduled",
        "FailedScheduling",
        "Killing",
        "NodeNotReady",
    ]
    assert found[1]["message"] == "0/3 nodes are available:  2 Insufficient nvidia.com/gpu"
    assert found[1]["involvedObject"]["kind"] == "Pod"
    assert found[1]["lastTimestamp"] == "2026-11-20T11:54:48Z"
    assert found[2]["lastTimestamp"] is None
    assert (found[3]["involvedObject"]["kind"], found[3]["involvedObject"]["namespace"]) == (
        "Node",
        None,
    )


def test_wide() -> None:
    first, second = rows(WIDE)
    assert first["metadata"] == {"name": "trainer-0.17a", "namespace": "ml"}
    assert first["involvedObject"] == {
        "kind": "Pod",
        "name": "trainer-0",
        "namespace": "ml",
        "fieldPath": "spec.containers{main}",
    }
    assert first["source"] == {"component": "kubelet"}
    assert (first["count"], first["firstTimestamp"]) == (12, "2026-11-20T11:30:00Z")
    assert first["message"] == "Back-off restarting failed container"
    assert (second["involvedObject"]["kind"], second["source"]["component"]) == (
        "Workload",
        "kueue-admission",
    )


def test_kubectl_events_with_counts() -> None:
    backoff, pulled, node = rows((DATA / "events.txt").read_text())
    assert (backoff["count"], backoff["involvedObject"]["namespace"]) == (31, "ml")
    assert pulled["message"] == 'Container image "example/train:7"  already  present on machine'
    assert node["involvedObject"]["kind"] == "Node"


@pytest.mark.parametrize("text", [GET, WIDE], ids=["get", "wide"])
def test_a_terminal_that_cut_the_lines_off(text: str) -> None:
    narrow = "\n".join(line[:96] for line in text.split("\n"))
    assert [event["reason"] for event in rows(narrow)] == [event["reason"] for event in rows(text)]


def test_lines_that_lost_their_blanks_or_have_no_header() -> None:
    squeezed = "\n".join(" ".join(line.split()) for line in GET.split("\n")[1:])
    assert [event["involvedObject"]["name"] for event in rows(squeezed)] == [
        "trainer-0",
        "trainer-1",
        "trainer-0",
        "gpu-2",
    ]


def test_a_message_goes_on_below() -> None:
    text = GET.replace("Stopping container main", "line one\nnvidia-container-cli: line two")
    assert rows(text)[2]["message"] == "line one\nnvidia-container-cli: line two"


def test_recognised() -> None:
    assert events_table.matches(GET) > 5
    assert events_table.matches(WIDE) > 5
    assert events_table.matches("NAME  READY  STATUS\na  0/1  Pending\n") == 0


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.sampled_from((GET + WIDE).split("\n")) | st.text(max_size=60), max_size=12),
    st.integers(1, 120),
)
def test_anything_reads(lines: list[str], width: int) -> None:
    for event in rows("\n".join(line[:width] for line in lines)):
        assert parse.event(event).about.kind
