"""NVLink as the matrix shows it: missing, fewer than the neighbours have, or one-sided.

Good differs by platform: full NVLink on HGX, islands of two with bridges, a mesh of one and two
links on older boards. So a GPU is judged against its neighbours on the same board.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.topology import Gpu, Topology, nvlinks
from gpudoctor.report import Certainty, Severity
from gpudoctor_checks import matrix

CHECKS = CheckSet()

_FULL_LINKS = frozenset({2, 3, 4, 6, 8, 12, 18})
"""NVLinks of a GPU by product: 18 H100 and later, 12 A100, 8 A800 and H800, 6 V100, fewer on
bridged cards."""

_MESH_LINKS = 3
"""Hybrid cube meshes bond one to three links a pair; whatever bonds more is a full mesh."""


@CHECKS.check(Topology)
def nvlink_asymmetric(topology: Topology) -> Iterator[Result]:
    """The two directions of a pair show different NVLink counts."""
    for one, other, there in topology.gpu_pairs():
        back = topology.matrix.get(other.label, {}).get(one.label, there)
        if back != there and (nvlinks(there) or nvlinks(back)):
            yield finding(
                "nvlink-asymmetric",
                matrix.device(topology, one.label),
                f"{one.label} to {other.label} is {there}, back it is {back}.",
                matrix.row(topology, one.label),
                matrix.row(topology, other.label),
                values={"one": one.label, "other": other.label, "there": there, "back": back},
                related=[matrix.device(topology, other.label)],
            )


def _with_nvlink(topology: Topology) -> list[Gpu]:
    linked = {label for island in topology.islands() for label in island}
    return [gpu for gpu in topology.gpus if gpu.label in linked and not gpu.is_partitioned]


def _is_mesh_of_few(topology: Topology) -> bool:
    counts = [nvlinks(path) for _, _, path in topology.gpu_pairs() if nvlinks(path)]
    return bool(counts) and max(counts) <= _MESH_LINKS


@CHECKS.check(Topology)
def bridge_missing(topology: Topology) -> Iterator[Result]:
    """Some PCIe cards are bridged in twos and others are not: perhaps a bridge is missing."""
    islands = topology.islands()
    linked = {label for island in islands for label in island}
    whole = [gpu for gpu in topology.gpus if not gpu.is_partitioned]
    without = [gpu.label for gpu in whole if gpu.label not in linked]
    in_twos = len(islands) > 1 and all(len(island) == 2 for island in islands)
    if not in_twos or topology.broken or len(without) != 2:
        return
    for label in without:
        yield finding(
            "nvlink-missing",
            matrix.device(topology, label),
            f"{len(linked)} GPUs are bridged in twos, {' and '.join(without)} are not: a bridge "
            "that was never fitted or is not seen, or partners that were given to another job.",
            matrix.row(topology, label),
            values={"gpu": label},
            certainty=Certainty.POSSIBLE,
            severity=Severity.INFO,
        )


@CHECKS.check(Topology)
def nvlink_missing(topology: Topology) -> Iterator[Result]:
    """A GPU, or a pair, has no NVLink where its neighbours have it all to all."""
    islands = topology.islands()
    if _is_mesh_of_few(topology) or not islands:
        return
    biggest = max(len(island) for island in islands)
    if biggest < 3:
        return
    known = {gpu.label for gpu in topology.gpus} - {row.label for row in topology.broken}
    linked = {label for island in islands for label in island}
    # MIG switches NVLink off.
    whole = [gpu for gpu in topology.gpus if not gpu.is_partitioned]
    without = [gpu for gpu in whole if gpu.label in known - linked]
    for gpu in without:
        sure = len(without) < biggest
        yield finding(
            "nvlink-missing",
            matrix.device(topology, gpu.label),
            f"{gpu.label} has no NVLink to any GPU, while {biggest} others of this machine are "
            "joined by it.",
            matrix.row(topology, gpu.label),
            values={"gpu": gpu.label},
            certainty=Certainty.LIKELY if sure else Certainty.POSSIBLE,
            severity=None if sure else Severity.WARNING,
        )
    yield from _missing_pairs(topology, islands)


def _missing_pairs(topology: Topology, islands: tuple[tuple[str, ...], ...]) -> Iterator[Result]:
    island_of = {label: island for island in islands for label in island}
    for one, other, path in topology.gpu_pairs():
        inside = other.label in island_of.get(one.label, ())
        if inside and not nvlinks(path):
            yield finding(
                "nvlink-missing",
                matrix.device(topology, one.label),
                f"{one.label} and {other.label} have no NVLink between them ({path}), while the "
                "other GPUs of their group are joined all to all.",
                matrix.row(topology, one.label),
                values={"gpu": f"{one.label} to {other.label}"},
                certainty=Certainty.LIKELY,
                related=[matrix.device(topology, other.label)],
            )


@CHECKS.check(Topology)
def nvlink_degraded(topology: Topology) -> Iterator[Result]:
    """A GPU has fewer NVLinks than its neighbours, or all have a number no product has."""
    linked = _with_nvlink(topology)
    if len(linked) < 3:
        return
    if _is_mesh_of_few(topology):
        yield from _degraded_mesh(topology)
        return
    counts = {
        (one.label, other.label): count
        for index, one in enumerate(linked)
        for other in linked[index + 1 :]
        if (count := matrix.links(topology, one, other))
    }
    most = max(counts.values())
    low = {pair: count for pair, count in counts.items() if count < most}
    culprits: set[str] = set()
    for gpu in linked:
        own = [count for pair, count in counts.items() if gpu.label in pair]
        if own and max(own) < most and len(own) > 1:
            culprits.add(gpu.label)
            yield _degraded(topology, gpu.label, max(own), most, gpu.label)
    for (one, other), count in low.items():
        if not {one, other} & culprits:
            yield _degraded(topology, one, count, most, f"{one} to {other}", other)
    if not low:
        yield from _degraded_alike(topology, linked, most)


def _degraded(
    topology: Topology, label: str, seen: int, full: int, what: str, other: str | None = None
) -> Result:
    return finding(
        "nvlink-degraded",
        matrix.device(topology, label),
        f"{what} has {seen} NVLinks where the others have {full}.",
        matrix.row(topology, label),
        values={"gpu": what, "links": str(seen), "expected": str(full)},
        related=[matrix.device(topology, other)] if other else (),
    )


def _degraded_mesh(topology: Topology) -> Iterator[Result]:
    """In a whole hybrid cube mesh each GPU has the same number of links, shared out unevenly."""
    if len(topology.gpus) != 8 or topology.broken:
        return
    total = {
        gpu.label: sum(
            matrix.links(topology, gpu, other) for other in topology.gpus if other is not gpu
        )
        for gpu in topology.gpus
    }
    full = max(total.values())
    for label, links in total.items():
        if links < full:
            yield _degraded(topology, label, links, full, label)


def _degraded_alike(topology: Topology, linked: list[Gpu], each: int) -> Iterator[Result]:
    complete = all(
        matrix.links(topology, one, other)
        for index, one in enumerate(linked)
        for other in linked[index + 1 :]
    )
    peers = len(linked) - 1
    if peers < 3 or not complete or each >= max(_FULL_LINKS):
        return
    if each not in _FULL_LINKS and each * peers not in _FULL_LINKS:
        yield finding(
            "nvlink-degraded",
            topology.subject,
            f"Every pair of GPUs shows {each} NVLinks, which no product has: some links are down "
            "on all of them.",
            matrix.row(topology, linked[0].label),
            values={
                "gpu": "every GPU",
                "links": str(each),
                "expected": str(min(full for full in _FULL_LINKS if full > each)),
            },
            certainty=Certainty.LIKELY,
        )
