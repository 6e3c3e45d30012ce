"""Reading logs from files: many, compressed, growing; and what is published of them."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pytest
from backports.zstd import compress

from gpudoctor import readings, registry
from gpudoctor.readings import nccl_log
from gpudoctor.render import nccl as picture
from gpudoctor.sources.text import open_input
from tests.nccl_logs import Rank, pair, read, ring, start

CHECKS = registry.load()


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress, compress], ids=["plain", "gzip", "zstd"])
def test_plain_gzip_and_zstd(tmp_path: Path, pack: object) -> None:
    ranks = pair()
    assert callable(pack)
    path = tmp_path / "x.log"
    path.write_bytes(pack("\n".join(start(ranks) + ring(ranks)).encode()))
    with open_input(str(path)) as text:
        assert readings.recognise(text).name == "nccl"
        assert nccl_log.read(text).published["nccl"]["network"] == "IB"


def test_a_compressed_log_that_is_cut_short_is_read_to_there(tmp_path: Path) -> None:
    ranks = pair()
    path = tmp_path / "x.gz"
    noise = [random.Random(seed).randbytes(60).hex() for seed in range(3000)]  # packs badly
    whole = gzip.compress("\n".join(start(ranks) + ring(ranks) + noise).encode())
    path.write_bytes(whole[: len(whole) - 20])
    with open_input(str(path)) as text:
        assert nccl_log.read(text).published["nccl"]["ranks"] == 2


def test_one_file_a_rank(tmp_path: Path) -> None:
    ranks = [Rank(f"node-{n}", n) for n in range(3)]
    lines = start(ranks, nnodes=3) + ring(ranks)
    paths = [
        write(tmp_path / f"{rank.host}.log", [line for line in lines if rank.host in line[:8]])
        for rank in ranks
    ]
    for order in (paths, paths[::-1]):
        texts = [open_input(str(path)) for path in order]
        published = nccl_log.read_all(texts).published["nccl"]
        for text in texts:
            text.close()
        assert (published["ranks"], published["nodes"], published["gdr"]) == (3, 3, "all")


def test_following_a_file_shows_a_fallback_when_its_line_is_there(tmp_path: Path) -> None:
    ranks = pair()
    lines = start(ranks, network="Socket", adapters=None, environment=["NCCL_IB_HCA set to mlx5"])
    path = write(tmp_path / "x.log", lines[:4])
    later = [lines[4:], ring(ranks, "NET/Socket/0")]

    def grow() -> bool:
        if not later:
            return False
        with path.open("a") as out:
            out.write("\n".join(later.pop(0)) + "\n")
        return True

    seen = []
    with open_input(str(path)) as text:
        for reading in nccl_log.follow(text, grow):
            report = readings.judge(reading, CHECKS)
            seen.append({finding.name for finding in report.findings})
    assert "nccl-socket-fallback" not in seen[0]
    assert "nccl-socket-fallback" in seen[1]


def test_without_channels_the_transport_is_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "x.log", start(pair()))
    with open_input(str(path)) as text:
        report = readings.judge(nccl_log.read(text), CHECKS)
    assert report.verdict == "unknown"
    assert report.unknown[0].what == "transport between ranks"


def test_a_log_whose_start_was_rotated_away_says_how_to_keep_it(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.log", [Rank("n", 0).info("comm 0x1 rank 0 nranks 8 - Abort COMPLETE")]
    )
    with open_input(str(path)) as text:
        reading = nccl_log.read(text)
    assert "NCCL_DEBUG_FILE" in reading.unknown[0].why


def drawn(lines: list[str], tmp_path: Path) -> str:
    with open_input(str(write(tmp_path / "x.log", lines))) as text:
        report = readings.judge(nccl_log.read(text), CHECKS)
    out = io.StringIO()
    picture.render(report, out, color=False)
    return out.getvalue()


def test_the_grid_shows_who_reaches_whom(tmp_path: Path) -> None:
    ranks = [Rank(f"n{r // 2}", r, device=r % 2) for r in range(4)]
    lines = start(ranks) + ring(ranks)
    lines += [ranks[0].info("Channel 00/0 : 0[0] -> 2[0] [send] via NET/Socket/0")]
    page = drawn(lines, tmp_path)
    assert "4 ranks, 2 hosts in the log, network mixed" in page
    assert "0 ·NTN" in page
    assert "T TCP sockets" in page


def test_many_hosts_are_folded_and_the_odd_one_stands_alone(tmp_path: Path) -> None:
    ranks = [Rank(f"node-{n:03d}", n) for n in range(200)]
    lines = start(ranks, nnodes=200) + ring(ranks)
    lines = [
        line.replace("/GDRDMA", "") if line.startswith("node-007:") else line for line in lines
    ]
    page = drawn(lines, tmp_path)
    assert "node-000 … node-199 (199)" in page
    assert any(line.startswith("node-007 ") for line in page.splitlines())
    assert "4 in a cell" in page


def test_hosts_come_in_the_order_of_their_ranks() -> None:
    """So neighbours in a ring stand beside each other, whatever the hosts are called."""
    hosts = ["b", "a", *(f"node-{n}" for n in range(3, 120))]
    ranks = [Rank(host, n) for n, host in enumerate(hosts)]
    assert [host.name for host in read(start(ranks) + ring(ranks)).hosts] == hosts


def test_hosts_without_ranks_come_in_the_order_of_their_numbers() -> None:
    hosts = ["a", "node-9", "node-10", "node-" + "1" * 5000]
    lines = [Rank(host, 0).info("Using network IB") for host in reversed(hosts)]
    assert [host.name for host in read(lines).hosts] == hosts


def test_gdr_is_published_by_adapter_and_direction() -> None:
    a, b = pair()
    lines = [
        *start((a, b)),
        a.info("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"),
        a.info("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA"),
        b.info("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0/GDRDMA"),
        b.info("Channel 01/0 : 1[0] -> 0[0] [send] via NET/IB/7/GDRDMA"),
    ]
    found = nccl_log.published(read(lines))["gdr_by_adapter"]
    assert found == [
        {"adapter": "NET/IB/7", "direction": "send", "gdr": "all", "hosts": 1, "hosts_without": []},
        {
            "adapter": "mlx5_0",
            "direction": "receive",
            "gdr": "all",
            "hosts": 1,
            "hosts_without": [],
        },
        {
            "adapter": "mlx5_0",
            "direction": "send",
            "gdr": "partial",
            "hosts": 2,
            "hosts_without": ["node-a"],
        },
    ]
