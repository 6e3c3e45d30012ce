"""`explain` for Kubernetes objects: dumps in YAML or JSON, and recorded bundles."""

from __future__ import annotations

import re

from gpudoctor.errors import InputError
from gpudoctor.readings import Format, Reading, kubernetes, kubernetes_text
from gpudoctor.sources import bundle
from gpudoctor.sources.bundle import Bundle
from gpudoctor.sources.kubernetes import documents
from gpudoctor.sources.text import TextInput

_FIELD = re.compile(
    r"""["']?\b(?:apiVersion|kind|metadata|creationTimestamp|resourceVersion)["']?\s*:"""
)


def _matches(head: str) -> int:
    if documents.is_table(head.encode()):
        return 1  # Nothing to read, but a clear word about what to give instead.
    fields = len(_FIELD.findall(head))
    return fields if "apiVersion" in head and "kind" in head else 0


def _read(text: TextInput) -> Reading:
    raw = text.read()
    if bundle.is_bundle(raw):
        read_from = bundle.decode(raw, text.name)
        if read_from.hosts and not read_from.objects:
            from gpudoctor.readings import host  # imported late: dumps need none of it

            return host.read_recorded(read_from)
    else:
        read_from = Bundle(objects=documents.read_objects(raw, text.name))
    try:
        return kubernetes_text.read_all(kubernetes.Input(read_from))
    except InputError as error:
        raise InputError(f"{text.name}: {error}") from None


FORMAT = Format("kubernetes-objects", _matches, _read)
