"""One machine by NVML and sysfs, by the tool's text and by sysfs alone: the same facts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudoctor import diagnosis, registry
from gpudoctor.facts.node import machine
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_reader import read_gpus
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.facts.node.topology import Topology
from gpudoctor.report import Severity, Subject
from gpudoctor.sources.host.recorded import RecordedHost
from gpudoctor.sources.host.recorder import Recorder
from tests import nvml_library
from tests.machines import whole_machine

HOST = Subject("Host", "test")
PLENTY_S = 30.0
BUSES = [0x10 + socket * 0x80 + slot * 0x10 + 3 for socket in range(2) for slot in range(4)]
AT = ";".join(f"bus@{gpu}={bus}" for gpu, bus in enumerate(BUSES))
Ask = Callable[..., NodeGpus]
SAME = ("gpus", "nics", "matrix", "nic_names", "nic_for_gpu", "numa", "nvlink_islands",
        "cpu_affinity", "gpu_numa_id")  # fmt: skip


@pytest.fixture
def nvml(tmp_path: Path) -> Ask:
    """Return a function that asks a library compiled for a script."""

    def ask(script: str, *defines: str) -> NodeGpus:
        found = read_gpus(PLENTY_S, nvml_library.build(tmp_path, script, *defines), HOST)
        assert isinstance(found, NodeGpus)
        return found

    return ask


def read(tree: dict[str, Any], gpus: NodeGpus | None) -> tuple[NodeFacts, Recorder]:
    recorder = Recorder(RecordedHost(tree, roots=["/sys"]))
    return machine.with_gpus(recorder, machine.read(recorder, HOST), gpus), recorder


def topology(tree: dict[str, Any], gpus: NodeGpus | None) -> Topology:
    found = read(tree, gpus)[0].topology
    assert found is not None
    return found


def printed() -> str:
    """What the tool prints of `whole_machine` with NVSwitch: a GPU and a NIC on each switch."""
    labels = [f"{kind}{number}" for kind in ("GPU", "NIC") for number in range(8)]
    lines = ["\t" + "\t".join([*labels, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for one in labels:
        cells = []
        for other in labels:
            a, b = int(one[3:]), int(other[3:])
            far = "SYS" if a // 4 != b // 4 else "NODE"
            if one == other:
                cells.append(" X ")
            elif one[:3] == other[:3] == "GPU":
                cells.append("NV18")
            else:
                cells.append("PIX" if a == b else far)
        socket = int(one[3:]) // 4
        place = [f"{socket * 56}-{socket * 56 + 55}", str(socket), "", "N/A"]
        lines.append("\t".join([one, *cells, *(place if one.startswith("GPU") else [])]))
    legend = [f"  NIC{number}: mlx5_{number}" for number in range(8)]
    return "\n".join([*lines, "", "Legend:", "", "NIC Legend:", "", *legend, ""])


def test_nvml_and_sysfs_tell_what_the_tool_prints(nvml: Ask) -> None:
    by_nvml = topology(whole_machine(), nvml(f"{nvml_library.H100};{AT}")).published()
    by_text = topology(whole_machine() | {"cmd:nvidia-smi topo -m": printed()}, None).published()
    assert {key: by_nvml[key] for key in SAME} == {key: by_text[key] for key in SAME}
    assert by_nvml["nvlink_visible"]
    assert by_nvml["source"].startswith("NVML")


def test_sysfs_alone_tells_all_but_nvlink(nvml: Ask) -> None:
    by_sysfs = topology(whole_machine(), None).published()
    by_nvml = topology(whole_machine(), nvml(f"{nvml_library.H100};{AT}")).published()
    for key in ("nic_for_gpu", "numa", "cpu_affinity", "nic_names"):
        assert by_sysfs[key] == by_nvml[key]
    assert not by_sysfs["nvlink_visible"]


def test_no_program_is_asked_where_nvml_tells(nvml: Ask) -> None:
    _, recorder = read(whole_machine(), nvml(f"{nvml_library.H100};{AT}"))
    assert "cmd:nvidia-smi topo -m" not in recorder.tree
    _, recorder = read(whole_machine(), None)
    assert "cmd:nvidia-smi topo -m" in recorder.tree


@pytest.mark.parametrize("gap", ["nvmlDeviceGetNvLinkState@3=999", "nvmlDeviceGetPciInfo_v3@3=999"])
def test_the_tool_is_asked_where_nvml_has_a_gap(nvml: Ask, gap: str) -> None:
    text = {"cmd:nvidia-smi topo -m": printed()}
    found = topology(whole_machine() | text, nvml(f"{nvml_library.H100};{AT};{gap}"))
    assert found.source == "nvidia-smi topo -m"


def test_a_lost_gpu_leaves_the_others_their_numbers(nvml: Ask) -> None:
    lost = "nvmlDeviceGetHandleByIndex_v2@2=15"
    found = topology(whole_machine(), nvml(f"{nvml_library.H100};{AT};{lost}"))
    assert [gpu.label for gpu in found.gpus] == [f"GPU{n}" for n in (0, 1, 3, 4, 5, 6, 7)]
    assert found.path("GPU1", "GPU3") == "NV18"
    assert found.near_nics(found.gpus[2]) == ("mlx5_3",)


def test_without_sysfs_nvml_still_tells_who_is_near_to_whom(nvml: Ask) -> None:
    found = topology({}, nvml(nvml_library.L40S))
    assert found.matrix["GPU0"] == {"GPU0": "X", "GPU1": "NODE", "GPU2": "SYS", "GPU3": "SYS"}
    assert [gpu.numa for gpu in found.gpus] == [(0,), (0,), (1,), (1,)]
    assert found.gpus[2].cpus_text == "72-143"
    assert (found.islands(), found.nvlink_shown) == ((), True)


def test_gb200_has_memory_nodes_of_its_own(nvml: Ask) -> None:
    found = topology({}, nvml(nvml_library.GB200))
    assert [gpu.memory_node for gpu in found.gpus] == [2, 10, 18, 26]
    assert found.islands() == (("GPU0", "GPU1", "GPU2", "GPU3"),)
    assert names(found) == set()


def test_bridges_join_pairs(nvml: Ask) -> None:
    script = "gpus=4;name=NVIDIA H100 NVL;per_socket=2;near=40;links=12;links_up=12;peers=pair"
    found = topology({}, nvml(script))
    assert found.matrix["GPU0"] == {"GPU0": "X", "GPU1": "NV12", "GPU2": "SYS", "GPU3": "SYS"}
    assert found.islands() == (("GPU0", "GPU1"), ("GPU2", "GPU3"))


def test_one_of_a_bridged_pair_in_a_container_has_no_link_to_others(nvml: Ask) -> None:
    apart = "gpus=2;bus@0=0x40;bus@1=0x50;links=12;links_up=12;peers=pair;near=40"
    assert topology({}, nvml(apart)).islands() == ()


def test_a_virtual_machine_hides_the_switches(nvml: Ask) -> None:
    found = topology({}, nvml("gpus=8;peers=hidden"))
    assert found.path("GPU0", "GPU7") == "NV18"


def test_gpus_of_different_cliques_are_not_joined(nvml: Ask) -> None:
    found = topology({}, nvml("gpus=2;clique@1=8"))
    assert found.path("GPU0", "GPU1") == "NODE"


def names(found: Topology, at_least: Severity = Severity.INFO) -> set[str]:
    drawn = diagnosis.diagnose(registry.load(), [found])
    return {each.name for each in drawn.findings if each.severity.rank >= at_least.rank}


def test_mig_devices_sit_on_a_card_without_nvlink(nvml: Ask) -> None:
    found = topology(whole_machine(), nvml(f"{nvml_library.A100_MIG};{AT}"))
    assert found.gpus[1].is_partitioned
    assert found.path("GPU0", "GPU1") == "NODE"
    assert found.path("GPU0", "GPU2") == "NV12"
    placed = found.published()["mig"]
    assert [(one["gpu"], one["profile"], one["gpu_instance"]) for one in placed] == [
        ("GPU1", "1g.10gb", 7), ("GPU1", "1g.10gb", 8), ("GPU1", "1g.10gb", 9),
    ]  # fmt: skip
    assert "nvlink-missing" not in names(found), "MIG switches NVLink off"
    down = topology(whole_machine(), nvml(f"mig@1=0;{nvml_library.A100_MIG};{AT}"))
    assert "nvlink-missing" in names(down, Severity.WARNING)
