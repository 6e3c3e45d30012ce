"""`gpudoctor labels`: a host's labels with the fact behind each, and those of a cluster's node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.publish import diagnosis, targets
from gpudoctor.report import Verdict
from tests.cli.running import run
from tests.machines import DEVICES, on_disk, whole_machine
from tests.publish.reports import of_node

BUNDLE = "gpudoctor.io/bundle/v1"
MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build  (root)\n"
)


def machine() -> dict[str, Any]:
    """A machine of eight GPUs with their driver."""
    tree = whole_machine()
    gpus = sorted(path for path in tree if path.startswith(DEVICES) and path.endswith("3:00.0"))
    for number, path in enumerate(gpus):
        folder = f"/proc/driver/nvidia/gpus/{path.rpartition('/')[2]}"
        tree[f"{folder}/information"] = (
            f"Model: \t\t NVIDIA H100 80GB HBM3\nDevice Minor: \t {number}\n"
        )
    return tree | {"/proc/driver/nvidia/version": MODULE, "/proc/sys/kernel/osrelease": "6.8.0\n"}


def node(name: str, **labels: str) -> dict[str, Any]:
    ours = {f"gpudoctor.io/{key}": value for key, value in labels.items()}
    metadata = {"name": name, "labels": {"topology.kubernetes.io/rack": "r7"} | ours}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {}}


def write(folder: Path, **parts: Any) -> str:
    path = folder / "bundle.json"
    whole = {"schema": BUNDLE, "now": "2026-11-20T09:00:00Z", "scope": {"roots": ["/"]}, **parts}
    path.write_text(json.dumps(whole))
    return str(path)


def labels_of(out: str) -> dict[str, str]:
    """key -> value of what the JSON says."""
    told = json.loads(out)["facts"]["labels"]
    return {name: one["value"] for name, one in told.items() if one["value"] is not None}


def test_a_recorded_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = write(tmp_path, hosts={"gpu-1": {"tree": machine()}}, objects=[node("gpu-1")])
    found = labels_of(run(monkeypatch, ["labels", "--from", source, "-o", "json"]).out)
    assert found == {
        "cuda": "13000",
        "driver": "580126009",
        "gdr": "dmabuf",
        "gpu-arch": "hopper",
        "gpu-count": "8",
        "gpu-model": "h100",
        "gpu-nic": "pix",
        "rack": "r7",
        "rdma": "ib",
        "rdma-gbps": "400",
        "rdma-rails": "8",
    }


def test_the_table_has_the_fact_behind_each_and_why_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = write(tmp_path, hosts={"gpu-1": {"tree": machine()}}, objects=[node("gpu-1")])
    result = run(monkeypatch, ["labels", "--from", source])
    assert result.status == 0
    lines = {line.split()[0]: line for line in result.out.splitlines() if line.strip()}
    assert "580126009" in lines["gpudoctor.io/driver"]
    assert "NVIDIA driver 580.126.09 is loaded" in " ".join(result.out.split())
    assert lines["gpudoctor.io/nvlink"].split()[1] == "-"
    assert "sysfs does not show NVLink" in " ".join(result.out.split())


def test_a_host_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_disk(whole_machine(per_socket=1), tmp_path)
    result = run(monkeypatch, ["labels", "--host-root", str(tmp_path), "-o", "json"])
    assert labels_of(result.out)["rdma-rails"] == "2"


def published(name: str, **labels: str) -> dict[str, Any]:
    target = targets.node(name)
    report = of_node(name, Verdict.HEALTHY, **{k: (v, "told so") for k, v in labels.items()})
    made: dict[str, Any] = json.loads(diagnosis.object_write(target, "gpudoctor").body)
    status = diagnosis.of(report, period_seconds=60)
    return made | {"status": json.loads(msgspec.json.encode(status))}


def test_a_node_shows_what_it_has_and_what_its_agent_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = write(
        tmp_path,
        objects=[node("gpu-1", driver="570000000"), published("gpu-1", driver="580126009")],
    )
    result = run(monkeypatch, ["labels", "--node", "gpu-1", "--from", source])
    [row] = [line for line in result.out.splitlines() if "io/driver" in line]
    assert row.split() == ["gpudoctor.io/driver", "580126009", "570000000", "told", "so"]
    [verdict] = [line for line in result.out.splitlines() if "io/verdict" in line]
    assert verdict.split()[:3] == ["gpudoctor.io/verdict", "healthy", "-"]


def test_a_label_that_nobody_stands_for_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = write(tmp_path, objects=[node("gpu-1", rdma="ib")])
    result = run(monkeypatch, ["labels", "--node", "gpu-1", "--from", source])
    [row] = [line for line in result.out.splitlines() if "io/rdma" in line]
    assert row.split()[:3] == ["gpudoctor.io/rdma", "-", "ib"]
    assert "no agent has published one" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--node", "gpu-2"], "near it: gpu-1"),
        ([], "no host is in the input"),
    ],
)
def test_what_is_not_there_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], words: str
) -> None:
    source = write(tmp_path, objects=[node("gpu-1")])
    result = run(monkeypatch, ["labels", *arguments, "--from", source])
    assert result.status == 2
    assert words in result.err
