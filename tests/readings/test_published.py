"""What a node's agent published, from outside: the same root as on the node, while it is fresh."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor import readings
from gpudoctor.facts.kubernetes import diagnoses
from gpudoctor.publish import diagnosis, names, targets
from gpudoctor.readings import joined, kubernetes
from gpudoctor.report import Report
from tests import cases_joined
from tests.cases_joined import Case


def node_of(case: Case) -> str:
    [node] = case["hosts"]
    return str(node)


def object_of(target: targets.Target, report: Report, **status: Any) -> dict[str, Any]:
    """A Diagnosis as the API server has it after the agent's two writes."""
    made: dict[str, Any] = json.loads(diagnosis.object_write(target, "gpudoctor").body)
    found = diagnosis.of(report, period_seconds=60, node_diagnosis=f"gpudoctor/node-{target.name}")
    made["status"] = json.loads(msgspec.json.encode(found)) | status
    return made


def of_pods(case: Case, report: Report, **status: Any) -> list[dict[str, Any]]:
    uids = {
        (o["metadata"].get("namespace"), o["metadata"]["name"]): o["metadata"].get("uid", "")
        for o in case["objects"]
    }
    return [
        object_of(targets.pod(about.namespace, about.name, uids[about.namespace, about.name]),
                  child, **status)
        for child in report.children
        if (about := child.subject).kind == "Pod" and about.namespace and about.name
    ]  # fmt: skip


def by_its_agent(case: Case, *, logs: bool = True) -> Report:
    """What the agent of the case's node says: it sees the machine, and the pods' logs or not."""
    source = kubernetes.Input(cases_joined.bundle(case if logs else case | {"logs": {}}))
    return readings.judge(joined.read_node(source, node_of(case)), cases_joined.checks())


def from_outside(case: Case, published: list[dict[str, Any]]) -> Report:
    """The diagnosis of the case's pod without its node's machine."""
    bundle = cases_joined.bundle(case | {"hosts": {}})
    added = tuple(msgspec.Raw(json.dumps(item).encode()) for item in published)
    whole = msgspec.structs.replace(bundle, objects=bundle.objects + added)
    namespace, _, name = case["command"].split()[-1].partition("/")
    reading = kubernetes.read_pod_named(kubernetes.Input(whole), name, namespace)
    return readings.judge(reading, cases_joined.checks())


TOGETHER = {
    "10-no-verbs-in-the-container", "11-ib-disabled-in-the-entrypoint",
    "12-hca-filter-matches-nothing", "13-adapter-on-the-other-socket", "14-gdr-level-in-the-image",
    "21-acs-on-the-pods-switch", "26-list-of-one-sockets-adapters",
    "27-port-down-beside-the-gpu", "28-forced-across-the-sockets",
    "29-topology-file-of-another-machine", "30-level-below-the-distance", "32-iommu-translates",
}  # fmt: skip
"""Where the log and the machine tell it only together: an agent that has no logs cannot."""
BY_THE_MODEL = "31-cards-without-gpudirect"
"""Where what the log shows is no fault on this machine: no finding tells that to another reader."""
NAMES = [name for name in cases_joined.NAMES if name != BY_THE_MODEL]


def agrees(report: Report, case: Case) -> None:
    chain = [(f.name, f.severity, f.caused_by) for f in report.findings]
    expected = case["expect"]
    assert (report.verdict, list(report.roots)) == (expected["verdict"], expected["roots"]), chain


@pytest.mark.parametrize("name", NAMES)
def test_the_pod_s_diagnosis_gives_the_root_from_outside(name: str) -> None:
    case = cases_joined.load(name)
    agrees(from_outside(case, of_pods(case, by_its_agent(case))), case)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TOGETHER])
def test_of_an_agent_without_logs_too(name: str) -> None:
    case = cases_joined.load(name)
    agrees(from_outside(case, of_pods(case, by_its_agent(case, logs=False))), case)


@pytest.mark.parametrize("name", cases_joined.NAMES)
def test_a_near_miss_is_one_from_outside(name: str) -> None:
    case = cases_joined.near(name)
    agrees(from_outside(case, of_pods(case, by_its_agent(case))), case)


OWN_GPU, OWN_PORT = "03-own-gpu-fell-off-the-bus", "05-own-port-down"


def of_the_node(case: Case, **status: Any) -> dict[str, Any]:
    return object_of(targets.node(node_of(case)), by_its_agent(case), **status)


def test_what_is_relayed_says_where_it_is_from() -> None:
    case = cases_joined.load(OWN_GPU)
    report = from_outside(case, of_pods(case, by_its_agent(case)))
    root = report.finding(report.root_ids[0])
    assert root.evidence[0].object.startswith("Diagnosis/serve/pod-")
    assert root.evidence[0].note == "published by its agent"
    assert any(one.object.startswith(f"{node_of(case)}:") for one in root.evidence)


def test_the_node_s_diagnosis_serves_where_the_pod_has_none() -> None:
    case = cases_joined.load(OWN_GPU)
    report = from_outside(case, [of_the_node(case)])
    assert report.roots[0] == "gpu-lost"


def test_a_node_s_diagnosis_does_not_make_a_pod_sick_that_is_well() -> None:
    case = cases_joined.load("02-capability-without-root")
    near = cases_joined.near(OWN_GPU)
    for one in (near, case):
        alone = from_outside(one, [])
        beside = from_outside(one, [of_the_node(one)])
        if alone.verdict == "healthy":
            assert beside.verdict == "healthy"


STALE = {"since": "2026-11-20T08:00:00Z", "why": "agent-gpu-1 was not renewed"}


def test_a_diagnosis_that_is_marked_stale_is_not_used_and_that_is_said() -> None:
    case = cases_joined.load(OWN_GPU)
    agent = by_its_agent(case)
    report = from_outside(case, of_pods(case, agent, stale=STALE))
    assert report.roots == from_outside(case, []).roots
    [told] = [one for one in report.unknown if one.what.startswith("Diagnosis/")]
    assert "stale, so not used: marked stale: agent-gpu-1 was not renewed" in told.why


@pytest.mark.parametrize(("seconds", "is_used"), [(170, True), (190, False)])
def test_a_diagnosis_is_as_old_as_the_lease_of_its_agent(seconds: int, is_used: bool) -> None:
    case = cases_joined.load(OWN_GPU)
    now = kubernetes.Input(cases_joined.bundle(case)).cluster.now
    assert now is not None
    renewed = (now - timedelta(seconds=seconds)).isoformat()
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": names.agent_lease(node_of(case)), "namespace": "gpudoctor"},
        "spec": {"renewTime": renewed},
    }
    report = from_outside(case, [lease, *of_pods(case, by_its_agent(case))])
    assert ("gpu-lost" in report.roots) is is_used
    assert any("its agent was last heard 190 s ago" in u.why for u in report.unknown) is not is_used


def test_the_diagnosis_of_an_earlier_pod_of_that_name_is_not_the_pod_s() -> None:
    case = cases_joined.load(OWN_GPU)
    published = of_pods(case, by_its_agent(case))
    for item in published:
        item["metadata"]["ownerReferences"][0]["uid"] = "another"
    assert from_outside(case, published).roots == from_outside(case, []).roots


def test_a_finding_that_this_version_does_not_know_is_said_and_the_rest_is_used() -> None:
    case = cases_joined.load(OWN_GPU)
    [made] = of_pods(case, by_its_agent(case))
    newer = made["status"]["findings"][0] | {"name": "gpu-on-fire", "id": "gpu-on-fire@Node/gpu-1"}
    made["status"]["findings"].insert(0, newer)
    report = from_outside(case, [made])
    assert report.roots == ("gpu-lost",)
    [told] = [one for one in report.unknown if one.what == "finding gpu-on-fire"]
    assert "this version has no runbook" in told.why


def test_a_node_from_outside_is_judged_with_what_its_agent_published() -> None:
    case = cases_joined.load(OWN_PORT)
    bundle = cases_joined.bundle(case | {"hosts": {}})
    made = msgspec.Raw(json.dumps(of_the_node(case)).encode())
    whole = msgspec.structs.replace(bundle, objects=(*bundle.objects, made))
    reading = kubernetes.read_node(kubernetes.Input(whole), node_of(case))
    report = readings.judge(reading, cases_joined.checks())
    assert "nic-port-down" in report.roots


def test_our_own_condition_is_no_evidence_for_itself() -> None:
    """Else a node that was ill once would be so for ever."""
    case = cases_joined.load(OWN_PORT)
    ill = {"type": names.NODE_CONDITION, "status": "False", "reason": "X", "message": "X is down"}
    for item in case["objects"]:
        if item["kind"] == "Node":
            item["status"].setdefault("conditions", []).append(ill)
    bundle = cases_joined.bundle(case | {"hosts": {}})
    report = readings.judge(
        kubernetes.read_node(kubernetes.Input(bundle), node_of(case)), cases_joined.checks()
    )
    assert report.roots == ()
    [told] = [one for one in report.unknown if one.what == "Diagnosis of Node/gpu-1"]
    assert "X is down" in told.why


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["status", "findings", "verdict", "subject", "labels", "stale"])
                | st.text(max_size=3),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_object_may_call_itself_a_diagnosis(garbage: Any) -> None:
    diagnoses.read_all([garbage, {"kind": "Diagnosis", "status": garbage}, {"kind": "Lease"}])
