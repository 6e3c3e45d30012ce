"""Kubernetes objects read for a diagnosis: one pod, several pods, a node, or a whole dump."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import fields, health, situation
from gpudoctor.facts.kubernetes.cluster import Cluster, PodEntry
from gpudoctor.facts.kubernetes.health import State, Unexplained
from gpudoctor.facts.kubernetes.model import Scope
from gpudoctor.readings import Reading
from gpudoctor.report import ReportSubject, Unknown
from gpudoctor.sources.bundle import Bundle

_NEAR_NAMES = 5


class Input(msgspec.Struct, frozen=True):
    """The Kubernetes half of a bundle, ready for questions."""

    cluster: Cluster
    logs: dict[str, str]


def open_bundle(bundle: Bundle) -> Input:
    """Index the objects of a bundle."""
    scope = Scope(complete=bundle.scope.objects == "complete", denied=tuple(bundle.scope.denied))
    return Input(Cluster(bundle.objects, scope, fields.moment(bundle.now)), bundle.logs)


def find_pod(cluster: Cluster, name: str, namespace: str | None) -> PodEntry:
    """Return the pod of that name; InputError names the near ones, or those of the same name."""
    found = [
        entry
        for entry in cluster.pods
        if entry.name == name and namespace in (None, entry.namespace)
    ]
    if len({entry.namespace for entry in found}) > 1:
        where = ", ".join(sorted(f"{entry.namespace}/{name}" for entry in found))
        raise InputError(f"pod {name} is there more than once: {where}; say --pod NAMESPACE/NAME")
    if found:
        return found[-1]
    known = {f"{entry.namespace}/{entry.name}": entry.name for entry in cluster.pods}
    near = [
        short
        for short, bare in known.items()
        if bare in difflib.get_close_matches(name, known.values(), _NEAR_NAMES)
    ]
    wanted = f"{namespace}/{name}" if namespace else name
    hint = f"near it: {', '.join(near[:_NEAR_NAMES])}" if near else f"{len(known)} pods are there"
    raise InputError(f"pod {wanted} is not in the input; {hint}")


def read_pod(source: Input, entry: PodEntry) -> Reading:
    """Read one pod and what concerns it."""
    pod = source.cluster.pod(entry)
    found = situation.read(source.cluster, pod, source.logs)
    state = health.assess(found)
    not_well = state.state in (State.NOT_WELL, State.UNKNOWN)
    return Reading(
        subject=ReportSubject("Pod", pod.meta.name, pod.meta.namespace, pod.node),
        facts=(found, state),
        otherwise=(Unexplained(found, state),) if not_well else (),
        observed_at=source.cluster.now.isoformat() if source.cluster.now else None,
        unknown=tuple(_unknowns(source.cluster)),
        starting=state.state is State.STARTING,
        is_complete=source.cluster.scope.has_all,
    )


def read_pods(source: Input, wanted: Callable[[PodEntry], bool], subject: ReportSubject) -> Reading:
    """Read each pod that is wanted as a child of one reading."""
    entries = [entry for entry in source.cluster.pods if wanted(entry)]
    if not entries:
        raise InputError(f"{subject.name or subject.kind}: no such pod in the input")
    return Reading(
        subject=subject,
        facts=(),
        children=tuple(read_pod(source, entry) for entry in entries),
        observed_at=source.cluster.now.isoformat() if source.cluster.now else None,
        is_complete=source.cluster.scope.has_all,
    )


def _unknowns(cluster: Cluster) -> Iterable[Unknown]:
    for denied in cluster.scope.denied:
        yield Unknown(denied, "denied")
    if cluster.unreadable:
        yield Unknown(f"{cluster.unreadable} objects", "they are not JSON objects")
