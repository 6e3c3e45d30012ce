"""What is common to the Kubernetes texts: `kubectl describe`, events tables, and dumps.

Each becomes objects with partial scope, and the readings of the pods and nodes it is about.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import chain

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import ages
from gpudoctor.facts.kubernetes.cluster import PodEntry
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.readings import Reading, kubernetes
from gpudoctor.report import ReportSubject
from gpudoctor.sources.bundle import Bundle


def as_bundle(objects: Iterable[JsonObject], now: datetime) -> Bundle:
    """Put objects built from a text into a bundle of partial scope."""
    raw = tuple(msgspec.Raw(msgspec.json.encode(obj)) for obj in objects)
    return Bundle(objects=raw, now=ages.rfc3339(now))


def read_all(source: kubernetes.Input) -> Reading:
    """Read what a dump is about: its one pod, its GPU pods that are not well, or its nodes."""
    pods = source.cluster.pods
    if len(pods) == 1:
        return kubernetes.read_pod(source, pods[0])
    if kubernetes.gpu_pods(source, None):
        return kubernetes.read_gpu_pods(source, only_unwell=True)
    if source.cluster.nodes:
        return read_subjects(source, [], list(source.cluster.nodes))
    raise InputError("neither a GPU pod nor a node is in it; nothing to explain")


def undated(reading: Reading) -> Reading:
    """Take away the time of a reading whose objects only have times relative to each other."""
    children, well = tuple(map(undated, reading.children)), tuple(map(undated, reading.well))
    return msgspec.structs.replace(reading, observed_at=None, children=children, well=well)


def read_subjects(source: kubernetes.Input, pods: list[PodEntry], nodes: list[str]) -> Reading:
    """Read exactly these pods and nodes: the one there is, or all as children of one reading."""
    children = tuple(
        chain(
            (kubernetes.read_pod(source, entry) for entry in pods),
            (kubernetes.read_node(source, name) for name in nodes),
        )
    )
    if len(children) == 1:
        return children[0]
    return Reading(
        subject=ReportSubject("Pods" if pods else "Nodes"),
        facts=(),
        children=children,
        observed_at=source.observed_at,
        is_complete=source.cluster.scope.has_all,
    )
