"""nccl-tests and ib_write_bw against known levels, on large sizes, each level with its source."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.acceptance import (
    BandwidthResults,
    BandwidthRow,
    BandwidthRun,
    CollectiveResults,
    CollectiveRun,
    Row,
)
from gpudoctor.report import Certainty, Evidence, Severity

CHECKS = CheckSet()

_GIB = 1 << 30
_SIZE_JUDGED = _GIB
"""Smaller messages are bound by latency, and say little about bandwidth."""
_BELOW_FULL_SIZE = 0.95
"""The published levels are for 16 GiB; 1 GiB reaches a little less of them."""


class Level(msgspec.Struct, frozen=True):
    """What so many GPUs of a kind reach inside one node, all_reduce, in GB/s, and who says so."""

    gpu: re.Pattern[str]
    count: int
    busbw: float
    source: str


_AZURE = "https://github.com/Azure/azurehpc-health-checks/blob/main/conf/"
_LEVELS = (
    Level(re.compile(r"H100 80GB HBM3"), 8, 460.0, _AZURE + "nd96isr_h100_v5.conf"),
    Level(re.compile(r"\bH200\b(?! NVL)"), 8, 431.0, _AZURE + "nd96isr_h200_v5.conf"),
    Level(re.compile(r"A100-SXM"), 8, 228.0, _AZURE + "nd96amsr_a100_v4.conf"),
    Level(re.compile(r"H100 NVL"), 2, 208.0, _AZURE + "nc80adis_h100_v5.conf"),
    Level(re.compile(r"A100 80GB PCIe|A100-PCIE"), 4, 25.0, _AZURE + "nc96ads_a100_v4.conf"),
    Level(re.compile(r"V100-SXM2-32GB"), 8, 110.0, _AZURE + "nd40rs_v2.conf"),
)
_RAIL_400G = 46.0
_RAILS_SOURCE = "https://github.com/NVIDIA/nccl-tests/issues/290"
_RAIL_GPUS = re.compile(r"\b(?:H100 80GB HBM3|H200|H800|H20|B200|B300)\b")
_FABRIC_SHARE = 0.75
"""Two nodes with 216 to 231 of about 370 GB/s were reported as a fault; leave room above it."""
_NIC_LEVELS = ((400.0, 360.0), (200.0, 180.0))
_NIC_SOURCE = _AZURE + "nd96isr_h200_v5.conf"
_LARGE_RDMA = 1 << 16


def _evidence(run: CollectiveRun, row: Row) -> Evidence:
    where = f"{run.source}:{row.number}" if row.number else run.source
    return Evidence(where, value=row.text, note=f"{row.busbw:.2f} GB/s at {row.size} bytes")


@CHECKS.check(CollectiveResults)
def single_rank(results: CollectiveResults) -> Iterator[Result]:
    """Each copy of the program is a run of one rank: it was not built with MPI."""
    alone = [run for run in results.runs if run.ranks == 1 and run.rows and run.best_busbw == 0]
    if not alone:
        return
    copies = len(alone)
    yield finding(
        "nccl-tests-single-rank",
        results.subject,
        (f"{copies} copies of the program ran, each with" if copies > 1 else "The run has")
        + " one rank, so the bus bandwidth is 0 by definition. No link was measured.",
        *(_evidence(run, run.rows[-1]) for run in alone[:3]),
        values={"copies": str(copies)},
    )


@CHECKS.check(CollectiveResults)
def wrong_results(results: CollectiveResults) -> Iterator[Result]:
    """The data that came back is wrong."""
    for run in results.runs:
        bad = [] if run.error_column else [row for row in run.rows if _wrong(row)]
        if not (bad or run.failed or run.out_of_bounds):
            continue
        count = run.out_of_bounds or len(bad)
        shown = [_evidence(run, row) for row in bad[:4]]
        yield finding(
            "nccl-tests-wrong-results",
            results.subject,
            f"{count} values are out of bounds: memory, a link or the GPUs corrupt data.",
            *(shown or [Evidence(run.source, value=f"# Out of bounds values : {count} FAILED")]),
            values={"count": str(count)},
        )


def _wrong(row: Row) -> bool:
    return any(half is not None and half.wrong for half in (row.out_of_place, row.in_place))


@CHECKS.check(CollectiveResults)
def incomplete(results: CollectiveResults) -> Iterator[Result]:
    """A run has no summary: it was ended before its time."""
    for run in results.runs:
        if run.average_busbw is not None or run.unreadable:
            continue
        last = run.rows[-1] if run.rows else None
        where = f" after {last.size} bytes" if last else " before its first row"
        evidence = [_evidence(run, last)] if last else []
        if run.failure is not None:
            evidence.append(Evidence(f"{run.source}:{run.failure[0]}", value=run.failure[1]))
        if not evidence:
            evidence.append(Evidence(f"{run.source}:{run.number}", note="the run begins here"))
        yield finding(
            "nccl-tests-incomplete",
            results.subject,
            f"The run stops{where}, without its summary lines.",
            *evidence,
            severity=Severity.ERROR if run.failure is not None else None,
        )


@CHECKS.check(CollectiveResults)
def unreadable(results: CollectiveResults) -> Iterator[Result]:
    """Rows that do not have the columns of any known version."""
    for run in results.runs:
        if run.unreadable:
            yield finding(
                "nccl-tests-unreadable",
                results.subject,
                f"{len(run.unreadable)} rows have other columns than any version known.",
                *(
                    Evidence(f"{run.source}:{n}", value=text[:200])
                    for n, text in run.unreadable[:3]
                ),
            )


@CHECKS.check(CollectiveResults)
def low_bandwidth(results: CollectiveResults) -> Iterator[Result]:
    """All-reduce is below the level of this kind of machine."""
    for run in results.runs:
        row = run.largest
        if run.collective != "all_reduce" or row is None or row.size < _SIZE_JUDGED:
            continue
        judged = [row for row in run.rows if row.size >= _SIZE_JUDGED]
        best = max(judged, key=lambda row: row.busbw)
        if len(run.hosts) == 1:
            yield from _inside_node(results, run, best)
        else:
            yield from _between_nodes(results, run, best)


def _inside_node(results: CollectiveResults, run: CollectiveRun, best: Row) -> Iterator[Result]:
    names = sorted({device.name for device in run.devices})
    for level in _LEVELS:
        known = names and all(level.gpu.search(name) for name in names)
        if level.count != run.ranks or not known:
            continue
        wanted = level.busbw if best.size >= 16 * _GIB else level.busbw * _BELOW_FULL_SIZE
        if best.busbw < wanted:
            yield finding(
                "nccl-tests-low-bandwidth",
                results.subject,
                f"all_reduce reaches {best.busbw:.1f} GB/s on {run.ranks} x {names[0]}; such a"
                f" node reaches {level.busbw:.0f} or more ({level.source}).",
                _evidence(run, best),
                values={"seen": f"{best.busbw:.0f}", "wanted": f"{level.busbw:.0f}"},
            )


def _between_nodes(results: CollectiveResults, run: CollectiveRun, best: Row) -> Iterator[Result]:
    """Rails bound a ring; that there are eight of 400G is known only from NCCL's own lines."""
    per_node = run.ranks // max(len(run.hosts), 1)
    known = run.devices and all(_RAIL_GPUS.search(device.name) for device in run.devices)
    if per_node != 8 or not known:
        return
    rails = results.adapters or 8
    wanted = _RAIL_400G * min(rails, 8)
    if best.busbw >= wanted * _FABRIC_SHARE:
        return
    yield finding(
        "nccl-tests-low-bandwidth",
        results.subject,
        f"all_reduce reaches {best.busbw:.1f} GB/s over {len(run.hosts)} nodes; with {rails} rails"
        f" of 400G a ring reaches about {wanted:.0f} ({_RAILS_SOURCE}). Run again with"
        " NCCL_ALGO=RING to judge the network: on few nodes a tree beats the rails.",
        _evidence(run, best),
        values={"seen": f"{best.busbw:.0f}", "wanted": f"{wanted:.0f}"},
        certainty=Certainty.POSSIBLE,
        severity=None if results.adapters else Severity.INFO,
    )


@CHECKS.check(BandwidthResults)
def low_rdma_bandwidth(results: BandwidthResults) -> Iterator[Result]:
    """ib_write_bw is below what a link of its rate gives."""
    for run in results.runs:
        large = [row for row in run.rows if row.size >= _LARGE_RDMA]
        if not large:
            continue
        best = max(large, key=lambda row: row.gbps)
        level = _nic_level(results.expected_gbps, best)
        if level is None or best.gbps >= level[1]:
            continue
        yield finding(
            "ib-write-bw-low",
            results.subject,
            f"{run.program} reaches {best.gbps:.1f} Gb/s on {run.device or 'the adapter'}, below"
            f" the {level[1]:.0f} of a {level[0]:.0f}G link ({_NIC_SOURCE}){_hint(run)}.",
            Evidence(f"{run.source}:{best.number}", value=best.text),
            values={"seen": f"{best.gbps:.0f}", "wanted": f"{level[1]:.0f}"},
            certainty=Certainty.CERTAIN if results.expected_gbps else Certainty.POSSIBLE,
            severity=None if results.expected_gbps else Severity.INFO,
        )


def _nic_level(expected: float | None, best: BandwidthRow) -> tuple[float, float] | None:
    """The link's rate and its level; without the rate, the next rate above what was seen."""
    for rate, level in _NIC_LEVELS if expected else reversed(_NIC_LEVELS):
        if expected == rate or (expected is None and best.gbps <= rate):
            return rate, level
    return None


def _hint(run: BandwidthRun) -> str:
    if run.link == "Ethernet" and run.mtu is not None and run.mtu < 4096:
        return f"; the path MTU is {run.mtu} (a netdev MTU of 9000 gives 4096)"
    return ""
