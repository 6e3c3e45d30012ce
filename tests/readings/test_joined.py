"""A node and its pods read together: recorded, and live as the agent's round does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from gpudoctor import readings
from gpudoctor.readings import host, host_facts, joined, kubernetes
from gpudoctor.readings.host_facts import Services
from gpudoctor.report import Report, Severity, Subject, Verdict
from gpudoctor.sources.bundle import Bundle, HostRecording
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder
from tests import cases_joined
from tests.machines import on_disk


def ask_node(case: cases_joined.Case, name: str = "gpu-1") -> Report:
    source = kubernetes.Input(cases_joined.bundle(case))
    return readings.judge(kubernetes.read_node(source, name), cases_joined.checks())


def loud(report: Report) -> set[str]:
    return {f.name for f in report.findings if f.severity is not Severity.INFO}


def case(start: str) -> cases_joined.Case:
    return cases_joined.load(next(name for name in cases_joined.NAMES if name.startswith(start)))


def near(start: str) -> cases_joined.Case:
    return cases_joined.near(next(name for name in cases_joined.NAMES if name.startswith(start)))


def test_a_node_has_its_pods_beneath_it() -> None:
    report = ask_node(case("03"))
    assert (report.subject.kind, report.verdict, report.roots) == ("Node", "failing", ("gpu-lost",))
    (pod,) = report.children
    assert (pod.subject.name, pod.roots) == ("llm-0", ("gpu-lost",))
    assert {"host", "topology", "kernel"} <= set(report.facts)


def test_trouble_of_one_pod_shows_on_the_node_and_at_that_pod_alone() -> None:
    report = ask_node(near("03"))
    assert report.roots == ("gpu-lost",)
    (pod,) = report.children
    assert pod.roots == ("application-error",)


def test_a_pod_that_fails_by_itself_makes_no_node_a_bad_one() -> None:
    crash = case("08") | {"objects": near("08")["objects"], "hosts": near("08")["hosts"]}
    report = ask_node(crash)
    (pod,) = report.children
    assert pod.verdict is Verdict.FAILING
    assert (report.verdict, report.worst()) == (Verdict.HEALTHY, Severity.INFO)


def test_without_the_node_object_the_host_is_judged_alone() -> None:
    found = case("04")
    found["objects"] = [obj for obj in found["objects"] if obj["kind"] != "Node"]
    report = ask_node(found)
    assert report.roots == ("gpu-lost",)
    assert "Node/gpu-1" in {gap.what for gap in report.unknown}


def test_a_node_without_gpus_needs_none() -> None:
    plain = case("04") | {"logs": {}}
    plain["objects"] = [obj for obj in plain["objects"] if obj["kind"] == "Node"]
    (node,) = plain["objects"]
    tree = cases_joined.bundle(plain).hosts["gpu-1"].tree
    gone = re.compile(r"nvidia|/proc/4242|cmd:nvml|^/dev$|:[1-9a-c]3:00.0")
    kept = {path: entry for path, entry in tree.items() if not gone.search(path)}
    devices = [name for name in kept["/sys/bus/pci/devices"]["dir"] if not name.endswith("3:00.0")]
    kept["/sys/bus/pci/devices"] = {"dir": devices}
    bundle = Bundle(
        objects=cases_joined.bundle(plain).objects,
        hosts={"gpu-1": HostRecording(tree=kept)},
    )

    def verdict(recorded: Bundle) -> Verdict:
        reading = kubernetes.read_node(kubernetes.Input(recorded), "gpu-1")
        return readings.judge(reading, cases_joined.checks()).verdict

    assert verdict(bundle) is not Verdict.HEALTHY, "its Node object offers eight"
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        del amounts["nvidia.com/gpu"]
    node["metadata"]["labels"] = {}
    plain_objects = cases_joined.bundle(plain).objects
    assert verdict(msgspec.structs.replace(bundle, objects=plain_objects)) is Verdict.HEALTHY


def flat(tree: dict[str, Any]) -> dict[str, Any]:
    """What of a tree can be laid on a disk: files and links."""
    return {
        path: entry
        for path, entry in tree.items()
        if path.startswith("/") and (isinstance(entry, str) or "link" in entry)
    }


def test_the_agents_round_reads_its_machine_live(tmp_path: Path) -> None:
    found = case("01")
    recorded = cases_joined.bundle(found)
    tree = flat(dict(recorded.hosts["gpu-1"].tree))
    (tmp_path / "proc/4242/root/dev/infiniband").mkdir(parents=True)
    on_disk(tree, tmp_path)
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / "proc/4242/root/dev" / name).touch()
    (tmp_path / "proc/4242/root/dev/infiniband/uverbs0").touch()
    objects = Bundle(objects=recorded.objects, logs=recorded.logs, scope=recorded.scope)
    with LiveHost(str(tmp_path), programs=host.PROGRAMS) as live:
        seen = host_facts.read(
            Recorder(live), Subject("Node", "gpu-1"), services=Services(str(tmp_path))
        )
    reading = joined.read_node(kubernetes.Input(objects, {"gpu-1": seen}), "gpu-1")
    report = readings.judge(reading, cases_joined.checks())
    assert report.subject.name == "gpu-1"
    (pod,) = [child for child in report.children if child.subject.name == "w-0"]
    assert "memlock-too-low" in {finding.name for finding in pod.findings}
    told = pod.facts["on_node"]
    assert told["gpus"] == ["0000:13:00.0", "0000:23:00.0"]
    assert msgspec.json.encode(report)
