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

    def import_image(self, name: str, *paths: str) -> None:
        self._podman.import_image(name, paths)

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


def node(folder: Path, number: int, name: str = "uverbs0", mode: int = 0o666) -> Path:
    """Make a device node that its mode lets anybody open, unless told otherwise."""
    path = folder / name
    os.mknod(path, stat.S_IFCHR | mode, number)
    path.chmod(mode)
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


LOW = "--ulimit=memlock=65536:65536"
LOCKS = "--cap-add=IPC_LOCK"
USER = "--user=65532"


class Row(NamedTuple):
    """One line of the matrix: what is declared, what is given, and the answer in full."""

    needs: str
    options: tuple[str, ...]
    root: str
    status: Exit
    says: str


MATRIX = {
    "memlock, limit enough": Row("memlock=32Ki", (LOW,), "", Exit.PASSED, "passed"),
    "memlock, capability": Row("memlock=1Mi", (LOW, LOCKS), "", Exit.PASSED, "passed"),
    "memlock, neither": Row(
        "memlock=1Mi", (LOW,), "missing-ipc-lock", Exit.REQUEST,
        "request: WKL005 missing-ipc-lock",
    ),
    "memlock, another user": Row(
        "memlock=1Mi", (LOW, USER), "memlock-limit-nonroot", Exit.NODE,
        "node: WKL006 memlock-limit-nonroot",
    ),
    # Podman puts it into the ambient set, which no kubelet does: here it holds.
    "memlock, another user with the ambient capability": Row(
        "memlock=1Mi", (LOW, LOCKS, USER), "", Exit.PASSED, "passed",
    ),
    "shm, size enough": Row("shm=256Mi", ("--shm-size=512m",), "", Exit.PASSED, "passed"),
    "shm, default size": Row(
        "shm=256Mi", (), "shm-too-small", Exit.REQUEST, "request: WKL001 shm-too-small",
    ),
    "shm, another user": Row("shm=256Mi", ("--shm-size=512m", USER), "", Exit.PASSED, "passed"),
    "shm, nobody may write": Row(
        "shm=1Mi", ("--mount=type=tmpfs,dst=/dev/shm,tmpfs-mode=0755", USER), "shm-too-small",
        Exit.REQUEST, "request: WKL001 shm-too-small",
    ),
    "rdma, device node": Row(
        "rdma", (LOCKS, "--device={null}:/dev/infiniband/uverbs0:rw"), "", Exit.PASSED, "passed",
    ),
    "rdma, no device node": Row(
        "rdma", (LOCKS,), "rdma-device-node-missing", Exit.REQUEST,
        "request: NET008 rdma-device-node-missing",
    ),
    "rdma, node that the device cgroup refuses": Row(
        "rdma", (LOCKS, "--volume={uverbs}:/dev/infiniband/uverbs0"), "rdma-device-open-failed",
        Exit.REQUEST, "request: NET050 rdma-device-open-failed",
    ),
    "rdma, node whose driver does not answer": Row(
        "rdma", (LOCKS, "--device={uverbs}:/dev/infiniband/uverbs0:rw"),
        "rdma-device-open-failed", Exit.NODE, "node: NET050 rdma-device-open-failed",
    ),
    "rdma, node of root for another user": Row(
        "rdma,memlock=4Ki", ("--device={private}:/dev/infiniband/uverbs0:rw", USER),
        "rdma-device-open-failed", Exit.REQUEST, "request: NET050 rdma-device-open-failed",
    ),
    "rdma, no memory to lock": Row(
        "rdma", (LOW, "--device={null}:/dev/infiniband/uverbs0:rw"), "missing-ipc-lock",
        Exit.REQUEST, "request: WKL005 missing-ipc-lock",
    ),
    "gpus, library and devices": Row("gpus=2", ("{driver}",), "", Exit.PASSED, "passed"),
    "gpus, none given": Row(
        "gpus=2", (), "driver-libs-not-injected", Exit.REQUEST,
        "request: RUN040 driver-libs-not-injected",
    ),
    "gpus, device node without library": Row(
        "gpus=1", ("--device={null}:/dev/nvidia0:rw",), "driver-libs-not-injected", Exit.NODE,
        "node: RUN040 driver-libs-not-injected",
    ),
    "gpus, fewer": Row(
        "gpus=4", ("{driver}",), "gpu-count-wrong", Exit.REQUEST,
        "request: TOP025 gpu-count-wrong",
    ),
    "cuda, newer than the driver": Row(
        "cuda=14.0", ("{driver}",), "driver-too-old", Exit.NODE, "node: DRV001 driver-too-old",
    ),
    "huge pages, nobody reserved them": Row(
        "hugepages=1Ti", (), "hugepages-missing", Exit.NODE, "node: DEV011 hugepages-missing",
    ),
    "bootstrap, no such name": Row(
        "bootstrap=1", ("--env=MASTER_ADDR=trainer-0.trainer",), "master-address-unresolved",
        Exit.PEER, "peer: NET013 master-address-unresolved",
    ),
    "bootstrap, no address at all": Row("bootstrap=1", (), "", Exit.UNKNOWN, "unknown"),
    "an interface that is not here": Row(
        "shm=16Mi", ("--env=NCCL_SOCKET_IFNAME=eth0",), "nccl-env-names-missing-device",
        Exit.REQUEST, "request: WKL007 nccl-env-names-missing-device",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the rows name in braces: device nodes and a driver's library."""
    folder = tmp_path_factory.mktemp("given")
    folder.chmod(0o755)
    nvml_library.build(folder, "gpus=2")
    return {
        "null": str(node(folder, _NULL, "null")),
        "uverbs": str(node(folder, _UVERBS)),
        "private": str(node(folder, _NULL, "private", 0o600)),
        "driver": f"--volume={folder}:/driver:ro",
        "sys": str(adapters(folder)),
    }


@pytest.mark.parametrize("name", MATRIX)
def test_with_and_without_each_thing(
    containers: Containers, given: dict[str, str], name: str
) -> None:
    row = MATRIX[name]
    options = [option.format(**given) for option in row.options]
    if "rdma" in row.needs:
        options.append(f"--volume={given['sys']}:/sys/class:ro")
    if "{driver}" in row.options:
        options.append("--env=LD_LIBRARY_PATH=/driver")
    answer = containers.preflight(row.needs, *options)
    assert (answer.roots, answer.status) == ([row.root] if row.root else [], row.status)
    assert answer.message.startswith(f"gpudoctor preflight: {row.says}"), answer.message
    assert len(answer.message.encode()) <= 1025
    healthy = {Exit.PASSED: "healthy", Exit.UNKNOWN: "unknown"}
    assert answer.report["verdict"] == healthy.get(row.status, "failing")
    if row.root:
        assert "\nFix (" in answer.message
        assert "\nMore: gpudoctor runbook " in answer.message


def test_the_trainers_image_as_a_volume(containers: Containers, given: dict[str, str]) -> None:
    """A real image, mounted as the kubelet's runtime does it; nothing is declared of its CUDA."""
    shown = [given["driver"], "--env=LD_LIBRARY_PATH=/driver"]
    for name, version, status in (("old", "12.8", Exit.PASSED), ("new", "14.0", Exit.NODE)):
        image = f"localhost/trainer-{name}:1"
        containers.import_image(image, f"usr/local/cuda-{version}/version.json")
        mount = f"--mount=type=image,source={image},destination=/trainer-image"
        answer = containers.preflight("gpus=2", *shown, mount)
        assert answer.status == status
        assert answer.report["facts"]["preflight"]["image"]["cuda"] == version
        assert [one["certainty"] for one in answer.report["findings"]] == (
            ["certain"] if status else []
        )


def test_a_small_memory_limit_of_ours_is_not_the_trainers(containers: Containers) -> None:
    limited = ["--shm-size=512m", "--memory=128m", LOCKS]
    answer = containers.preflight("shm=400Mi,memlock=1Gi", *limited)
    assert (answer.roots, answer.status) == ([], Exit.PASSED)


def test_no_capability_and_no_new_privileges(containers: Containers) -> None:
    hardened = ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only"]
    answer = containers.preflight("shm=16Mi,memlock=32Ki", *hardened, USER)
    assert (answer.roots, answer.status) == ([], Exit.PASSED)


def test_no_rdma_at_all(containers: Containers) -> None:
    answer = containers.preflight("rdma", LOCKS)
    assert answer.roots == ["rdma-device-absent"]
    assert answer.status == Exit.NODE  # no adapter is on this machine's bus
