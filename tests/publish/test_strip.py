"""What is taken off a node: all of ours, nothing else, and only as it was read."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.publish import names, strip

KEYS = st.sampled_from(
    ["gpudoctor.io/verdict", "gpudoctor.io/driver", "gpudoctor.io.example.com/x", "nvidia.com/gpu",
     "policy.gpudoctor.io/x", "app", "gpudoctor.io"]
)  # fmt: skip
NOW = "2026-11-29T19:00:00Z"


@settings(deadline=None)
@given(st.frozensets(KEYS), st.frozensets(KEYS))
def test_all_of_ours_and_nothing_else(labels: frozenset[str], notes: frozenset[str]) -> None:
    write = strip.keys("gpu-1", "7", labels, notes, names.CONTROLLER)
    ours = {"gpudoctor.io/verdict", "gpudoctor.io/driver"}
    if write is None:
        assert not (labels | notes) & ours
        return
    metadata = json.loads(write.body)["metadata"]
    assert metadata.pop("resourceVersion") == "7"
    expected = {"labels": labels & ours, "annotations": notes & ours}
    assert metadata == {field: dict.fromkeys(keys) for field, keys in expected.items() if keys}


def test_the_condition_is_spoken_in_the_agents_name_at_the_version_that_was_read() -> None:
    before = {"type": names.NODE_CONDITION, "status": "True", "lastTransitionTime": "t"}
    write = strip.silent("gpu-1", "7", "nobody renews", before, NOW)
    assert write is not None
    assert write.query == {"fieldManager": "gpudoctor-agent"}, "no force, and no conflict after"
    body = json.loads(write.body)
    assert body["metadata"]["resourceVersion"] == "7"
    [condition] = body["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("Unknown", "AgentSilent")
    assert condition["message"] == "nobody renews"


def test_what_says_so_already_or_never_said_anything_is_left() -> None:
    assert strip.silent("gpu-1", "7", "x", None, NOW) is None
    assert strip.silent("gpu-1", "7", "x", {"reason": "AgentSilent"}, NOW) is None


def test_at_the_end_one_condition_is_taken_out_of_the_list() -> None:
    write = strip.away("gpu-1", "7", names.CONTROLLER)
    assert write.content_type == "application/strategic-merge-patch+json"
    assert json.loads(write.body)["status"]["conditions"] == [
        {"type": "gpudoctor.io/Healthy", "$patch": "delete"}
    ]
