"""The kinds that are read live: where each is served, newest version first.

A version that the server does not have costs one request (404) before the next is tried.
Sources: kubernetes/api, kueue (v1beta2 from 0.15), volcano, KAI, Multus, the NVIDIA DRA driver.
"""

from __future__ import annotations

import msgspec

from gpudoctor.publish import names
from gpudoctor.sources.jobs import JobKind


class Kind(msgspec.Struct, frozen=True):
    """A kind of object: its resource name in paths, API group and the versions we can read."""

    name: str
    plural: str
    group: str = ""
    versions: tuple[str, ...] = ("v1",)
    namespaced: bool = True

    @property
    def resource(self) -> str:
        """The resource as RBAC messages name it: plural, with the group where it has one."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str) -> str:
        """The `apiVersion` of objects of that version."""
        return f"{self.group}/{version}" if self.group else version


_DRA = "resource.k8s.io"
_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
_KUEUE = "kueue.x-k8s.io"
_KUEUE_VERSIONS = ("v1beta2", "v1beta1")

POD = Kind("Pod", "pods")
NODE = Kind("Node", "nodes", namespaced=False)
EVENT = Kind("Event", "events")
CONFIG_MAP = Kind("ConfigMap", "configmaps")
RESOURCE_QUOTA = Kind("ResourceQuota", "resourcequotas")
VOLUME_CLAIM = Kind("PersistentVolumeClaim", "persistentvolumeclaims")
VOLUME = Kind("PersistentVolume", "persistentvolumes", namespaced=False)
DAEMON_SET = Kind("DaemonSet", "daemonsets", "apps")
RUNTIME_CLASS = Kind("RuntimeClass", "runtimeclasses", "node.k8s.io", namespaced=False)

RESOURCE_CLAIM = Kind("ResourceClaim", "resourceclaims", _DRA, _DRA_VERSIONS)
RESOURCE_SLICE = Kind("ResourceSlice", "resourceslices", _DRA, _DRA_VERSIONS, namespaced=False)
DEVICE_CLASS = Kind("DeviceClass", "deviceclasses", _DRA, _DRA_VERSIONS, namespaced=False)
COMPUTE_DOMAIN = Kind("ComputeDomain", "computedomains", "resource.nvidia.com", ("v1beta1",))

WORKLOAD = Kind("Workload", "workloads", _KUEUE, _KUEUE_VERSIONS)
LOCAL_QUEUE = Kind("LocalQueue", "localqueues", _KUEUE, _KUEUE_VERSIONS)
CLUSTER_QUEUE = Kind("ClusterQueue", "clusterqueues", _KUEUE, _KUEUE_VERSIONS, namespaced=False)
RESOURCE_FLAVOR = Kind(
    "ResourceFlavor", "resourceflavors", _KUEUE, _KUEUE_VERSIONS, namespaced=False
)

VOLCANO_POD_GROUP = Kind("PodGroup", "podgroups", "scheduling.volcano.sh", ("v1beta1",))
VOLCANO_QUEUE = Kind("Queue", "queues", "scheduling.volcano.sh", ("v1beta1",), namespaced=False)
KAI_POD_GROUP = Kind("PodGroup", "podgroups", "scheduling.run.ai", ("v2alpha2",))
COSCHEDULING_POD_GROUP = Kind("PodGroup", "podgroups", "scheduling.x-k8s.io", ("v1alpha1",))
NATIVE_POD_GROUP = Kind(
    "PodGroup", "podgroups", "scheduling.k8s.io", ("v1beta1", "v1alpha3", "v1alpha2")
)
NATIVE_WORKLOAD = Kind("Workload", "workloads", "scheduling.k8s.io", ("v1alpha1",))

JOB = Kind("Job", "jobs", "batch")
STATEFUL_SET = Kind("StatefulSet", "statefulsets", "apps")
JOB_SET = Kind("JobSet", "jobsets", "jobset.x-k8s.io", ("v1alpha2",))
TRAIN_JOB = Kind("TrainJob", "trainjobs", "trainer.kubeflow.org", ("v1alpha1",))
PYTORCH_JOB = Kind("PyTorchJob", "pytorchjobs", "kubeflow.org")
TF_JOB = Kind("TFJob", "tfjobs", "kubeflow.org")
MPI_JOB = Kind("MPIJob", "mpijobs", "kubeflow.org", ("v2beta1", "v1"))
XGBOOST_JOB = Kind("XGBoostJob", "xgboostjobs", "kubeflow.org")
PADDLE_JOB = Kind("PaddleJob", "paddlejobs", "kubeflow.org")
JAX_JOB = Kind("JAXJob", "jaxjobs", "kubeflow.org")
RAY_CLUSTER = Kind("RayCluster", "rayclusters", "ray.io")
RAY_JOB = Kind("RayJob", "rayjobs", "ray.io")
LEADER_WORKER_SET = Kind("LeaderWorkerSet", "leaderworkersets", "leaderworkerset.x-k8s.io")
VOLCANO_JOB = Kind("Job", "jobs", "batch.volcano.sh", ("v1alpha1",))

JOBS = {
    kind.name.lower(): kind
    for kind in (
        JOB, STATEFUL_SET, JOB_SET, TRAIN_JOB, PYTORCH_JOB, MPI_JOB, TF_JOB, XGBOOST_JOB,
        PADDLE_JOB, JAX_JOB, RAY_CLUSTER, RAY_JOB, LEADER_WORKER_SET,
    )
} | {"vcjob": VOLCANO_JOB}  # fmt: skip
"""Where each of `jobs.KINDS` is served, by the same names."""


def of_job(job: JobKind) -> Kind:
    """Return where a kind of job is served."""
    return next(kind for kind in JOBS.values() if (kind.name, kind.group) == (job.name, job.group))


LEASE = Kind("Lease", "leases", "coordination.k8s.io")
DIAGNOSIS = Kind(names.DIAGNOSIS, names.DIAGNOSES, names.GROUP, (names.VERSION,))

NETWORK_ATTACHMENT = Kind(
    "NetworkAttachmentDefinition", "network-attachment-definitions", "k8s.cni.cncf.io"
)
