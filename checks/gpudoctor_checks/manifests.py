"""Manifests before they are applied: what `check --lint` says, and the admission policies refuse.

For a running pod a setting whose harm shows nowhere is information. Here nothing runs yet and
the change costs nothing, so it is a warning; what cannot work is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import resources
from gpudoctor.facts.kubernetes.manifests import Manifest
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.node.needs import ANNOTATION, Needs, parse
from gpudoctor.report import Evidence, Severity
from gpudoctor_checks import workload

CHECKS = CheckSet()

_OF_THE_WHOLE_TEMPLATE = (workload.shm_too_small, workload.memlock)
_OF_THE_CONTAINER = (workload.bypass, workload.tensor_parallel, workload.nccl_interface)


@CHECKS.check(Manifest)
def advice(manifest: Manifest) -> Iterator[Result]:
    """What the rules for pods say of the template, louder."""
    rules: tuple[Callable[[PodSituation], Iterator[Result]], ...] = _OF_THE_CONTAINER
    if manifest.whole:
        rules += _OF_THE_WHOLE_TEMPLATE
    for rule in rules:
        for result in rule(manifest.situation):
            if isinstance(result, Draft) and result.severity is Severity.INFO:
                result = msgspec.structs.replace(result, severity=Severity.WARNING)
            yield result


def _gpus(manifest: Manifest) -> int:
    asked = manifest.pod.requests
    return int(sum(amount for name, amount in asked.items() if resources.is_gpu(name)))


@CHECKS.check(Manifest)
def needs(manifest: Manifest) -> Iterator[Result]:
    """Several GPU pods work together and do not declare what they need, or not rightly."""
    pod = manifest.pod
    gpus = _gpus(manifest)
    where = f"metadata.annotations[{ANNOTATION}]"
    if manifest.declared is None:
        if gpus and manifest.members > 1 and manifest.whole:
            yield finding(
                "needs-not-declared",
                pod.subject,
                f"{manifest.members} pods with GPUs work together, and nothing says what they "
                "need: neither the scheduler nor preflight can refuse a node that lacks it.",
                Evidence(pod.meta.path, where, "not set"),
                values={"pod": pod.meta.short, "annotation": ANNOTATION, "gpus": str(gpus)},
            )
        return
    try:
        declared = parse(manifest.declared, where)
    except InputError as error:
        yield _wrong(manifest, str(error))
        return
    if declared.gpus is not None and gpus and declared.gpus != gpus:
        yield _wrong(manifest, f"{where}: gpus={declared.gpus}, and the pod asks for {gpus}")
    elif declared.gpus is None and gpus and manifest.members > 1 and manifest.whole:
        yield finding(
            "needs-not-declared",
            pod.subject,
            f"{manifest.members} pods with GPUs work together, and what they declare does not say "
            "how many GPUs each of them needs.",
            Evidence(pod.meta.path, where, manifest.declared, f"no gpus={gpus}"),
            values={"pod": pod.meta.short, "annotation": ANNOTATION, "gpus": str(gpus)},
        )
    yield from _rdma(manifest, declared)
    alone = not gpus or manifest.members < 2
    if declared.wants_rdma and not alone and manifest.whole and not manifest.is_near:
        yield finding(
            "topology-scope-not-declared",
            pod.subject,
            f"{manifest.members} pods need RDMA between them, and nothing says on which nodes "
            "together: neither an annotation for the queue, nor affinity, nor a selector.",
            Evidence(pod.meta.path, "spec.affinity.podAffinity", "not set"),
            values={"pod": pod.meta.short},
        )


def _wrong(manifest: Manifest, why: str) -> Draft:
    pod = manifest.pod
    return finding(
        "needs-not-declared",
        pod.subject,
        f"What is declared cannot be right. {why}.",
        Evidence(pod.meta.path, f"metadata.annotations[{ANNOTATION}]", manifest.declared),
        values={
            "pod": pod.meta.short, "annotation": ANNOTATION, "gpus": str(_gpus(manifest)),
        },
        severity=Severity.ERROR,
    )  # fmt: skip


def _rdma(manifest: Manifest, declared: Needs) -> Iterator[Result]:
    pod = manifest.pod
    if not declared.wants_rdma or workload.may_have_rdma(pod) or not manifest.whole:
        return
    yield finding(
        "rdma-not-requested",
        pod.subject,
        "RDMA is declared as needed and no container asks for an RDMA resource or claim, so none "
        "gets a device.",
        Evidence(pod.meta.path, f"metadata.annotations[{ANNOTATION}]", manifest.declared),
        Evidence(pod.meta.path, "spec.containers[*].resources", "no RDMA resource"),
        values={
            "pod": pod.meta.short,
            "resource": "the node's RDMA resource",
            "reason": "it says it needs",
        },
        severity=Severity.ERROR,
        fix="Add the cluster's RDMA resource, such as rdma/hca_shared_devices_a: 1, to the "
        "container's resources.limits.",
    )


@CHECKS.check(Manifest)
def ordered_start(manifest: Manifest) -> Iterator[Result]:
    """The pods wait for each other before they start, and are made one after the other."""
    pod = manifest.pod
    if manifest.meets and manifest.ordered is not None:
        yield finding(
            "rendezvous-start-ordered",
            pod.subject,
            f"The preflight waits for all members of the job, and {manifest.ordered.path} is "
            f"{manifest.ordered.value}: the others are not made before this pod is ready.",
            manifest.ordered,
            values={"pod": pod.meta.short},
        )
