"""The taint as a patch that cannot touch what it was not decided on."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.publish import taint
from gpudoctor.publish.writes import Write

OURS = {"key": "gpudoctor.io/unhealthy", "effect": "NoSchedule"}
FOREIGN = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
LISTS = st.lists(st.sampled_from([OURS, FOREIGN, {"key": "a", "effect": "NoExecute"}]), max_size=5)


def applied(write: Write | None, version: str, taints: list[dict[str, Any]]) -> list[Any] | None:
    """What the server makes of it by RFC 6902; None where it refuses."""
    node: dict[str, Any] = {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}}
    for change in json.loads(write.body) if write else []:
        match change["op"], change["path"].split("/")[1:]:
            case "test", ["metadata", "resourceVersion"]:
                if node["metadata"]["resourceVersion"] != change["value"]:
                    return None
            case "add", ["spec", "taints"]:
                node["spec"]["taints"] = list(change["value"])
            case "add", ["spec", "taints", "-"]:
                node["spec"]["taints"] = [*node["spec"]["taints"], change["value"]]
            case "remove", ["spec", "taints", place]:
                left = list(node["spec"]["taints"])
                del left[int(place)]
                node["spec"]["taints"] = left
            case other:
                raise AssertionError(other)
    found: list[Any] = node["spec"]["taints"]
    return found


@settings(deadline=None)
@given(LISTS)
def test_put_and_lift_leave_the_others_as_they_are(taints: list[dict[str, Any]]) -> None:
    with_ours = applied(taint.put("gpu-1", "5", taints), "5", taints)
    assert with_ours is not None
    assert OURS in with_ours
    others = [one for one in taints if one != OURS]
    assert [one for one in with_ours if one != OURS] == others
    assert applied(taint.lift("gpu-1", "6", with_ours), "6", with_ours) == others


@settings(deadline=None)
@given(LISTS)
def test_a_list_that_changed_in_between_is_not_touched(taints: list[dict[str, Any]]) -> None:
    for write in (taint.put("gpu-1", "5", taints), taint.lift("gpu-1", "5", taints)):
        assert write is None or applied(write, "6", taints) is None


def test_nothing_to_do_is_no_write() -> None:
    assert taint.put("gpu-1", "5", [FOREIGN, OURS]) is None
    assert taint.lift("gpu-1", "5", [FOREIGN]) is None


def test_the_write_says_what_it_does() -> None:
    write = taint.put("gpu-1", "5", [])
    assert write is not None
    assert write.what == "taint gpudoctor.io/unhealthy:NoSchedule of Node gpu-1"
    assert (write.method, write.path) == ("PATCH", "/api/v1/nodes/gpu-1")
    assert write.content_type == "application/json-patch+json"
