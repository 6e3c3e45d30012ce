"""A real file system that never answers: the check survives it and says where it hangs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gpudoctor import readings, registry
from gpudoctor.readings import host as hosts
from gpudoctor.sources import host
from gpudoctor.sources.host import TIMED_OUT, Missing
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder
from tests import parts

SCRIPT = Path(__file__).with_name("hanging_fs.py")


@contextlib.contextmanager
def mounted(tmp_path: Path, directory: str) -> Iterator[Path]:
    parts.module("mfusepy")
    parts.program("fusermount3", "fuse3")
    if not os.access("/dev/fuse", os.W_OK):
        parts.missing("/dev/fuse")
    point = tmp_path / "mount"
    point.mkdir()
    server = subprocess.Popen([sys.executable, str(SCRIPT), str(point), directory])
    try:
        while not os.path.ismount(point):
            assert server.poll() is None, "the file system did not start"
        yield point
    finally:
        server.kill()
        server.wait()
        subprocess.run(["fusermount3", "-uz", str(point)], check=False)


def test_a_hung_directory_is_given_up_and_the_rest_is_read(tmp_path: Path) -> None:
    directory = "/sys/class/infiniband"
    with mounted(tmp_path, directory) as point, LiveHost(str(point), bound=0.5) as live:
        assert host.text(live, "/ok") == "ok"
        found = live.read_bytes(f"{directory}/mlx5_0/hca_type")
        assert isinstance(found, Missing)
        assert found.errno == TIMED_OUT
        again = live.read_bytes(f"{directory}/mlx5_0/board_id")
        assert again == Missing(TIMED_OUT, "an earlier call is still stuck")
        assert host.text(live, "/ok") == "ok"


def test_the_check_reports_the_hang(tmp_path: Path) -> None:
    with mounted(tmp_path, "/proc/driver") as point, LiveHost(str(point), bound=0.5) as live:
        reading = hosts.read(Recorder(live), hosts.LOCAL, None)
    answer = readings.judge(reading, registry.load())
    assert "host-facts-unreadable" in answer.roots
    hung = {unknown.what for unknown in answer.unknown if unknown.why == "did not answer in time"}
    assert any(path.startswith("/proc/driver/nvidia") for path in hung)


def test_a_program_on_a_hung_file_system(tmp_path: Path) -> None:
    with mounted(tmp_path, "/bin") as point:
        program = f"{point}/bin/nvidia-smi"
        with LiveHost(bound=0.5, programs=[program]) as live:
            found = live.run([program])
            assert isinstance(found, Missing)
            assert found.errno == TIMED_OUT
            assert live.run([program]) == Missing(TIMED_OUT, "an earlier call is still stuck")
            assert isinstance(live.read_bytes("/proc/version"), bytes)
