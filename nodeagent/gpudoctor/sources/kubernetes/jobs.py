"""Which label names the job of a pod, and which kinds of job put it there: the one table of it.

A distributed job's pods carry its name in a label. Most labels belong to one kind; the Kubeflow
operators share theirs, and say in another which of them made the pod.
Sources: kubeflow/training-operator v1 and mpi-operator (common/v1 labels), jobset, trainer, lws,
kuberay, volcano (batch/v1alpha1), kueue (pod groups), batch/v1.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpudoctor.sources.kubernetes import kinds
from gpudoctor.sources.kubernetes.kinds import Kind

_OPERATOR = "training.kubeflow.org/operator-name"
_MPI_OPERATOR = "mpi-operator"
"""All others are called by their kind: pytorchjob-controller, tfjob-controller, …"""


class JobLabel(msgspec.Struct, frozen=True):
    """A label with a job's name as its value, and the kinds of job whose pods carry it.

    `sized` says that only the job's own object tells how many pods it must have, `wrapped_by`
    which kinds make such a job under their own name.
    """

    label: str
    kinds: tuple[Kind, ...]
    sized: bool = True
    wrapped_by: tuple[Kind, ...] = ()

    def kind_of(self, labels: Mapping[str, str], owner: str) -> Kind | None:
        """Return the kind of the job of a pod with these labels that `owner` (Kind/name) made.

        None where several kinds use the label and nothing says which it is.
        """
        made_by = owner.partition("/")[0]
        operator = labels.get(_OPERATOR, "")
        called = "mpijob" if operator == _MPI_OPERATOR else operator.removesuffix("-controller")
        told = [kind for kind in self.kinds if made_by == kind.name or called == kind.name.lower()]
        return told[0] if told else (self.kinds[0] if len(self.kinds) == 1 else None)


JOB_SET = JobLabel(
    "jobset.sigs.k8s.io/jobset-name", (kinds.JOB_SET,), wrapped_by=(kinds.TRAIN_JOB,)
)
KUBEFLOW = JobLabel(
    "training.kubeflow.org/job-name",
    (
        kinds.PYTORCH_JOB,
        kinds.MPI_JOB,
        kinds.TF_JOB,
        kinds.XGBOOST_JOB,
        kinds.PADDLE_JOB,
        kinds.JAX_JOB,
    ),
)
VOLCANO = JobLabel("volcano.sh/job-name", (kinds.VOLCANO_JOB,))
LEADER_WORKER_SET = JobLabel(
    "leaderworkerset.sigs.k8s.io/name", (kinds.LEADER_WORKER_SET,), sized=False
)
RAY = JobLabel("ray.io/cluster", (kinds.RAY_CLUSTER,))
KUEUE_GROUP = JobLabel("kueue.x-k8s.io/pod-group-name", (), sized=False)
BATCH = JobLabel("batch.kubernetes.io/job-name", (kinds.JOB,), sized=False)
OLD_BATCH = JobLabel("job-name", (kinds.JOB,), sized=False)

LABELS = (JOB_SET, KUBEFLOW, VOLCANO, LEADER_WORKER_SET, RAY, KUEUE_GROUP, BATCH, OLD_BATCH)
"""The widest group first: a JobSet's pods are those of its Jobs, too."""

OWNER_GROUPS = {
    **{kind.name: kind.group for name, kind in kinds.JOBS.items() if name == kind.name.lower()},
    "ReplicaSet": "apps",
    "Deployment": "apps",
    "RayService": "ray.io",
    "AppWrapper": "workload.codeflare.dev",
}
"""The API group of each kind that can own pods: owner references are kept as Kind/name."""


def labels_of(kind: str) -> tuple[str, ...]:
    """Return the labels by which pods name a job of the kind that `--job` gives, in any case."""
    wanted = kinds.JOBS.get(kind.lower())
    return tuple(one.label for one in LABELS if wanted in (*one.kinds, *one.wrapped_by))
