"""Recorded trees: links, errors, devices, listings; and that a recording answers like the host."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.sources import host as hosts
from gpudoctor.sources.host import UNREAD, DeviceNode, Listing, Missing, Space
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorded import RecordedHost
from gpudoctor.sources.host.recorder import Recorder

TREE: dict[str, Any] = {
    "/sys/class/infiniband": {"dir": ["mlx5_0"]},
    "/sys/class/infiniband/mlx5_0": {"link": "../../devices/pci0000:15/mlx5_0"},
    "/sys/class/infiniband/mlx5_0/device/net/net1/mtu": "9000\n",
    "/sys/devices/pci0000:15/mlx5_0/device": {"link": "../../../bus/pci/devices/0000:18:00.0"},
    "/sys/bus/pci/devices/0000:18:00.0/numa_node": "1\n",
    "/dev/infiniband/uverbs0": {"char": [231, 192], "mode": "0666", "uid": 0, "gid": 0},
    "/etc/none": {"errno": "ENOENT"},
    "/etc/blob": {"b64": base64.b64encode(b"\x00\xff").decode()},
    "/loop/a": {"link": "b"},
    "/loop/b": {"link": "a"},
    "cmd:uname -r": "6.8.0\n",
    "space:/dev/shm": {"size": 64, "free": 1},
    "space:/broken": {"size": "x"},
    "lock:4096": "ENOMEM",
}


def test_links_are_followed_anywhere_in_a_path() -> None:
    host = RecordedHost(TREE)
    assert hosts.number(host, "/sys/bus/pci/devices/0000:18:00.0/numa_node") == 1
    assert hosts.number(host, "/sys/devices/pci0000:15/mlx5_0/device/../device/numa_node") == 1
    assert hosts.number(host, "/sys/class/infiniband/mlx5_0/device/net/net1/mtu") == 9000
    assert host.target("/sys/class/infiniband/mlx5_0") == "../../devices/pci0000:15/mlx5_0"
    assert host.read_bytes("/loop/a") == Missing("ELOOP")


def test_absent_and_unread_are_different() -> None:
    host = RecordedHost(TREE, roots=["/opt"])
    assert host.read_bytes("/etc/none") == Missing("ENOENT")
    assert host.read_bytes("/etc/none/below") == Missing("ENOENT")
    assert host.read_bytes("/etc/other") == Missing(UNREAD)
    assert host.read_bytes("/sys/class/infiniband/mlx5_9/state") == Missing("ENOENT")
    assert host.read_bytes("/opt/any") == Missing("ENOENT")
    assert host.run(["uname", "-a"]) == Missing(UNREAD)
    assert host.run(["uname", "-r"]) == "6.8.0\n"


def test_listings() -> None:
    host = RecordedHost(TREE)
    assert host.listing("/sys/class/infiniband") == Listing(("mlx5_0",), True)
    assert host.listing("/sys/bus/pci/devices") == Listing(("0000:18:00.0",), False)
    assert host.listing("/nowhere") == Missing(UNREAD)
    assert host.listing("/etc/blob") == Missing("ENOTDIR")


def test_devices_and_bytes() -> None:
    host = RecordedHost(TREE)
    assert host.space("/dev/shm") == Space(64, 1)
    assert host.space("/broken") == Missing("EIO", "the recording holds a broken size")
    assert host.space("/other") == Missing(UNREAD)
    assert host.try_lock(4096) == "ENOMEM"
    assert host.try_lock(8192) == Missing(UNREAD)
    assert host.device("/dev/infiniband/uverbs0") == DeviceNode(231, 192, 0o666, 0, 0)
    assert host.device("/etc/blob") == Missing("ENODEV", "not a character device")
    assert host.read_bytes("/etc/blob") == b"\x00\xff"


def test_a_recording_of_this_machine_answers_the_same() -> None:
    paths = ["/proc/version", "/sys/class/net", "/proc/self", "/dev/null", "/no/such", "/proc/1/io"]
    with LiveHost() as live:
        recorder = Recorder(live)
        measured = recorder.space("/dev/shm"), recorder.try_lock(4096)
        seen = [
            (recorder.read_bytes(path), recorder.listing(path + "/"), recorder.device(path))
            for path in paths
        ]
        links = [recorder.target("/sys/class/net/lo")]
    replay = RecordedHost(recorder.tree)
    assert measured == (replay.space("/dev/shm"), replay.try_lock(4096))
    assert links == [replay.target("/sys/class/net/lo")]
    for path, (content, _, device) in zip(paths, seen, strict=True):
        if isinstance(content, bytes):
            assert replay.read_bytes(path) == content
        if isinstance(device, DeviceNode):
            assert replay.device(path) == device


def test_secrets_in_an_environment_are_never_recorded() -> None:
    environ = (
        b"NCCL_DEBUG=INFO\0AWS_SECRET_ACCESS_KEY=hunter2\0NVIDIA_API_KEY=hunter2\0"
        b"CUDA_VISIBLE_DEVICES=0\0HOME=/root\0"
    )
    tree = {"/proc/7/environ": environ.decode()}
    recorder = Recorder(RecordedHost(tree))
    content = recorder.read_bytes("/proc/7/environ")
    assert content == b"NCCL_DEBUG=INFO\0CUDA_VISIBLE_DEVICES=0\0"
    assert "hunter2" not in str(recorder.tree)


ENTRY = st.one_of(
    st.text(max_size=20),
    st.fixed_dictionaries({"link": st.sampled_from(["a", "../b", "/a/b", ".", "/", ""])}),
    st.fixed_dictionaries({"errno": st.sampled_from(["ENOENT", "EACCES"])}),
    st.fixed_dictionaries({"dir": st.lists(st.sampled_from(["a", "b"]), max_size=2)}),
    st.fixed_dictionaries({"b64": st.text(max_size=8)}),
    st.fixed_dictionaries({"char": st.lists(st.integers(), max_size=3)}),
    st.none() | st.integers() | st.lists(st.integers()),
)
PATH = st.lists(st.sampled_from(["a", "b", ".."]), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


def test_a_link_to_itself_above_ends() -> None:
    host = RecordedHost({"/b": {"link": "../b"}, "/a/..": {"link": "."}}, roots=["/a"])
    assert host.target("/b/c") == Missing("ELOOP")


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(PATH, ENTRY, max_size=6), PATH)
def test_no_recording_makes_it_raise(tree: dict[str, Any], path: str) -> None:
    host = RecordedHost(tree, roots=["/a"])
    for call in (host.read_bytes, host.listing, host.target, host.device):
        call(path)
    host.run([path])


def test_a_recorder_asks_once_and_answers_what_it_has_recorded(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"first\n")
    (tmp_path / "raw").write_bytes(b"\xff")
    (tmp_path / "link").symlink_to("file")
    with LiveHost(str(tmp_path)) as live:
        recorder = Recorder(live)

        def look() -> list[object]:
            return [
                recorder.read_bytes("/file"), recorder.read_bytes("/raw"), recorder.listing("/"),
                recorder.target("/link"), recorder.read_bytes("/none"), recorder.listing("/none"),
                recorder.target("/file"),
            ]  # fmt: skip

        before = look()
        (tmp_path / "file").write_bytes(b"later\n")
        (tmp_path / "none").write_bytes(b"")
        (tmp_path / "raw").write_bytes(b"")
        assert look() == before
        assert before[:2] == [b"first\n", b"\xff"]
        assert Recorder(live).read_bytes("/file") == b"later\n"
