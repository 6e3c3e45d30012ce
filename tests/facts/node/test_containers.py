"""Containers found in the host's /proc: cgroup paths of all runtimes, and what each may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor import readings, registry
from gpudoctor.facts.node import containers
from gpudoctor.readings import host
from gpudoctor.sources.bundle import Bundle, HostRecording
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorded import RecordedHost
from gpudoctor.sources.host.recorder import Recorder

CHECKS = registry.load()
UID = "0c6b2ba5-7a4e-4ad3-a1a5-9d7c1f3f0f11"
ID = "3f0c" * 16
FLAT = UID.replace("-", "_")


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/"
        f"cri-containerd-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{FLAT}.slice/crio-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{FLAT}.slice/crio-{ID}.scope/container",
        f"/kubepods/besteffort/pod{UID}/{ID}",
        f"/system.slice/containerd.service/kubepods-burstable-pod{FLAT}.slice:cri-containerd:{ID}",
        f"/../../kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{FLAT}.slice/"
        f"cri-containerd-{ID}.scope",
        f"/docker/{'a' * 64}/kubelet/kubepods/pod{UID}/{ID}",
    ],
)
def test_pod_and_container_by_cgroup(path: str) -> None:
    assert containers.identify(f"0::{path}\n") == (UID, ID)
    assert containers.identify(f"11:cpuset:{path}\n1:name=systemd:{path}\n") == (UID, ID)


def test_static_pod_docker_and_monitors() -> None:
    static = "f" * 32
    assert containers.identify(f"0::/kubepods/pod{static}/{ID}") == (static, ID)
    assert containers.identify(f"0::/system.slice/docker-{ID}.scope") == (None, ID)
    assert containers.identify(f"0::/kubepods.slice/crio-conmon-{ID}.scope") is None
    assert containers.identify("0::/user.slice/session-1.scope") is None
    assert containers.identify("") is None


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet="0123456789abcdef/:-_.podcri\n", max_size=200))
def test_no_cgroup_file_makes_it_raise(text: str) -> None:
    containers.identify(text)


def tree() -> dict[str, Any]:
    cgroup = f"0::/kubepods/pod{UID}/{ID}\n"
    return {
        "/proc": {"dir": ["1", "40", "41", "self"]},
        "/proc/1/comm": "systemd\n",
        "/proc/1/cgroup": "0::/init.scope\n",
        "/proc/40/cgroup": cgroup,
        "/proc/41/cgroup": cgroup,
        "/proc/40/limits": "Max locked memory         65536   65536   bytes\n",
        "/proc/40/status": "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\nCapBnd:\t0\n",
        "/proc/40/environ": "NVIDIA_VISIBLE_DEVICES=all\0TOKEN=x\0",
        "/proc/40/maps": "7f0 r-xp 0 0:1 1 /usr/lib/libnccl.so.2.21.5\n",
        "/proc/40/root/dev": {"dir": ["null", "nvidia1", "nvidiactl"]},
        "/proc/40/root/dev/infiniband": {"dir": ["rdma_cm", "uverbs0"]},
        "/proc/driver/nvidia/gpus": {"dir": ["0000:1b:00.0", "0000:9d:00.0"]},
        "/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Device Minor: \t 0\n",
        "/proc/driver/nvidia/gpus/0000:9d:00.0/information": "Device Minor: \t 1\n",
        "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "/sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0",
    }


def judge(recorded: dict[str, Any]) -> Any:
    bundle = Bundle(hosts={"local": HostRecording(tree=recorded)})
    return readings.judge(host.read_recorded(bundle), CHECKS)


def test_a_container_is_judged_by_its_own_limits() -> None:
    answer = judge(tree())
    (child,) = answer.children
    assert child.roots == ("memlock-too-low",)
    assert answer.roots == (), "the shell of the host has no such limit"
    facts = child.facts["container"]
    assert (facts["pod_uid"], facts["pid"]) == (UID, 40)
    assert facts["gpus"] == ["0000:9d:00.0"]
    assert facts["rdma_devices"] == ["mlx5_0"]
    assert facts["libraries"] == {"libnccl": "2.21.5"}


def test_without_privilege_its_gpus_are_unknown() -> None:
    recorded = tree()
    for path in ("/proc/40/root/dev", "/proc/40/root/dev/infiniband", "/proc/40/maps"):
        recorded[path] = {"errno": "EACCES"}
    (child,) = judge(recorded).children
    assert "GPUs of this container" in {unknown.what for unknown in child.unknown}
    assert child.facts["container"]["gpus"] is None


def test_a_container_without_devices_is_left_out() -> None:
    recorded = tree()
    recorded["/proc/40/root/dev"] = {"dir": ["null"]}
    recorded["/proc/40/root/dev/infiniband"] = {"errno": "ENOENT"}
    recorded["/proc/40/environ"] = "NVIDIA_VISIBLE_DEVICES=void\0"
    assert judge(recorded).children == ()


KTHREADD = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0\n"
IN_A_CONTAINER = "2 (a ) kthreadd) S 1 2 2 0 -1 4194560 0 0 0\n"


@pytest.mark.parametrize(
    ("stat", "children", "read"),
    [
        (KTHREADD, "41 43", ["1", "2", "40"]),
        (KTHREADD, None, ["1", "2", "40", "41"]),
        (KTHREADD, "x -1 ", ["1", "2", "40", "41"]),
        (IN_A_CONTAINER, "41", ["1", "2", "40", "41"]),
        ("2 (kthreadd) S", "41", ["1", "2", "40", "41"]),
        (None, "41", ["1", "2", "40", "41"]),
    ],
)
def test_the_kernels_own_threads_are_in_no_container(
    stat: str | None, children: str | None, read: list[str]
) -> None:
    recorded = tree() | {"/proc": {"dir": ["1", "2", "40", "41", "self"]}}
    if stat is not None:
        recorded["/proc/2/stat"] = stat
    if children is not None:
        recorded["/proc/2/task/2/children"] = children
    recorder = Recorder(RecordedHost(recorded, ("/proc",)))
    (found,) = containers.find(recorder)
    assert found.pid == "40"
    asked = [path.split("/")[2] for path in recorder.tree if path.endswith("/cgroup")]
    assert asked == read


def test_on_this_machine_its_threads_are_told_from_processes() -> None:
    with LiveHost() as live:
        recorder = Recorder(live)
        containers.find(recorder)
    asked = {path.split("/")[2] for path in recorder.tree if path.endswith("/cgroup")}
    assert str(os.getpid()) in asked
    own = (recorder.tree.get("/proc/2/task/2/children") or "").split()
    for pid in set(own) & asked:
        raise AssertionError(f"{pid} is a thread of the kernel")
    for pid in own[:50]:
        with contextlib.suppress(OSError):  # threads come and go
            assert (
                int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]) & 1 << 21
            )
