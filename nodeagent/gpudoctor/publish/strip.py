"""Takes our keys off a node that nobody speaks for any more, and off all nodes at the end.

Each write carries the resourceVersion of the node that it was decided on: an agent that came back
in between has written, the server refuses (409), and the caller looks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from gpudoctor.publish import condition, names
from gpudoctor.publish.writes import MERGE, STRATEGIC, Write, patch, pinned

REASON = names.AGENT_SILENT


def keys(
    node: str, version: str, labels: Iterable[str], annotations: Iterable[str], manager: str
) -> Write | None:
    """Take all labels and annotations of ours off, whoever wrote them; None if there are none."""
    gone = {
        field: {key: None for key in present if names.is_ours(key)}
        for field, present in (("labels", labels), ("annotations", annotations))
    }
    gone = {field: ours for field, ours in gone.items() if ours}
    if not gone:
        return None
    what = f"removal of {', '.join(key for ours in gone.values() for key in ours)} from Node/{node}"
    changes = {"metadata": {"resourceVersion": version, **gone}}
    return patch(what, _path(node), MERGE, changes, manager)


def silent(
    node: str, version: str, why: str, previous: Mapping[str, Any] | None, now: str
) -> Write | None:
    """Say in the condition that the agent is silent; None if it says so, or never said anything.

    It is applied in the agent's name: what another manager set, the agent that comes back could
    not set again without force. A node that has no condition of ours gets none.
    """
    if previous is None or previous.get("reason") == REASON:
        return None
    write = condition.unknown(node, REASON, why, previous, now)
    return write and pinned(write, version)


def away(node: str, version: str, manager: str) -> Write:
    """Take our condition off."""
    gone = {"type": names.NODE_CONDITION, "$patch": "delete"}
    changes = {"metadata": {"resourceVersion": version}, "status": {"conditions": [gone]}}
    what = f"removal of condition {names.NODE_CONDITION} from Node/{node}"
    return patch(what, f"{_path(node)}/status", STRATEGIC, changes, manager)


def _path(node: str) -> str:
    return f"/api/v1/nodes/{quote(node, safe='')}"
