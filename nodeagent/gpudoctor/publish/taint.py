"""The optional taint of a failing node, set and taken away without touching anyone else's.

`spec.taints` is one atomic list: whoever applies it owns it whole, and would wipe what others
put there. So it is changed by a JSON patch that first tests the resourceVersion at which the
list was read; where anything changed in between the server refuses, and the caller reads again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from gpudoctor.publish import names
from gpudoctor.publish.writes import JSON_PATCH, Write, patch

EFFECT = "NoSchedule"
KEY_EFFECT = f"{names.TAINT}:{EFFECT}"
"""As kubectl writes it."""


def is_ours(taint: dict[str, Any]) -> bool:
    """Whether a taint of a node is the one of `put`."""
    return taint.get("key") == names.TAINT


def put(node: str, version: str, taints: Sequence[dict[str, Any]]) -> Write | None:
    """Add our taint to those that the node had at `version`; None if it is there."""
    if any(map(is_ours, taints)):
        return None
    ours = {"key": names.TAINT, "effect": EFFECT}
    added = (
        {"op": "add", "path": "/spec/taints/-", "value": ours}
        if taints
        else {"op": "add", "path": "/spec/taints", "value": [ours]}
    )
    return _patch(f"taint {KEY_EFFECT} of Node {node}", node, version, [added])


def lift(node: str, version: str, taints: Sequence[dict[str, Any]]) -> Write | None:
    """Take our taint away from those that the node had at `version`; None if it is not there."""
    places = [place for place, taint in enumerate(taints) if is_ours(taint)]
    if not places:
        return None
    # From the end, so that the places before do not move.
    removed = [{"op": "remove", "path": f"/spec/taints/{place}"} for place in reversed(places)]
    return _patch(f"removal of taint {names.TAINT} of Node {node}", node, version, removed)


def _patch(what: str, node: str, version: str, changes: list[dict[str, Any]]) -> Write:
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    path = f"/api/v1/nodes/{quote(node, safe='')}"
    return patch(what, path, JSON_PATCH, [test, *changes], names.CONTROLLER)
