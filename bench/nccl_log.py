"""NCCL logs of 1,024 ranks: `gpudoctor nccl` against `grep -c NCCL` on the same files.

The budget is at most 6 times grep's time, and peak memory under 150 MiB whatever the size.
`python -m bench.nccl_log [GiB]` takes another size than 1 GiB; the files lie in the folder for
temporary files and are removed. gpudoctor runs as its user starts it, from start-up to report, on
one core and on all that there are: from 8 MiB on a second process reads ahead. Memory is that of
both, what they share counted once.

What is generated: a training job of 128 hosts with 8 GPUs each under NCCL_DEBUG=INFO. Each rank
starts the world communicator and up to 59 more (as tensor, pipeline, data and expert groups make
them), with 32 channels and four connections (ring and tree) a channel; between them it prints a
few lines of its own training loop. In the one large log the ranks are interleaved at random, line
by line, and the job is restarted as often as fills the size; of the many files each has one rank.
Then a log is followed, and the time from the line that proves a fallback until it is told.

Figures (Python 3.11, numpy 2.4), two cores with nothing beside:

                      grep      one core         both cores       peak
1 GiB                 0.72 s    5.9 s = 8.2x     3.7 s = 5.2x     117 MiB (6.1 s of processor)
4 GiB                 3.0 s                      15.0 s = 5.1x    128 MiB (25.8 s)
1,024 files, 1 MiB    0.48 s    3.9 s = 8.3x     2.6 s = 5.5x     96 MiB (4.7 s)
follow                          0.01 to 0.21 s

So 6 times holds on two cores, and not on one. There a MiB in the middle of a job takes about
2.7 ms to mark (finding lines, hashing those of channels) and 1.4 ms to read what is new in it
(260 lines), where grep takes 0.7; each start of the job adds 0.4 s, and the program's own 0.3 s.
Instructions, which do not mind what runs beside: 19.2 M a MiB, 4.6 times grep's 4.2 M (callgrind,
64 ranks).

A thread instead of a process made it slower by 22 to 85 %: each of a hundred short operations a
part waits for the interpreter. Parts of 128 to 768 KiB instead of 1 MiB are no faster to mark.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

RANKS, PER_HOST, CHANNELS, NICS = 1024, 8, 32, 8
BUDGET, AIM, MEMORY_MIB, SECONDS = 6.0, 3.0, 150, 1.0
_FILE_BYTES = 1 << 20
_FOLLOWED = 5
_SAMPLED_S = 0.05
_GPUDOCTOR = [sys.executable, "-m", "gpudoctor", "nccl"]


class Cost(NamedTuple):
    """What a command and its children took: processor and wall time in seconds; its output."""

    processor: float
    wall: float
    said: bytes


def rank_lines(rank: int, rounds: int) -> Iterator[str]:
    """What one rank prints."""
    host, device, pid = f"trainer-{rank // PER_HOST}", rank % PER_HOST, 4000 + rank % PER_HOST
    main = f"{host}:{pid}:{pid} [{device}] NCCL INFO "
    yield main + "cudaDriverVersion 12080\n"
    yield main + f"Bootstrap: Using eth0:10.1.{rank // 2048}.{rank // PER_HOST % 250}<0>\n"
    yield main + "NCCL version 2.25.1+cuda12.8\n"
    listed = " ".join(f"[{nic}]mlx5_{nic}:1/IB" for nic in range(NICS))
    yield main + f"NET/IB : Using {listed} [RO]; OOB eth0:10.1.0.1<0>\n"
    yield main + "Using network IB\n"
    for number in range(rounds):
        size = RANKS if number == 0 else (PER_HOST if number % 3 else RANKS // PER_HOST)
        yield from communicator(rank, size, number)
        for step in range(10):
            yield f"[2025-03-04 10:{step % 60:02d}:11] rank {rank} step {number * 10 + step} loss 2.{step:04d} grad_norm 0.41 tokens/s/gpu 412.7\n"  # noqa: E501


def communicator(rank: int, size: int, number: int) -> Iterator[str]:
    """The start of one communicator and its channels."""
    host, device, pid = f"trainer-{rank // PER_HOST}", rank % PER_HOST, 4000 + rank % PER_HOST
    head = f"{host}:{pid}:{pid + 100 + number} [{device}] NCCL INFO "
    own = rank if size == RANKS else (device if size == PER_HOST else rank // PER_HOST)
    group = 0 if size == RANKS else (rank // PER_HOST if size == PER_HOST else device)
    comm = f"ncclCommInitRankConfig comm 0x55{number:04x}{rank:06x} rank {own} nranks {size} cudaDev {device} nvmlDev {device} busId 1b000 commId 0x{number + 1:04x}{group:012x} - "  # noqa: E501
    yield head + comm + "Init START\n"
    local = size == PER_HOST
    nodes = 1 if local else RANKS // PER_HOST
    yield (
        head
        + f"comm 0x55{number:04x}{rank:06x} rank {own} nRanks {size} nNodes {nodes}"
        + f" localRanks 8 localRank {device} MNNVL 0\n"
    )
    yield head + "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1 [2] 1/-1/-1->0->-1\n"
    yield head + "P2P Chunksize set to 131072\n"
    before, after = (own - 1) % size, (own + 1) % size
    for channel in range(CHANNELS):
        start = f"{head}Channel {channel:02d}/0 : "
        if local or device not in (0, 7):
            for peer, its in ((after, device + 1), (before, device - 1)) * 2:
                yield f"{start}{own}[{device}] -> {peer}[{its % 8}] via P2P/CUMEM/read\n"
        else:
            net = f"via NET/IB/{channel % NICS}/GDRDMA"
            yield f"{start}{before}[{(device - 1) % 8}] -> {own}[{device}] [receive] {net}\n"
            yield f"{start}{own}[{device}] -> {after}[{(device + 1) % 8}] [send] {net}\n"
            yield f"{start}{after}[{(device + 1) % 8}] -> {own}[{device}] [receive] {net}\n"
            yield f"{start}{own}[{device}] -> {before}[{(device - 1) % 8}] [send] {net}\n"
    yield head + "Connected all rings, use ring PXN 0 GDR 1\n"
    yield head + "threadThresholds 8/8/64 | 8192/8/64 | 512 | 512\n"
    yield head + comm + "Init COMPLETE\n"


def generate(path: Path, size: int, seed: int = 7) -> None:
    """Write about `size` bytes: all ranks interleaved line by line."""
    rng = random.Random(seed)
    written = 0
    with path.open("w", encoding="ascii", buffering=1 << 20) as out:
        while written < size:
            live = [rank_lines(rank, 60) for rank in range(RANKS)]
            while live and written < size:
                index = int(rng.random() * len(live))
                line = next(live[index], None)
                if line is None:
                    live[index] = live[-1]
                    live.pop()
                    continue
                out.write(line)
                written += len(line)


def generate_files(folder: Path, size: int) -> list[Path]:
    """Write one file a rank, of about `size` bytes each."""
    paths = [folder / f"rank{rank:04d}.log" for rank in range(RANKS)]
    for rank, path in enumerate(paths):
        lines = list(islice(rank_lines(rank, 60), size // 80))
        path.write_text("".join(lines), encoding="ascii")
    return paths


def cost(command: list[str]) -> Cost:
    """Run a command to its end."""
    with tempfile.TemporaryFile() as out:
        begun = time.monotonic()
        process = subprocess.Popen(command, stdout=out)
        _, _, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - begun
        out.seek(0)
        return Cost(used.ru_utime + used.ru_stime, wall, out.read())


def peak(command: list[str]) -> float:
    """The most memory that a command and its children take together, in MiB; what they share
    counts once.
    """
    most = 0
    with psutil.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                both = [process, *process.children()]
                most = max(most, sum(each.memory_full_info().pss for each in both))
            except psutil.Error:
                pass  # one of them ended between the question and its answer
            time.sleep(_SAMPLED_S)
    return most / (1 << 20)


def compare(what: str, paths: Iterable[Path], rounds: int) -> None:
    """Print the ratios, the least of each taken in turns, so that both meet the same load, and the
    peak memory. One core, then all that there are.
    """
    files = [str(path) for path in paths]
    ours = [*_GPUDOCTOR, "-o", "json", *files]
    costs: dict[str, list[Cost]] = {"grep": [], "one core": [], "all cores": []}
    for _ in range(rounds):
        costs["grep"].append(cost(["grep", "-c", "NCCL", *files]))
        costs["one core"].append(cost(["taskset", "-c", "0", *ours]))
        costs["all cores"].append(cost(ours))
    memory = peak(ours)
    facts = msgspec.json.decode(costs["all cores"][0].said)["facts"]["nccl"]
    answer = " ".join(str(facts[name]) for name in ("network", "gdr", "ranks", "nodes", "runs"))
    grep = min(found.wall for found in costs["grep"])
    print(f"{what}: grep {grep:.2f} s; answer {answer}")
    for cores in ("one core", "all cores"):
        wall = min(found.wall for found in costs[cores])
        processor = min(found.processor for found in costs[cores])
        verdict = "ok" if wall <= BUDGET * grep else "OVER BUDGET"
        print(
            f"  {cores}: {wall:.2f} s = {wall / grep:.1f}x (budget {BUDGET:g}x, aim {AIM:g}x;"
            f" processor time {processor:.2f} s): {verdict}"
        )
    verdict = "ok" if memory < MEMORY_MIB else "OVER BUDGET"
    print(f"  peak {memory:.0f} MiB of both processes (budget {MEMORY_MIB}): {verdict}", flush=True)


def follow(path: Path) -> float:
    """Seconds from a line that proves a fallback, appended to a log, until it is told."""
    head = "trainer-0:4000:4000 [0] NCCL INFO "
    peer = "trainer-1:4000:4000 [0] NCCL INFO "
    start = f"{head}NCCL_IB_HCA set to mlx5\n{head}Using network Socket\n"
    start += f"{peer}Using network Socket\n"
    path.write_text(start)
    command = [*_GPUDOCTOR, "--follow", str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()
        time.sleep(random.Random(path.name).random())
        with path.open("a") as log:
            log.write(f"{head}Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n")
        begun = time.monotonic()
        while b"NCL001" not in process.stderr.readline():
            pass
        took = time.monotonic() - begun
        process.kill()
    return took


def run(gib: float = 1.0) -> None:
    """Print the ratios and the peak memory, and how soon a fallback is told."""
    # As where it is installed: compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nccl.log"
        generate(path, int(gib * (1 << 30)))
        compare(f"one log of {gib:g} GiB", [path], 3 if gib <= 1 else 1)
        path.unlink()
        files = generate_files(Path(folder), int(_FILE_BYTES * gib))
        compare(f"{len(files)} files of {gib:g} MiB", files, 2 if gib <= 1 else 1)
        waits = [follow(Path(folder) / f"followed{n}.log") for n in range(_FOLLOWED)]
    verdict = "ok" if max(waits) <= SECONDS else "OVER BUDGET"
    print(
        f"follow: a fallback is told {min(waits):.2f} to {max(waits):.2f} s after its line"
        f" (budget {SECONDS:g} s): {verdict}"
    )


if __name__ == "__main__":
    run(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
