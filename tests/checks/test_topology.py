"""Rules over the topology matrix: each finding, and the platform that looks like it but is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpudoctor import diagnosis, readings, registry
from gpudoctor.facts.node import cpulist, topology_text
from gpudoctor.facts.node.topology import Gpu, Nic, Topology
from gpudoctor.report import Report, ReportSubject, Severity, Subject
from gpudoctor.sources.text import open_input

CASES = Path(__file__).parent.parent / "cases" / "node"
CHECKS = registry.load()


def report(topology: Topology) -> Report:
    found = diagnosis.diagnose(CHECKS, [topology])
    return diagnosis.report(found, ReportSubject("Host"), observed_at=None)


def names(answer: Report, at_least: Severity = Severity.INFO) -> set[str]:
    """NAME or NAME:DEVICE; a finding about several devices names them at the head of its title."""
    found = set()
    for finding in answer.findings:
        if finding.severity.rank < at_least.rank:
            continue
        device = finding.subject.device
        listed = re.match(r"^((?:[\w-]+, )+[\w-]+)(?: \(.*\))?: ", finding.title)
        devices = [device] if device or not listed else listed[1].split(", ")
        found |= {f"{finding.name}:{each}" if each else finding.name for each in devices}
    return found


def on(name: str, device: str) -> str:
    """The finding of that name about that device, as `names` gives it."""
    return f"{name}:{device}"


def machine(
    rows: list[str],
    numa: str = "",
    *,
    nics: list[str] | None = None,
    cpus: list[str] | None = None,
    nvlink_shown: bool = True,
) -> Topology:
    """Build a topology: one string of cells a GPU (GPUs, then NICs), `numa` a digit a GPU."""
    nics = nics or []
    labels = [f"GPU{i}" for i in range(len(rows))] + [f"NIC{i}" for i in range(len(nics))]
    return Topology(
        subject=Subject("Host", "test"),
        source="nvidia-smi topo -m",
        gpus=tuple(
            Gpu(
                label=f"GPU{i}",
                numa=(int(numa[i]),) if numa and numa[i] != "-" else None,
                cpus=cpulist.parse(cpus[i]) if cpus else None,
            )
            for i in range(len(rows))
        ),
        nics=tuple(Nic(f"NIC{i}", name) for i, name in enumerate(nics)),
        matrix={
            f"GPU{i}": dict(zip(labels, row.split(), strict=True)) for i, row in enumerate(rows)
        },
        nvlink_shown=nvlink_shown,
        numa_shown=True,
    )


def square(pairs: dict[tuple[int, int], str], size: int, default: str) -> list[str]:
    return [
        " ".join(
            "X" if a == b else pairs.get((a, b), pairs.get((b, a), default)) for b in range(size)
        )
        for a in range(size)
    ]


@pytest.mark.parametrize("path", sorted(CASES.glob("topo-*.txt")), ids=lambda path: path.stem)
def test_reported_machines(path: Path) -> None:
    expect: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())["expect"]
    with open_input(str(path)) as text:
        reading = readings.recognise(text).read(text)
    answer = diagnosis.report(
        diagnosis.diagnose(CHECKS, reading.facts), reading.subject, observed_at=None
    )
    topology = reading.published["topology"]
    assert (topology["gpus"], topology["nics"]) == (expect["gpus"], expect["nics"])
    for pair, cell in expect["matrix_checks"].items():
        one, _, other = pair.partition("-")
        assert topology["matrix"][one][other] == cell
    for gpu, near in expect.get("nic_for_gpu", {}).items():
        assert topology["nic_for_gpu"][gpu] == near
    for gpu, nodes in expect.get("numa", {}).items():
        assert topology["numa"][gpu] == nodes
    if "nvlink_islands" in expect:
        assert topology["nvlink_islands"] == expect["nvlink_islands"]
    assert set(expect["findings"]) <= names(answer)
    loud = {name.partition(":")[0] for name in names(answer, Severity.WARNING)}
    assert loud.isdisjoint(expect["must_not_flag"] + expect.get("info_only", []))
    assert loud <= {name.partition(":")[0] for name in expect["findings"]}


def test_unreadable_row_is_said_once_and_is_unknown() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0\nGPU1\tNV4NV4\t X \t0\n"
    topology = topology_text.parse(text, Subject("Host", "test"))
    assert topology is not None
    answer = report(topology)
    assert "topology-unreadable:GPU1" in names(answer)
    assert answer.unknown[0].what == "topology of GPU1"


def test_hidden_in_a_virtual_machine_without_numa() -> None:
    flat = machine(square({}, 4, "PHB"), "----", nvlink_shown=False)
    assert names(report(flat)) >= {"pcie-topology-hidden", "numa-unknown"}
    one_pair = machine(square({}, 2, "PHB"), "--", nvlink_shown=False)
    assert "pcie-topology-hidden" not in names(report(one_pair)), "one cell shows no pattern"
    known = machine(square({}, 4, "PHB"), "0000", nvlink_shown=False)
    assert "pcie-topology-hidden" not in names(report(known))
    assert "gpu-p2p-over-host-bridge" in names(report(known))


def test_nvlink_leaves_no_peer_over_the_host_bridge() -> None:
    bridged = machine(square({(0, 1): "NV4", (2, 3): "NV4"}, 4, "PHB"), "0000")
    assert names(report(bridged)) == set()


def test_one_gpu_on_the_other_socket() -> None:
    odd = machine(square({(0, 1): "PHB", (0, 2): "PHB", (1, 2): "PHB"}, 4, "SYS"), "0001")
    assert on("gpu-odd-one-out", "GPU3") in names(report(odd), Severity.WARNING)
    even = machine(square({(0, 1): "PHB", (2, 3): "PHB"}, 4, "SYS"), "0011")
    assert names(report(even), Severity.WARNING) == set()
    assert "numa-uneven" in names(report(odd))
    assert "numa-uneven" not in names(report(even))


def test_one_gpu_without_nvlink_on_a_switched_board() -> None:
    lost = {(3, other): "NODE" for other in range(8) if other != 3}
    answer = report(machine(square(lost, 8, "NV18"), "00001111"))
    assert names(answer, Severity.WARNING) == {"nvlink-missing:GPU3"}
    alone = {(7, other): "SYS" for other in range(7)}
    answer = report(machine(square(alone, 8, "NV18"), "00000001"))
    assert answer.roots == ("nvlink-missing",), "it explains that the GPU is the odd one out"
    one_pair = report(machine(square({(2, 5): "SYS"}, 8, "NV18"), "00001111"))
    assert "nvlink-missing:GPU2" in names(one_pair, Severity.ERROR)


def test_one_pair_without_its_bridge_is_information() -> None:
    pairs = {(0, 1): "NV12", (2, 3): "NV12", (4, 5): "NV12"}
    answer = report(machine(square(pairs, 8, "SYS"), "00112233"))
    assert {"nvlink-missing:GPU6", "nvlink-missing:GPU7"} <= names(answer)
    assert "nvlink-missing:GPU6" not in names(answer, Severity.WARNING)
    alone = report(machine(square({(0, 1): "NV12"}, 4, "SYS"), "0011"))
    assert "nvlink-missing:GPU2" not in names(alone), "one bridged pair is no pattern"


def test_hidden_where_everything_is_far_on_one_node() -> None:
    rows = [row + " SYS SYS SYS" for row in square({}, 4, "NV18")]
    far = machine(rows, "0000", nics=["a", "b", "c"])
    assert names(report(far)) == {"pcie-topology-hidden"}
    one = machine([row + " SYS" for row in square({}, 4, "NV18")], "0000", nics=["a"])
    assert "pcie-topology-hidden" not in names(report(one)), "the NIC is on the other socket"


@pytest.mark.parametrize("joined", [2, 4])
def test_islands_of_bridged_cards_miss_nothing(joined: int) -> None:
    pairs = {(a, b): "NV6" for a in range(8) for b in range(a + 1, 8) if a // joined == b // joined}
    answer = report(machine(square(pairs, 8, "SYS"), "00001111" if joined == 4 else "00112233"))
    assert names(answer, Severity.WARNING) == set()


def test_gpu_with_fewer_links_than_its_neighbours() -> None:
    weak = {(5, other): "NV16" for other in range(8) if other != 5}
    answer = report(machine(square(weak, 8, "NV18"), "00001111"))
    assert names(answer, Severity.WARNING) == {"nvlink-degraded:GPU5"}
    one_pair = report(machine(square({(1, 6): "NV17"}, 8, "NV18"), "00001111"))
    assert names(one_pair, Severity.WARNING) == {"nvlink-degraded:GPU1"}


@pytest.mark.parametrize(("links", "whole"), [(18, True), (12, True), (8, True), (16, False)])
def test_the_same_count_everywhere_is_judged_by_product(links: int, whole: bool) -> None:
    answer = report(machine(square({}, 8, f"NV{links}"), "00001111"))
    assert ("nvlink-degraded" in names(answer, Severity.WARNING)) is not whole


def test_cube_mesh_with_a_lost_link() -> None:
    text = (CASES / "topo-04-v100-hybrid-cube-legacy-mlx5-columns.txt").read_text()
    lines = text.splitlines()
    lines[1] = lines[1].replace("NV2\tNV1\tSYS\tSYS\tSYS\tNV2", "NV1\tNV1\tSYS\tSYS\tSYS\tNV2")
    lines[3] = lines[3].replace("GPU2\tNV2", "GPU2\tNV1")
    topology = topology_text.parse("\n".join(lines), Subject("Host", "test"))
    assert topology is not None
    loud = names(report(topology), Severity.WARNING)
    assert loud == {"nvlink-degraded:GPU0", "nvlink-degraded:GPU2"}


def test_the_two_directions_of_a_pair_differ() -> None:
    rows = square({}, 4, "NV18")
    rows[0] = "X NV17 NV18 NV18"
    answer = report(machine(rows, "0011"))
    assert answer.roots == ("nvlink-asymmetric",)
    assert "nvlink-asymmetric" not in names(report(machine(square({}, 4, "NV18"), "0011")))


def test_gpu_without_near_nic_where_others_have_one() -> None:
    rows = ["X SYS PIX", "SYS X SYS"]
    answer = report(machine(rows, "01", nics=["mlx5_0"]))
    assert names(answer, Severity.WARNING) == {
        "gpu-without-near-nic:GPU1",
        "gpu-nic-cross-numa:GPU1",
    }
    assert answer.roots == ("gpu-nic-cross-numa",)
    joined = report(machine(["X NV4 PIX", "NV4 X SYS"], "01", nics=["mlx5_0"]))
    assert names(joined, Severity.WARNING) == set(), "PXN over NVLink"
    grace = report(machine(["X NV18 NODE", "NV18 X NODE"], "00", nics=["mlx5_0"]))
    assert names(grace) == set()


def test_nic_far_from_all_gpus_is_information() -> None:
    answer = report(machine(["X NV18 PIX NODE", "NV18 X PIX NODE"], "00", nics=["a", "b"]))
    assert "nic-far-from-gpus:b" in names(answer)
    assert "nic-far-from-gpus:b" not in names(answer, Severity.WARNING)


def test_nic_shared_only_here() -> None:
    rows = [
        "X NV12 NV12 NV12 PXB SYS SYS",
        "NV12 X NV12 NV12 PXB SYS SYS",
        "NV12 NV12 X NV12 SYS PXB PXB",
        "NV12 NV12 NV12 X SYS PXB PXB",
    ]
    answer = report(machine(rows, "0011", nics=["a", "b", "c"]))
    assert names(answer, Severity.WARNING) == {"nic-shared-by-gpus:a"}
    rows = [row.rsplit(" ", 1)[0] for row in rows]
    alike = report(machine(rows, "0011", nics=["a", "b"]))
    assert names(alike, Severity.WARNING) == set(), "every switch looks like this"


def test_cpus_of_the_caller() -> None:
    rows = square({}, 2, "NV4")
    none = report(machine(rows, "01", cpus=["0-35", ""]))
    assert names(none) == {on("no-local-cpus-for-gpu", "GPU1")}
    few = report(machine(rows, "00", cpus=["0", "0"]))
    assert names(few) == {"cpu-affinity-too-small"}
    assert names(report(machine(rows, "00", cpus=["0-1", "0-1"]))) == set()


def test_numa_unknown_for_one_gpu() -> None:
    answer = report(machine(square({}, 3, "NV4"), "0-0"))
    assert "numa-unknown:GPU1" in names(answer)
    assert "numa-unknown" not in names(report(machine(square({}, 3, "NV4"), "000")))
