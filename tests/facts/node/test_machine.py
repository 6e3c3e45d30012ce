"""One machine, three ways: its tree on a disk, recorded in a bundle, and real processes here."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.facts.node import machine, process
from gpudoctor.facts.node.model import UNLIMITED
from gpudoctor.report import Subject
from gpudoctor.sources.host import Missing, Space
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorded import RecordedHost
from tests import parts
from tests.machines import on_disk, whole_machine

HOST = Subject("Host", "test")
PR_CAPBSET_DROP = 24


def test_the_disk_and_the_recording_say_the_same(tmp_path: Path) -> None:
    tree = whole_machine()
    on_disk(tree, tmp_path)
    with LiveHost(str(tmp_path)) as live:
        seen = machine.with_gpus(live, machine.read(live, HOST), None)
    recording = RecordedHost(tree, roots=["/"])
    recorded = machine.with_gpus(recording, machine.read(recording, HOST), None)
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


def as_in_a_child(*, memlock: int, keep_ipc_lock: bool) -> dict[str, Any]:
    """Read our own process from a child with other limits, as a workload would be read."""
    code = (
        "import json, resource, ctypes\n"
        f"resource.setrlimit(resource.RLIMIT_MEMLOCK, ({memlock}, {memlock}))\n"
        + ("" if keep_ipc_lock else f"ctypes.CDLL(None).prctl({PR_CAPBSET_DROP}, 14)\n")
        + "from gpudoctor.facts.node import process\n"
        "from gpudoctor.sources.host.live import LiveHost\n"
        "with LiveHost() as live:\n"
        "    found = process.read_process(live, 'self')\n"
        "print(json.dumps([found.memlock_soft, found.ipc_lock, found.lock_tried]))\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    soft, ipc_lock, tried = json.loads(printed.stdout)
    return {"soft": soft, "ipc_lock": ipc_lock, "tried": tried}


def test_the_kernel_refuses_to_lock_more_than_the_limit() -> None:
    # The bounding set is applied by the exec of the reading child.
    found = as_in_a_child(memlock=4 << 20, keep_ipc_lock=False)
    assert found == {"soft": 4 << 20, "ipc_lock": False, "tried": "ENOMEM"}
    none = as_in_a_child(memlock=0, keep_ipc_lock=False)
    assert none == {"soft": 0, "ipc_lock": False, "tried": "EPERM"}


def test_the_capability_locks_beyond_the_limit() -> None:
    status = Path("/proc/self/status").read_text()
    if not int(status.partition("CapEff:")[2].split()[0], 16) >> 14 & 1:
        parts.missing("CAP_IPC_LOCK (root)")
    found = as_in_a_child(memlock=64 << 10, keep_ipc_lock=True)
    assert found == {"soft": 64 << 10, "ipc_lock": True, "tried": ""}


def test_a_try_takes_no_memory() -> None:
    with LiveHost() as live:
        live.try_lock(1 << 30)
        status = live.read_bytes("/proc/self/status")
    assert isinstance(status, bytes)
    assert int(status.partition(b"VmHWM:")[2].split()[0]) < 64 << 10


def test_shared_memory_and_huge_pages_of_this_machine() -> None:
    with LiveHost() as live:
        space = live.space("/dev/shm")
        pages = process.huge_pages(live)
        absent = live.space("/no/such")
    assert isinstance(space, Space)
    seen = os.statvfs("/dev/shm")
    assert space.size == seen.f_blocks * seen.f_frsize
    assert absent == Missing("ENOENT")
    assert {page.size >> 10 for page in pages} == {
        int(path.name[10:-2]) for path in Path("/sys/kernel/mm/hugepages").glob("hugepages-*kB")
    }


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
