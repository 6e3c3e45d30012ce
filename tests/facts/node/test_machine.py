"""One machine, three ways: its tree on a disk, recorded in a bundle, and real processes here."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.facts.node import machine, process
from gpudoctor.facts.node.model import UNLIMITED
from gpudoctor.report import Subject
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorded import RecordedHost
from tests import parts

HOST = Subject("Host", "test")
DEVICES = "/sys/bus/pci/devices"


def whole_machine(sockets: int = 2, per_socket: int = 4) -> dict[str, Any]:
    """Return the tree of a machine with switches: a GPU and a NIC below each, as HGX has them."""
    tree: dict[str, Any] = {}
    for socket in range(sockets):
        tree[f"/sys/devices/system/node/node{socket}/cpulist"] = (
            f"{socket * 56}-{socket * 56 + 55}\n"
        )
        for slot in range(per_socket):
            bus = 0x10 + socket * 0x80 + slot * 0x10
            root = f"/sys/devices/pci0000:{bus:02x}"
            switch = f"{root}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
            gpu, nic = f"0000:{bus + 3:02x}:00.0", f"0000:{bus + 4:02x}:00.0"
            name = f"mlx5_{socket * per_socket + slot}"
            for port, address, vendor, class_ in (
                ("00", gpu, "0x10de", "0x030200"),
                ("01", nic, "0x15b3", "0x020700"),
            ):
                folder = f"{switch}/0000:{bus + 2:02x}:{port}.0/{address}"
                tree |= {
                    f"{folder}/vendor": f"{vendor}\n",
                    f"{folder}/class": f"{class_}\n",
                    f"{folder}/numa_node": f"{socket}\n",
                    f"{folder}/local_cpulist": f"{socket * 56}-{socket * 56 + 55}\n",
                    f"{folder}/max_link_width": "16\n",
                    f"{folder}/current_link_width": "16\n",
                    f"{DEVICES}/{address}": {"link": "../../.." + folder[len("/sys") :]},
                }
                if vendor == "0x15b3":
                    verbs = f"{folder}/infiniband/{name}"
                    tree |= {
                        f"{verbs}/ports/1/state": "4: ACTIVE\n",
                        f"{verbs}/ports/1/phys_state": "5: LinkUp\n",
                        f"{verbs}/ports/1/rate": "400 Gb/sec (4X NDR)\n",
                        f"{verbs}/ports/1/link_layer": "InfiniBand\n",
                        f"{verbs}/hca_type": "MT4129\n",
                        f"{verbs}/device": {"link": "../../../" + address},
                        f"/sys/class/infiniband/{name}": {"link": "../.." + verbs[len("/sys") :]},
                    }
    return tree


def on_disk(tree: dict[str, Any], root: Path) -> None:
    for path, entry in tree.items():
        place = root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, dict):
            place.symlink_to(entry["link"])
        else:
            place.write_text(entry)


def test_the_disk_and_the_recording_say_the_same(tmp_path: Path) -> None:
    tree = whole_machine()
    on_disk(tree, tmp_path)
    with LiveHost(str(tmp_path)) as live:
        seen = machine.read(live, HOST)
    recorded = machine.read(RecordedHost(tree, roots=["/"]), HOST)
    assert seen == recorded
    assert len(seen.gpus) == 8
    topology = seen.topology
    assert topology is not None
    assert [topology.near_nics(gpu) for gpu in topology.gpus] == [
        (f"mlx5_{index}",) for index in range(8)
    ]
    assert topology.path("GPU0", "GPU1") == "NODE"
    assert topology.path("GPU0", "GPU7") == "SYS"
    assert topology.path("GPU0", "NIC0") == "PIX"


@pytest.mark.parametrize("memlock", [64 << 10, 4 << 20])
def test_limits_of_a_real_process(memlock: int) -> None:
    child = subprocess.Popen(
        ["sleep", "1000"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock, memlock)),
    )
    try:
        with LiveHost() as live:
            found = process.read_process(live, str(child.pid))
    finally:
        child.kill()
        child.wait()
    assert (found.memlock_soft, found.memlock_hard) == (memlock, memlock)
    assert found.uid == os.getuid()
    assert found.cpus == frozenset(os.sched_getaffinity(0))
    assert found.own_user_namespace is (
        Path("/proc/self/uid_map").read_text().split()[0::2] != ["0", "4294967295"]
    )


def test_a_user_namespace_takes_the_right_away() -> None:
    child = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "sleep", "1000"], stderr=subprocess.DEVNULL
    )
    try:
        with LiveHost() as live:
            while b"unshare" in Path(f"/proc/{child.pid}/cmdline").read_bytes():
                if child.poll() is not None:
                    parts.missing("user namespaces")
            found = process.read_process(live, str(child.pid))
    finally:
        child.kill()
        child.wait()
    assert found.own_user_namespace
    assert found.effective
    assert found.ipc_lock is False, "the kernel asks the initial user namespace"


def test_our_own_process_is_read_whole() -> None:
    with LiveHost() as live:
        found = process.read_process(live, "self")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert found.memlock_soft == (UNLIMITED if soft == resource.RLIM_INFINITY else soft)
