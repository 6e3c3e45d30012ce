"""Manifests for `check --lint`: each pod template is a child of the file."""

from __future__ import annotations

import json

from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import manifest_place, manifests
from gpudoctor.facts.kubernetes.manifests import Manifest
from gpudoctor.readings import Reading
from gpudoctor.readings.kubernetes import Input
from gpudoctor.report import ReportSubject, Unknown
from gpudoctor.sources.bundle import Bundle
from gpudoctor.sources.kubernetes import documents
from gpudoctor.sources.text import open_input


def load(name: str) -> tuple[list[Manifest], int]:
    """Read a file of manifests, `-` for standard input: pod templates, and how many objects.

    InputError if it holds no pod template.
    """
    with open_input(name) as text:
        raw = documents.read_objects(text.read(), text.name)
    objects = [json.loads(bytes(one)) for one in raw]
    found = [one for obj in objects if isinstance(obj, dict) for one in manifests.read(obj)]
    if not found:
        raise InputError(f"{name}: none of its {len(objects)} objects holds a pod template")
    return found, len(objects)


def read(
    name: str,
    found: list[Manifest],
    objects: int,
    cluster: Bundle | None = None,
    namespace: str | None = None,
) -> Reading:
    """Judge the templates alone, or beside what was read from a cluster."""
    source = None if cluster is None else Input(cluster)
    unread = () if source is None else tuple(
        Unknown(what, why or "denied")
        for what, _, why in (one.partition(": ") for one in source.cluster.scope.denied)
    )  # fmt: skip
    return Reading(
        subject=ReportSubject("Manifests", name),
        facts=(),
        children=tuple(_child(one, source, namespace) for one in found),
        published={"manifests": {"objects": objects, "pod_templates": len(found)}},
        unknown=unread,
        needed_unknown=bool(unread),
    )


def _child(found: Manifest, source: Input | None, namespace: str | None) -> Reading:
    meta = found.pod.meta
    facts: tuple[object, ...] = (found,)
    if source is not None:
        facts += (manifest_place.read(source.cluster, found, namespace),)
    return Reading(
        subject=ReportSubject(meta.kind, meta.name, meta.namespace),
        facts=facts,
        is_complete=lambda _kind: True,
    )
