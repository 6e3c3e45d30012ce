"""What is kept of nodes, whatever is sent as one."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.controller import nodes
from gpudoctor.controller.nodes import Keys, Node, Rest
from gpudoctor.publish import names
from gpudoctor.sources.kubernetes.errors import GarbledError
from tests.cluster.objects import node, taint

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["metadata", "name", "uid", "labels", "spec", "taints", "status",
                         "conditions", "allocatable", "nvidia.com/gpu", "type"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def test_of_metadata_only_our_keys_are_kept() -> None:
    labels = {"gpudoctor.io/verdict": "failing", "gpudoctor.io/gpu-count": "8", "app": "x"}
    metadata = {"name": "a", "uid": "u", "resourceVersion": "9", "labels": labels}
    kept = msgspec.json.decode(nodes.keep_keys(raw({"metadata": metadata})), type=Keys)
    assert kept.ours == {"verdict": "failing", "gpu-count": "8"}
    assert (kept.name, kept.metadata.uid, kept.verdict) == ("a", "u", "failing")
    assert kept.has_any
    again = metadata | {"resourceVersion": "10", "labels": labels | {"app": "y"}}
    assert bytes(nodes.keep_keys(raw({"metadata": again}))) == bytes(
        nodes.keep_keys(raw({"metadata": metadata}))
    ), "a heartbeat changes nothing"


def test_of_a_whole_node_what_the_pools_and_the_taint_need() -> None:
    whole = node(
        "a",
        gpus=8,
        healthy=7,
        taints=[taint(names.TAINT)],
        offers={"nvidia.com/mig-1g.10gb": "7", "rdma/hca": "4"},
    )
    whole["status"]["conditions"].append({"type": names.NODE_CONDITION, "reason": "Healthy"})
    kept = msgspec.json.decode(nodes.keep_rest(raw(whole)), type=Rest)
    assert kept == Rest("a", gpus=14, is_tainted=True, said="Healthy")


@settings(deadline=None)
@given(JSON_VALUES)
def test_whatever_is_sent_something_is_kept(value: object) -> None:
    msgspec.json.decode(nodes.keep_keys(raw(value)), type=Keys)
    msgspec.json.decode(nodes.keep_rest(raw(value)), type=Rest)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_whatever_bytes_are_sent(garbage: bytes) -> None:
    assert nodes.keep_keys(msgspec.Raw(garbage))
    assert nodes.keep_rest(msgspec.Raw(garbage))


def test_an_object_that_has_to_be_right_says_what_is_wrong() -> None:
    with pytest.raises(GarbledError, match=r"Node/a: not as the API has it: .*\$\.spec"):
        nodes.decoded(raw({"spec": 3}), Node, "Node/a")


@pytest.mark.parametrize("quantity", ["8", 8, "0", "", "8k", "-1", "9" * 30, None, [], "１"])
def test_a_count_is_a_whole_number_or_none_at_all(quantity: object) -> None:
    found = Node(
        status=msgspec.convert({"allocatable": {"nvidia.com/gpu": quantity}}, nodes._Status)
    )
    assert found.gpus == (8 if str(quantity) == "8" else 0)
