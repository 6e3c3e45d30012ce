"""The admission policies on the real API server: the same verdict as `check --lint`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from gpudoctor.diagnosis import diagnose
from gpudoctor.facts.kubernetes import manifests
from gpudoctor.registry import Registry
from gpudoctor_checks.manifests import CHECKS
from tests.checks.test_manifests import FAR, NEAR, anywhere, job
from tests.cluster import crds, stage
from tests.cluster.admin import Admin, wait_for
from tests.cluster.control_plane import ControlPlane
from tests.cluster.test_injection import first_line
from tests.cluster.test_scheduler_truth import version

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]
POLICIES = Path(__file__).parents[2] / "daemonset" / "manifests" / "policies"
EXAMPLES = POLICIES.parents[1] / "examples"
MODE = "gpudoctor.io/admission"
BARE: JSON = {"capabilities": {"add": ["IPC_LOCK"]}}
NO_RDMA = {"rdma/hca_shared_devices_a": 0}

POLICY_OF = {
    "shm-too-small": "gpudoctor-shared-memory",
    "device-plugin-bypass-env": "gpudoctor-visible-devices",
    "missing-ipc-lock": "gpudoctor-locked-memory",
    "memlock-limit-nonroot": "gpudoctor-locked-memory",
    "needs-not-declared": "gpudoctor-needs",
    "rdma-not-requested": "gpudoctor-needs",
    "topology-scope-not-declared": "gpudoctor-topology-scope",
}


def visible(value: str) -> list[JSON]:
    return [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]


def required(value: str) -> list[JSON]:
    return [{"name": "GPUDOCTOR_REQUIRE", "value": value}]


# As in the tests of lint, and whole: the server takes no empty term.
SELECTOR = {"matchLabels": {"app": "t"}}
TERM = {"topologyKey": "gpudoctor.io/fabric", "labelSelector": SELECTOR}
SERVED_NEAR = NEAR | {
    "affinity among the pods": {
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}
    },
    "spread": {
        "topologySpreadConstraints": [TERM | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    },
}


CASES: dict[str, JSON] = {
    "well": job(),
    "default shm": job(volumeMounts=[]),
    "default shm, one GPU": job("gpus=1", gpus=1, volumeMounts=[]),
    "default shm, MIG slices": job(
        None, 1, gpus=0, volumeMounts=[], limits=NO_RDMA | {"nvidia.com/mig-1g.10gb": 2}
    ),
    "no capability": job(securityContext={}),
    "no security context": job(securityContext=None),
    "another user": job(securityContext=BARE | {"runAsUser": 1000}),
    "not root": job(securityContext=BARE | {"runAsNonRoot": True}),
    "privileged": job(securityContext={"privileged": True}),
    "no RDMA, no capability": job("gpus=8", limits=NO_RDMA, securityContext={}),
    "EFA": job(limits=NO_RDMA | {"vpc.amazonaws.com/efa": 4}),
    "EFA, no capability": job(limits=NO_RDMA | {"vpc.amazonaws.com/efa": 4}, securityContext={}),
    "SR-IOV by a site's name": job(limits=NO_RDMA | {"example.com/MLNX_vf": 1}, securityContext={}),
    "devices by hand": job(env=visible("all")),
    "devices hidden": job(env=visible("void")),
    "devices hidden, no GPU": job(None, gpus=0, env=visible("void"), limits=NO_RDMA),
    "RDMA declared, not asked for": job(limits=NO_RDMA),
    "GDR declared, not asked for": job("gdr gpus=8", limits=NO_RDMA),
    "RDMA declared, not how many GPUs": job("rdma"),
    "another number of GPUs declared": job("rdma,gpus=4"),
    "a word that is no need": job("rmda,gpus=8"),
    "a need without its value": job("rdma gpus"),
    "all the words": job(
        "rdma,gdr,nvlink,numa memlock,shm=16Gi\ncuda=13.1,gpus=8,hugepages=1Gi,bootstrap=60"
    ),
    "declared by variable": job(None, env=required("rdma,gpus=8")),
    "another number declared by variable": job(None, env=required("gpus=2")),
    "one pod, RDMA alone": job("rdma", 1),
    "anywhere": anywhere(),
    "anywhere, without RDMA": anywhere("gpus=8"),
    "anywhere, one pod": anywhere(parallelism=1),
    **{f"near by {name}": anywhere(**spec) for name, spec in SERVED_NEAR.items()},
    **{f"far in spite of {name}": anywhere(**spec) for name, spec in FAR.items()},
    "nothing declared": job(None),
    "nothing declared, one pod": job(None, 1),
    "nothing declared, no GPU": job(None, gpus=0, volumeMounts=[]),
}


def lint(obj: JSON) -> set[str]:
    """The policies of the findings that `check --lint` has of a manifest."""
    found = diagnose(Registry([CHECKS]), manifests.read(obj)).findings
    return {POLICY_OF[one.name] for one in found}


def in_namespace(obj: JSON, namespace: str) -> JSON:
    placed = copy.deepcopy(obj)
    placed["metadata"]["namespace"] = namespace
    if placed["kind"] == "Job":
        placed["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    return placed


def _job_set(template: JSON, members: int) -> JSON:
    job = {"parallelism": members, "template": template}
    return {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}]}


def _leader_worker_set(template: JSON, members: int) -> JSON:
    return {"leaderWorkerTemplate": {"size": members, "workerTemplate": template}}


def _selecting(template: JSON, members: int) -> JSON:
    template["metadata"]["labels"] = {"app": "t"}
    return {"selector": {"matchLabels": {"app": "t"}}, "template": template, "replicas": members}


_SPECS: dict[str, tuple[str, Callable[[JSON, int], JSON]]] = {
    "Deployment": ("apps/v1", _selecting),
    "StatefulSet": ("apps/v1", lambda *of: _selecting(*of) | {"serviceName": "t"}),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", _job_set),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", _leader_worker_set),
}
KINDS = ("Pod", *_SPECS)


def as_kind(case: JSON, kind: str) -> JSON:
    """The same pods as another kind of workload makes them."""
    template = copy.deepcopy(case["spec"]["template"])
    if kind == "Pod":
        metadata = {"name": "t"} | template["metadata"]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    version, spec = _SPECS[kind]
    members = case["spec"]["parallelism"]
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "t"},
        "spec": spec(template, members),
    }


def refusals(response: requests.Response) -> set[str]:
    """The policies that refuse or, in warn mode, warn."""
    said = response.headers.get("Warning", "") + ("" if response.ok else response.text)
    names = {*POLICY_OF.values(), "gpudoctor-pools"}
    return {name for name in names if f"'{name}'" in said or f'"{name}"' in said}


@pytest.fixture(scope="module")
def namespaces(admin: Admin) -> Iterator[dict[str, str]]:
    """A namespace of each mode, with all policies in force."""
    made = [admin.create(definition) for definition in (crds.JOB_SET, crds.LEADER_WORKER_SET)]
    names = {"deny": "policy-deny", "warn": "policy-warn", "": "policy-none"}
    for mode, name in names.items():
        labels = {MODE: mode} if mode else {}
        metadata = {"name": name, "labels": labels}
        made.append(admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
    for file in sorted(POLICIES.glob("*.yaml")):
        objects = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
        made += [admin.create(obj) for obj in objects if obj["kind"].startswith("Validating")]
    bad = in_namespace(CASES["default shm"], names["deny"])
    bad["spec"]["template"]["metadata"] = {}
    bad["spec"]["template"]["spec"]["containers"][0]["env"] = visible("all")
    bad["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {}
    wait_for(
        "refusal by a policy",
        lambda: not admin.try_create(bad).ok,
    )
    yield names
    for obj in reversed(made):
        admin.delete(obj)


@pytest.mark.parametrize("name", CASES)
def test_the_server_refuses_what_lint_finds(
    admin: Admin, namespaces: dict[str, str], name: str
) -> None:
    expected = lint(CASES[name])

    def agree() -> bool:
        answer = admin.try_create(in_namespace(CASES[name], namespaces["deny"]))
        return answer.ok is not bool(expected) and refusals(answer) <= expected

    wait_for(f"{'refusal by' if expected else 'admission'} {sorted(expected)}", agree, 10)
    warned = admin.try_create(in_namespace(CASES[name], namespaces["warn"]))
    assert warned.ok, warned.text
    assert refusals(warned) == expected, warned.headers.get("Warning")


def test_other_namespaces_are_left_alone(admin: Admin, namespaces: dict[str, str]) -> None:
    answer = admin.try_create(in_namespace(CASES["nothing declared"], namespaces[""]))
    assert answer.ok
    assert refusals(answer) == set()


@pytest.mark.parametrize(
    "name", ["trainer", "rendezvous", "pod", "pod-with-preflight", "pod-with-image-volume"]
)
def test_the_examples_are_admitted(
    admin: Admin, namespaces: dict[str, str], line: str, name: str
) -> None:
    for obj in yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")):
        if version(line) < version(first_line(obj)):
            pytest.skip(f"served from Kubernetes {first_line(obj)} on")
        if obj["kind"] in ("Job", "Pod"):
            answer = admin.try_create(in_namespace(obj, namespaces["deny"]))
            assert answer.ok, answer.text
            assert refusals(answer) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_workload(admin: Admin, namespaces: dict[str, str], kind: str) -> None:
    """Every case as another kind: the policies' paths into it, and lint's."""

    def served() -> bool:
        return admin.try_create(in_namespace(as_kind(CASES["well"], kind), "policy-none")).ok

    wait_for(f"a server that takes {kind}s", served)
    told: dict[str, tuple[set[str], set[str]]] = {}
    for name, case in CASES.items():
        obj = in_namespace(as_kind(case, kind), namespaces["warn"])
        answer = admin.try_create(obj)
        assert answer.ok, answer.text
        told[name] = (refusals(answer), lint(obj))
    assert {name: said for name, (said, _) in told.items()} == {
        name: expected for name, (_, expected) in told.items()
    }
    assert any(expected for _, expected in told.values())
    bad = in_namespace(as_kind(CASES["default shm"], kind), namespaces["deny"])
    answer = admin.try_create(bad)
    assert answer.status_code == 422, answer.text
    assert "WKL001" in answer.text


def test_the_leader_of_a_group_is_read_as_well(admin: Admin, namespaces: dict[str, str]) -> None:
    obj = in_namespace(as_kind(CASES["well"], "LeaderWorkerSet"), namespaces["warn"])
    leader = copy.deepcopy(CASES["devices by hand"]["spec"]["template"])
    obj["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = leader
    assert refusals(admin.try_create(obj)) == lint(obj) == {"gpudoctor-visible-devices"}


def live_lint(control_plane: ControlPlane, folder: Path, obj: JSON) -> set[str]:
    """The roots of `check --lint` of a manifest beside the running cluster."""
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(obj))
    answer = stage.report(stage.ask(control_plane.admin_kubeconfig, "--lint", str(file)))
    assert answer["unknown"] == []
    [child] = answer["children"]
    return set(child["roots"])


# Of the live cluster; what only nodes show, which have no GPUs here, is no matter of a policy.
OF_THE_POOLS = {"needs-not-offered", "request-exceeds-largest-node"}


@pytest.mark.parametrize(
    ("data", "says", "root"),
    [
        ({"offers": "nvlink"}, "there is: nvlink", "needs-not-offered"),
        (
            {"offers": "rdma", "gpusPerNode": "4"},
            "than any node has: 4",
            "request-exceeds-largest-node",
        ),
        ({"offers": "rdma", "gpusPerNode": "8"}, "", ""),
        ({}, "", ""),
    ],
)
def test_a_pool_that_does_not_exist(
    admin: Admin,
    control_plane: ControlPlane,
    namespaces: dict[str, str],
    own_namespace: str,
    tmp_path: Path,
    data: dict[str, str],
    says: str,
    root: str,
) -> None:
    """The policy and lint go by one parameter object; without it everything is admitted."""
    wanted = in_namespace(CASES["well"], namespaces["deny"])
    parameters = yaml.safe_load((EXAMPLES / "pools-parameters.yaml").read_text(encoding="utf-8"))
    parameters["data"] = data

    def as_expected() -> bool:
        answer = admin.try_create(wanted)
        return answer.ok is not bool(says) and says in answer.text

    admin.create(parameters)
    try:
        wait_for(f"answer of the policy for {data}", as_expected)
        roots = live_lint(control_plane, tmp_path, wanted)
        assert roots & OF_THE_POOLS == ({root} if root else set())
    finally:
        admin.delete(parameters)
        wait_for("admission without parameters", lambda: admin.try_create(wanted).ok)


def test_quota_and_runtime_class_of_the_live_cluster(
    admin: Admin, control_plane: ControlPlane, namespaces: dict[str, str], tmp_path: Path
) -> None:
    wanted = in_namespace(CASES["well"], namespaces[""])
    wanted["spec"]["template"]["spec"]["runtimeClassName"] = "nvidia-of-elsewhere"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": namespaces[""]},
        "spec": {"hard": {"requests.nvidia.com/gpu": "8"}},
    }
    stage.settle(admin, admin.create(quota))
    try:
        roots = live_lint(control_plane, tmp_path, wanted)
    finally:
        admin.delete(quota)
    assert {"resourcequota-exceeded", "runtimeclass-missing"} <= roots
