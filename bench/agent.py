"""The agent with all its children in a control group of its own: memory.peak and processor time.

`python -m bench.agent [--minutes M] [--period S]`; 3 minutes at a period of 5 s by default, for
the cost of a round; 30 minutes at 60 s is the soak of the design's budget. It needs root and
control groups (v2, or the memory and cpuacct ones of v1).

The host is the one of bench.host: 8 GPUs, 10 NICs, 480 processes of 60 containers, on a disk as an
agent has it mounted; 3,000 kernel threads as a machine of two big sockets has them; the kubelet's
pod-resources answer for 60 pods over gRPC, of which 8 have a GPU each; and an API over HTTPS.

Figures (Python 3.11, two cores shared with test runs at a load of 5 to 10, rounds at 5 s): 0.27 to
0.30 s of processor a round = 0.5 % of a core, 4 bare interpreters under the same load; 0.02 s of it
is the parent's and 0.1 s of what reads the machine. Between rounds the parent takes another 0.02 s
a minute. memory.peak 60 MiB, parent 38 MiB, no write but the Lease. 30 minutes at 60 s under that
load: 0.33 s a round = 0.55 %, memory.peak 69 MiB, parent 39 MiB, no write but the Lease.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.host import CONTAINERS, FIRST_PID, PROCESSES, machine
from tests import kubelet
from tests.agent import running
from tests.agent.small_cluster import NODE, SmallCluster
from tests.kubernetes_objects import container, node, pod
from tests.machines import gpu_uuid, on_disk

PERIOD_S = 60.0
BUDGET_SHARE, BUDGET_PEAK_MIB, BUDGET_PARENT_MIB = 0.01, 128, 45
KERNEL_THREADS = 3000
GPU_PODS = 8
_V2 = Path("/sys/fs/cgroup/cgroup.controllers")


class Group:
    """A control group, of whichever version has memory and processor accounting here."""

    def __init__(self, name: str) -> None:
        self._is_v2 = _V2.exists()
        base = Path("/sys/fs/cgroup")
        parts = [base] if self._is_v2 else [base / "memory", base / "cpuacct"]
        self._folders = [part / name for part in parts]
        for folder in self._folders:
            folder.mkdir()

    @property
    def joining(self) -> str:
        """The shell words that put a process into it."""
        return " && ".join(f"echo $$ > {folder}/cgroup.procs" for folder in self._folders)

    def peak_mib(self) -> float:
        name = "memory.peak" if self._is_v2 else "memory.max_usage_in_bytes"
        return int((self._folders[0] / name).read_text()) / 2**20

    def seconds(self) -> float:
        """Processor time of all that ever ran in it."""
        if self._is_v2:
            lines = (self._folders[0] / "cpu.stat").read_text().split()
            return int(lines[lines.index("usage_usec") + 1]) / 1e6
        return int((self._folders[1] / "cpuacct.usage").read_text()) / 1e9

    def remove(self) -> None:
        """Remove it as soon as the last process in it has ended."""
        for folder in self._folders:
            while (folder / "cgroup.procs").read_text():
                time.sleep(0.1)
            folder.rmdir()


@contextlib.contextmanager
def grouped() -> Iterator[Group]:
    group = Group(f"gpudoctor-bench-{time.time_ns()}")
    try:
        yield group
    finally:
        group.remove()


def lay_out(root: Path) -> None:
    """Write the host's tree, with the kernel's own threads and what containers see in /dev."""
    tree: dict[str, Any] = machine()
    for number in range(CONTAINERS):
        inside = f"/proc/{FIRST_PID + number * PROCESSES}/root/dev"
        tree[f"{inside}/null"] = ""
        if number < GPU_PODS:
            tree[f"{inside}/nvidia{number}"] = ""
    threads = range(10_000, 10_000 + KERNEL_THREADS)
    tree |= {f"/proc/{pid}/cgroup": "0::/\n" for pid in (2, *threads)}
    tree["/proc/2/stat"] = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1 0 14\n"
    tree["/proc/2/task/2/children"] = " ".join(map(str, threads))
    on_disk(tree, root)


def cluster() -> SmallCluster:
    """Return the API of the node and its pods, of which some have a GPU."""
    capacity = {"nvidia.com/gpu": "8", "cpu": "224", "memory": "2113393616Ki", "pods": "110"}
    served = SmallCluster(node(NODE, allocatable=capacity))
    for number in range(CONTAINERS):
        limits = {"nvidia.com/gpu": "1"} if number < GPU_PODS else {"cpu": "1"}
        env = [{"name": f"SETTING_{i}", "value": "x" * 40} for i in range(30)]
        served.put_pod(
            pod(
                f"work-{number}",
                "team",
                containers=[container(limits=limits, env=env)],
                node=NODE,
                phase="Running",
                meta={"uid": f"00000000-0000-4000-8000-{number:012x}"},
            )
        )
    return served


def measure(minutes: float, period_s: float) -> None:
    """Run the agent for so long and print its figures."""
    listed = [
        kubelet.pod(f"work-{i}", namespace="team", gpu=[gpu_uuid(i)]) for i in range(GPU_PODS)
    ]
    listed += [kubelet.pod(f"work-{i}", namespace="team") for i in range(GPU_PODS, CONTAINERS)]
    answer = kubelet.encode({"podResources": listed})
    # A short path: a unix socket's may have 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as name, grouped() as group:
        folder = Path(name)
        lay_out(folder / "root")
        served = cluster()
        with (
            kubelet.serving(folder / "root", lambda _context: answer),
            running.api_of(served, folder) as (_, kubeconfig),
        ):
            words = running.command(kubeconfig, root=folder / "root", period=period_s)
            started = ["sh", "-c", f'{group.joining} && exec "$@"', "agent", *words]
            with running.running(started, folder / "log") as agent:
                bound = 60 + 3 * period_s
                served.wait("second round", lambda: served.renewals() >= 2, bound)
                _figures(minutes, period_s, group, served, agent)
                agent.stop()


def _figures(
    minutes: float, period_s: float, group: Group, served: SmallCluster, agent: running.Agent
) -> None:
    before, rounds, writes = group.seconds(), served.renewals(), len(served.other_writes())
    time.sleep(minutes * 60)
    spent, rounds = group.seconds() - before, served.renewals() - rounds
    bare = _bare()
    print(
        f"{minutes:g} min, {rounds} rounds at {period_s:g} s: {spent / rounds:.2f} s of processor a"
        f" round = {spent / rounds / PERIOD_S:.2%} of a core at {PERIOD_S:.0f} s"
        f" (budget {BUDGET_SHARE:.0%}), {spent / rounds / bare:.0f}x python3 -c pass"
    )
    print(f"  memory.peak {group.peak_mib():.0f} MiB (budget {BUDGET_PEAK_MIB})")
    print(f"  parent {_rss_mib(agent.process.pid):.1f} MiB (budget {BUDGET_PARENT_MIB})")
    print(f"  writes other than the Lease: {len(served.other_writes()) - writes}")
    for line in agent.said().splitlines()[-5:]:
        print(f"  it says: {line}")


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _bare() -> float:
    """The processor time of a bare interpreter, for scale: this machine may be busy."""
    import os
    import sys

    times = []
    for _ in range(9):
        child = subprocess.Popen([sys.executable, "-c", "pass"])
        _, _, usage = os.wait4(child.pid, 0)
        child.returncode = 0
        times.append(usage.ru_utime + usage.ru_stime)
    return sorted(times)[len(times) // 2]


def run() -> None:
    """Print the figures of a short run."""
    measure(3, 5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--period", type=float, default=5)
    given = parser.parse_args()
    measure(given.minutes, given.period)
