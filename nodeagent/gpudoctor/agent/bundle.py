"""The Kubernetes half of a round's input: the node and its pods, as small as they are of use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gpudoctor import PREFIX
from gpudoctor.sources.bundle import Bundle, Scope

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def trimmed(raw: msgspec.Raw) -> msgspec.Raw:
    """Return an object on one line, without what others need to change it."""
    found = msgspec.json.decode(raw)
    if not isinstance(found, dict):
        return msgspec.Raw(b"{}")
    metadata = found.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
        annotations = metadata.get("annotations")
        if isinstance(annotations, dict):
            annotations.pop(_APPLIED, None)
    return msgspec.Raw(msgspec.json.encode(found))


def without_ours(raw: msgspec.Raw) -> msgspec.Raw:
    """Return a node without what we published of it: nobody may take his own word for evidence.

    Our condition says that the node is bad, which a rule would find to be reported, and the
    condition would never clear. The list of images is long and says nothing here.
    """
    node = msgspec.json.decode(trimmed(raw))
    metadata, status = _part(node, "metadata"), _part(node, "status")
    for name in ("labels", "annotations"):
        kept = {key: value for key, value in _part(metadata, name).items() if not _is_ours(key)}
        if name in metadata:
            metadata[name] = kept
    conditions = status.get("conditions")
    if isinstance(conditions, list):
        status["conditions"] = [
            one
            for one in conditions
            if not (isinstance(one, dict) and _is_ours(str(one.get("type"))))
        ]
    status.pop("images", None)
    return msgspec.Raw(msgspec.json.encode(node))


def of(
    node: msgspec.Raw | None, pods: Iterable[msgspec.Raw], now: str, denied: Iterable[str] = ()
) -> bytes:
    """Return the bundle as one line of JSON. `denied` are reads that failed, with the reason."""
    objects = (*([without_ours(node)] if node is not None else []), *pods)
    scope = Scope(objects="partial", denied=tuple(denied))
    return msgspec.json.encode(Bundle(now=now, scope=scope, objects=objects))


def _is_ours(key: str) -> bool:
    return key.startswith(f"{PREFIX}/")


def _part(of: Any, name: str) -> dict[str, Any]:
    found = of.get(name) if isinstance(of, dict) else None
    return found if isinstance(found, dict) else {}
