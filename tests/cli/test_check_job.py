"""`check --job` of a job that has no pods, against an API server: what holds it is read with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpudoctor import cli
from gpudoctor.errors import InputError
from tests.sources.kubernetes.api_server import ApiServer, serving
from tests.sources.kubernetes.test_gather import World

QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE = "kueue.x-k8s.io/v1beta2"


def job(suspend: bool = True, queue: bool = True) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "train",
            "namespace": "team",
            "uid": "5b0c",
            "labels": {QUEUE: "gpus"} if queue else {},
        },
        "spec": {"suspend": suspend},
        "status": {},
    }


def queued() -> list[dict[str, Any]]:
    asks = {"nvidia.com/gpu": "16"}
    container = {"name": "c", "resources": {"requests": asks, "limits": asks}}
    return [
        {
            "apiVersion": KUEUE,
            "kind": "LocalQueue",
            "metadata": {"name": "gpus", "namespace": "team"},
            "spec": {"clusterQueue": "research"},
            "status": {"conditions": [{"type": "Active", "status": "True"}]},
        },
        {
            "apiVersion": KUEUE,
            "kind": "ClusterQueue",
            "metadata": {"name": "research"},
            "spec": {
                "resourceGroups": [
                    {
                        "coveredResources": ["nvidia.com/gpu"],
                        "flavors": [
                            {
                                "name": "h100",
                                "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}],
                            }
                        ],
                    }
                ]
            },
            "status": {"conditions": [{"type": "Active", "status": "True"}]},
        },
        {
            "apiVersion": KUEUE,
            "kind": "ResourceFlavor",
            "metadata": {"name": "h100"},
            "spec": {},
        },
        {
            "apiVersion": KUEUE,
            "kind": "Workload",
            "metadata": {
                "name": "job-train-1a2b3",
                "namespace": "team",
                "ownerReferences": [
                    {"kind": "Job", "name": "train", "uid": "5b0c", "controller": True}
                ],
            },
            "spec": {
                "queueName": "gpus",
                "active": True,
                "podSets": [
                    {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
                ],
            },
            "status": {
                "conditions": [
                    {
                        "type": "QuotaReserved",
                        "status": "False",
                        "reason": "Pending",
                        "message": "couldn't assign flavors to pod set main: insufficient quota "
                        "for nvidia.com/gpu in flavor h100, request > maximum capacity (16 > 8)",
                    }
                ]
            },
        },
    ]


def check(server: ApiServer, name: str = "job/train") -> Result:
    arguments = ["check", "--job", name, "-n", "team", "--server", server.url, "-o", "json"]
    return CliRunner().invoke(cli.root, arguments, prog_name="gpudoctor")


def test_a_queue_holds_it() -> None:
    with serving(World([job(), *queued()])) as server:
        result = check(server)
        assert len(server.asked) <= 8
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["roots"]) == (1, ["queue-exceeds-max-quota"])
    assert answer["subject"]["kind"] == "job"


def test_its_controller_was_refused() -> None:
    said = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "train.1", "namespace": "team"},
        "involvedObject": {"kind": "Job", "name": "train", "namespace": "team"},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": 'Error creating: pods "train-" is forbidden: exceeded quota: gpus, requested: '
        "requests.nvidia.com/gpu=16, used: requests.nvidia.com/gpu=0, limited: "
        "requests.nvidia.com/gpu=8",
    }
    with serving(World([job(suspend=False, queue=False), said])) as server:
        answer = json.loads(check(server).stdout)
    assert answer["roots"] == ["resourcequota-exceeded"]


def test_what_it_makes_first_was_refused() -> None:
    """A JobSet makes Jobs, and calls it so where it may not."""
    job_set = job(suspend=False, queue=False) | {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
    }
    said = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "train.1", "namespace": "team"},
        "involvedObject": {"kind": "JobSet", "name": "train", "namespace": "team"},
        "type": "Warning",
        "reason": "JobCreationFailed",
        "message": 'job "train-node-0" creation failed with error: Job.batch "train-node-0" is '
        "invalid: spec.template.spec.containers[0].resources.limits: Required value",
    }
    with serving(World([job_set, said])) as server:
        answer = json.loads(check(server, "jobset/train").stdout)
        assert len(server.asked) <= 8
    assert answer["roots"] == ["pod-creation-denied"]
    assert answer["subject"]["kind"] == "jobset"


@pytest.mark.parametrize("suspend", [True, False])
def test_nothing_that_was_read_holds_it(suspend: bool) -> None:
    with serving(World([job(suspend=suspend, queue=False)])) as server:
        result = check(server)
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["verdict"], answer["roots"]) == (3, "unknown", [])
    assert "its pods" in {gap["what"] for gap in answer["unknown"]}


@pytest.mark.parametrize("name", ["job/trian", "frob/train"])
def test_there_is_no_such_job(name: str) -> None:
    with serving(World([job(queue=False)])) as server:
        result = check(server, name)
    assert isinstance(result.exception, InputError)
    assert "no pod of" in str(result.exception)


def test_the_job_may_not_be_read() -> None:
    world = World([job(), *queued()])
    world.denied = {"get jobs"}
    with serving(world) as server:
        result = check(server)
    assert result.exit_code == 3
    unread = [gap["what"] for gap in json.loads(result.stdout)["unknown"]]
    assert "job/train" in unread
    assert any(what.startswith("get jobs.batch") for what in unread)
