"""Real containers, seen from the host's /proc and from inside: both must tell the truth."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudoctor import readings, registry
from gpudoctor.readings import host, host_facts, kubernetes
from gpudoctor.report import Report, Subject
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder
from tests import cases_joined
from tests.real_container import Podman

CHECKS = registry.load()
MIB = 1 << 20
VERBS = "--device=/dev/null:/dev/infiniband/uverbs0"
OPEN = """
from gpudoctor.facts.node import rdma
from gpudoctor.sources.host.live import LiveHost
with LiveHost() as live:
    nodes, whole = rdma.read_nodes(live)
print(repr(nodes[0].opened))
"""
GPU = "--device=/dev/null:/dev/nvidia3"


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    return Podman(tmp_path_factory.mktemp("podman"))


def seen_from_outside(identity: str) -> Report | None:
    """The report on a container out of a live check of the host, None if it is not in it."""
    answer = readings.judge(host.read_live("/"), CHECKS)
    for child in answer.children:
        if child.facts["container"]["id"] == identity:
            return child
    return None


def facts(report: Report | None) -> dict[str, Any]:
    assert report is not None
    found = report.facts["container"]
    assert isinstance(found, dict)
    return found


def test_a_container_with_low_limits(podman: Podman) -> None:
    options = ("--ulimit=memlock=65536:65536", "--shm-size=32m", "--cap-drop=all", VERBS, GPU)
    with podman.container(*options) as identity:
        child = seen_from_outside(identity)
    assert child is not None
    assert "memlock-too-low" in child.roots
    told = facts(child)
    assert told["memlock_soft_bytes"] == 65536
    assert told["cap_ipc_lock"] is False
    assert told["lock_tried"] is None, "a try of ours says nothing of others"
    assert (told["shm_bytes"], told["shm_used_bytes"]) == (32 * MIB, 0)


def test_a_container_with_what_it_needs(podman: Podman) -> None:
    options = ("--ulimit=memlock=65536:65536", "--shm-size=256m", "--cap-add=IPC_LOCK", VERBS)
    with podman.container(*options) as identity:
        child = seen_from_outside(identity)
    assert child is not None
    assert {"memlock-too-low", "shm-too-small"}.isdisjoint(child.roots)
    told = facts(child)
    assert (told["cap_ipc_lock"], told["shm_bytes"]) == (True, 256 * MIB)


def test_a_container_without_devices_is_none_of_ours(podman: Podman) -> None:
    with podman.container() as identity:
        assert seen_from_outside(identity) is None


def test_shared_memory_in_use_is_seen_from_outside(podman: Podman) -> None:
    with podman.container("--shm-size=16m", GPU, VERBS) as identity:
        pid = facts(seen_from_outside(identity))["pid"]
        (Path(f"/proc/{pid}/root/dev/shm") / "nccl-left").write_bytes(bytes(15 * MIB))
        child = seen_from_outside(identity)
    assert child is not None
    assert facts(child)["shm_used_bytes"] == 15 * MIB
    (full,) = [one for one in child.findings if one.name == "shm-too-small"]
    assert "15 MiB of the 16 MiB" in full.detail


def test_a_planted_link_does_not_lead_out_of_the_container(podman: Podman) -> None:
    with podman.container(GPU) as identity:
        pid = facts(seen_from_outside(identity))["pid"]
        # What a tenant could do to make us take the host's own files for the container's.
        (Path(f"/proc/{pid}/root/dev") / "infiniband").symlink_to(f"/proc/{pid}/root/../../etc")
        assert facts(seen_from_outside(identity))["rdma_devices"] == []


SITE = "/opt/lib/python3.12/site-packages"
MAPS = """
import mmap, sys, time
files = [open(path, "rb") for path in sys.argv[1:]]
held = [mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ) for file in files]
time.sleep(1000)
"""


def test_libraries_are_those_that_are_loaded(podman: Podman) -> None:
    """One names its version, two came in wheels, whose names tell; the launcher has none itself."""
    loaded = (
        "/opt/driver/libcuda.so.580.65.06",
        f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12",
        f"{SITE}/nvidia/nccl/lib/libnccl.so.2",
    )
    told = ("nvidia_cuda_runtime_cu12-12.8.90.dist-info", "nvidia_nccl_cu12-2.27.3.dist-info")
    for path in (*loaded, *(f"{SITE}/{name}/RECORD" for name in told)):
        podman.put(path)
    worker = shlex.join([sys.executable, "-c", MAPS, *loaded])
    environment = ("--env=CUDA_VERSION=12.8.1", "--env=NV_CUDA_CUDART_VERSION=12.8.90-1")
    command = ("sh", "-c", f"{worker} & wait")
    with podman.container(GPU, *environment, command=command) as identity:
        found = eventually(lambda: libraries(seen_from_outside(identity)))
    assert found == {"libcuda": "580.65.06", "libcudart": "12.8.90", "libnccl": "2.27.3"}


def libraries(report: Report | None) -> dict[str, str] | None:
    found: dict[str, str] | None = facts(report)["libraries"] if report is not None else None
    return found


def eventually(ask: Callable[[], dict[str, str] | None]) -> dict[str, str] | None:
    """Ask until there is an answer: the child process takes a while to start."""
    deadline = time.monotonic() + 60
    while not (found := ask()) and time.monotonic() < deadline:
        pass
    return found


def pod_on_this_machine(podman: Podman, *options: str) -> Report:
    """The report on a pod that crash-loops, one container of which runs here with these options."""
    case = cases_joined.load("01-memlock-seen-in-the-process")
    uid = case["objects"][0]["metadata"]["uid"]
    objects = cases_joined.bundle(case | {"hosts": {}})
    with (
        podman.container(f"--cgroup-parent=/kubepods/pod{uid}", *options),
        LiveHost() as live,
    ):
        seen = host_facts.read(Recorder(live), Subject("Node", "gpu-1"))
    source = kubernetes.Input(objects, {"gpu-1": seen})
    return readings.judge(kubernetes.read_pod_named(source, "w-0", "train"), CHECKS)


@pytest.mark.parametrize(
    ("options", "root"),
    [
        (("--ulimit=memlock=65536:65536", "--cap-drop=all"), "missing-ipc-lock"),
        (("--ulimit=memlock=65536:65536", "--cap-add=IPC_LOCK"), "rdma-registration-enomem"),
    ],
    ids=["a low limit", "the capability"],
)
def test_a_pod_is_judged_with_its_real_process(
    podman: Podman, options: tuple[str, ...], root: str
) -> None:
    """What the pod's objects suggest is proved, or refuted, by the process as the kernel has it."""
    report = pod_on_this_machine(podman, GPU, VERBS, "--shm-size=256m", *options)
    # Where the tests run there may be no adapter for the device node.
    assert set(report.roots) - {"rdma-device-absent"} == {root}
    names = {finding.name for finding in report.findings}
    assert ("memlock-too-low" in names) is (root == "missing-ipc-lock")
    assert len(report.facts["on_node"]["containers"]) == 1


class TestInside:
    def test_low_limits(self, podman: Podman) -> None:
        report = podman.check_inside(
            "--ulimit=memlock=65536:65536", "--shm-size=32m", "--cap-drop=all", VERBS
        )
        told = report["facts"]["host"]
        assert "memlock-too-low" in report["roots"]
        assert told["memlock_soft_bytes"] == 65536
        assert (told["cap_ipc_lock"], told["lock_tried"]) == (False, "ENOMEM")
        assert (told["shm_bytes"], told["shm_used_bytes"]) == (32 * MIB, 0)

    def test_the_capability_makes_up_for_the_limit(self, podman: Podman) -> None:
        report = podman.check_inside(
            "--ulimit=memlock=65536:65536", "--cap-add=IPC_LOCK", "--shm-size=256m", VERBS
        )
        told = report["facts"]["host"]
        assert "memlock-too-low" not in report["roots"]
        assert (told["cap_ipc_lock"], told["lock_tried"]) == (True, "")

    def test_the_capability_does_nothing_for_a_user(self, podman: Podman) -> None:
        report = podman.check_inside(
            "--ulimit=memlock=65536:65536", "--cap-drop=all", "--user=65534", VERBS
        )
        told = report["facts"]["host"]
        assert (told["cap_ipc_lock"], told["lock_tried"]) == (False, "ENOMEM")

    @pytest.mark.parametrize(("rights", "opened"), [("rw", ""), ("r", "EPERM")])
    def test_a_device_node_is_there_but_the_cgroup_decides(
        self, podman: Podman, rights: str, opened: str
    ) -> None:
        # Runtimes let all containers open /dev/null; /dev/fuse is none of those devices.
        node = f"--device=/dev/fuse:/dev/infiniband/uverbs0:{rights}"
        assert podman.python(node, arguments=("-c", OPEN)).strip() == repr(opened)

    @pytest.mark.parametrize(
        "options",
        [
            pytest.param((), id="in its own container"),
            pytest.param(("--pid=host",), id="over the processes of the host"),
            pytest.param(("--cap-drop=all", "--security-opt=no-new-privileges"), id="hardened"),
        ],
    )
    def test_a_plain_user_gets_facts_or_reasons_and_no_all_clear(
        self, podman: Podman, options: tuple[str, ...]
    ) -> None:
        ended = podman.end_of_python(
            "--user=65534:65534", *options, arguments=("-m", "gpudoctor", "check", "-o", "json")
        )
        assert (ended.returncode, ended.stderr) == (3, "")
        report = json.loads(ended.stdout)
        assert report["verdict"] == "unknown"
        assert {"what": "NVIDIA GPUs", "why": "the PCI bus shows none"} in report["unknown"]
        assert all(unknown["why"] for unknown in report["unknown"])
        told = report["facts"]["host"]
        if "--pid=host" not in options:  # there process 1 is the host's
            assert told["cap_ipc_lock"] is False
        assert told["memlock_soft_bytes"] is not None
        assert told["rdma_devices"] == []
        assert told["driver"] is None

    def test_nothing_there_is_no_all_clear(self, podman: Podman) -> None:
        report = podman.check_inside("--shm-size=64m")
        assert report["verdict"] == "unknown"
        assert report["roots"] == []
