"""Whether ranks in the same place on their hosts use the same adapters, which makes a rail.

NCCL numbers a host's adapters in the order of its own list, so two hosts can be compared only
where their lists are alike. It joins an adapter with the like of it on the next host; one host
that chose otherwise sends its traffic across the rails.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from gpudoctor.checking import Result
from gpudoctor.facts.nccl.model import NcclLog, Rail
from gpudoctor.report import Certainty
from gpudoctor_checks.nccl_log import CHECKS, draft, several

_FEWEST_HOSTS = 3
"""Of two hosts nobody can say which is the odd one."""
_SHOWN = 3


@CHECKS.check(NcclLog)
def rail_mismatch(log: NcclLog) -> Iterator[Result]:
    """A rank uses none of the adapters that the same local rank of the other hosts uses."""
    devices = _common_adapters(log)
    if not devices:
        return
    odd: dict[str, list[tuple[Rail, Rail]]] = defaultdict(list)
    for mine, usual in _odd_ones(log):
        odd[mine.host].append((mine, usual))
    if not odd or len(odd) * 2 >= len({rail.host for rail in log.rails}):
        return
    pairs = [pair for pairs in odd.values() for pair in pairs]
    told = "; ".join(
        f"rank {mine.rank} on {mine.host} uses {_named(mine, devices)}, rank {usual.rank} in the"
        f" same place on {usual.host} {_named(usual, devices)}"
        for mine, usual in pairs[:_SHOWN]
    )
    yield draft(
        log,
        "nccl-rail-mismatch",
        f"All hosts list the same adapters, and {told}: traffic of {several(odd, 'host')} crosses"
        " the rails. NCCL orders adapters by their distance from the GPU, so PCIe topology, the"
        " order of GPUs or a topology file differs there.",
        [rail.line for pair in pairs for rail in pair],
        hosts=odd,
        certainty=Certainty.LIKELY,
    )


def _common_adapters(log: NcclLog) -> tuple[str, ...]:
    """The list that all hosts with network channels have; empty if they differ."""
    hosts = {rail.host for rail in log.rails}
    lists = {found.devices for found in log.adapters if found.host in hosts}
    listed = {found.host for found in log.adapters}
    if len(hosts) < _FEWEST_HOSTS or len(lists) != 1 or not hosts <= listed:
        return ()
    return lists.pop()


def _odd_ones(log: NcclLog) -> Iterator[tuple[Rail, Rail]]:
    """Ranks that share no adapter with what most hosts use in the same place."""
    places: dict[int, list[Rail]] = defaultdict(list)
    for rail in log.rails:
        places[rail.local].append(rail)
    sizes = Counter(rail.host for rail in log.rails)
    if len(set(sizes.values())) != 1:
        return
    for rails in places.values():
        nics, count = Counter(rail.nics for rail in rails).most_common(1)[0]
        if count * 2 <= len(rails):
            continue
        usual = next(rail for rail in rails if rail.nics == nics)
        for rail in rails:
            if not set(rail.nics) & set(nics):
                yield rail, usual


def _named(rail: Rail, devices: tuple[str, ...]) -> str:
    names = [devices[nic] if nic < len(devices) else f"adapter {nic}" for nic in rail.nics]
    return several((name.partition(":")[0] for name in names), "adapter")
