"""`gpudoctor preflight` as a process of its own, with lowered limits and fewer rights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpudoctor.cli import preflight as command
from gpudoctor.preflight import Exit
from tests import nvml_library
from tests.cli.running import run as run_here

PLENTY_S = 60
KIB = 1 << 10


def needs_root(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(
        os.getuid() != 0 or bool(missing),
        reason=f"needs {', '.join(missing)}" if missing else "needs root",
    )


class Answer(NamedTuple):
    status: int
    report: dict[str, Any]
    message: str

    @property
    def roots(self) -> list[str]:
        roots: list[str] = self.report["roots"]
        return roots


def run(
    tmp_path: Path,
    *arguments: str,
    before: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Answer:
    """Run it behind a command such as `prlimit`, without what this test's own environment sets."""
    log = tmp_path / "termination-log"
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    ended = subprocess.run(
        [*before, sys.executable, "-m", "gpudoctor", "preflight", "-o", "json",
         "--termination-log", str(log), *arguments],
        env=inherited | (environment or {}),
        capture_output=True,
        timeout=PLENTY_S,
        check=False,
    )  # fmt: skip
    assert ended.stdout, ended.stderr.decode()
    return Answer(ended.returncode, json.loads(ended.stdout), log.read_text(encoding="utf-8"))


def test_what_is_there_passes(tmp_path: Path) -> None:
    answer = run(tmp_path, "--require", "memlock=64Ki,shm=64Ki")
    assert answer.status == Exit.PASSED
    assert answer.report["verdict"] == "healthy"
    assert answer.message == "gpudoctor preflight: passed\n"


def test_a_lowered_limit(tmp_path: Path) -> None:
    lowered = ["prlimit", f"--memlock={16 * KIB}:{16 * KIB}"]
    if os.getuid() == 0:
        lowered += ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]
    answer = run(tmp_path, "--require", "memlock=1Mi", before=lowered)
    as_root = os.getuid() == 0
    assert answer.roots == ["missing-ipc-lock" if as_root else "memlock-limit-nonroot"]
    assert answer.status == (Exit.REQUEST if as_root else Exit.NODE)
    assert "16 KiB" in json.dumps(answer.report)
    first = answer.message.splitlines()[0]
    assert first.startswith("gpudoctor preflight: request: WKL005 missing-ipc-lock") or not as_root


@needs_root("prlimit")
def test_a_low_limit_does_not_bind_the_capability(tmp_path: Path) -> None:
    answer = run(tmp_path, "--require", "memlock=1Mi", before=["prlimit", "--memlock=16384:16384"])
    assert answer.status == Exit.PASSED


@needs_root("unshare", "mount")
@pytest.mark.parametrize(("size", "expected"), [("1m", Exit.REQUEST), ("64m", Exit.PASSED)])
def test_shared_memory_of_a_mount_namespace(tmp_path: Path, size: str, expected: Exit) -> None:
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    before = ["unshare", "-m", "sh", "-c", mount, "sh"]
    answer = run(tmp_path, "--require", "shm=32Mi", before=before)
    assert answer.status == expected
    assert answer.roots == (["shm-too-small"] if expected else [])


def test_an_interface_that_is_not_here(tmp_path: Path) -> None:
    settings = {"NCCL_SOCKET_IFNAME": "no-such-if"}
    answer = run(tmp_path, "--require", "shm=64Ki", environment=settings)
    assert answer.roots == ["nccl-env-names-missing-device"]
    assert answer.status == Exit.REQUEST


def test_huge_pages_that_nobody_reserved(tmp_path: Path) -> None:
    answer = run(tmp_path, "--require", "hugepages=1Ti")
    assert answer.roots == ["hugepages-missing"]


def test_a_name_that_no_resolver_knows(tmp_path: Path) -> None:
    settings = {"MASTER_ADDR": "trainer-0.no-such-service.invalid"}
    answer = run(tmp_path, "--require", "bootstrap=1", environment=settings)
    assert answer.roots == ["master-address-unresolved"]
    assert answer.status == Exit.PEER
    settings = {"MASTER_ADDR": "127.0.0.1"}
    assert run(tmp_path, "--require", "bootstrap=1", environment=settings).status == Exit.PASSED


def test_an_unproved_need_fails_or_passes_as_told(tmp_path: Path) -> None:
    """MASTER_ADDR is not set, so nothing can be proved about it."""
    answer = run(tmp_path, "--require", "bootstrap=1")
    assert (answer.status, answer.report["verdict"]) == (Exit.UNKNOWN, "unknown")
    assert "Unknown: MASTER_ADDR: it is not set" in answer.message
    told = run(tmp_path, "--require", "bootstrap=1", "--on-unknown", "pass")
    assert (told.status, told.report["verdict"]) == (Exit.PASSED, "unknown")


class TestGpus:
    def gpus(self, tmp_path: Path, needs: str, script: str) -> Answer:
        nvml_library.build(tmp_path, script)
        return run(tmp_path, "--require", needs, environment={"LD_LIBRARY_PATH": str(tmp_path)})

    def test_all_there(self, tmp_path: Path) -> None:
        answer = self.gpus(tmp_path, "gpus=8,nvlink,cuda=13.0", "gpus=8")
        assert (answer.status, answer.report["findings"]) == (Exit.PASSED, [])

    def test_too_few(self, tmp_path: Path) -> None:
        answer = self.gpus(tmp_path, "gpus=8", "gpus=4")
        assert answer.roots == ["gpu-count-wrong"]
        assert answer.status == Exit.REQUEST

    def test_a_lost_one_is_the_nodes(self, tmp_path: Path) -> None:
        answer = self.gpus(tmp_path, "gpus=8", "gpus=8;nvmlDeviceGetHandleByIndex_v2@3=15")
        assert "gpu-lost" in answer.roots
        assert answer.status == Exit.NODE

    def test_a_driver_that_is_too_old(self, tmp_path: Path) -> None:
        answer = self.gpus(tmp_path, "cuda=13.0", "gpus=1;driver=535.183.06;cuda=12020")
        assert answer.status == Exit.REQUEST
        assert answer.roots == ["driver-too-old"]
        assert answer.report["findings"][0]["certainty"] == "possible"


def test_no_gpu_at_all(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    answer = run(tmp_path, "--require", "gpus=1")
    assert answer.roots == ["driver-libs-not-injected"]
    assert answer.status == Exit.REQUEST


def test_needs_come_from_three_places(tmp_path: Path) -> None:
    annotations = tmp_path / "annotations"
    annotations.write_text('gpudoctor.io/require="shm=32Ki,bootstrap=5"\n')
    answer = run(
        tmp_path,
        "--require", "shm=64Ki",
        "--annotations", str(annotations),
        "--on-unknown", "pass",
        environment={"GPUDOCTOR_REQUIRE": "memlock=4Ki,shm=48Ki"},
    )  # fmt: skip
    needs = answer.report["facts"]["preflight"]["needs"]
    assert needs == {"shm": 64 * KIB, "memlock": 4 * KIB, "bootstrap": 5}


def test_nothing_declared_is_derived(tmp_path: Path) -> None:
    answer = run(tmp_path, environment={"NCCL_IB_HCA": "mlx5"})
    assert answer.report["facts"]["preflight"] == {"needs": {"rdma": True}, "derived": True}
    # An annotation that is not there reaches the variable as an empty word.
    plain = run(tmp_path, environment={"NCCL_IB_HCA": "^mlx5", "GPUDOCTOR_REQUIRE": " "})
    if not Path("/dev/infiniband").exists():
        assert plain.report["facts"]["preflight"] == {"needs": {}, "derived": True}
        assert plain.status == Exit.PASSED
        assert plain.report["verdict"] == "unknown", "nothing was tried"
        assert "nothing was tried" in plain.message


def test_wrong_usage_is_said_in_the_message_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    result = run_here(
        monkeypatch, ["preflight", "--require", "rmda", "--termination-log", str(log)]
    )
    assert result.status == 2
    assert "'rmda' is no need" in result.err
    assert log.read_text().startswith("gpudoctor preflight: wrong usage: --require: 'rmda'")
    missing = run_here(monkeypatch, ["preflight", "--annotations", str(tmp_path / "none")])
    assert missing.status == 2


def test_a_missing_termination_log_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "_TERMINATION_LOG", str(tmp_path / "none"))
    assert run_here(monkeypatch, ["preflight", "--require", "shm=4Ki"]).status == 0
    assert not (tmp_path / "none").exists()
    told = ["preflight", "--require", "shm=4Ki", "--termination-log", str(tmp_path / "a" / "b")]
    result = run_here(monkeypatch, told)
    assert result.status == 0
    assert "--termination-log" in result.err


def test_fail_on_decides_what_fails(tmp_path: Path) -> None:
    settings = {"NCCL_SOCKET_IFNAME": "no-such-if"}
    told = ["--require", "shm=4Ki", "--fail-on"]
    assert run(tmp_path, *told, "never", environment=settings).status == Exit.PASSED
    assert run(tmp_path, *told, "critical", environment=settings).status == Exit.PASSED
    assert run(tmp_path, *told, "warning", environment=settings).status == Exit.REQUEST
