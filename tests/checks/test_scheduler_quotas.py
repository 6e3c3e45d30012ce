"""Quotas of the schedulers' own: YuniKorn's by its events on the pod, ElasticQuotas by refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import scheduler_quota
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


KOORDINATOR = (
    "0/2 nodes are available: Insufficient quotas, quotaName: team-a, runtime: "
    '{"nvidia.com/gpu":"8"}, used: {"nvidia.com/gpu":"8"}, pod\'s request: '
    '{"nvidia.com/gpu":"2"}, exceedDimensions: [nvidia.com/gpu]. preemption: 0/2 nodes are '
    "available: 2 Preemption is not helpful for scheduling."
)
OLDER = (
    "pod:train-0  is rejected in PreFilter becauseElasticQuota Used is more than Runtime, "
    "quotaName :team-a, quotaRuntime:map[] quotaUsed:map[], podRequest:map[]"
)
REFUSED = "0/2 nodes are available: Pod team/train-0 is rejected in PreFilter because "


def refused(message: str) -> Report:
    pod = k8s.pod(conditions=k8s.pending(message), spec={"schedulerName": "koord-scheduler"})
    event = k8s.event(pod, "FailedScheduling", message, component="koord-scheduler")
    return ask(pod, k8s.node(), event)


@pytest.mark.parametrize(
    ("message", "quota", "short"),
    [
        (KOORDINATOR, "ElasticQuota team-a", "nvidia.com/gpu"),
        (OLDER, "ElasticQuota team-a", "its quota is in use"),
        (f"{REFUSED}ElasticQuota team is more than Max.", "ElasticQuota team", "is in use"),
        (f"{REFUSED}quota team/q is more than Max.", "ElasticQuota team/q", "is in use"),
        (
            f"{REFUSED}total ElasticQuota used is more than min.",
            "all ElasticQuotas together",
            "is in use",
        ),
    ],
)
def test_an_elastic_quota(message: str, quota: str, short: str) -> None:
    report = refused(message)
    assert report.roots == (NAME,)
    found = finding_of(report, NAME)
    assert quota in found.title
    assert short in found.title
    assert "elasticquotas" in str(found.fix)


@pytest.mark.parametrize(
    "message",
    [
        "0/2 nodes are available: 2 ExceedsQuotaOfSomething.",
        f"{REFUSED}it has no quota label.",
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
    ],
)
def test_no_elastic_quota(message: str) -> None:
    assert NAME not in refused(message).roots


QUOTED = [QUEUE, USER, QUEUE[:-9], QUEUE.replace("4", "x"), KOORDINATOR, OLDER, REFUSED]


@given(st.lists(st.text() | st.sampled_from(QUOTED), min_size=1), st.booleans())
def test_any_text_is_accepted(texts: list[str], yunikorn: bool) -> None:
    scheduler = "yunikorn" if yunikorn else "other"
    pod = k8s.pod(conditions=k8s.pending(texts[0]), spec={"schedulerName": scheduler})
    events = [k8s.event(pod, "Informational", text, component=scheduler) for text in texts]
    found = scheduler_quota.read(k8s.situation_of(k8s.cluster(pod, *events)))
    assert found is None or found.queue
