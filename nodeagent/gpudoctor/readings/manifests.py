"""Manifests for `check --lint`: each pod template is a child of the file."""

from __future__ import annotations

import json

from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import manifests
from gpudoctor.facts.kubernetes.manifests import Manifest
from gpudoctor.readings import Reading
from gpudoctor.report import ReportSubject
from gpudoctor.sources.kubernetes import documents
from gpudoctor.sources.text import open_input


def read(name: str) -> Reading:
    """Read a file of manifests, `-` for standard input; InputError if it holds no pod template."""
    with open_input(name) as text:
        raw = documents.read_objects(text.read(), text.name)
    objects = [json.loads(bytes(one)) for one in raw]
    found = [one for obj in objects if isinstance(obj, dict) for one in manifests.read(obj)]
    if not found:
        raise InputError(f"{name}: none of its {len(objects)} objects holds a pod template")
    return Reading(
        subject=ReportSubject("Manifests", name),
        facts=(),
        children=tuple(map(_child, found)),
        published={"manifests": {"objects": len(objects), "pod_templates": len(found)}},
    )


def _child(found: Manifest) -> Reading:
    meta = found.pod.meta
    return Reading(
        subject=ReportSubject(meta.kind, meta.name, meta.namespace),
        facts=(found,),
        is_complete=lambda _kind: True,
    )
