"""Policies and examples as they are shipped: of the API's own schema, and clean by our own lint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gpudoctor.errors import InputError
from gpudoctor.facts import rendezvous_plan
from gpudoctor.facts.kubernetes import manifests
from gpudoctor.facts.node import needs
from gpudoctor.preflight import Exit
from gpudoctor.readings import judge
from gpudoctor.readings import manifests as reading
from gpudoctor.registry import load
from gpudoctor.report import Verdict

DAEMONSET = Path(__file__).parents[2] / "daemonset"
FILES = sorted([*DAEMONSET.glob("manifests/policies/*.yaml"), *DAEMONSET.glob("examples/*.yaml")])
OBJECTS = [
    pytest.param(obj, id=f"{file.stem}-{obj['kind']}-{obj['metadata']['name']}")
    for file in FILES
    for obj in yaml.safe_load_all(file.read_text(encoding="utf-8"))
    if not obj["apiVersion"].startswith(("kueue.x-k8s.io", "ray.io"))  # not of Kubernetes itself
]
WITH_PODS = [
    file
    for file in FILES
    if file.stem in ("trainer", "rendezvous", "ray-worker-group")
    or file.stem.startswith("pod-with-")
]
WITH_POLICY = [file for file in FILES if file.stem in ("trainer", "rendezvous")]
JSON = dict[str, Any]


def first_line(obj: JSON) -> str:
    """The first Kubernetes line that has all of the object's fields."""
    if obj["kind"].startswith("Mutating"):
        return "1.36"
    spec = obj.get("spec", {})
    volumes = spec.get("volumes", []) if obj["kind"] == "Pod" else []
    return "1.31" if any("image" in volume for volume in volumes) else "1.30"


@pytest.mark.parametrize("obj", OBJECTS)
@pytest.mark.parametrize("newest", [False, True], ids=["first", "newest"])
def test_is_of_the_schema(obj: JSON, newest: bool) -> None:
    line = "1.37" if newest else first_line(obj)
    kubernetes_validate.validate(obj, line, strict=True)


def test_the_schema_is_asked() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "t"}, "specs": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


@pytest.mark.parametrize("file", WITH_PODS, ids=lambda file: file.stem)
def test_examples_are_clean(file: Path) -> None:
    report = judge(reading.read(str(file), *reading.load(str(file))), load())
    assert report.verdict is Verdict.HEALTHY
    assert all(child.findings == () for child in report.children)


@pytest.mark.parametrize("file", WITH_PODS, ids=lambda file: file.stem)
def test_preflight_has_what_the_container_has(file: Path) -> None:
    seen = 0
    for obj in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        for found in manifests.read(obj):
            pod = found.pod
            first = pod.container("preflight")
            if first is None:
                continue
            seen += 1
            main = next(c for c in pod.containers if not c.is_init)
            assert first.limits == main.limits
            assert first.capabilities == main.capabilities
            assert found.declared is not None
            declared = needs.parse(found.declared, str(file))
            assert declared.gpus == pod.requests["nvidia.com/gpu"]
    assert seen


@pytest.mark.parametrize("file", WITH_POLICY, ids=lambda file: file.stem)
def test_every_exit_status_has_an_answer(file: Path) -> None:
    [job] = [obj for obj in yaml.safe_load_all(file.read_text()) if obj["kind"] == "Job"]
    rules = job["spec"]["podFailurePolicy"]["rules"]
    actions = {
        value: rule["action"]
        for rule in rules
        if rule.get("onExitCodes", {}).get("containerName") == "preflight"
        for value in rule["onExitCodes"]["values"]
    }
    assert actions == {
        2: "FailJob",
        Exit.REQUEST: "FailJob",
        Exit.NODE: "Count",
        Exit.PEER: "Count",
        Exit.UNKNOWN: "Count",
    }


def test_the_job_with_a_rendezvous_tells_each_pod_who_it_is() -> None:
    """The plan that preflight makes of the example's own variables and the Job's index."""
    [job] = [
        obj
        for obj in yaml.safe_load_all((DAEMONSET / "examples" / "rendezvous.yaml").read_text())
        if obj["kind"] == "Job"
    ]
    [first] = job["spec"]["template"]["spec"]["initContainers"]
    variables = {entry["name"]: entry.get("value", "") for entry in first["env"]}
    said = rendezvous_plan.words(variables[rendezvous_plan.VARIABLE], "example")
    plan = rendezvous_plan.plan(
        said, variables | {"JOB_COMPLETION_INDEX": "1"}, {}, b"0123456789abcdef"
    )
    assert (plan.rank, plan.members, plan.host) == (1, 2, "pretrain-0.pretrain")
    assert plan.members == job["spec"]["parallelism"]


def test_the_examples_token_is_of_no_use() -> None:
    [secret] = [
        obj
        for obj in yaml.safe_load_all((DAEMONSET / "examples" / "rendezvous.yaml").read_text())
        if obj["kind"] == "Secret"
    ]
    with pytest.raises(InputError, match="too short"):
        rendezvous_plan.plan({}, {}, {}, secret["stringData"]["token"].encode())


def test_the_policies_know_the_same_accelerators() -> None:
    """The regular expressions stand in several policies, since CEL cannot share them."""
    of_gpus = {
        variable["expression"]
        for file in DAEMONSET.glob("manifests/policies/*.yaml")
        for obj in yaml.safe_load_all(file.read_text(encoding="utf-8"))
        for variable in obj.get("spec", {}).get("variables", [])
        if variable["name"] == "gpu"
    }
    assert len(of_gpus) == 1
