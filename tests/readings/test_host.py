"""The verdict on a whole host: what it needs, and what a plain user may lack without losing it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpudoctor import cli
from tests.facts.node.test_containers import ID, UID
from tests.machines import whole_machine

DENIED = {"errno": "EACCES"}
BRIDGE = "0000:12:00.0"


def healthy() -> dict[str, Any]:
    """A machine of eight GPUs and eight NICs as root sees it, with nothing wrong."""
    tree = whole_machine()
    config = bytearray(256)
    config[0x0E] = 1
    tree |= {
        f"/sys/bus/pci/devices/{BRIDGE}/config": {"b64": base64.b64encode(config).decode()},
        "/sys/module/nvidia/version": "580.126.09\n",
        "/proc/driver/nvidia/version": (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09\n"
        ),
        "/proc/sys/kernel/osrelease": "6.8.0\n",
        "/proc/1/comm": "systemd\n",
        "/proc/self/limits": "Max locked memory         unlimited   unlimited   bytes\n",
        "/proc/self/status": "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0\nCapBnd:\t0\n",
        "/dev/infiniband": {"dir": ["rdma_cm", *(f"uverbs{index}" for index in range(8))]},
        "/proc": {"dir": ["1", "40", "self"]},
        "/proc/40/cgroup": f"0::/kubepods/pod{UID}/{ID}\n",
        "/proc/40/root/dev": {"dir": ["null"]},
        "/proc/40/root/dev/infiniband": {"errno": "ENOENT"},
        "/proc/40/environ": "",
        "/proc/40/maps": "",
    }
    for index in range(8):
        tree[f"/sys/class/infiniband_verbs/uverbs{index}/ibdev"] = f"mlx5_{index}"
        tree[f"/dev/infiniband/uverbs{index}"] = {"char": [231, 192 + index], "mode": "0666"}
    return tree


def as_plain_user() -> dict[str, Any]:
    """The same machine through the eyes of a user without privilege."""
    tree = healthy()
    header = bytearray(64)
    header[0x0E] = 1
    tree[f"/sys/bus/pci/devices/{BRIDGE}/config"] = {"b64": base64.b64encode(header).decode()}
    for name in ("root/dev", "root/dev/infiniband", "environ", "maps"):
        tree[f"/proc/40/{name}"] = DENIED
    return tree | {
        "/proc/1/environ": DENIED,
        "/var/lib/kubelet/cpu_manager_state": DENIED,
        "/var/lib/kubelet/pod-resources": DENIED,
    }


def check(tree: dict[str, Any], tmp_path: Path) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "bundle.json"
    bundle = {"schema": "gpudoctor.io/bundle/v1", "hosts": {"local": {"tree": tree}}}
    path.write_text(json.dumps(bundle))
    arguments = ["check", "--from", str(path), "-o", "json"]
    result = CliRunner().invoke(cli.root, arguments, prog_name="gpudoctor")
    return result.exit_code, json.loads(result.stdout)


def unknown(answer: dict[str, Any]) -> set[str]:
    return {each["what"] for each in answer["unknown"]}


def test_healthy_for_root(tmp_path: Path) -> None:
    status, answer = check(healthy(), tmp_path)
    assert (status, answer["verdict"], answer["unknown"]) == (0, "healthy", [])


def test_healthy_for_a_plain_user_who_is_told_what_was_refused(tmp_path: Path) -> None:
    status, answer = check(as_plain_user(), tmp_path)
    assert (status, answer["verdict"]) == (0, "healthy")
    assert unknown(answer) == {
        "acs-state",
        "devices of containers",
        "/var/lib/kubelet/cpu_manager_state",
    }
    refused = next(one for one in answer["findings"] if one["name"] == "host-facts-unreadable")
    assert refused["severity"] == "info"


def test_a_plain_user_hears_of_what_is_wrong(tmp_path: Path) -> None:
    tree = as_plain_user()
    tree["/proc/self/limits"] = "Max locked memory         8388608   8388608   bytes\n"
    status, answer = check(tree, tmp_path)
    assert (status, answer["roots"]) == (1, ["memlock-too-low"])


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/proc/self/limits", "memlock limit"),
        ("/sys/class/infiniband", "RDMA devices"),
        ("/dev/infiniband", "RDMA device nodes"),
    ],
)
def test_what_a_verdict_needs_is_no_all_clear(tmp_path: Path, path: str, what: str) -> None:
    tree = {
        key: entry
        for key, entry in as_plain_user().items()
        if key != path and not key.startswith(f"{path}/")
    }
    status, answer = check(tree | {path: DENIED}, tmp_path)
    assert (status, answer["verdict"]) == (3, "unknown")
    assert what in unknown(answer)
