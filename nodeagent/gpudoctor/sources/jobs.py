"""Which label names the job of a pod, and which kinds of job put it there: the one table of it.

A distributed job's pods carry its name in a label. Most labels belong to one kind; the Kubeflow
operators share theirs, and say in another which of them made the pod.
Sources: kubeflow/training-operator v1 and mpi-operator (common/v1 labels), jobset, trainer, lws,
kuberay, volcano (batch/v1alpha1), kueue (pod groups), batch/v1.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class JobKind(msgspec.Struct, frozen=True):
    """A kind of object that makes the pods of a job, by its API group, since Job is two."""

    name: str
    group: str


_KUBEFLOW_GROUP, _RAY_GROUP = "kubeflow.org", "ray.io"
_JOB = JobKind("Job", "batch")
_VOLCANO_JOB = JobKind("Job", "batch.volcano.sh")
_JOB_SET = JobKind("JobSet", "jobset.x-k8s.io")
_TRAIN_JOB = JobKind("TrainJob", "trainer.kubeflow.org")
_LEADER_WORKER_SET = JobKind("LeaderWorkerSet", "leaderworkerset.x-k8s.io")
_RAY_CLUSTER = JobKind("RayCluster", _RAY_GROUP)
_OF_KUBEFLOW = tuple(
    JobKind(name, _KUBEFLOW_GROUP)
    for name in ("PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")
)

KINDS = {
    kind.name.lower(): kind
    for kind in (
        _JOB,
        JobKind("StatefulSet", "apps"),
        _JOB_SET,
        _TRAIN_JOB,
        *_OF_KUBEFLOW,
        _RAY_CLUSTER,
        JobKind("RayJob", _RAY_GROUP),
        _LEADER_WORKER_SET,
    )
} | {"vcjob": _VOLCANO_JOB}
"""What `--job KIND/NAME` may name, in lower case."""

_OPERATOR = "training.kubeflow.org/operator-name"
_MPI_OPERATOR = "mpi-operator"
"""All others are called by their kind: pytorchjob-controller, tfjob-controller, …"""


class JobLabel(msgspec.Struct, frozen=True):
    """A label with a job's name as its value, and the kinds of job whose pods carry it.

    `sized` says that only the job's own object tells how many pods it must have, `wrapped_by`
    which kinds make such a job under their own name.
    """

    label: str
    kinds: tuple[JobKind, ...]
    sized: bool = True
    wrapped_by: tuple[JobKind, ...] = ()

    def kind_of(self, labels: Mapping[str, str], owner: str) -> JobKind | None:
        """Return the kind of the job of a pod with these labels that `owner` (Kind/name) made.

        None where several kinds use the label and nothing says which it is.
        """
        made_by = owner.partition("/")[0]
        operator = labels.get(_OPERATOR, "")
        called = "mpijob" if operator == _MPI_OPERATOR else operator.removesuffix("-controller")
        told = [kind for kind in self.kinds if made_by == kind.name or called == kind.name.lower()]
        return told[0] if told else (self.kinds[0] if len(self.kinds) == 1 else None)


JOB_SET = JobLabel("jobset.sigs.k8s.io/jobset-name", (_JOB_SET,), wrapped_by=(_TRAIN_JOB,))
KUBEFLOW = JobLabel("training.kubeflow.org/job-name", _OF_KUBEFLOW)
VOLCANO = JobLabel("volcano.sh/job-name", (_VOLCANO_JOB,))
LEADER_WORKER_SET = JobLabel("leaderworkerset.sigs.k8s.io/name", (_LEADER_WORKER_SET,), sized=False)
RAY = JobLabel("ray.io/cluster", (_RAY_CLUSTER,))
KUEUE_GROUP = JobLabel("kueue.x-k8s.io/pod-group-name", (), sized=False)
BATCH = JobLabel("batch.kubernetes.io/job-name", (_JOB,), sized=False)
OLD_BATCH = JobLabel("job-name", (_JOB,), sized=False)

LABELS = (JOB_SET, KUBEFLOW, VOLCANO, LEADER_WORKER_SET, RAY, KUEUE_GROUP, BATCH, OLD_BATCH)
"""The widest group first: a JobSet's pods are those of its Jobs, too."""

OWNER_GROUPS = {
    **{kind.name: kind.group for name, kind in KINDS.items() if name == kind.name.lower()},
    "ReplicaSet": "apps",
    "Deployment": "apps",
    "RayService": _RAY_GROUP,
    "AppWrapper": "workload.codeflare.dev",
}
"""The API group of each kind that can own pods: owner references are kept as Kind/name."""


def labels_of(kind: str) -> tuple[str, ...]:
    """Return the labels by which pods name a job of the kind that `--job` gives, in any case."""
    wanted = KINDS.get(kind.lower())
    return tuple(one.label for one in LABELS if wanted in (*one.kinds, *one.wrapped_by))
