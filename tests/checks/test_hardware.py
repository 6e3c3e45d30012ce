"""Findings of a kernel log: what leads, what follows, and what stays quiet."""

from __future__ import annotations

import pytest

from gpudoctor import diagnosis, registry
from gpudoctor.diagnosis import Diagnosis
from gpudoctor.facts.node.kernel_log_reader import read_kernel_log
from gpudoctor.report import Finding, Severity, Subject


def x(code: int, text: str = "pid=7, name=train, x", pci: str = "0000:3b:00") -> str:
    return f"[ 1.000000] NVRM: Xid (PCI:{pci}): {code}, {text}\n"


def diagnose(text: str) -> Diagnosis:
    log = read_kernel_log([text.encode()], Subject("Host", "local"), "kern.log")
    found = diagnosis.diagnose(registry.load(), [log])
    assert not found.unknown
    return found


def findings(text: str) -> list[tuple[str, str]]:
    return [(finding.name, finding.severity.value) for finding in diagnose(text).findings]


def only(text: str) -> Finding:
    (finding,) = diagnose(text).findings
    return finding


LINK = "RLW_A Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008)"
RECOVERED = x(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (x(79), ("gpu-lost", "critical")),
        (x(167), ("gpu-needs-reboot", "critical")),
        (x(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
         ("gpu-needs-reboot", "critical")),
        (x(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
         ("gpu-needs-reset", "error")),
        (RECOVERED, ("gpu-xid-noted", "info")),
        (x(48), ("gpu-uncorrectable-ecc", "error")),
        (x(95), ("gpu-uncorrectable-ecc", "error")),
        (x(94), ("gpu-uncorrectable-ecc", "warning")),
        (x(95) + RECOVERED, ("gpu-uncorrectable-ecc", "warning")),
        (x(64), ("gpu-memory-repair-failed", "error")),
        (x(63), ("gpu-memory-repair-pending", "warning")),
        (x(119), ("gpu-firmware-failure", "critical")),
        (x(109), ("gpu-needs-reset", "error")),
        (x(74), ("nvlink-error", "error")),
        (x(145, LINK), ("nvlink-error", "warning")),
        (x(145, LINK.replace("Nonfatal", "Fatal")), ("nvlink-error", "error")),
        (x(54), ("gpu-hardware-fault", "error")),
        (x(13), ("gpu-application-fault", "warning")),
        (x(92), ("gpu-xid-noted", "info")),
        (x(45), ("gpu-xid-noted", "info")),
        (x(143) + "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x65:1792)\n",
         ("adapter-init-failed", "critical")),
        (x(45, "pid=7, name=train, Ch 1 caused by previous Xid 149"), ("nvlink-error", "error")),
        (x(999), ("gpu-xid-noted", "info")),
        ("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n",
         ("nvswitch-error", "critical")),
        ("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 12028, Non-fatal, Link 30 egress\n",
         ("nvswitch-error", "info")),
        ("pcieport 0000:17:01.0: AER: Uncorrected (Fatal) error message received\n",
         ("pcie-error", "warning")),
        ("pcieport 0000:17:01.0: AER: Corrected error message received\n",
         ("pcie-error", "info")),
        ("nouveau 0000:3b:00.0: NVIDIA GV100 (140000a1)\n", ("nouveau-bound", "error")),
        ("NVRM: rm_init_adapter failed, device minor number 0\n",
         ("adapter-init-failed", "critical")),
        ("NVRM: GPU 0000:3b:00.0: not supported by open nvidia.ko\n",
         ("needs-proprietary-kernel-module", "critical")),
        ("NVRM: API mismatch: the client has the version 470.82.01, but\n",
         ("driver-library-mismatch", "error")),
        ("Loading of unsigned module is rejected\n", ("module-signature-rejected", "error")),
    ],
)  # fmt: skip
def test_findings(text: str, expected: tuple[str, str]) -> None:
    assert findings(text) == [expected]


@pytest.mark.parametrize("text", ["", "[ 1.0] eth0: link up\n", "[ 1.0] python: Xid 79 seen\n"])
def test_a_quiet_log_is_healthy(text: str) -> None:
    assert findings(text) == []


def test_follow_ups_are_evidence_of_their_root() -> None:
    finding = only(x(94) + x(45, "pid=7, name=train, Ch 1 caused by previous Xid 94") + x(43))
    assert finding.name == "gpu-uncorrectable-ecc"
    assert [evidence.note for evidence in finding.evidence] == [
        None, "follows Xid 94", "follows Xid 94",
    ]  # fmt: skip
    assert finding.evidence[0].object == "kern.log:1"


def test_a_lost_gpu_takes_in_what_else_it_said_and_only_its_own() -> None:
    text = x(119) + x(79) + x(45) + x(13, pci="0000:5e:00")
    assert findings(text) == [("gpu-lost", "critical"), ("gpu-application-fault", "warning")]


def test_a_repair_that_waits_belongs_to_its_error() -> None:
    assert findings(x(48) + x(63)) == [("gpu-uncorrectable-ecc", "error")]
    apart = x(48) + x(63, pci="0000:5e:00")
    assert len(findings(apart)) == 2


def test_the_switch_explains_the_links_and_the_gpu_its_port() -> None:
    switch = "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
    found = diagnose(x(74) + switch)
    assert [root.split("@")[0] for root in found.root_ids] == ["nvswitch-error"]
    port = "pcieport 0000:17:01.0: AER: Uncorrected (Fatal) error message received\n"
    assert [root.split("@")[0] for root in diagnose(x(79) + port).root_ids] == ["gpu-lost"]


def test_a_switch_is_told_once_and_by_its_worst_code() -> None:
    sxid = "nvidia-nvswitch1: SXid (PCI:0000:c4:00.0): {}, Link 21 text\n".format
    finding = only(sxid("19084, Non-fatal") + sxid("20034, Fatal") + sxid("23003, Fatal"))
    assert finding.severity is Severity.CRITICAL
    assert finding.title == "NVSwitch 0000:c4:00.0 reports SXid 20034, 23003"
    assert "SXid 23003, fatal: the switch stops this link. Only a reboot" in finding.detail
    assert [evidence.object for evidence in finding.evidence] == [
        "kern.log:2", "kern.log:3", "kern.log:1",
    ]  # fmt: skip


KILL = (
    "oom-kill:constraint={constraint},nodemask=(null),cpuset=cri-ab.scope,mems_allowed=0-1,"
    "oom_memcg=/kubepods.slice,task_memcg=/kubepods.slice/kubepods-burstable.slice/"
    "kubepods-burstable-pod0f3c1d2e_9a4b_4c1d_8e2f_1a2b3c4d5e6f.slice/cri-ab.scope,"
    "task=train,pid={pid},uid=0\n"
)


def test_a_program_killed_for_its_memory_is_no_fault_of_its_gpu() -> None:
    found = diagnose(KILL.format(constraint="CONSTRAINT_MEMCG", pid=7) + x(45))
    assert [root.split("@")[0] for root in found.root_ids] == ["oom-killed"]
    killed = next(f for f in found.findings if f.name == "oom-killed")
    assert killed.title == (
        "Container train of pod 0f3c1d2e-9a4b-4c1d-8e2f-1a2b3c4d5e6f was killed by the kernel"
        " for lack of memory"
    )
    assert len(killed.evidence) == 2


@pytest.mark.parametrize(
    "text",
    [
        KILL.format(constraint="CONSTRAINT_MEMCG", pid=7),
        KILL.format(constraint="CONSTRAINT_MEMCG", pid=8) + x(45),
        KILL.format(constraint="CONSTRAINT_NONE", pid=7) + x(45),
        KILL.format(constraint="CONSTRAINT_MEMCG", pid=7) + x(79) + x(45),
    ],
)
def test_a_kill_counts_only_for_its_own_work_on_a_gpu(text: str) -> None:
    assert "oom-killed" not in [name for name, _ in findings(text)]


def test_titles_name_gpu_codes_and_program() -> None:
    uuid = "NVRM: GPU at PCI:0000:3b:00: GPU-5f0c1b62-1111-2222-3333-0a0b0c0d0e0f\n"
    assert "GPU-5f0c1b62" in only(uuid + x(79)).title
    assert only(x(13)).title == "A kernel of train faulted on the GPU"
    assert "pid 7" in only(x(13)).detail
    mismatch = only(
        "NVRM: API mismatch: the client has the version 470.82.01, but\n"
        "NVRM: this kernel module has the version 470.57.02.  Please\n"
    )
    assert "470.82.01" in mismatch.detail
    assert "470.57.02" in mismatch.detail


def test_severities_are_allowed_by_the_pages() -> None:
    for text in (x(79), x(119), x(74), x(109), x(167)):
        assert diagnose(text + RECOVERED).findings[0].severity is Severity.WARNING
