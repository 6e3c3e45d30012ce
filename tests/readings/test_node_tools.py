"""Pasted output of the node's tools: recognised, read, judged; damage never raises."""

from __future__ import annotations

import io
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor import readings, registry
from gpudoctor.facts.node import (
    cpu_text,
    interfaces_text,
    limits_text,
    pci_text,
    rdma_text,
)
from gpudoctor.report import Report, Severity
from gpudoctor.sources.text import TextInput

CHECKS = registry.load()


class _Raw(io.RawIOBase):
    def __init__(self, content: bytes) -> None:
        self._stream = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._stream.readinto(buffer)


def explain(content: str) -> tuple[str, Report]:
    with TextInput("pasted", _Raw(content.encode())) as text:
        text_format = readings.recognise(text)
        return text_format.name, readings.judge(text_format.read(text), CHECKS)


def loud(answer: Report) -> set[str]:
    return {
        f"{finding.name}:{finding.subject.device}" if finding.subject.device else finding.name
        for finding in answer.findings
        if finding.severity.rank >= Severity.WARNING.rank
    }


def ibstat(name: str, state: str, physical: str, rate: int) -> str:
    return (
        f"CA '{name}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.41.1000\n"
        f"\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: {physical}\n\t\tRate: {rate}\n"
        "\t\tBase lid: 5\n\t\tLink layer: InfiniBand\n"
    )


def ibv(name: str, state: str, layer: str = "InfiniBand") -> str:
    return (
        f"hca_id:\t{name}\n\ttransport:\t\t\tInfiniBand (0)\n\tvendor_part_id:\t\t\t4129\n"
        f"\tboard_id:\t\t\tMT_0000000838\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n"
        f"\t\t\tstate:\t\t\t{state}\n\t\t\tlink_layer:\t\t{layer}\n\n"
    )


def ibstatus(name: str, state: str, rate: str) -> str:
    return (
        f"Infiniband device '{name}' port 1 status:\n\tdefault gid:\t fe80::1\n"
        f"\tstate:\t\t {state}\n\tphys state:\t 5: LinkUp\n\trate:\t\t {rate}\n"
        "\tlink_layer:\t InfiniBand\n\n"
    )


class TestRdma:
    def test_ibstat(self) -> None:
        good = "".join(ibstat(f"mlx5_{i}", "Active", "LinkUp", 400) for i in range(3))
        kind, answer = explain(good + ibstat("mlx5_3", "Down", "Polling", 10))
        assert kind == "rdma"
        assert loud(answer) == {"nic-port-down:mlx5_3"}
        assert loud(explain(good)[1]) == set()
        assert explain(good)[1].verdict == "healthy"
        slow = good + ibstat("mlx5_3", "Active", "LinkUp", 200)
        assert loud(explain(slow)[1]) == {"nic-slow-rate:mlx5_3"}
        waiting = explain(ibstat("mlx5_0", "Initializing", "LinkUp", 400))[1]
        assert loud(waiting) == {"nic-port-down:mlx5_0"}

    def test_ibv_devinfo(self) -> None:
        text = ibv("mlx5_0", "PORT_ACTIVE (4)") + ibv("mlx5_1", "PORT_DOWN (1)")
        kind, answer = explain(text)
        assert kind == "rdma"
        assert loud(answer) == {"nic-port-down:mlx5_1"}

    def test_ibstatus(self) -> None:
        text = ibstatus("mlx5_ib0", "4: ACTIVE", "200 Gb/sec (4X HDR)")
        published = explain(text)[1].facts["rdma"]["mlx5_ib0/1"]
        assert published == {
            "state": "ACTIVE",
            "physical_state": "LinkUp",
            "rate_gbps": 200.0,
            "link_layer": "InfiniBand",
        }

    @pytest.mark.parametrize("prefix", ["link ", "0/1: "])
    def test_rdma_link(self, prefix: str) -> None:
        text = (
            f"{prefix}mlx5_0/1 state ACTIVE physical_state LINK_UP netdev p1p1 \n"
            f"{prefix}mlx5_1/1 state DOWN physical_state DISABLED netdev p1p2 \n"
            f"{prefix}mlx5_2/1 subnet_prefix fe80:0000:0000:0000 lid 13 sm_lid 1 lmc 0 state "
            "DOWN physical_state POLLING \n"
        ).replace("/1 state", "/1: state" if prefix != "link " else "/1 state")
        kind, answer = explain(text)
        assert kind == "rdma"
        rdma = answer.facts["rdma"]
        assert rdma["mlx5_0/1"]["link_layer"] == "Ethernet"
        assert rdma["mlx5_1/1"]["physical_state"] == "Disabled"
        assert rdma["mlx5_2/1"] == {
            "state": "DOWN",
            "physical_state": "Polling",
            "rate_gbps": None,
            "link_layer": "InfiniBand",
        }

    def test_no_device_is_no_all_clear(self) -> None:
        answer = explain("No IB devices found\n")[1]
        assert answer.verdict == "unknown"


class TestLimits:
    @pytest.mark.parametrize(
        "line",
        [
            "max locked memory           (kbytes, -l) 8192",
            "max locked memory       (kbytes, -l) 64",
            "-l: locked-in-memory size (kbytes)  8192",
            "Max locked memory         65536                65536                bytes     ",
        ],
    )
    def test_too_low(self, line: str) -> None:
        kind, answer = explain(f"open files                          (-n) 20000\n{line}\n")
        assert kind == "limits"
        assert loud(answer) == {"memlock-too-low"}

    def test_unlimited(self) -> None:
        answer = explain("max locked memory           (kbytes, -l) unlimited\n")[1]
        assert loud(answer) == set()
        assert answer.facts["host"]["memlock_soft_bytes"] == -1


@pytest.mark.parametrize(
    "text",
    [
        "CPU NODE SOCKET CORE\n  0    0      0    0\n  1    1      1    1\n",
        "available: 2 nodes (0-1)\nnode 0 cpus: 0\nnode 0 size: 1 MB\nnode 1 cpus: 1\n",
        "NUMA node(s):  2\nNUMA node0 CPU(s):  0\nNUMA node1 CPU(s):  1\n",
    ],
)
def test_cpus_of_numa_nodes(text: str) -> None:
    kind, answer = explain(text)
    assert kind == "cpus"
    assert answer.facts["numa"] == {"node0": "0", "node1": "1"}
    assert answer.verdict == "unknown", "where the GPUs are is not known from it"


def test_interfaces() -> None:
    kind, answer = explain(
        "lo               UNKNOWN        00:00:00:00:00:00 <LOOPBACK,UP,LOWER_UP> \n"
        "ib0@eth1         DOWN           00:00:10:49:fe:80:00:00:00:00:00:00:b8:59:9f:03:00:d3:7b:"
        "ae <NO-CARRIER,BROADCAST,MULTICAST,UP> \n"
    )
    assert kind == "interfaces"
    assert answer.facts["interfaces"]["ib0"] == {"state": "DOWN", "carrier": False}


LSPCI = """\
-+-[0000:00]-+-00.0  Intel Corporation Device 09a2
 |           \\-1f.0  Intel Corporation Device 1b81
 +-[0000:15]-+-00.0  Intel Corporation Device 09a2
 |           \\-01.0-[16-1b]----00.0-[17-1b]--+-00.0-[18]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 |                                           +-01.0-[19]--+-00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
 |                                           |            \\-00.1  NVIDIA Corporation Audio device
 |                                           \\-02.0-[1a-1b]----00.0-[1b]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
 \\-[0001:9a]---01.0-[9b]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
"""  # noqa: E501


def test_lspci_tree() -> None:
    kind, answer = explain(LSPCI)
    assert kind == "lspci"
    topology = answer.facts["topology"]
    assert topology["gpus"] == 3
    assert topology["nic_names"] == {"NIC0": "0000:18:00.0"}
    assert topology["matrix"]["GPU0"] == {"GPU0": "X", "GPU1": "PXB", "NIC0": "PIX"}
    assert topology["nic_for_gpu"] == {"GPU0": ["0000:18:00.0"], "GPU1": ["0000:18:00.0"]}
    assert topology["matrix"]["GPU2"] == {"GPU2": "X"}, "the tree shows no NUMA nodes"


HWLOC = """\
Machine (1008GB total)
  Package L#0
    NUMANode L#0 (P#0 504GB)
    HostBridge
      PCIBridge
        PCIBridge
          PCIBridge
            PCI 18:00.0 (InfiniBand)
              Net "ibs1"
              OpenFabrics "mlx5_0"
          PCIBridge
            PCI 19:00.0 (3D)
    HostBridge
      PCI 00:02.0 (VGA)
  Package L#1
    NUMANode L#1 (P#1 504GB)
    HostBridge
      PCIBridge
        PCI 9d:00.0 (3D)
"""


def test_hwloc_tree() -> None:
    kind, answer = explain(HWLOC)
    assert kind == "hwloc"
    topology = answer.facts["topology"]
    assert topology["nic_for_gpu"] == {"GPU0": ["mlx5_0"]}
    assert topology["numa"] == {"GPU0": [0], "GPU1": [1]}
    assert topology["matrix"]["GPU0"]["GPU1"] == "SYS"


def test_recorded_status_of_a_real_host() -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "azhpc-ibstatus.out"
    if not path.exists():
        pytest.skip("the recorded host data is not here")
    answer = explain(path.read_text())[1]
    assert loud(answer) == set()
    assert set(answer.facts["rdma"]) == {"mlx5_an0/1", "mlx5_ib0/1"}


WORD = st.sampled_from(
    ["CA 'mlx5_0'", "\tPort 1:", "\t\tState: Active", "\t\tRate: 1.2.3", "hca_id:\tx",
     "link mlx5_0/1 state ACTIVE physical_state", "node 0 cpus: 0 1", "CPU NODE", " 0 0", "  1 x",
     "-+-[0000:15]-+-00.0  NVIDIA X", " |  \\-01.0-[16]----00.0  Mellanox", "[18]", "HostBridge",
     "    PCI 18:00.0 (3D)", "  PCIBridge", 'OpenFabrics "m"', "max locked memory (kbytes, -l) 8",
     "NUMANode L#0 (P#0 1GB)", "lo UNKNOWN <UP>", "\x1b[0m"]
)  # fmt: skip


@pytest.mark.parametrize(
    "parse",
    [
        rdma_text.parse,
        limits_text.parse,
        cpu_text.parse,
        interfaces_text.parse,
        pci_text.parse_lspci,
        pci_text.parse_hwloc,
        rdma_text.lines_seen,
        limits_text.lines_seen,
        cpu_text.lines_seen,
        pci_text.lspci_lines,
        pci_text.hwloc_lines,
    ],
)
@settings(deadline=None, max_examples=60)
@given(lines=st.lists(WORD | st.text(string.printable, max_size=40), max_size=10))
def test_never_raises(parse: Callable[[str], object], lines: list[str]) -> None:
    parse("\n".join(lines))
    parse("\r\n".join(lines)[: len(lines) * 7])
