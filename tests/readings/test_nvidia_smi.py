"""What `nvidia-smi` prints, pasted: recognised, read as NVML's answers and judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor import readings, registry
from gpudoctor.facts.node import smi_gpu, smi_text
from gpudoctor.facts.node.gpu import MemoryUse, NotAvailable
from gpudoctor.report import Report, Severity, Subject, Verdict
from gpudoctor.sources.text import open_input

CHECKS = registry.load()
HEADER = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.133.20             Driver Version: 570.133.20     CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
"""
ROW = """\
|   0  NVIDIA L40S                     On |   00000000:C9:00.0 Off |                    0 |
| N/A   33C    P8              34W /  350W |       1MiB /  46068MiB |      0%      Default |
|                                         |                        |             Disabled |
"""
OLD = """\
| NVIDIA-SMI 384.90                 Driver Version: 384.90                    |
|   0  GeForce GTX TIT...  Off  | 00000000:01:00.0 Off |                  N/A |
| 22%   37C    P8    15W / 250W |    442MiB / 12207MiB |      0%      Default |
"""
BLOCK = """\
==============NVSMI LOG==============

Driver Version                            : 580.95.05
CUDA Version                              : 13.0

Attached GPUs                             : 1
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H200
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU Reset Status
        Reset Required                    : No
        Drain and Reset Recommended       : No
    GPU Recovery Action                   : None
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 16x
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
    Compute Mode                          : Default
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Uncorrectable Parity     : 0
            DRAM Correctable              : 12
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Uncorrectable            : 4
            SRAM Threshold Exceeded       : No
    Retired Pages
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 4
        Pending                           : No
        Remapping Failure Occurred        : No
    Fabric
        State                             : Completed
        Status                            : Success
        Health
            Summary                       : Healthy
            Bandwidth                     : Full
"""
LISTED = (
    "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5b1f2c3d-1111)\n"
    "  MIG 3g.40gb     Device  0: (UUID: MIG-1d2e3f40-aaaa)\n"
    "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-5b1f2c3e-1111)\n"
)
CSV = (
    "index, name, pci.bus_id, driver_version, gpu_recovery_action, memory.used [MiB]\n"
    "0, NVIDIA B200, 00000000:1B:00.0, 580.82.07, None, 12 MiB\n"
)
LINKS = "".join(
    f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})\n"
    + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    for gpu in range(2)
)


def explain(tmp_path: Path, content: str) -> tuple[str, Report]:
    path = tmp_path / "pasted"
    path.write_text(content)
    with open_input(str(path)) as text:
        found = readings.recognise(text)
        return found.name, readings.judge(found.read(text), CHECKS)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (HEADER + ROW, 1),
        (HEADER + ROW + ROW.replace(" 0  NV", " 1  NV"), 2),
        (OLD, 1),
        ("".join(f"# {line}\n" for line in OLD.splitlines()), 1),
        (HEADER + ROW.replace("Default", "E. Process").replace(" On |", " WDDM |"), 1),
        (BLOCK, 1),
        (LISTED, 2),
        (CSV, 1),
        (LINKS, 2),
        # Turing and before; a part that has no fabric; idle in half a slot's generation
        (BLOCK.replace("Completed", "N/A").replace("Success", "N/A"), 1),
        (BLOCK.replace(": No\n", ": N/A\n"), 1),
        (BLOCK.replace(": No\n", ": Requested functionality has been deprecated\n", 2), 1),
    ],
    ids=["table", "two", "2017", "quoted", "exclusive", "-q", "-L", "csv", "nvlink", "no fabric",
         "no rows", "deprecated"],
)  # fmt: skip
def test_healthy_gpus_are_recognised_and_well(tmp_path: Path, text: str, gpus: int) -> None:
    kind, report = explain(tmp_path, text)
    assert (kind, report.verdict, report.findings) == ("nvidia-smi", Verdict.HEALTHY, ())
    assert len(report.facts["nvml"]["gpus"]) == gpus


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (HEADER + ROW.replace("                   0 |", "                   3 |"),
         "gpu-uncorrectable-ecc"),
        (HEADER + ROW.replace("Default", "Prohib."), "gpu-busy"),
        (HEADER + ROW.replace("| N/A   33C    P8", "|ERR!   33C    P8"), "gpu-needs-reset"),
        (HEADER.replace("12.8 ", "N/A  ") + ROW, "driver-libs-not-injected"),
        (BLOCK.replace("Action                   : None", "Action                   : Reset"),
         "gpu-needs-reset"),
        (BLOCK.replace("Action                   : None", "Action                   : Reboot"),
         "gpu-needs-reboot"),
        (BLOCK.replace("Required                    : No", "Required                    : Yes")
         .replace("    GPU Recovery Action                   : None\n", ""), "gpu-needs-reset"),
        (BLOCK.replace("Occurred        : No", "Occurred        : Yes"),
         "gpu-memory-repair-failed"),
        (BLOCK.replace("Exceeded       : No", "Exceeded       : Yes"), "gpu-memory-repair-failed"),
        (BLOCK.replace("Error               : 4\n        Pending                           : No",
                       "Error               : 4\n        Pending                           : Yes"),
         "gpu-memory-repair-pending"),
        (BLOCK.replace("Blacklist            : N/A", "Blacklist            : Yes"),
         "gpu-memory-repair-pending"),
        (BLOCK.replace("Parity     : 0", "Parity     : 1"), "gpu-uncorrectable-ecc"),
        (BLOCK.replace("Slowdown                       : Not A", "Slowdown             : A"),
         "gpu-clocks-slowed"),
        (BLOCK.replace("Current                   : 16x", "Current                   : 8x"),
         "gpu-pcie-degraded"),
        (BLOCK.replace("Completed", "In Progress").replace("Success", "N/A"), "fabric-not-ready"),
        (BLOCK.replace(": Healthy", ": Limited Capacity"), "nvlink-fabric-degraded"),
        (BLOCK.replace("Bandwidth                     : Full", "Bandwidth             : Degraded"),
         "nvlink-fabric-degraded"),
        (CSV.replace(" None,", " Node Reboot,"), "gpu-needs-reboot"),
        (CSV.replace(" 12 MiB", " [GPU is lost]"), "gpu-lost"),
        (CSV.replace(" 12 MiB", " [Unknown Error]"), "gpu-needs-reset"),
        (BLOCK.replace("Current                   : 16x", "Current             : Unknown Error"),
         "gpu-needs-reset"),
        (CSV.replace(" 12 MiB", " [GPU requires reset]"), "gpu-needs-reset"),
        (LINKS.replace("Link 7: 26.562 GB/s", "Link 7: <inactive>", 1), "nvlink-down"),
        ("CUDA error: an illegal memory access was encountered\n" + HEADER + ROW,
         "gpu-application-fault"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, text: str, name: str) -> None:
    kind, report = explain(tmp_path, text)
    assert kind == "nvidia-smi"
    assert [finding.name for finding in report.findings] == [name]
    assert report.findings[0].severity.rank >= Severity.WARNING.rank


def test_a_gpu_without_an_address_is_named_by_its_number(tmp_path: Path) -> None:
    down = LINKS.replace("Link 7: 26.562 GB/s", "Link 7: <inactive>", 1)
    (found,) = explain(tmp_path, down)[1].findings
    assert found.title.startswith("GPU 0 (GPU-0) has 17 active NVLinks")
    assert found.subject.device == "GPU 0"


def test_what_a_short_form_does_not_tell_is_said(tmp_path: Path) -> None:
    for text in (HEADER + ROW, LISTED):
        (unknown,) = explain(tmp_path, text)[1].unknown
        assert "nvidia-smi -q" in unknown.why
    for text in (BLOCK, CSV, LINKS):
        assert explain(tmp_path, text)[1].unknown == ()


def test_evidence_of_what_stands_around_names_the_line(tmp_path: Path) -> None:
    error = "RuntimeError: No CUDA GPUs are available\n"
    _, report = explain(tmp_path, HEADER + ROW + error)
    line = (HEADER + ROW + error).count("\n")
    assert report.findings[0].evidence[0].object.endswith(f":{line}")


def test_a_table_beside_a_longer_log_is_read_as_the_log(tmp_path: Path) -> None:
    xid = "[ 1.5] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=a, Ch 00000008, MMU Fault\n"
    assert explain(tmp_path, xid * 9 + HEADER + ROW)[0] == "kernel-log"


XID = "[ 1.5] NVRM: Xid (PCI:0000:c9:00): 79, pid=1, name=a, GPU has fallen off the bus.\n"
WARN = (
    "node-a:1:2 [0] misc/socket.cc:9 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on"
)
PATHS = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\n"
    "GPU0\t X \tNV12\tNV12\tSYS\t0-31\nGPU1\tNV12\t X \tNV12\tSYS\t0-31\n"
    "GPU2\tNV12\tNV12\t X \tSYS\t0-31\nGPU3\tSYS\tSYS\tSYS\t X \t0-31\n"
)


@pytest.mark.parametrize(
    ("around", "name"),
    [(XID, "gpu-lost"), (f"{WARN} CUDA device 1b000\n", "nccl-duplicate-gpu"),
     (PATHS, "nvlink-missing")],
    ids=["kernel", "NCCL", "topo -m"],
)  # fmt: skip
def test_a_few_lines_beside_it_are_read_as_what_they_are(
    tmp_path: Path, around: str, name: str
) -> None:
    table = HEADER + "".join(ROW.replace(" 0  NV", f" {n}  NV") for n in range(4))
    kind, report = explain(tmp_path, table + "\n" + around)
    assert kind == "nvidia-smi"
    assert name in report.roots
    assert report.roots.count(name) == 1
    assert sum(finding.name == name for finding in report.findings) == 1


def test_values_are_typed() -> None:
    (gpu,) = smi_gpu.gpus(smi_text.parse(HEADER + ROW), Subject("Host", "x")).gpus
    assert (gpu.pci, gpu.name, gpu.temperature) == ("0000:c9:00.0", "NVIDIA L40S", 33)
    assert (gpu.performance_state, gpu.ecc_uncorrected) == (8, 0)
    assert gpu.memory == MemoryUse(46068 << 20, 1 << 20)
    assert isinstance(gpu.links, NotAvailable)
    found = smi_text.parse(HEADER + ROW.replace("Default", "E. Process"))
    (gpu,) = smi_gpu.gpus(found, Subject("Host", "x")).gpus
    assert (gpu.compute_mode, gpu.temperature) == (3, 33)


@pytest.mark.parametrize(
    "text",
    ["a, b, c\n1, 2, 3\n", "index, name\n", "GPU memory, is used, here\n", "| a | b |\n",
     "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-55\n", "Driver Version: 580.95.05\n"],
)  # fmt: skip
def test_other_texts_are_not_of_nvidia_smi(text: str) -> None:
    assert smi_text.lines_seen(text) == 0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from((HEADER + ROW + OLD + BLOCK + LISTED + CSV + LINKS).splitlines()),
            st.text(max_size=60),
        ),
        max_size=40,
    )
)
def test_any_text_is_taken(lines: list[str]) -> None:
    found = smi_text.parse("\n".join(lines))
    smi_gpu.gpus(found, Subject("Host", "x")).published()
    assert len(found.rest) <= len("\n".join(lines).splitlines())
