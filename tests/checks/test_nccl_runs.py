"""What happened in which run, who ended first, and who uses which rail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nccl_logs import Rank, diagnose, names, pair, read, ring, start

CASES = Path(__file__).parent.parent / "cases/nccl"
LISTED = "[0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB"


def case(name: str) -> str:
    return next(CASES.glob(f"{name}-*.log")).read_text()


def detail(text: str, name: str) -> str:
    return next(finding.detail for finding in diagnose(read(text)).findings if finding.name == name)


def test_each_run_of_a_restarted_job_has_its_own_cause() -> None:
    text = case("24")
    assert read(text).runs == 2
    assert "In run 1 of 2." in detail(text, "shm-too-small")
    assert "In run 2 of 2." in detail(text, "ib-retry-exceeded")


def test_the_same_fault_in_both_runs_is_said_of_both() -> None:
    first, second = [Rank("a", 0), Rank("b", 1)], [Rank("a", 0, pid=700), Rank("b", 1, pid=700)]
    lines = []
    for comm_id, ranks in (("0x1", first), ("0x2", second)):
        lines += start(ranks, comm_id=comm_id)
        lines.append(ranks[0].warn("NET/IB : Got completion with error 12, opcode 0, len 0"))
        lines.append(ranks[0].info("transport/net.cc:1298 -> 6"))
    assert "In run 1 and 2 of 2." in detail("\n".join(lines) + "\n", "ib-retry-exceeded")


@pytest.mark.parametrize("said", ["Bootstrap : Using", "Bootstrap: Using"])
def test_a_restart_with_the_same_pid_is_known_by_its_bootstrap(said: str) -> None:
    lines = start(pair()) + ring(pair())
    text = "\n".join(lines * 2).replace("Bootstrap : Using", said)
    assert read(text).runs == 2


def test_two_jobs_side_by_side_are_no_restart() -> None:
    """Two replicas on the same hosts: nothing failed before the second began."""
    lines = start(pair()) + start([Rank("node-a", 0, pid=500), Rank("node-b", 1, pid=500)])
    assert read(lines).runs == 1


def test_the_host_that_all_others_lost_is_named() -> None:
    told = detail(case("26"), "nccl-peer-connection-closed")
    assert "pt-1" in told
    assert "pt-0, pt-2 lost" in told


def test_hosts_that_lost_each_other_name_nobody() -> None:
    a, b = pair()
    lines = start([a, b])
    lines.append(a.warn("Connection closed by remote peer 10.0.0.2<400>", "misc/socket.cc:1"))
    lines.append(b.warn("Connection closed by remote peer 10.0.0.1<400>", "misc/socket.cc:1"))
    assert "silent" not in detail("\n".join(lines) + "\n", "nccl-peer-connection-closed")


def test_the_watchdog_says_for_how_long_and_who_gave_up_first() -> None:
    told = detail(case("25"), "nccl-collective-timeout")
    assert "for 600 s" in told
    assert "Rank 3 gave up first" in told
    assert "Rank 0 never entered it" in told


def rails(nic: dict[int, int], *, hosts: int = 4, other_list: bool = False) -> str:
    """Hosts of two ranks each; `nic` gives the adapter of host 1 by local rank."""
    ranks = [Rank(f"h{n // 2}", n, device=n % 2) for n in range(hosts * 2)]
    lines = []
    for rank in ranks:
        listed = LISTED.replace("mlx5_3", "mlx5_9") if other_list and rank.rank == 2 else LISTED
        lines += start([rank], nranks=hosts * 2, nnodes=hosts, adapters=listed)
    for rank in ranks:
        local = rank.rank % 2
        used = nic.get(local, local) if rank.host == "h1" else local
        peer = (rank.rank + 2) % (hosts * 2)
        lines.append(
            rank.info(f"Channel 00/0 : {rank.rank}[0] -> {peer}[0] [send] via NET/IB/{used}/GDRDMA")
        )
    return "\n".join(lines) + "\n"


def test_a_host_on_other_rails() -> None:
    told = detail(rails({0: 2, 1: 3}), "nccl-rail-mismatch")
    assert "rank 2 on h1 uses mlx5_2" in told
    assert "mlx5_0" in told


@pytest.mark.parametrize(
    "text",
    [
        rails({}),
        rails({0: 2, 1: 3}, hosts=2),
        rails({0: 2, 1: 3}, other_list=True),
        case("28"),
        case("18"),
    ],
    ids=["aligned", "of two hosts none is odd", "lists differ", "case 28", "case 18"],
)
def test_no_rail_mismatch(text: str) -> None:
    assert "nccl-rail-mismatch" not in names(diagnose(read(text)))


def test_a_rank_that_also_uses_the_usual_adapter_is_no_mismatch() -> None:
    rank = Rank("h1", 2)
    more = rank.info("Channel 01/0 : 2[0] -> 4[0] [send] via NET/IB/0/GDRDMA")
    assert "nccl-rail-mismatch" not in names(diagnose(read(rails({0: 2}) + more + "\n")))


def test_an_interleaved_ring_is_one_run() -> None:
    ranks = pair()
    assert read(start(ranks) + ring(ranks)).run_starts == ()
