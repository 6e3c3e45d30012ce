"""YuniKorn's quotas by its events on the pod."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import yunikorn
from gpudoctor.facts.kubernetes.model import Event
from gpudoctor.report import Report
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import ask, finding_of, shown, told

NAME = "queue-waiting-for-quota"
QUEUE = (
    "Request '8f1c' does not fit in queue 'root.vision' (requested map[memory:68719476736 "
    "nvidia.com/gpu:4 pods:1 vcore:16000], available map[memory:824633720832 nvidia.com/gpu:2 "
    "vcore:180000])"
)
USER = (
    "Request '8f1c' exceeds the available user quota (requested map[nvidia.com/gpu:4], "
    "available map[nvidia.com/gpu:0])"
)
QUEUED = "team/train-0 is queued and waiting for allocation"


def report(*said: str, node: str | None = None, component: str = "yunikorn") -> Report:
    pod = k8s.pod(spec={"schedulerName": "yunikorn"}, node=node)
    events = [
        k8s.event(
            pod,
            "Informational",
            text,
            type="Normal",
            component=component,
            seen=f"2026-11-20T08:1{n}:00Z",
        )
        for n, text in enumerate(said)
    ]
    return ask(pod, k8s.node(), *events)


def test_the_queue_has_no_room() -> None:
    answer = report(QUEUED, QUEUE)
    assert answer.roots == (NAME,)
    found = finding_of(answer, NAME)
    assert told(found) == ("error", "certain", "Pod/team/train-0")
    assert "root.vision" in found.title
    assert "nvidia.com/gpu: 4 asked, 2 left" in found.detail
    assert "memory" not in found.detail
    assert QUEUE in shown(found)


def test_the_user_has_no_room() -> None:
    found = finding_of(report(USER), NAME)
    assert "the quota of its user" in found.title


@pytest.mark.parametrize(
    "later",
    [
        "Request '8f1c' has become schedulable in queue 'root.vision'",
        "Request '8f1c' fits in the available user quota",
    ],
)
def test_let_in_since(later: str) -> None:
    assert NAME not in report(QUEUE, later).roots


def test_it_has_a_node() -> None:
    assert NAME not in report(QUEUE, node="gpu-1").roots


def test_somebody_else_quotes_it() -> None:
    assert NAME not in report(QUEUE, component="kubelet").roots


@given(st.lists(st.text() | st.sampled_from([QUEUE, USER, QUEUE[:-9], QUEUE.replace("4", "x")])))
def test_any_text_is_accepted(texts: list[str]) -> None:
    event = k8s.cluster(k8s.event(k8s.pod(), "x", "y", component="yunikorn")).events[0]
    events = [
        Event(meta=event.meta, about=event.about, message=text, component="yunikorn")
        for text in texts
    ]
    found = yunikorn.waits(events)
    assert found is None or all(asked > left for asked, left in found.short.values())
