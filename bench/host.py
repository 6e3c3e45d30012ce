"""`check` of a host with 8 GPUs and 10 NICs, as a whole process, live and from a recording.

The host lies on a disk as its root would be mounted in an agent: two RoCE cards with full GID
tables, all counters, and the processes of 60 containers. Reading it there goes through the same
child and the same system calls as /sys and /proc do. No program is started.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from gpudoctor.facts.node.rdma import COUNTERS
from gpudoctor.readings import host as hosts
from gpudoctor.sources.bundle import Bundle, HostRecording
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder
from tests.machines import gpu_uuid, on_disk, whole_machine

ROUNDS = 7
BUDGET_S = 2.0
ROCE_CARDS = 2
GIDS = 256
CONTAINERS = 60
FIRST_PID = 1000
_LIMITS = "Max locked memory         8388608              8388608              bytes\n"
_STATUS = "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\n" + "".join(
    f"Field{number}:\t{number}\n" for number in range(50)
)
_MOUNTS = "".join(
    f"{300 + number} 299 0:{number} / /mount/{number} rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs"
    " rw,size=65536k\n"
    for number in range(40)
)
PROCESSES = 8
"""A container's: the first is the one that counts, all are looked at."""


def _roce_card(number: int) -> dict[str, Any]:
    address = f"0000:{0xE0 + number:02x}:00.0"
    folder = f"/sys/devices/pci0000:e0/0000:e0:01.{number}/{address}"
    name = f"mlx5_{8 + number}"
    verbs = f"{folder}/infiniband/{name}"
    port = f"{verbs}/ports/1"
    tree: dict[str, Any] = {
        f"{folder}/vendor": "0x15b3\n",
        f"{folder}/class": "0x020000\n",
        f"{folder}/numa_node": "1\n",
        f"/sys/bus/pci/devices/{address}": {"link": f"../../..{folder[len('/sys') :]}"},
        f"/sys/class/infiniband/{name}": {"link": f"../..{verbs[len('/sys') :]}"},
        f"{verbs}/device": {"link": f"../../../{address}"},
        f"{port}/state": "4: ACTIVE\n",
        f"{port}/phys_state": "5: LinkUp\n",
        f"{port}/rate": "400 Gb/sec (4X NDR)\n",
        f"{port}/link_layer": "Ethernet\n",
    }
    for index in range(GIDS):
        used = index < 8
        tree[f"{port}/gids/{index}"] = (
            f"0000:0000:0000:0000:0000:ffff:0a00:{index:04x}\n" if used else ":".join(["0000"] * 8)
        )
        tree[f"{port}/gid_attrs/types/{index}"] = "RoCE v2\n" if used else ""
    return tree


def _counters(tree: dict[str, Any]) -> dict[str, Any]:
    ports = [path.removesuffix("/state") for path in tree if path.endswith("/ports/1/state")]
    return {f"{port}/{counter}": "0\n" for port in ports for counter in COUNTERS}


def _processes() -> dict[str, Any]:
    tree: dict[str, Any] = {"/proc/1/comm": "systemd\n"}
    for number in range(CONTAINERS):
        uid = f"00000000-0000-4000-8000-{number:012x}"
        cgroup = f"0::/kubepods/pod{uid}/{number:064x}\n"
        for process in range(PROCESSES):
            pid = FIRST_PID + number * PROCESSES + process
            tree |= {
                f"/proc/{pid}/cgroup": cgroup,
                f"/proc/{pid}/maps": "",
                f"/proc/{pid}/environ": "",
                f"/proc/{pid}/limits": _LIMITS,
                f"/proc/{pid}/status": _STATUS,
                f"/proc/{pid}/uid_map": "         0          0 4294967295\n",
                f"/proc/{pid}/mountinfo": _MOUNTS,
            }
    return tree


def _driver(tree: dict[str, Any]) -> dict[str, Any]:
    """What the driver tells of each GPU, by address as it numbers them."""
    gpus = sorted(path for path in tree if path.endswith("/vendor") and "10de" in tree[path])
    found: dict[str, Any] = {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
        "  580.126.09  Release Build\n",
        "/sys/module/nvidia/version": "580.126.09\n",
    }
    for number, path in enumerate(gpus):
        found[f"/proc/driver/nvidia/gpus/{path.split('/')[-2]}/information"] = (
            f"Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t {gpu_uuid(number)}\n"
            f"Device Minor: \t {number}\n"
        )
    return found


def machine() -> dict[str, Any]:
    """Return the tree of the whole host."""
    tree = whole_machine()
    for number in range(ROCE_CARDS):
        tree |= _roce_card(number)
    return tree | _counters(tree) | _processes() | _driver(tree)


def _measured(command: list[str]) -> tuple[float, float]:
    """Return seconds by the clock, and of the processor, children included."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(child.pid, 0)
    child.returncode = 0
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime


def run() -> None:
    """Print the medians against the budget; the rounds are interleaved, so load hits all alike."""
    with tempfile.TemporaryDirectory() as folder:
        root, recording = Path(folder) / "root", Path(folder) / "host.json"
        on_disk(machine(), root)
        with LiveHost(str(root)) as live:
            recorder = Recorder(live)
            hosts.read(recorder, hosts.LOCAL, None)
        bundle = Bundle(hosts={hosts.LOCAL: HostRecording(tree=recorder.tree)})
        recording.write_bytes(msgspec.json.encode(bundle))
        check = [sys.executable, "-m", "gpudoctor", "check"]
        commands = {
            "bare": [sys.executable, "-c", "pass"],
            "check, live": [*check, "--host-root", str(root)],
            "check --from its recording": [*check, "--from", str(recording)],
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                times[name].append(_measured(command))
    medians = {
        name: [statistics.median(column) for column in zip(*taken, strict=True)]
        for name, taken in times.items()
    }
    print(f"8 GPUs, 10 NICs, {CONTAINERS} containers: {len(recorder.tree)} files and folders")
    bare_clock, _ = medians.pop("bare")
    for name, (clock, processor) in medians.items():
        print(
            f"{name}: {clock:.2f} s (budget {BUDGET_S:g} s), {processor:.2f} s of processor, "
            f"{clock / bare_clock:.0f}x python3 -c pass"
        )
