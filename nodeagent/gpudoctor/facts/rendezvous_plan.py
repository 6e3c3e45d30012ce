"""Who a pod is in its job, and where member 0 is: from words, environment, labels, annotations.

`members=8,rank=3,address=train-0.train,port=29499,timeout=300`, each of which may be left out
where the environment tells: torchrun's PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and MASTER_ADDR,
an Indexed Job's JOB_COMPLETION_INDEX, a JobSet's annotations, a LeaderWorkerSet's LWS_GROUP_SIZE,
LWS_WORKER_INDEX and LWS_LEADER_ADDRESS. WORLD_SIZE and RANK count processes, not pods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpudoctor.errors import InputError
from gpudoctor.facts.rendezvous import OrderedStart
from gpudoctor.report import Evidence, Subject
from gpudoctor.sources.rendezvous import PORT, TIMEOUT_S, Plan
from gpudoctor.sources.rendezvous.wire import LEAST_SECRET, MOST_MEMBERS, key_of

VARIABLE = "GPUDOCTOR_RENDEZVOUS"
TOKEN_VARIABLE = "GPUDOCTOR_TOKEN"  # noqa: S105 - the variable's name
WORDS = ("members", "rank", "address", "port", "timeout", "start")
_MOST_TIMEOUT_S = 3600
_SEPARATORS = re.compile(r"[,\s]+")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_-]{0,251}[A-Za-z0-9])?\Z")
_LWS, _JOBSET = "leaderworkerset.sigs.k8s.io", "jobset.sigs.k8s.io"
_KUBEFLOW = "training.kubeflow.org"
_WAITING_OPERATORS = {
    # Their workers wait in an init container of the operator's until rank 0 is ready or resolves.
    "pytorchjob-controller": "PyTorchJob",
    "mpi-operator": "MPIJob",
    "mpijob-controller": "MPIJob",
}


def words(text: str, where: str) -> dict[str, str]:
    """Split `members=8,rank=3`; InputError names the word, and what may stand there."""
    found = {}
    for word in _SEPARATORS.split(text.strip()):
        if not word:
            continue
        name, given, value = word.partition("=")
        if name not in WORDS or not given or not value:
            raise InputError(f"{where}: {word!r} is not NAME=VALUE with one of {', '.join(WORDS)}")
        found[name] = value
    if found.get("start", "parallel") != "parallel":
        raise InputError(f"{where}: start={found['start']}: only start=parallel can be said")
    return found


def plan(
    said: Mapping[str, str],
    environment: Mapping[str, str],
    annotations: Mapping[str, str],
    secret: bytes | None,
) -> Plan:
    """Return who we are; InputError says what neither the words nor the environment tell."""
    if secret is None:
        raise InputError(
            f"--rendezvous wants a secret that all members share: set {TOKEN_VARIABLE} from a "
            "Secret, or --token-file"
        )
    if len(secret.strip()) < LEAST_SECRET:
        raise InputError(f"the rendezvous' token is too short: at least {LEAST_SECRET} bytes")
    members = _number(
        "members", said, environment, ("PET_NNODES", "LWS_GROUP_SIZE"), 2, MOST_MEMBERS
    )
    rank = _rank(said, environment, annotations, members)
    host = said.get("address") or _first(
        environment, "MASTER_ADDR", "PET_MASTER_ADDR", "LWS_LEADER_ADDRESS"
    ) or _first(annotations, f"{_JOBSET}/coordinator")  # fmt: skip
    if not host:
        raise InputError("--rendezvous: where is member 0? Say address=HOST, or set MASTER_ADDR")
    if not _HOST.match(host):
        raise InputError(f"--rendezvous: address={host!r} is no host name or address")
    return Plan(
        rank=rank,
        members=members,
        host=host,
        key=key_of(secret),
        port=_in("port", said.get("port", str(PORT)), 1, 65535),
        timeout=_in("timeout", said.get("timeout", str(TIMEOUT_S)), 1, _MOST_TIMEOUT_S),
    )


def _first(values: Mapping[str, str], *names: str) -> str | None:
    return next((value for name in names if (value := values.get(name))), None)


def _in(name: str, value: str, least: int, most: int) -> int:
    if not (value.isascii() and value.isdecimal() and least <= int(value[:9]) <= most):
        raise InputError(f"--rendezvous: {name}={value}: not a number from {least} to {most}")
    return int(value)


def _number(
    name: str,
    said: Mapping[str, str],
    environment: Mapping[str, str],
    variables: tuple[str, ...],
    least: int,
    most: int,
) -> int:
    value = said.get(name) or _first(environment, *variables)
    if value is None:
        raise InputError(
            f"--rendezvous: say {name}=N, which neither {' nor '.join(variables)} tells"
        )
    return _in(name, value, least, most)


def _rank(
    said: Mapping[str, str],
    environment: Mapping[str, str],
    annotations: Mapping[str, str],
    members: int,
) -> int:
    value = said.get("rank") or _first(environment, "PET_NODE_RANK", "LWS_WORKER_INDEX")
    if value is None and (index := environment.get("JOB_COMPLETION_INDEX")):
        value = _of_job_set(index, annotations, members)
    if value is None:
        raise InputError(
            "--rendezvous: which member is this? Say rank=N; neither PET_NODE_RANK nor "
            "JOB_COMPLETION_INDEX (an Indexed Job) nor LWS_WORKER_INDEX is set"
        )
    return _in("rank", value, 0, members - 1)


def _of_job_set(index: str, annotations: Mapping[str, str], members: int) -> str:
    """Count an index on over the jobs of a JobSet, which are taken to be of one size."""
    job, jobs = (annotations.get(f"{_JOBSET}/{key}", "") for key in (
        "job-global-index", "global-replicas",
    ))  # fmt: skip
    if not (job.isdecimal() and jobs.isdecimal() and index.isdecimal()) or int(jobs) < 2:
        return index
    if members % int(jobs):
        raise InputError(
            f"--rendezvous: {members} members in {jobs} jobs of a JobSet: they differ in size, "
            "so say rank=N"
        )
    return str(int(job) * (members // int(jobs)) + int(index))


def ordered(
    said: Mapping[str, str],
    environment: Mapping[str, str],
    labels: Mapping[str, str],
    subject: Subject,
) -> OrderedStart | None:
    """Return why the other members may not exist before this one is ready, None if they may.

    A StatefulSet's policy and a LeaderWorkerSet's are not told to their pods: the first starts in
    order unless it says otherwise, the second does not. `start=parallel` says otherwise.
    """
    operator = _WAITING_OPERATORS.get(labels.get(f"{_KUBEFLOW}/operator-name", ""))
    role = labels.get(f"{_KUBEFLOW}/job-role", "")
    hostfile = "OMPI_MCA_orte_default_hostfile"
    if operator or role == "launcher":
        what = f"{operator or 'MPIJob'}, whose pods wait for each other already"
        label = "operator-name" if operator else "job-role"
        key = f"{_KUBEFLOW}/{label}"
        return _start(subject, what, "/etc/podinfo/labels", key, labels[key])
    if hostfile in environment:
        what = "an MPI launcher, which starts when its workers are ready"
        return _start(subject, what, "environment", hostfile, environment[hostfile])
    of_set = "statefulset.kubernetes.io/pod-name"
    if of_set in labels and f"{_LWS}/name" not in labels and "start" not in said:
        what = "a StatefulSet, which starts its pods in order (podManagementPolicy OrderedReady)"
        return _start(subject, what, "/etc/podinfo/labels", of_set, labels[of_set])
    return None


def _start(subject: Subject, what: str, where: str, key: str, value: str) -> OrderedStart:
    return OrderedStart(subject=subject, what=what, evidence=(Evidence(where, key, value),))
