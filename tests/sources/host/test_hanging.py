"""A real file system that never answers: the check survives it and says where it hangs.

Who waits there cannot be ended by SIGKILL: the tests hold that, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor import readings, registry
from gpudoctor.readings import host as hosts
from gpudoctor.sources import host
from gpudoctor.sources.host import TIMED_OUT, Missing
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder
from tests.hanging import mounted


def test_a_hung_directory_is_given_up_and_the_rest_is_read(tmp_path: Path) -> None:
    directory = "/sys/class/infiniband"
    with mounted(tmp_path, directory) as point, LiveHost(str(point), bound=2.0) as live:
        assert host.text(live, "/ok") == "ok"
        found = live.read_bytes(f"{directory}/mlx5_0/hca_type")
        assert isinstance(found, Missing)
        assert found.errno == TIMED_OUT
        again = live.read_bytes(f"{directory}/mlx5_0/board_id")
        assert again == Missing(TIMED_OUT, "an earlier call is still stuck")
        assert host.text(live, "/ok") == "ok"


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("/proc/driver", "driver-not-answering"),
        ("/sys/class", "host-facts-unreadable"),
        ("/var/lib/kubelet", "host-facts-unreadable"),
    ],
)
def test_each_hang_is_a_finding_of_its_own(tmp_path: Path, directory: str, name: str) -> None:
    with mounted(tmp_path, directory) as point, LiveHost(str(point), bound=2.0) as live:
        reading = hosts.read(Recorder(live), hosts.LOCAL, None)
    answer = readings.judge(reading, registry.load())
    hangs = {"driver-not-answering", "host-facts-unreadable", "kubelet-not-answering"}
    assert hangs & set(answer.roots) == {name}
    hung = {unknown.what for unknown in answer.unknown if unknown.why == "did not answer in time"}
    assert any(path.startswith(directory) for path in hung)


def test_a_program_on_a_hung_file_system(tmp_path: Path) -> None:
    with mounted(tmp_path, "/bin") as point:
        program = f"{point}/bin/nvidia-smi"
        with LiveHost(bound=2.0, programs=[program]) as live:
            found = live.run([program])
            assert isinstance(found, Missing)
            assert found.errno == TIMED_OUT
            assert live.run([program]) == Missing(TIMED_OUT, "an earlier call is still stuck")
            assert isinstance(live.read_bytes("/proc/version"), bytes)
