"""`gpudoctor preflight` in real containers, with and without each thing that a job needs."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpudoctor.preflight import Exit
from tests import nvml_library, parts
from tests.real_container import Podman

_NULL = os.makedev(1, 3)
_UVERBS = os.makedev(231, 192)


class Answer(NamedTuple):
    status: int
    report: dict[str, Any]
    message: str

    @property
    def roots(self) -> list[str]:
        roots: list[str] = self.report["roots"]
        return roots


class Containers:
    """Runs `gpudoctor preflight` in containers, with a termination log as the kubelet mounts it."""

    def __init__(self, folder: Path) -> None:
        self._podman = Podman(folder)
        self._log = folder / "termination-log"

    def preflight(self, needs: str, *options: str) -> Answer:
        self._log.write_bytes(b"")
        self._log.chmod(0o666)  # the container may run as anybody
        ended = self._podman.end_of_python(
            f"--volume={self._log}:/dev/termination-log",
            *options,
            arguments=("-m", "gpudoctor", "preflight", "-o", "json", "--require", needs),
        )
        message = self._log.read_text(encoding="utf-8")
        return Answer(ended.returncode, json.loads(ended.stdout), message)


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Containers:
    if os.getuid():
        parts.missing("root, for containers with device nodes")
    folder = tmp_path_factory.mktemp("containers")
    # The container's user walks down to the mounted files.
    for above in (folder, *folder.parents[:2]):
        above.chmod(0o755)
    return Containers(folder)


def node(folder: Path, number: int) -> Path:
    """Make a device node that anybody may open, as far as its mode decides."""
    path = folder / "uverbs0"
    os.mknod(path, stat.S_IFCHR | 0o666, number)
    path.chmod(0o666)
    return path


def adapters(folder: Path) -> Path:
    """Make a /sys/class with one adapter whose port is active."""
    files = {
        "infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp",
        "infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        "infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
        "infiniband_verbs/uverbs0/ibdev": "mlx5_0",
        "net/lo/operstate": "unknown",
    }
    root = folder / "class"
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


def test_memory_limits_with_and_without_the_capability(containers: Containers) -> None:
    low = "--ulimit=memlock=65536:65536"
    without = containers.preflight("memlock=1Mi", low)
    assert (without.roots, without.status) == (["missing-ipc-lock"], Exit.REQUEST)
    assert without.message.startswith("gpudoctor preflight: request: WKL005 missing-ipc-lock")
    given = containers.preflight("memlock=1Mi", low, "--cap-add=IPC_LOCK")
    assert (given.roots, given.status) == ([], Exit.PASSED)
    within = containers.preflight("memlock=32Ki", low)
    assert within.status == Exit.PASSED


def test_another_user(containers: Containers) -> None:
    answer = containers.preflight("memlock=1Mi", "--ulimit=memlock=65536:65536", "--user=65532")
    assert (answer.roots, answer.status) == (["memlock-limit-nonroot"], Exit.NODE)
    assert "uid 65532" in answer.message


def test_shared_memory(containers: Containers) -> None:
    default = containers.preflight("shm=256Mi")
    assert (default.roots, default.status) == (["shm-too-small"], Exit.REQUEST)
    assert containers.preflight("shm=256Mi", "--shm-size=512m").status == Exit.PASSED


def test_a_small_memory_limit_of_ours_is_not_the_trainers(containers: Containers) -> None:
    limited = ["--shm-size=512m", "--memory=128m", "--cap-add=IPC_LOCK"]
    answer = containers.preflight("shm=400Mi,memlock=1Gi", *limited)
    assert (answer.roots, answer.status) == ([], Exit.PASSED)


def test_huge_pages(containers: Containers) -> None:
    answer = containers.preflight("hugepages=1Ti")
    assert answer.roots == ["hugepages-missing"]


def test_no_rdma_at_all(containers: Containers) -> None:
    answer = containers.preflight("rdma", "--cap-add=IPC_LOCK")
    assert answer.roots == ["rdma-device-absent"]
    assert answer.status == Exit.NODE  # no adapter is on this machine's bus


def test_rdma(containers: Containers, tmp_path: Path) -> None:
    shown = ["--cap-add=IPC_LOCK", "-v", f"{adapters(tmp_path)}:/sys/class:ro"]
    not_given = containers.preflight("rdma", *shown)
    assert (not_given.roots, not_given.status) == (["rdma-device-node-missing"], Exit.REQUEST)
    # A node of the null device opens, as a real one would.
    path = node(tmp_path, _NULL)
    given = containers.preflight("rdma", *shown, "--device", f"{path}:/dev/infiniband/uverbs0:rw")
    assert (given.roots, given.status) == ([], Exit.PASSED)


def test_rdma_that_the_device_cgroup_refuses(containers: Containers, tmp_path: Path) -> None:
    shown = ["--cap-add=IPC_LOCK", "-v", f"{adapters(tmp_path)}:/sys/class:ro"]
    path = node(tmp_path, _UVERBS)
    bound = containers.preflight("rdma", *shown, "-v", f"{path}:/dev/infiniband/uverbs0")
    assert (bound.roots, bound.status) == (["rdma-device-open-failed"], Exit.REQUEST)
    assert "EPERM" in bound.message
    given = containers.preflight("rdma", *shown, "--device", f"{path}:/dev/infiniband/uverbs0:rw")
    assert (given.roots, given.status) == (["rdma-device-open-failed"], Exit.NODE)
    assert "ENXIO" in given.message


class TestGpus:
    def test_gpus(self, containers: Containers, tmp_path: Path) -> None:
        none = containers.preflight("gpus=2")
        assert (none.roots, none.status) == (["driver-libs-not-injected"], Exit.REQUEST)
        nvml_library.build(tmp_path, "gpus=2")
        library = ["-v", f"{tmp_path}:/driver:ro", "-e", "LD_LIBRARY_PATH=/driver"]
        assert containers.preflight("gpus=2,nvlink,cuda=13.0", *library).status == Exit.PASSED
        fewer = containers.preflight("gpus=4", *library)
        assert (fewer.roots, fewer.status) == (["gpu-count-wrong"], Exit.REQUEST)


def test_no_capability_and_no_new_privileges(containers: Containers) -> None:
    hardened = ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only"]
    answer = containers.preflight("shm=16Mi,memlock=32Ki", *hardened, "--user=65532")
    assert (answer.roots, answer.status) == ([], Exit.PASSED)


def test_network_without_interfaces(containers: Containers) -> None:
    named = ["-e", "NCCL_SOCKET_IFNAME=eth0"]
    answer = containers.preflight("shm=16Mi", *named)
    assert (answer.roots, answer.status) == (["nccl-env-names-missing-device"], Exit.REQUEST)
    unresolved = containers.preflight("bootstrap=1", "-e", "MASTER_ADDR=trainer-0.trainer")
    assert (unresolved.roots, unresolved.status) == (["master-address-unresolved"], Exit.PEER)
