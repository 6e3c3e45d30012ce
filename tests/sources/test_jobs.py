"""The one table of labels and kinds of jobs, against what is read live and asked for."""

from __future__ import annotations

import pytest

from gpudoctor.sources import jobs
from gpudoctor.sources.kubernetes import kinds


def test_each_kind_is_served_somewhere() -> None:
    assert list(kinds.JOBS) == list(jobs.KINDS)
    for name, kind in jobs.KINDS.items():
        assert kinds.of_job(kind) is kinds.JOBS[name]
    for label in jobs.LABELS:
        assert {*label.kinds, *label.wrapped_by} <= {*jobs.KINDS.values()}


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("Job", {"batch.kubernetes.io/job-name", "job-name"}),
        ("vcjob", {"volcano.sh/job-name"}),
        ("JobSet", {"jobset.sigs.k8s.io/jobset-name"}),
        ("trainjob", {"jobset.sigs.k8s.io/jobset-name"}),
        ("paddlejob", {"training.kubeflow.org/job-name"}),
        ("RayCluster", {"ray.io/cluster"}),
        ("StatefulSet", set()),
        ("frob", set()),
    ],
)
def test_labels_of_a_kind(kind: str, labels: set[str]) -> None:
    assert set(jobs.labels_of(kind)) == labels


@pytest.mark.parametrize(
    ("operator", "owner", "kind"),
    [
        ("mpi-operator", "Job/x-launcher", "MPIJob"),
        ("mpijob-controller", "", "MPIJob"),
        ("pytorchjob-controller", "", "PyTorchJob"),
        ("jaxjob-controller", "", "JAXJob"),
        ("", "TFJob/x", "TFJob"),
        ("", "Job/x", None),
        ("other", "", None),
    ],
)
def test_kind_of_a_kubeflow_pod(operator: str, owner: str, kind: str | None) -> None:
    labels = {"training.kubeflow.org/operator-name": operator} if operator else {}
    found = jobs.KUBEFLOW.kind_of(labels, owner)
    assert (found.name if found else None) == kind
    assert jobs.KUEUE_GROUP.kind_of(labels, owner) is None
