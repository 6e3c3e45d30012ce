"""What the pools of the cluster offer: the parameters of the admission policy gpudoctor-pools.

A policy cannot look at nodes, so the controller keeps this ConfigMap. A key that is not there
admits everything: what is not known of every GPU node is offered as far as anyone can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gpudoctor.publish import names
from gpudoctor.publish.writes import Write, apply

WORDS = ("rdma", "gdr", "nvlink")
"""What a pod can declare in gpudoctor.io/require and a pool can offer, by name of its label."""
GPUS = "gpusPerNode"
OFFERS = "offers"
ON_DEMAND = "onDemand"
"""What pools offer that an autoscaler makes when they are asked for, `8,rdma,nvlink`: the site's
own key, which we only read, as such a pool may have no node now."""

_NONE = "none"


class Offer(msgspec.Struct, frozen=True):
    """What one node has: `gpus` by allocatable, `labels` our own without their prefix."""

    gpus: int
    labels: Mapping[str, str]

    @property
    def most_gpus(self) -> int:
        """GPUs that the node has, those included that are ill or not advertised right now."""
        labelled = self.labels.get("gpu-count", "")
        return max(self.gpus, int(labelled) if _is_number(labelled) else 0)

    def may_have(self, word: str) -> bool:
        """Whether the node has it, or it is not known: only `none` is a no."""
        return self.labels.get(word) != _NONE


def data(offers: Iterable[Offer], on_demand: str = "") -> dict[str, str]:
    """The keys of the ConfigMap; none where no node has a GPU, since that refuses nothing."""
    nodes = [offer for offer in offers if offer.most_gpus]
    if not nodes:
        return {}
    extra = {word.strip() for word in on_demand.split(",")}
    counts = [int(word) for word in extra if _is_number(word)]
    words = [word for word in WORDS if word in extra or any(node.may_have(word) for node in nodes)]
    most = max(*(node.most_gpus for node in nodes), *counts, 0)
    return {GPUS: str(most), OFFERS: ",".join(words)}


def config_map(namespace: str, content: Mapping[str, str]) -> Write:
    """Declare our keys of the ConfigMap; those of others stay."""
    fields = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.POOLS, "namespace": namespace},
        "data": dict(content),
    }
    path = f"/api/v1/namespaces/{namespace}/configmaps/{names.POOLS}"
    return apply(f"ConfigMap {namespace}/{names.POOLS}", path, fields, names.CONTROLLER)


def _is_number(text: str) -> bool:
    # A label's value is at most 63 characters, but anyone may have written it.
    return text.isascii() and text.isdigit() and len(text) < 7
