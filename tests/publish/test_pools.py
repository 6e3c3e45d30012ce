"""What the pools offer: refused is only what no node can have."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.publish import pools
from gpudoctor.publish.pools import Offer

WELL = {"rdma": "ib", "gdr": "dmabuf", "nvlink": "all", "gpu-count": "8"}
BARE = {"rdma": "none", "gdr": "none", "nvlink": "none"}


@pytest.mark.parametrize(
    ("offers", "gpus", "words"),
    [
        ([Offer(8, WELL)], "8", "rdma,gdr,nvlink"),
        ([Offer(4, BARE)], "4", ""),
        ([Offer(4, BARE), Offer(8, BARE | {"rdma": "roce"})], "8", "rdma"),
        # Not known is not none: no agent there, or it could not tell.
        ([Offer(4, {})], "4", "rdma,gdr,nvlink"),
        ([Offer(4, BARE), Offer(2, {"rdma": "none", "gdr": "none"})], "4", "nvlink"),
        # A node without GPUs is no pool for a GPU pod, whatever is not known of it.
        ([Offer(4, BARE), Offer(0, {})], "4", ""),
        # Ill GPUs, or a device plugin that restarts: they still belong to the pool.
        ([Offer(7, WELL)], "8", "rdma,gdr,nvlink"),
        ([Offer(0, WELL)], "8", "rdma,gdr,nvlink"),
        # MIG: what is advertised is more than there are GPUs.
        ([Offer(56, WELL)], "56", "rdma,gdr,nvlink"),
    ],
)
def test_the_best_node_counts(offers: list[Offer], gpus: str, words: str) -> None:
    assert pools.data(offers) == {"gpusPerNode": gpus, "offers": words}


@pytest.mark.parametrize("offers", [[], [Offer(0, {})], [Offer(0, BARE)]])
def test_where_no_node_has_a_gpu_nothing_is_refused(offers: list[Offer]) -> None:
    assert pools.data(offers) == {}


def test_pools_made_on_demand_count_as_if_they_had_a_node() -> None:
    offers = [Offer(4, BARE)]
    assert pools.data(offers, "8, rdma") == {"gpusPerNode": "8", "offers": "rdma"}
    assert pools.data(offers, "2") == {"gpusPerNode": "4", "offers": ""}


def test_only_our_keys_are_declared() -> None:
    write = pools.config_map("gpudoctor", {"gpusPerNode": "8"})
    assert write.path == "/api/v1/namespaces/gpudoctor/configmaps/gpudoctor-pools"
    assert write.query == {"fieldManager": "gpudoctor-controller"}
    assert json.loads(write.body)["data"] == {"gpusPerNode": "8"}


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            Offer,
            st.integers(0, 100),
            st.dictionaries(
                st.sampled_from(["rdma", "gdr", "nvlink", "gpu-count"]), st.text(max_size=70)
            ),
        ),
        max_size=6,
    ),
    st.text(max_size=30),
)
def test_whatever_the_labels_say_the_policy_can_read_it(offers: list[Offer], extra: str) -> None:
    found = pools.data(offers, extra)
    if found:
        assert int(found["gpusPerNode"]) >= max(offer.gpus for offer in offers)
        assert set(filter(None, found["offers"].split(","))) <= set(pools.WORDS)
