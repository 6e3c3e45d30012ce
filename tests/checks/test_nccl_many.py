"""What leads in a log of many: one bad host of a thousand ranks, one cause of forty warnings."""

from __future__ import annotations

import random

import pytest

from tests.nccl_logs import Rank, diagnose, loud, ring, start

HOSTS, PER_HOST = 125, 8
BAD = "gpu-077"
RANKS = [Rank(f"gpu-{n // PER_HOST:03d}", n, device=n % PER_HOST) for n in range(HOSTS * PER_HOST)]
LISTED = " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(PER_HOST))
FEWER = " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(PER_HOST - 1))


def thousand(fault: str) -> list[str]:
    """The lines of 1,000 ranks in the order of many writers, one host of theirs with a fault."""
    voices = []
    for rank in RANKS:
        bad = rank.host == BAD
        listed = FEWER if bad and fault == "adapter" else LISTED
        lines = start([rank], nranks=len(RANKS), nnodes=HOSTS, adapters=listed)
        gdr = "" if bad and fault == "gdr" else "/GDRDMA"
        peer = (rank.rank + PER_HOST) % len(RANKS)
        for channel in range(2):
            lines.append(
                rank.info(
                    f"Channel {channel:02d}/0 : {rank.rank}[0] -> {peer}[0] [send] via "
                    f"NET/IB/{rank.device % 7}{gdr}"
                )
            )
        if bad and fault == "port":
            lines.append(rank.warn("NET/IB : mlx5_3:1 Got async event : port error"))
        if fault == "port" and rank.rank % 97 == 0:
            lines.append(rank.warn("NET/IB : Got completion from peer 10.0.0.7<1> with error 12"))
        voices.append(lines)
    return interleaved(voices, seed=7)


def interleaved(voices: list[list[str]], *, seed: int) -> list[str]:
    """Each voice's lines in its own order, those of all mixed."""
    order = [number for number, lines in enumerate(voices) for _ in lines]
    random.Random(seed).shuffle(order)
    left = [iter(lines) for lines in voices]
    return [next(left[number]) for number in order]


@pytest.mark.parametrize(
    ("fault", "name"),
    [("gdr", "gdr-partial"), ("adapter", "nccl-adapters-missing"), ("port", "ib-port-error")],
)
def test_of_a_thousand_ranks_the_bad_host_is_named(fault: str, name: str) -> None:
    report = diagnose(thousand(fault))
    assert report.roots == (name,)
    root = report.findings[0]
    named = {rank.host for rank in RANKS if rank.host in root.title}
    assert named == {BAD}


def test_of_a_thousand_healthy_ranks_none_is_named() -> None:
    assert loud(diagnose(thousand("none"))) == set()


CONSEQUENCES = [
    "socketProgress: Connection closed by remote peer gpu-{n}.train<4{n}>",
    "[Service thread] Could not receive type from localRank {n}, res=3",
    "Socket recv failed while polling for opId=0x7f{n}",
    "NET/IB : Got completion from peer 10.0.0.{n}<4{n}> with error 5, opcode 0, len {n}",
]
CAUSE = "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"


@pytest.mark.parametrize("seed", range(4))
def test_the_first_real_error_leads_forty_others_whatever_their_order(seed: int) -> None:
    ranks = RANKS[: 5 * PER_HOST]
    cause = RANKS[21]
    voices = [
        [rank.warn(CONSEQUENCES[number % 4].format(n=number), f"misc/file.cc:{number}")]
        for number, rank in enumerate(ranks)
    ]
    voices.append([cause.warn(CAUSE), cause.info("transport/net.cc:1298 -> 2")])
    report = diagnose([*start(ranks), *ring(ranks), *interleaved(voices, seed=seed)])
    assert report.roots == ("rdma-registration-enomem",)
    assert report.findings[0].name == "rdma-registration-enomem"
    assert cause.host in report.findings[0].detail


def test_the_first_by_its_own_time_leads_where_nothing_is_known_of_any() -> None:
    """Ranks write late: what stands first in the log was not said first."""
    ranks = RANKS[:40]
    lines = []
    for number, rank in enumerate(ranks):
        minute = 59 - number
        text = f"a warning that nobody knows, number {chr(65 + number)}"
        lines.append(f"\n[2026-11-20 08:{minute:02d}:00] " + rank.warn(text).lstrip())
    failed = ranks[0].info("init.cc:1 -> 3")
    report = diagnose([*start(ranks), *ring(ranks), *lines, failed])
    assert report.roots == ("nccl-error",)
    assert "number h" in report.findings[0].detail  # 65 + 39
