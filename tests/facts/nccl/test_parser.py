"""Reading NCCL logs: any prefix, any cut, any interleaving, any bytes."""

# ruff: noqa: E501 - NCCL's lines are long, and are easier to compare whole

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.nccl import parse
from gpudoctor.facts.nccl.model import NcclLog
from gpudoctor.facts.nccl.parser import Parser
from gpudoctor.facts.nccl.versions import from_integer, parts, path_type
from tests.nccl_logs import Rank, comm, diagnose, pair, read, ring, start

CASES = sorted((Path(__file__).parent.parent.parent / "cases/nccl").glob("*.log"))
PREFIXES = {
    "mpirun": "[1,3]<stdout>:{}",
    "srun": "3: {}",
    "launcher": "[3] {}",
    "torchrun": "[rank3]:{}",
    "torchx": "[trainer3|0]:{}",
    "deepspeed": "worker-0: {}",
    "ray": "(RayWorkerWrapper pid=539, ip=10.0.0.4) {}",
    "ray colour": "\x1b[36m(RayWorkerWrapper pid=539)\x1b[0m {}",
    "vllm": "(EngineCore_DP0 pid=77) {}",
    "kubectl timestamps": "2025-03-04T10:10:00.00000{n:04d}Z {}",
    "kubectl prefix": "[pod/trainer-0/main] {}",
    "cri": "2025-03-04T10:10:00.00000{n:04d}Z stdout F {}",
    "cloudwatch": "  | 2025-06-21T08:17:40.{n:04d}-07:00 | {}",
    "quote": "> {}",
    "frame": "│ {} │",
    "syslog": "Mar  4 10:10:00 node7 trainer[123]: {}",
    "nccl time": "[2025-03-04 10:10:{n:04d}] {}",
    "colour": "\x1b[32m{}\x1b[0m",
    "progress bar": " 40%|####      | {n}/9999\r{}",
    "nested": "[pod/x/y] 2025-03-04T10:10:00.00000{n:04d}Z [1,3]<stderr>:{}",
}


def answer(log: NcclLog) -> dict[str, object]:
    """What may not depend on cuts and order: all but line numbers and which line came first."""
    return {
        "network": log.network,
        "gdr": log.gdr,
        "ranks": log.ranks,
        "nodes": log.nodes,
        "multi": log.multi_node,
        "versions": log.versions,
        "hosts": log.hosts,
        "comms": sorted((c.id, c.started, c.completed, c.hosts) for c in log.communicators),
        "settings": sorted((s.name, s.value, s.hosts) for s in log.settings),
        "net": sorted((u.host, u.network, u.nic, u.direction, u.gdr) for u in log.net),
        "events": sorted((e.kind, e.host, e.count, e.ranks) for e in log.events),
        "grid": [[log.transports[code] for code in row.codes] for row in log.grid],
        "work": sorted((w.group, w.rank, w.enqueued or -1, w.timed_out or -1) for w in log.work),
    }


def job() -> list[list[str]]:
    """The lines of a job, one list a rank, each in its own order."""
    ranks = [Rank(f"n{r // 2}", r, device=r % 2) for r in range(4)]
    streams = [start([rank], nranks=4) for rank in ranks]
    for rank, stream in zip(ranks, streams, strict=True):
        stream += [line for line in ring(ranks) if line.startswith(f"{rank.host}:{rank.pid}:")]
    streams[2].append(ranks[2].warn("NET/IB : Got async event : port error").strip())
    return streams


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_cases(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())["expect"]
    log = parse([path.read_bytes()], path.name)
    assert [log.network, log.gdr, str(log.ranks), str(log.nodes)] == [
        expected["network"],
        expected["gdr"],
        str(expected["ranks"]),
        str(expected["nodes"]),
    ]
    report = diagnose(log)
    found = {finding.name for finding in report.findings}
    assert {finding["name"] for finding in expected["findings"]} <= found
    assert not set(expected.get("must_not_flag", [])) & found
    lead = [f["name"] for f in expected["findings"] if f["severity"] != "info" and "cause" not in f]
    assert list(report.roots[:1]) == lead[:1]


@pytest.mark.parametrize("form", PREFIXES.values(), ids=PREFIXES.keys())
def test_any_prefix(form: str) -> None:
    lines = [line for stream in job() for line in stream]
    dressed = [form.format(line, n=number) for number, line in enumerate(lines)]
    assert answer(read(dressed)) == answer(read(lines))


@pytest.mark.parametrize("key", ["log", "message"])
def test_json_lines(key: str) -> None:
    lines = [line for stream in job() for line in stream]
    wrapped = [
        json.dumps({key: line + "\n", "stream": "stderr", "time": f"2025-03-04T10:10:{n}Z"})
        for n, line in enumerate(lines)
    ]
    assert answer(read(wrapped)) == answer(read(lines))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@settings(deadline=None, max_examples=30)
@given(st.integers(1, 200), st.randoms(use_true_random=False))
def test_cuts_and_interleaving_do_not_matter(end: str, size: int, rng: random.Random) -> None:
    streams = job()
    expected = answer(read([line for stream in streams for line in stream]))
    left = [list(stream) for stream in streams]
    mixed = []
    while any(left):
        mixed.append(rng.choice([stream for stream in left if stream]).pop(0))
    raw = (end.join(mixed) + end).encode()
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    assert answer(parse(pieces)) == expected


@settings(deadline=None, max_examples=10)
@given(st.permutations(range(4)))
def test_one_file_a_rank_in_any_order(order: list[int]) -> None:
    streams = job()
    parser = Parser()
    for index in order:
        parser.open(f"rank{index}.log")
        parser.feed("\n".join(streams[index]).encode())
    got = answer(parser.finish())
    assert got == answer(read([line for stream in streams for line in stream]))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.binary(max_size=200), max_size=30))
def test_any_bytes(chunks: list[bytes]) -> None:
    log = parse(chunks)
    assert log.lines >= 0
    diagnose(log)


_WORDS = st.sampled_from(
    [
        "NCCL INFO ", "NCCL WARN ", "a:1:2 [0] ", "Channel 00/0 : ", "0[0] -> 1[1] ", "via ", "NET/",
        "IB/0", "99999999999999999999", "comm 0x1 rank 0 nranks 2 ", "- Init START", "\n", "\r", "{\"",
        "Using ", "Bootstrap : Using x", "GPU Direct RDMA Disabled for ", "GPU 1 / HCA 2 (distance 9 > 99999)",
        "NCCL version ", "2.99.9", "Got completion with error ", "12", "\x1b[31m", "│", "[receive] ", "x.cc:1 -> 2",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=", "[Rank 3] ", "last enqueued work: 1, last completed work: 2",
        "Call to ibv_modify_qp failed with ", "set by environment to ", "NCCL_IB_HCA ", "[repeated 3x across cluster]",
    ]
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.lists(_WORDS, max_size=40))
def test_any_mix_of_its_own_words(words: list[str]) -> None:
    report = diagnose(read("".join(words)))
    assert not [gap for gap in report.unknown if "the check failed" in gap.why]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_cut_at_both_ends_raises_no_alarm(first: int, last: int) -> None:
    text = "\n".join(start(pair()) + ring(pair()))
    first, last = sorted((first % len(text), last % len(text)))
    assert diagnose(read(text[first:last])).roots == ()


def test_two_records_glued_in_one_line() -> None:
    a, b = pair()
    glued = a.info("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0") + b.info(
        "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/0"
    )
    log = read([b.info("Using network Socket"), glued])
    assert {(use.host, use.network) for use in log.net} == {("node-a", "IB"), ("node-b", "Socket")}


def test_huge_line_is_cut_and_the_next_one_read() -> None:
    a = Rank("n", 0)
    text = "x" * 5_000_000 + "\n" + a.info("Using network IB") + "\n"
    log = parse([text[at : at + 70_000].encode() for at in range(0, len(text), 70_000)])
    assert log.chosen[0][1] == "IB"


@pytest.mark.parametrize("before", ["", "--", ".-", "10:00:01:", "a" * 60_000 + " "])
def test_a_host_begins_where_its_name_does(before: str) -> None:
    log = read([f"{before}pod-1.x:40:41 [0] NCCL INFO Using network IB"])
    assert [host.name for host in log.hosts] == ["pod-1.x"]


def test_old_rings_of_2_4() -> None:
    a, b = pair()
    log = read(
        [
            a.info("Ring 00 : 1 -> 0 [receive] via NET/IB/0/GDRDMA"),
            a.info("Ring 00 : 0 -> 1 [send] via NET/IB/0"),
            b.info("Ring 00 : 0[1] -> 1[1] via direct shared memory"),
        ]
    )
    assert (log.network, log.gdr, log.multi_node) == ("IB", "partial", True)


@pytest.mark.parametrize(
    ("via", "network", "gdr"),
    [
        ("NET/IB/3(7)/GDRDMA", "IB", True),
        ("NET/IB/3/GDRDMA(PCI)", "IB", True),
        ("NET/IB/3/Shared", "IB", False),
        ("NET/IB/3/GDRDMA/Shared/flush=1", "IB", True),
        ("NET/AWS Libfabric/0/GDRDMA/Shared", "AWS Libfabric", True),
        ("NET/IBext_v8/11/GDRDMA", "IBext_v8", True),
        ("NET/Socket/0", "Socket", False),
    ],
)
def test_network_channels(via: str, network: str, gdr: bool) -> None:
    (use,) = read(pair()[0].info(f"Channel 00/0 : 0[0] -> 8[0] [send] via {via}")).net
    assert (use.network, use.gdr) == (network, gdr)


def test_merged_adapters_count_as_listed() -> None:
    a = Rank("n", 0)
    log = read(
        a.info(
            "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [1]mlx5_2:1/RoCE [RO]; OOB e:1<0>"
        )
    )
    assert len(log.adapters[0].devices) == 2
    assert read(a.info("NET/IB : Using [RO]; OOB eth0:10.0.0.1<0>")).adapters == ()


def test_a_restart_with_the_same_pids_is_a_second_run() -> None:
    ranks = pair()
    first = start(ranks) + ring(ranks)
    second = start(ranks, comm_id="0xdef") + ring(ranks)
    assert read(first + second).runs == 2
    assert [host.ranks for host in read(first + first).hosts] == [(0,), (1,)]
    assert read(first).runs == 1


def test_communicators_of_one_process_are_kept_apart() -> None:
    ranks = pair()
    lines = start(ranks) + ring(ranks) + [
        ranks[0].info("ncclCommSplit comm 0x77 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 parent 0x5564 splitCount 1 color 0 key 0- Init START"),
        ranks[0].info("ncclCommSplit comm 0x77 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 parent 0x5564 splitCount 1 color 0 key 0 - Init COMPLETE"),
    ]  # fmt: skip
    log = read(lines)
    assert sorted(comm.nranks for comm in log.communicators) == [1, 2]
    assert log.ranks == 2


def test_ray_folding_is_noticed() -> None:
    a = Rank("n", 0)
    line = (
        a.info(comm(a, 8) + "- Init COMPLETE")
        + " [repeated 7x across cluster] (Ray deduplicates logs)"
    )
    assert read(line).deduplicated


def test_memory_is_bounded_by_ranks_and_not_by_lines() -> None:
    parser = Parser()
    parser.open("x")
    a = Rank("n", 0)
    for number in range(20_000):
        parser.feed(
            f"2025-01-01T00:00:00.{number:09d}Z ".encode()
            + a.info(
                f"Channel {number % 32:02d}/0 : 0[0] -> 1[0] [send] via NET/IB/{number % 8}"
            ).encode()
            + b"\n"
        )
    log = parser.finish()
    assert len(log.net) == 8
    assert len(msgspec.json.encode(log)) < 20_000


def test_memory_does_not_grow_with_restarts() -> None:
    parser = Parser()
    parser.open("x")
    ranks = pair()
    for number in range(6):
        lines = start(ranks, comm_id=f"0xabc{number}") + ring(ranks)
        parser.feed(("\n".join(lines) + "\n").encode())
    log = parser.finish()
    assert len(parser.book.processes) == 2 * len(ranks)
    assert [host.processes for host in log.hosts] == [6, 6]
    assert (log.runs, log.network, log.gdr) == (6, "IB", "all")
    assert all(comm.completed == (0, 1) for comm in log.communicators[:1])


def test_what_failed_before_a_restart_is_kept() -> None:
    a, b = pair()
    lines = start([a, b]) + ring([a, b])
    failing = [a.warn("NET/IB : Got async event : port error"), a.info("transport.cc:1 -> 6")]
    log = read([*lines, *lines, *failing, *lines, *lines])
    assert log.runs == 4
    assert [host for host, _ in log.failed] == ["node-a"]
    assert [event.kind for event in log.events] == ["async"]


def test_communicators_of_the_same_ranks_stay_apart() -> None:
    ranks = pair()
    lines = [
        rank.info(comm(rank, 2, comm_id) + f"- Init {phase}")
        for comm_id in ("0x1", "0x2")
        for phase in ("START", "COMPLETE")
        for rank in ranks
    ]
    late = Rank("node-c", 7)
    lines.append(late.info(comm(late, 2, "0x2") + "- Init START"))
    first, second = read(lines).communicators
    assert (first.started, first.completed) == ((0, 1), (0, 1))
    assert (second.started, second.completed) == ((0, 1, 7), (0, 1))


def test_versions() -> None:
    assert parts("2.6.4ali+cuda10") == (2, 6, 4)
    assert parts("nonsense") is None
    assert (from_integer(22304), from_integer(2708)) == ("2.23.4", "2.7.8")
    assert path_type(7, "2.18.5") == "SYS"
    assert path_type(7, "2.26.2") == "PHB"
    assert path_type(8, "2.27.3") == "PHB"
    assert path_type(7, None) == "7"


@pytest.mark.parametrize(
    ("printed", "address"),
    [
        ("1b000", "0000:1b:00.0"),
        ("1000", "0000:01:00.0"),
        ("101d00", "0001:01:d0.0"),
        ("901001", "0009:01:00.1"),
    ],
)
def test_bus_ids_are_addresses(printed: str, address: str) -> None:
    a = Rank("node-a", 0)
    text = a.info(comm(a, 1) + "- Init START").replace("busId 1b000", f"busId {printed}")
    channel = a.info("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/3/GDRDMA")
    (rail,) = read([text, channel]).rails
    assert rail.bus == address


def test_adapters_of_another_rank_are_not_its_own() -> None:
    a = Rank("node-a", 0)
    lines = [
        *start([a]),
        a.info("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/3(2)/GDRDMA"),
        a.info("Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1"),
        a.info("Channel 02/0 : 1[0] -> 0[0] [receive] via NET/IB/1/GDRDMA"),
    ]
    (rail,) = read(lines).rails
    assert (rail.nics, rail.own, rail.bare) == ((1, 3), (1,), (1,))
