"""The live host on this machine: real files, real processes, and children that hang for real."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudoctor.sources import host as hosts
from gpudoctor.sources.host import TIMED_OUT, DeviceNode, Listing, Missing
from gpudoctor.sources.host.live import LiveHost, area
from tests import parts

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def live() -> Iterator[LiveHost]:
    with LiveHost(
        bound=20, programs=["uname -r", "false", "sleep 1000", "no-such-program"]
    ) as host:
        yield host


def worker_pid(host: LiveHost) -> int:
    hosts.read(host, "/proc/self/comm")
    assert host._worker is not None
    return host._worker._pid


def test_reads_what_the_kernel_shows(live: LiveHost) -> None:
    assert hosts.text(live, "/proc/sys/kernel/osrelease") == os.uname().release
    assert "self" in hosts.names(live, "/proc")
    assert isinstance(live.listing("/sys/class"), Listing)
    null = live.device("/dev/null")
    assert isinstance(null, DeviceNode)
    assert (null.major, null.minor) == (1, 3)


def test_what_cannot_be_read_says_why(live: LiveHost, tmp_path: Path) -> None:
    missing = live.read_bytes(str(tmp_path / "none"))
    assert isinstance(missing, Missing)
    assert missing.absent
    assert live.read_bytes(str(tmp_path)) == Missing("EISDIR")
    (tmp_path / "file").write_text("x")
    assert live.listing(str(tmp_path / "file")) == Missing("ENOTDIR")
    assert live.device(str(tmp_path / "file")) == Missing("ENODEV")


def test_pipes_are_not_waited_for(live: LiveHost, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert live.read_bytes(str(tmp_path / "pipe")) == Missing("EINVAL")


def test_endless_files_are_cut(live: LiveHost, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"\xff" * (3 << 20))
    content = live.read_bytes(str(tmp_path / "big"))
    assert content == b"\xff" * (1 << 20)


def test_odd_file_names(live: LiveHost, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n")).write_bytes(b"odd")
    listing = live.listing(str(tmp_path))
    assert isinstance(listing, Listing)
    assert live.read_bytes(f"{tmp_path}/{listing.names[0]}") == b"odd"


def test_programs_are_started_only_from_the_list(live: LiveHost) -> None:
    assert live.run(["uname", "-r"]) == os.uname().release + "\n"
    assert live.run(["id"]) == Missing("UNREAD", "not started")
    failed = live.run(["false"])
    assert isinstance(failed, Missing)
    assert failed.errno == "EXIT"
    assert live.run(["no-such-program"]) == Missing("ENOENT")


def test_program_that_does_not_end() -> None:
    with LiveHost(bound=0.2, programs=["sleep 1000"]) as host:
        found = host.run(["sleep", "1000"])
        assert isinstance(found, Missing)
        assert found.errno == TIMED_OUT


class TestOtherRoot:
    """A host's tree mounted elsewhere: nothing in it can lead out of it."""

    def test_absolute_links_stay_inside(self, tmp_path: Path) -> None:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/real").write_text("inside")
        (tmp_path / "link").symlink_to("/etc/real")
        (tmp_path / "out").symlink_to("../../../../../../../../etc/passwd")
        with LiveHost(str(tmp_path)) as host:
            assert hosts.text(host, "/link") == "inside"
            missing = host.read_bytes("/out")
            assert isinstance(missing, Missing)
            assert missing.absent
            assert hosts.names(host, "/etc") == ("real",)
            assert host.target("/link") == "/etc/real"

    def test_a_tenants_root_is_not_left(self) -> None:
        pid = os.getpid()
        with LiveHost() as host:
            assert isinstance(host.read_bytes(f"/proc/{pid}/root/proc/self/exe"), Missing)
            inside = host.read_bytes(f"/proc/{pid}/root/proc/version")
            assert inside == Path("/proc/version").read_bytes()


def test_a_stopped_child_costs_its_bound_once() -> None:
    with LiveHost(bound=2.0) as host:
        os.kill(worker_pid(host), signal.SIGSTOP)
        found = host.read_bytes("/sys/class/net/lo/mtu")
        assert isinstance(found, Missing)
        assert found.errno == TIMED_OUT
        assert isinstance(host.read_bytes("/proc/version"), bytes), "a new child reads the rest"


def test_a_reading_process_that_cannot_be_started_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with LiveHost(programs=["true"]) as host:
        for found in (host.read_bytes("/proc/version"), host.listing("/"), host.run(["true"])):
            assert isinstance(found, Missing)
            assert not found.absent
            assert "cannot be started" in found.why


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process: it stays in state D, and SIGKILL does nothing until it is thawed."""
    group = FREEZER / f"gpudoctor-test-{pid}"
    if not FREEZER.is_dir():
        # Version 2 freezes, too, but lets SIGKILL through; test_hanging has what it cannot end.
        pytest.skip("cgroup v1 alone freezes so that SIGKILL does nothing")
    try:
        group.mkdir()
    except OSError as error:
        parts.missing(f"the right to make a cgroup (root): {error}")
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        while (group / "freezer.state").read_text().strip() != "FROZEN":
            pass
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        while (group / "cgroup.procs").read_text().strip():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        group.rmdir()


def test_an_unkillable_child_is_left_behind_and_its_area_not_touched_again() -> None:
    with LiveHost(bound=2.0) as host:
        pid = worker_pid(host)
        with frozen(pid):
            first = host.read_bytes("/sys/class/net/lo/mtu")
            assert isinstance(first, Missing)
            assert first.errno == TIMED_OUT
            again = host.read_bytes("/sys/class/net/lo/address")
            assert again == Missing(TIMED_OUT, "an earlier call is still stuck")
            assert isinstance(host.read_bytes("/proc/version"), bytes)
            assert host.stuck == ("/sys/class/net/lo",)
        assert isinstance(host.read_bytes("/sys/class/net/lo/address"), bytes), "it came back"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/sys/class/infiniband/mlx5_0/ports/1/state", "/sys/class/infiniband/mlx5_0"),
        ("/sys/bus/pci/devices/0000:1b:00.0/config", "/sys/bus/pci/devices/0000:1b:00.0"),
        ("/proc/driver/nvidia/gpus/0000:1b:00.0/information", "/proc/driver/nvidia"),
        ("/proc/17/status", "/proc/17"),
        ("/var/lib/kubelet/cpu_manager_state", "/var/lib/kubelet"),
    ],
)
def test_area_that_one_hang_gives_up(path: str, expected: str) -> None:
    assert area(path) == expected


def test_a_device_that_the_cgroup_forbids_is_told_from_one_that_opens(tmp_path: Path) -> None:
    node = tmp_path / "dev/infiniband/uverbs0"
    node.parent.mkdir(parents=True)
    try:
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        parts.missing("the right to make a device node (root)")
    with LiveHost(str(tmp_path)) as host:
        found = host.device("/dev/infiniband/uverbs0")
    assert isinstance(found, DeviceNode)
    assert found.mode == 0o600
    assert found.opened is None, "below another root our own device cgroup says nothing"
