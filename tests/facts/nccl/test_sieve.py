"""The quick way through large logs gives the answer of the slow one, to the last line number."""

# ruff: noqa: E501 - NCCL's lines are long, and are easier to compare whole

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpudoctor.facts.nccl import parse
from tests.facts.nccl.test_parser import PREFIXES
from tests.nccl_logs import Rank, comm, diagnose, names, start

pytest.importorskip("gpudoctor.facts.nccl._sieve")

CASES = sorted((Path(__file__).parent.parent.parent / "cases/nccl").glob("*.log"))
LINE = "pod-{0}:{1}:{2} [{3}] NCCL INFO Channel {4:02d}/0 : {5}[{3}] -> {6}[{3}] {7}"
LARGE = 80_000
WAYS = (
    "[send] via NET/IB/{0}/GDRDMA",
    "[receive] via NET/IB/{0}",
    "via P2P/CUMEM/read",
    "[send] via NET/AWS Libfabric/{0}/GDRDMA/Shared",
)


def both(text: str) -> None:
    """Compare a few large pieces, which are sieved, with many small ones, which are not."""
    raw = text.encode()
    assert len(raw) > 3 * LARGE
    assert parse(pieces(raw, LARGE), "x.log") == parse(pieces(raw, 5000), "x.log")


def pieces(raw: bytes, size: int) -> list[bytes]:
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def talk(rng: random.Random, *, dev: int = 8) -> list[str]:
    """Four thousand lines of some processes, among them other lines than channels."""
    lines = []
    for _ in range(4000):
        host, device = rng.randrange(12), rng.randrange(dev)
        pid = 40 + device * rng.choice((1, 1, 100))
        thread = pid + rng.choice((0, 5, 3000, 400000))
        way = rng.choice(WAYS).format(rng.randrange(3))
        peer = rng.randrange(20)
        lines.append(
            LINE.format(host, pid, thread, device, rng.randrange(40), host, peer, way)
            if rng.random() < 0.9
            else rng.choice(
                (
                    f"step {peer}",
                    f"pod-{host}:{pid}:{thread} [{device}] NCCL INFO Trees [0] 1/-1/-1->0->-1",
                    f"pod-{host}:{pid}:{thread} [{device}] NCCL INFO Connected all rings"
                    f"pod-{host}:{pid}:{thread} [{device}] NCCL INFO NET/IB : No device found.",
                    f"pod-{host}:{pid}:{thread} [{device}] NCCL INFO Bootstrap: Using eth0:10.0.0.1",
                    f"pod-{host}:{pid}:{thread} [{device}] NCCL INFO comm 0x5{device} rank"
                    f" {device} nranks {rng.choice((8, 8, 8, 96))} commId 0x{peer} - Init START",
                    f"pod-{host}:{pid}:x{thread} [{device}] NCCL INFO Channel 00/0 : 9[0] -> 1[0]"
                    " via SHM/direct/direct",
                    f"pod-{host}:{pid}:{thread} [{device}] t.cc:1 NCCL WARN NET/IB : Got async event"
                    " : port error",
                )
            )
        )
    return lines


@pytest.mark.parametrize("seed", range(6))
def test_random_talk_with_restarts_and_changing_communicators(seed: int) -> None:
    both("\n".join(talk(random.Random(seed), dev=8 if seed % 2 else 16)) + "\n")


@pytest.mark.parametrize("form", PREFIXES.values(), ids=PREFIXES.keys())
def test_any_prefix(form: str) -> None:
    lines = talk(random.Random(3))
    both("\n".join(form.format(line, n=number) for number, line in enumerate(lines)) + "\n")


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_cases_in_a_long_log(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    filler = "\n".join(line for line in talk(random.Random(1)) if "Channel" in line)
    both(f"{text}\n{filler}\n{text}")


def test_one_line_among_many_alike_is_not_lost() -> None:
    ranks = [Rank(f"node-{n}", n) for n in range(16)]
    lines = start(ranks)
    for step in range(200):
        for rank in ranks:
            peer = (rank.rank + 1) % 16
            via = "NET/IB/0" if rank.rank == 7 and step == 150 else "NET/IB/0/GDRDMA"
            lines.append(
                rank.info(
                    f"Channel {step % 32:02d}/0 : {rank.rank}[0] -> {peer}[0] [send] via {via}"
                )
            )
    lines += [rank.info(comm(rank, 16) + "- Init COMPLETE") for rank in ranks]
    log = parse(pieces(("\n".join(lines) + "\n").encode(), LARGE), "x.log")
    assert [use.host for use in log.net if not use.gdr] == ["node-7"]
    assert "gdr-partial" in names(diagnose(log))


def test_what_only_looks_like_another_line_does_not_hide_it() -> None:
    rank = Rank("node-a", 0)
    lines = [
        rank.info(f"Channel {n % 32:02d}/0 : 0[0] -> 1[0] [send] via NET/IB/0") for n in range(2000)
    ]
    # No thread's id, so no record; the hash leaves the thread out.
    odd = rank.info("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0")
    lines[1000:1000] = [odd.replace(":600 ", ":x00 ")] * 2 + [odd]
    log = parse(pieces(("\n".join([*lines, *lines]) + "\n").encode(), LARGE), "x.log")
    assert {use.network for use in log.net} == {"IB", "Socket"}


def test_after_a_restart_channels_are_read_again() -> None:
    rank = Rank("node-a", 0)
    channels = [
        rank.info(f"Channel {n % 32:02d}/0 : 0[0] -> 1[0] [send] via NET/IB/0") for n in range(1500)
    ]
    raw = ("\n".join((start([rank]) + channels) * 2) + "\n").encode()
    log = parse(pieces(raw, LARGE), "x.log")
    assert log.runs == 2
    assert [host.processes for host in log.hosts] == [2]
    assert log.grid
    assert log.net


def test_of_more_channels_than_are_remembered_none_is_lost_after_a_restart() -> None:
    rank = Rank("node-a", 0)
    channels = [
        rank.info(f"Channel 00/1 : 0[0] -> {peer}[0] [send] via NET/IB/0/Shared")
        for peer in range(1, 3000)
    ]
    lines = []
    for size in (3000, 3001):
        lines += [*start([rank], nranks=size, comm_id=f"0x{size}"), *channels]
    raw = ("\n".join(lines) + "\n").encode()
    assert parse([raw], "x.log") == parse(pieces(raw, 5000), "x.log")


def test_what_is_glued_to_a_channel_is_not_its_way() -> None:
    rank = Rank("node-a", 0)
    lines = [rank.info(f"Channel 00/0 : 0[0] -> {n % 900}[0] via SHM") for n in range(4000)]
    lines[2000] = rank.info("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0 NCCL CALL a")
    both("\n".join(lines) + "\n")


def test_a_line_torn_before_another_does_not_lend_it_its_name() -> None:
    one, other = Rank("node-a", 0), Rank("node-b", 1)
    lines = [
        rank.info(f"Channel 00/0 : {rank.rank}[0] -> {n % 900}[0] [send] via NET/IB/{n % 3}")
        for n in range(4000)
        for rank in (one, other)
    ]
    torn = one.info("Channel 00/0 : ").replace(":600 ", ":x00 ")
    lines[100] = torn + other.info("Channel 00/0 : 1[0] -> 2[0] [send] via NET/Socket/0")
    lines[7000] = one.info("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/1")
    both("\n".join(lines) + "\n")


@pytest.mark.parametrize("between", [0, 2000], ids=["in-one-part", "in-the-next-part"])
def test_channels_of_a_wider_communicator_are_heard_anew(between: int) -> None:
    rank = Rank("node-a", 0)
    channels = [
        rank.info(f"Channel {n % 32:02d}/0 : 0[0] -> 1[0] [send] via NET/IB/0") for n in range(500)
    ]
    filler = ["step 5 of a training loop that says nothing of networks"] * between
    begin = [rank.info(f"{comm(rank, size, f'0x{size}')}- Init START") for size in (2, 4)]
    raw = "\n".join([*start([rank]), begin[0], *channels, begin[1], *filler, *channels * 4, ""])
    log = parse(pieces(raw.encode(), len(raw) // 2 + 1), "x.log")
    assert log == parse(pieces(raw.encode(), 5000), "x.log")
    assert log.grid


def test_what_was_said_before_a_wider_communicator_is_heard_again_in_the_next_piece() -> None:
    rank = Rank("node-a", 0)
    channels = [
        rank.info(f"Channel {n % 32:02d}/0 : 0[0] -> 1[0] [send] via NET/IB/0") for n in range(1500)
    ]
    before = start([rank], nranks=8) + channels + start([rank], nranks=16, comm_id="0xabc2")[-2:]
    raw = [("\n".join(lines) + "\n").encode() for lines in (before, channels)]
    assert min(map(len, raw)) > LARGE
    assert parse(raw, "x.log").grid
