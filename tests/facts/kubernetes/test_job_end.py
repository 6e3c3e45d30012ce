"""How a job has ended by its own object, for every controller that says so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import job_end
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object

OVER = "Job was active longer than specified deadline"
RAY_OVER = "The RayJob has passed the activeDeadlineSeconds."


def job(status: Object) -> Object:
    return k8s.custom("example.com/v1", "Job", "train", "team", status=status)


def conditions(kind: str, reason: str = "", message: str = "", status: str = "True") -> Object:
    return {
        "conditions": [
            k8s.condition("Created", "True"),
            k8s.condition(kind, status, reason, message),
        ]
    }


@pytest.mark.parametrize(
    ("status", "well", "by_deadline"),
    [
        (conditions("Complete", "CompletionsReached"), True, False),
        (conditions("Completed", "AllJobsCompleted"), True, False),
        (conditions("Succeeded", "PyTorchJobSucceeded"), True, False),
        (conditions("Failed", "BackoffLimitExceeded"), False, False),
        (conditions("Failed", "DeadlineExceeded", OVER), False, True),
        (
            conditions("Failed", "PyTorchJobFailed", OVER.replace("Job was", "it was")),
            False,
            True,
        ),
        ({"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}, True, False),
        ({"jobStatus": "FAILED", "jobDeploymentStatus": "Complete"}, False, False),
        (
            {
                "jobStatus": "RUNNING",
                "jobDeploymentStatus": "Failed",
                "reason": "DeadlineExceeded",
                "message": RAY_OVER,
            },
            False,
            True,
        ),
        ({"state": {"phase": "Completed"}}, True, False),
        ({"state": {"phase": "Aborted", "reason": "x"}}, False, False),
    ],
)
def test_ended(status: Object, well: bool, by_deadline: bool) -> None:
    found = job_end.read(job(status))
    assert found is not None
    assert (found.well, found.by_deadline) == (well, by_deadline)
    assert found.evidence.object == "Job/team/train"


@pytest.mark.parametrize(
    "status",
    [
        {},
        conditions("Complete", status="False"),
        conditions("Suspended", "JobSuspended"),
        {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Running"},
        {"jobStatus": "PENDING", "jobDeploymentStatus": "Initializing"},
        {"state": {"phase": "Running"}},
        {"state": "ready", "jobStatus": 7},
    ],
)
def test_not_ended(status: Object) -> None:
    assert job_end.read(job(status)) is None


@given(
    st.recursive(
        st.none() | st.text() | st.integers() | st.sampled_from(["Complete", "Failed", "True"]),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "conditions",
                        "type",
                        "status",
                        "reason",
                        "message",
                        "state",
                        "phase",
                        "jobStatus",
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_anything_is_accepted(status: Any) -> None:
    job_end.read(job(status))
