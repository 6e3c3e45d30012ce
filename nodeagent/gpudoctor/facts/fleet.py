"""All nodes of a cluster side by side: what most of one model have, and who differs.

Nodes of one GPU model are bought and set up alike. One that has another driver, a rail less or no
GPUDirect RDMA makes every job that lands on it slow or wrong, though nothing on it is broken.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

COMPARED = (
    "driver", "cuda", "gpu-count", "gpu-arch", "nvlink", "nvlink-island-size", "rdma", "rdma-rails",
    "rdma-gbps", "gdr", "gpu-nic", "numa-policy", "numa-aligned", "memlock-mib", "shm-mib",
)  # fmt: skip
"""The labels in which nodes of one GPU model should agree."""
_POOL = "gpu-model"
_FEWEST = 4
_MOST_OF = 0.8
"""Fewer nodes, or a smaller share that agrees, show no rule that another could break: while a new
driver is rolled out, neither half of the nodes is odd.
"""


class NodeRow(msgspec.Struct, frozen=True):
    """A node of the fleet: its verdict, the names of its root causes, and its labels by name."""

    name: str
    verdict: str
    roots: tuple[str, ...]
    labels: dict[str, str]


class Odd(msgspec.Struct, frozen=True):
    """A node that differs: of `of` nodes of its model, `have` have the usual value.

    `value` None: the node does not have the label, since it is not known there.
    """

    node: str
    model: str
    label: str
    value: str | None
    usual: str
    have: int
    of: int


class Group(msgspec.Struct, frozen=True):
    """Nodes that are alike in verdict, root causes and the labels that are compared."""

    verdict: str
    roots: tuple[str, ...]
    labels: dict[str, str]
    nodes: tuple[str, ...]


def odd_ones_out(nodes: Sequence[NodeRow]) -> tuple[Odd, ...]:
    """Return who differs from most of its model, by label and then by name."""
    pools: dict[str, list[NodeRow]] = defaultdict(list)
    for node in nodes:
        if model := node.labels.get(_POOL):
            pools[model].append(node)
    found = [
        odd
        for model, members in sorted(pools.items())
        for label in COMPARED
        for odd in _differing(model, label, members)
    ]
    return tuple(found)


def _differing(model: str, label: str, members: Sequence[NodeRow]) -> Iterator[Odd]:
    counts = Counter(node.labels.get(label) for node in members)
    [(usual, have)] = counts.most_common(1)
    if usual is None or len(members) < _FEWEST or not _MOST_OF <= have / len(members) < 1:
        return
    for node in members:
        value = node.labels.get(label)
        if value != usual:
            yield Odd(node.name, model, label, value, usual, have, len(members))


def groups(nodes: Iterable[NodeRow]) -> tuple[Group, ...]:
    """Return the nodes by what they are like, the largest group first."""
    alike: dict[tuple[object, ...], list[NodeRow]] = defaultdict(list)
    for node in nodes:
        shown = tuple(node.labels.get(label) for label in (_POOL, *COMPARED))
        alike[node.verdict, node.roots, shown].append(node)
    made = [
        Group(
            members[0].verdict,
            members[0].roots,
            {key: members[0].labels[key] for key in (_POOL, *COMPARED) if key in members[0].labels},
            tuple(node.name for node in members),
        )
        for members in alike.values()
    ]
    return tuple(sorted(made, key=lambda group: (-len(group.nodes), group.nodes[0])))


def published(nodes: Sequence[NodeRow], silent: Mapping[str, str]) -> dict[str, object]:
    """Return what a report says of a fleet under `facts.fleet`.

    `silent` are nodes that nobody speaks for, with the reason.
    """
    verdicts = Counter(node.verdict for node in nodes)
    return {
        "nodes": len(nodes) + len(silent),
        "verdicts": dict(verdicts.most_common()),
        "groups": [msgspec.to_builtins(group) for group in groups(nodes)],
        "odd_ones_out": [msgspec.to_builtins(odd) for odd in odd_ones_out(nodes)],
        "silent": dict(sorted(silent.items())),
    }
