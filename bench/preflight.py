"""`gpudoctor preflight` as a whole process on a healthy container, and beside a bare Python.

The rendezvous is measured apart: what it adds once all members are there.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpudoctor.sources.rendezvous import Plan, meeting, wire
from tests import nvml_library
from tests.cluster.control_plane import free_ports

BUDGET_S = 5.0
RUNS = 5
MEMBERS = 64
NEEDS = "gpus=8,nvlink,cuda=13.0,shm=1Gi,memlock=1Mi,numa"


def _seconds(command: list[str], environment: dict[str, str]) -> float:
    started = time.monotonic()
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    took = time.monotonic() - started
    assert ended.returncode == 0, ended.stdout.decode() + ended.stderr.decode()
    return took


def _meeting_seconds() -> float:
    """Let members meet over loopback, as threads: from the first one's start to the last end."""
    port = free_ports(1)[0]
    key = wire.key_of(b"0123456789abcdef")
    plans = [
        Plan(rank=rank, members=MEMBERS, host="127.0.0.1", key=key, port=port, timeout=60)
        for rank in range(MEMBERS)
    ]
    started = time.monotonic()
    with ThreadPoolExecutor(MEMBERS) as pool:
        outcomes = list(pool.map(lambda plan: meeting.meet(plan, {}, lambda _words: None), plans))
    took = time.monotonic() - started
    assert all(outcome.minutes is not None for outcome in outcomes)
    return took


def run() -> None:
    """Print the median of some runs against the budget."""
    with tempfile.TemporaryDirectory() as folder:
        nvml_library.build(Path(folder), "gpus=8")
        environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": folder}
        bare = [sys.executable, "-c", "pass"]
        whole = [sys.executable, "-m", "gpudoctor", "preflight", "--require", NEEDS]
        pairs = [(_seconds(bare, environment), _seconds(whole, environment)) for _ in range(RUNS)]
    python, preflight = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"preflight --require {NEEDS}, 8 GPUs by a library that answers at once")
    print(
        f"  {preflight:.2f} s (budget {BUDGET_S:g} s), {preflight / python:.0f} times a bare python"
    )
    met = statistics.median(_meeting_seconds() for _ in range(RUNS))
    tries = MEMBERS * (MEMBERS - 2)
    print(f"rendezvous of {MEMBERS} members in one process, {tries} tries to connect: {met:.2f} s")
