"""The Kubernetes cases read live: same answer as from the whole recording, within the budget."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gpudoctor.errors import InputError
from gpudoctor.report import Certainty, Report, Severity
from gpudoctor.sources.kubernetes import gather
from gpudoctor.sources.kubernetes.access import Access, Cluster, Fixed
from gpudoctor.sources.kubernetes.client import Client
from tests import cases_k8s
from tests.sources.kubernetes.api_server import ApiServer, serving
from tests.sources.kubernetes.test_gather import World

# What these turn on is beyond the requests that one pod may cost: another pod's evicted Workload,
# the log of an init container that ended well.
_BEYOND_BUDGET = {
    "38-evicted-workload-keeps-quota",
    "85-one-ib-port-down",
}
# The cause is found without reading these objects themselves.
_NOT_NEEDED = {"Topology/dc", "ComputeDomain/llm/nv72"}


def names(beyond: set[str]) -> list[Any]:
    """The cases, those that live reading cannot answer in full marked so."""
    mark = pytest.mark.xfail(strict=True, reason="beyond the request budget of one pod")
    return [pytest.param(n, marks=mark) if n in beyond else n for n in cases_k8s.NAMES]


@contextlib.contextmanager
def live(case: dict[str, Any]) -> Iterator[tuple[World, Client, ApiServer]]:
    world = World(case["objects"], case.get("logs"))
    with serving(world) as server:
        access = Access(cluster=Cluster(server=server.url), credentials=Fixed(), origin="test")
        with Client(access) as client:
            yield world, client, server


def loud(report: Report) -> list[str]:
    return [f.name for f in report.findings if f.severity is not Severity.INFO]


def is_bound(case: dict[str, Any]) -> bool:
    _, name = cases_k8s.subject_of(case)
    found = [o for o in case["objects"] if o["kind"] == "Pod" and o["metadata"]["name"] == name]
    return bool(found and found[0]["spec"].get("nodeName"))


@pytest.mark.parametrize("name", names(_BEYOND_BUDGET))
def test_live_answer_is_the_recorded_one(name: str) -> None:
    case = cases_k8s.load(name)
    with live(case) as (_, client, _server):
        bundle = gather.gather_pod(client, *cases_k8s.subject_of(case))
        assert client.requests <= (8 if is_bound(case) else 9)
    expected = cases_k8s.ask(case)
    # A case is of its own day, not of today: "how long" counts from its newest timestamp.
    bundle = msgspec.structs.replace(bundle, now=None)
    report = cases_k8s.ask_bundle(bundle, *cases_k8s.subject_of(case))
    assert report.roots == expected.roots
    assert report.verdict == expected.verdict
    assert report.unknown == expected.unknown
    assert loud(report) == loud(expected)


@pytest.mark.parametrize("name", names(_BEYOND_BUDGET))
def test_what_decides_was_read(name: str) -> None:
    case = cases_k8s.load(name)
    with live(case) as (_, client, _server):
        bundle = gather.gather_pod(client, *cases_k8s.subject_of(case))
    texts = [bytes(raw).decode() for raw in bundle.objects]
    objects = [json.loads(text) for text in texts]
    read = {obj["metadata"]["name"] for obj in objects} | set(bundle.logs)
    # Events are named by what they are about.
    read |= {obj["involvedObject"]["name"] for obj in objects if obj["kind"] == "Event"}
    # This plugin's pod does not say which ConfigMap it mounts; a pod of a real cluster does.
    unsaid = {"rdma-devices"}
    for item in case["expect"]["evidence"]:
        kind, _, path = item["object"].partition(" " if item["object"].startswith("log") else "/")
        last = path.rpartition("/")[2]
        wanted = {path, last} if kind != "log" else {path, *(k for k in read if path in k)}
        assert wanted & read or last in unsaid or item["object"] in _NOT_NEEDED, item["object"]


@pytest.mark.parametrize("name", cases_k8s.NAMES)
def test_a_missing_right_never_gives_another_certain_answer(name: str) -> None:
    case = cases_k8s.load(name)
    expected = cases_k8s.ask(case)
    named = {finding.name for finding in expected.findings}
    named |= {"insufficient-evidence", *case["expect"].get("may", [])}
    with live(case) as (world, client, _server):
        gather.gather_pod(client, *cases_k8s.subject_of(case))
        rights = sorted(world.used - {"get pods"})
        assert rights
        for right in rights:
            world.denied = {right}
            try:
                bundle = gather.gather_pod(client, *cases_k8s.subject_of(case))
            except InputError:
                continue  # a pod that was never made, and nothing may be read of why
            assert bundle.scope.denied, right
            report = cases_k8s.ask_bundle(bundle, *cases_k8s.subject_of(case))
            certain = [
                f.name
                for f in report.findings
                if f.id in report.root_ids and f.certainty is Certainty.CERTAIN
            ]
            assert set(certain) <= named, right
            assert len(report.unknown) >= 1, right
