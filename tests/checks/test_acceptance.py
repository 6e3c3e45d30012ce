"""nccl-tests and ib_write_bw: reading every format, and judging them against published levels."""

# ruff: noqa: E501 - tables are easier to compare whole

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor import diagnosis, registry
from gpudoctor.facts import nccl_tests, perftest
from gpudoctor.facts.acceptance import BandwidthResults, CollectiveResults
from gpudoctor.report import Report, ReportSubject, Severity

_CHECKS = registry.load()
CASES = sorted((Path(__file__).parent.parent / "cases/node").glob("nccltests-*.txt"))
SUMMARY = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100.0\n#\n"
HEADER = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"


def judge(facts: CollectiveResults | BandwidthResults) -> Report:
    found = diagnosis.diagnose(_CHECKS, [facts])
    return diagnosis.report(found, ReportSubject("x"), observed_at=None)


def loud(report: Report) -> set[str]:
    return {f.name for f in report.findings if f.severity is not Severity.INFO}


def names(report: Report) -> set[str]:
    return {finding.name for finding in report.findings}


def devices(hosts: int = 1, per_host: int = 8, name: str = "NVIDIA H100 80GB HBM3") -> str:
    lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor)"]
    lines += [
        f"#  Rank {h * per_host + d:2d} Group  0 Pid {300 + d} on node-{h} device {d:2d} [0000:{d:02x}:00] {name}"
        for h in range(hosts)
        for d in range(per_host)
    ]
    return "\n".join(lines) + "\n" + HEADER


def row(size: int, busbw: float, ranks: int = 8, wrong: str = "0") -> str:
    algbw = busbw / (2 * (ranks - 1) / ranks)
    half = f"{size / algbw / 1000:.1f} {algbw:.2f} {busbw:.2f} {wrong}"
    return f" {size} {size // 4} float sum -1 {half} {half}\n"


def table(busbw: float, **kinds: int | str) -> str:
    head = devices(**kinds)  # type: ignore[arg-type]
    ranks = head.count("#  Rank")
    return head + row(1 << 20, busbw / 9, ranks) + row(16 << 30, busbw, ranks) + SUMMARY


def test_each_table_is_judged_once_and_by_what_it_names() -> None:
    """A level for other GPUs, further down the list, does not take part."""
    answer = diagnosis.diagnose(_CHECKS, [nccl_tests.parse(table(165.0), "x")])
    assert [finding.name for finding in answer.findings] == ["nccl-tests-low-bandwidth"]
    assert not answer.unknown
    nameless = nccl_tests.parse(HEADER + row(16 << 30, 10.0) + SUMMARY, "x")
    assert loud(judge(nameless)) == set()


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_cases(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())["expect"]
    results = nccl_tests.parse(path.read_text(), path.name)
    report = judge(results)
    assert set(expected["findings"]) == names(report)
    run = results.runs[0]
    assert len(results.runs) == expected.get("runs", 1)
    assert run.ranks == expected["ranks"]
    if "rows" in expected:
        assert len(run.rows) == expected["rows"]
        assert run.best_busbw == expected["max_busbw_gbs"]
        assert run.average_busbw == pytest.approx(expected["avg_busbw_gbs"], abs=0.001)


@pytest.mark.parametrize(
    ("busbw", "kinds", "low"),
    [
        (476.0, {}, False),
        (368.0, {}, True),
        (440.0, {"name": "NVIDIA H200"}, False),
        (400.0, {"name": "NVIDIA H200"}, True),
        (230.0, {"name": "NVIDIA A100-SXM4-80GB"}, False),
        (150.0, {"name": "NVIDIA A100-SXM4-80GB"}, True),
        (20.0, {"name": "NVIDIA A100 80GB PCIe", "per_host": 4}, True),
        (20.0, {"name": "NVIDIA L40S"}, False),
        (200.0, {"per_host": 4}, False),
    ],
)
def test_inside_a_node(busbw: float, kinds: dict[str, int | str], low: bool) -> None:
    assert (
        "nccl-tests-low-bandwidth" in loud(judge(nccl_tests.parse(table(busbw, **kinds), "x")))
    ) is low


@pytest.mark.parametrize(("busbw", "low"), [(375.0, False), (470.0, False), (222.0, True)])
def test_between_nodes(busbw: float, low: bool) -> None:
    results = nccl_tests.parse(table(busbw, hosts=2), "x")
    report = judge(results)
    assert loud(report) == set(), "how many rails there are is not known"
    assert ("nccl-tests-low-bandwidth" in names(report)) is low
    known = msgspec.structs.replace(results, adapters=8)
    assert ("nccl-tests-low-bandwidth" in loud(judge(known))) is low
    assert loud(judge(msgspec.structs.replace(results, adapters=4))) == set()


def test_small_sizes_and_other_collectives_are_not_judged() -> None:
    small = devices() + row(1 << 20, 40.0) + SUMMARY
    assert names(judge(nccl_tests.parse(small, "x"))) == set()
    gather = (
        devices()
        + " 17179869184 268435456 float none -1 100.0 300.00 262.50 0 100.0 300.00 262.50 0\n"
        + SUMMARY
    )
    assert names(judge(nccl_tests.parse(gather, "x"))) == set()


def test_wrong_results() -> None:
    text = devices() + row(16 << 30, 476.0, wrong="12") + SUMMARY.replace("0 OK", "12 FAILED")
    report = judge(nccl_tests.parse(text, "x"))
    assert report.roots == ("nccl-tests-wrong-results",)
    assert (
        names(judge(nccl_tests.parse(devices() + row(16 << 30, 476.0, wrong="N/A") + SUMMARY, "x")))
        == set()
    )


def test_incomplete() -> None:
    text = devices() + row(16 << 30, 476.0)
    assert names(judge(nccl_tests.parse(text, "x"))) == {"nccl-tests-incomplete"}
    failed = text + "node-0: Test NCCL failure common.cu:961 'unhandled system error'\n"
    assert judge(nccl_tests.parse(failed, "x")).verdict == "failing"


def test_unreadable() -> None:
    text = devices() + " 8 2 float sum -1 17.0 0.0 what 0 3\n" + SUMMARY
    assert names(judge(nccl_tests.parse(text, "x"))) == {"nccl-tests-unreadable"}


def test_single_rank() -> None:
    text = (
        devices(per_host=1)
        + " 1048576 262144 float sum -1 10.9 95.41 0.00 0 11.0 95.2 0.00 0\n"
        + SUMMARY
    )
    assert names(judge(nccl_tests.parse(text * 2, "x"))) == {"nccl-tests-single-rank"}


@pytest.mark.parametrize(
    "line",
    [
        " 1024 256 float sum -1 35.0 1.00 1.75 0 1 2 3 4 35.0 1.00 1.75 0 1 2 3 4.5",
        " 1024 256 float sum -1 35.0 1.00 1.75 0 35.0 1.00 1.75 N/A 2025-06-01 10:00:00",
        " 1024 256 float sum 35.0 1.00 1.75 1e-07 35.0 1.00 1.75 0e+00",
        " 1024 256 float 35.0 1.00 1.75 1e-07 35.0 1.00 1.75 0e+00",
        " 1024 256 float sum -1 35.0 1.00 1.75 1e+06 35.0 1.00 1.75 0",
        "[1,0]<stdout>: 1024 256 float sum -1 35.0 1.00 1.75 0 35.0 1.00 1.75 0",
        "\x1b[32m 1024 256 float sum -1 35.0 1.00 1.75 0 35.0 1.00 1.75 0\x1b[0m",
    ],
)
def test_every_row_format(line: str) -> None:
    tag = "[1,0]<stdout>:" if line.startswith("[1,0]") else ""
    text = "".join(f"{tag}{head}\n" for head in devices().splitlines()) + line + "\n"
    (run,) = nccl_tests.parse(text, "x").runs
    assert [(r.size, r.busbw) for r in run.rows] == [(1024, 1.75)]
    assert run.unreadable == ()


def test_interleaved_copies_are_runs_of_their_own() -> None:
    one = (devices(per_host=1) + row(1 << 20, 1.0, 2) + SUMMARY).splitlines()
    mixed = [f"[1,{tag}]<stdout>:{line}" for line in one for tag in (0, 1)]
    assert len(nccl_tests.parse("\n".join(mixed), "x").runs) == 2


def test_json() -> None:
    half = {"time": 62.7, "alg_bw": 273.87, "bus_bw": 479.27, "nwrong": 0.0}
    document = {
        "version": 2,
        "config": {
            "devices": [
                {"rank": r, "hostname": "n", "device_info": "NVIDIA H100 80GB HBM3"}
                for r in range(8)
            ]
        },
        "results": [
            {
                "size": 16 << 30,
                "count": 4 << 30,
                "type": "float",
                "out_of_place": half,
                "in_place": half,
            }
        ],
        "out_of_bounds": {"count": 0, "okay": True},
        "average_bus_bandwidth": {"bandwidth": 479.27},
        "end_time": "2025-06-01 10:00:00",
    }
    results = nccl_tests.parse(json.dumps(document), "x")
    assert (results.runs[0].collective, results.runs[0].ranks) == ("all_reduce", 8)
    assert names(judge(results)) == set()


PERFTEST = """---
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
 Mtu             : 1024[B]
 Link type       : Ethernet
 GID index       : 3
 #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]
 2          5000             0.00               0.09     0.7
 65536      5000             0.00               {value}     0.7478
"""


@pytest.mark.parametrize(
    ("unit", "value", "rate", "low"),
    [
        ("Gb", 392.1, 400.0, False),
        ("Gb", 210.0, 400.0, True),
        ("MB", 46000, 400.0, False),
        ("MB", 11000, 200.0, True),
        ("Gb", 95.0, None, False),
    ],
)
def test_ib_write_bw(unit: str, value: float, rate: float | None, low: bool) -> None:
    results = perftest.parse(PERFTEST.format(unit=unit, value=value), "x")
    assert results.runs[0].device == "mlx5_0"
    report = judge(msgspec.structs.replace(results, expected_gbps=rate))
    assert ("ib-write-bw-low" in loud(report)) is low


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.sampled_from(
            [
                *devices().splitlines()[:3],
                HEADER,
                row(8, 1.0),
                SUMMARY,
                "1 2 float",
                "{",
                "\x1b[",
                "[1,0]<stdout>:",
                "1e999",
                "[1,1]<stdout>:#",
                "\n",
                "Rank 9 on a device 0 [x",
            ]
        ),
        max_size=20,
    )
)
def test_any_mix(parts: list[str]) -> None:
    text = "".join(parts)
    for facts in (nccl_tests.parse(text, "x"), perftest.parse(text, "x")):
        assert not [gap for gap in judge(facts).unknown if "the check failed" in gap.why]


@settings(deadline=None, max_examples=60)
@given(st.text())
def test_any_text(text: str) -> None:
    nccl_tests.parse(text, "x")
    perftest.parse(text, "x")
