"""The node as the API server has it: what of it is ours, by name and by who owns the field."""

from __future__ import annotations

from typing import Any

import msgspec

from gpudoctor.publish import names


class _Managed(msgspec.Struct, rename={"fields": "fieldsV1"}, frozen=True):
    manager: str = ""
    subresource: str = ""
    fields: dict[str, Any] | None = None


class _Metadata(msgspec.Struct, rename="camel", frozen=True):
    labels: dict[str, str] | None = None
    managed_fields: tuple[_Managed, ...] | None = None


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[dict[str, Any], ...] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    status: _Status | None = None


class NodeObject(msgspec.Struct, frozen=True):
    """`labels` are all; `condition` is ours as it stands in the status, None if it does not."""

    labels: dict[str, str]
    condition: dict[str, Any] | None
    own_labels: dict[str, str]
    """Those of the labels that an agent applied, this one or the one before."""


def read(raw: msgspec.Raw) -> NodeObject:
    """Read a Node; msgspec.MsgspecError if it is none."""
    node = msgspec.json.decode(raw, type=_Node)
    conditions = (node.status.conditions if node.status else None) or ()
    labels = node.metadata.labels or {}
    owned = _owned(node.metadata.managed_fields or ())
    return NodeObject(
        labels=labels,
        condition=next(
            (one for one in conditions if one.get("type") == names.NODE_CONDITION), None
        ),
        own_labels={key: value for key, value in labels.items() if key in owned},
    )


def _owned(managed: tuple[_Managed, ...]) -> set[str]:
    keys: set[str] = set()
    for entry in managed:
        if entry.manager == names.AGENT and not entry.subresource:
            fields = (entry.fields or {}).get("f:metadata", {}).get("f:labels", {})
            keys |= {name.removeprefix("f:") for name in fields if name != "."}
    return keys
