"""Findings of the kernel log beside the driver's codes, and what must stay quiet."""

from __future__ import annotations

import pytest

from gpudoctor.report import Finding, Severity
from tests.checks.test_hardware import diagnose, findings, only, x

REBOOT = "[    0.000000] Linux version 6.8.0-31-generic\n"
FATAL = "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"


def names(text: str) -> set[str]:
    return {name for name, _ in findings(text)}


@pytest.mark.parametrize(
    "text",
    [
        x(79), x(48), x(119), x(31), f"[ 1.0] {FATAL}",
        "[ 1.000000] NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1463)\n",
    ],
)  # fmt: skip
def test_before_the_last_boot(text: str) -> None:
    assert findings(text + REBOOT) == [("gpu-trouble-before-boot", "info")]
    assert "gpu-trouble-before-boot" not in names(text)
    assert "gpu-trouble-before-boot" not in names(text + REBOOT + text)
    assert "gpu-trouble-before-boot" not in names(REBOOT + text)


def test_what_comes_back_after_each_boot_is_worth_a_warning() -> None:
    assert findings((x(79) + REBOOT) * 2) == [("gpu-trouble-before-boot", "warning")]
    assert findings((x(31) + REBOOT) * 2) == [("gpu-trouble-before-boot", "info")]
    now = only(x(79) + REBOOT + x(79))
    assert (now.name, now.severity) == ("gpu-lost", Severity.CRITICAL)
    assert "a reboot did not cure it" in now.detail


# -- memory ------------------------------------------------------------------------------------

SUMMARY = (
    "[ 1.0] oom-kill:constraint=CONSTRAINT_{constraint},nodemask=(null),cpuset=/,mems_allowed=0-1,"
    "{where},task_memcg={group},task=pt, main,pid=7,uid=0\n"
)
POD = "/kubepods.slice/kubepods-pod0f3c1d2e_9a4b_4c1d_8e2f_1a2b3c4d5e6f.slice/cri-ab.scope"
GLOBAL = SUMMARY.format(constraint="NONE", where="global_oom", group=POD)
KILLED = "[ 1.0] Out of memory: Killed process 7 (pt, main) total-vm:1kB, anon-rss:1kB, UID:0\n"
OLD = "[ 1.0] Out of memory: Kill process 7 (python3) score 951 or sacrifice child\n"


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        (GLOBAL + KILLED, "error"),
        (SUMMARY.format(constraint="NONE", where="global_oom", group="/user.slice"), "warning"),
        (SUMMARY.format(constraint="MEMORY_POLICY", where="global_oom", group=POD), "error"),
        (KILLED, "warning"),
        (OLD, "warning"),
        (OLD + x(45), "error"),
    ],
)
def test_the_machine_ran_out_of_memory(text: str, severity: str) -> None:
    assert ("host-out-of-memory", severity) in findings(text)
    assert "oom-killed" not in names(text)


def test_a_kill_is_told_once_and_by_its_whole_name() -> None:
    found: Finding = only(GLOBAL + KILLED)
    assert "pt, main (pid 7)" in found.title
    assert len(found.evidence) == 1
    assert found.evidence[0].note == "of pod 0f3c1d2e-9a4b-4c1d-8e2f-1a2b3c4d5e6f"


@pytest.mark.parametrize(
    "text",
    [
        SUMMARY.format(constraint="MEMCG", where="oom_memcg=/a", group=POD),
        "[ 1.0] Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB\n",
        "[ 1.0] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0\n",
        "Mar 11 06:20:17 n python3[7]: Out of memory: Killed process 7 (x) total-vm:1kB\n",
        GLOBAL + REBOOT,
    ],
)
def test_other_kills_are_not_of_the_machine(text: str) -> None:
    assert "host-out-of-memory" not in names(text)


# -- DMA ---------------------------------------------------------------------------------------

PROBED = "[ 1.0] pci 0000:{}: [{}] type 00 class {} PCIe Endpoint\n"
GPU = PROBED.format("3b:00.0", "10de:2330", "0x030200")
HCA = PROBED.format("3b:00.0", "15b3:1021", "0x020700")
USB = PROBED.format("3b:00.0", "1b21:2142", "0x0c0330")
INTEL = (
    "[ 1.0] DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0xfd000000 "
    "[fault reason 0x06] PTE Read access is not set\n"
)
OLD_INTEL = (
    "[ 1.0] DMAR: [DMA Write] Request device [3b:00.0] fault addr fd000000 [fault reason 05] PTE "
    "Write access is not set\n"
)
AMD = (
    "[ 1.0] {}AMD-Vi: Event logged [IO_PAGE_FAULT {}domain=0x0014 address=0xd1000000 "
    "flags=0x0020]\n"
)


@pytest.mark.parametrize(
    "text",
    [
        GPU + INTEL, HCA + INTEL, GPU + OLD_INTEL, INTEL + x(31),
        AMD.format("nvidia 0000:c1:00.0: ", ""),
        AMD.format("mlx5_core 0000:c1:00.0: ", ""),
        GPU + AMD.format("", "device=3b:00.0 "),
        GPU + AMD.format("", "device=0000:3b:00.0 pasid=0x00000 "),
        "[ 1.0] mlx5_core 0000:3b:00.0: firmware version: 28.39.1002\n" + INTEL,
        "[ 1.0] nvidia 0009:01:00.0: enabling device (0000 -> 0002)\n"
        "[ 1.0] arm-smmu-v3 arm-smmu-v3.16.auto: \tevent: F_TRANSLATION client: 0009:01:00.0 sid: "
        "0x10000 ssid: 0x0 iova: 0x7fe00000 ipa: 0x0\n",
    ],
)  # fmt: skip
def test_dma_of_a_gpu_or_adapter_was_stopped(text: str) -> None:
    assert ("iommu-fault", "error") in findings(text)
    assert "iommu-fault" not in names(text + REBOOT)


@pytest.mark.parametrize(
    "text",
    [
        USB + INTEL,
        HCA.replace("3b:", "9a:") + INTEL,
        AMD.format("xhci_hcd 0000:c1:00.0: ", ""),
        GPU + INTEL.replace("3b:00.0", "00:14.0"),
        GPU + "[ 1.0] DMAR: DRHD: handling fault status reg 2\n",
        GPU + "[ 1.0] DMAR: [INTR-REMAP] Request device [3b:00.0] fault index 0x8000 "
        "[fault reason 0x26] Blocked an interrupt request\n",
        GPU + "[ 1.0] DMAR: Intel(R) Virtualization Technology for Directed I/O\n",
    ],
)
def test_what_is_no_trouble_of_a_gpu(text: str) -> None:
    loud = [name for name, severity in findings(text) if severity != "info"]
    assert loud == []


def test_a_device_that_nobody_names_is_worth_a_note() -> None:
    found = only(INTEL * 3)
    assert (found.name, found.severity) == ("iommu-fault", Severity.INFO)
    assert "see lspci" in found.detail
    assert diagnose(INTEL).root_ids == ()


# -- adapters ----------------------------------------------------------------------------------

MLX = "[ 1.0] mlx5_core 0000:9a:00.0: "


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (MLX + "poll_health:802:(pid 0): device's health compromised - reached miss count\n",
         "nic-firmware-failure"),
        (MLX + "wait_func:1165:(pid 2210): QUERY_VPORT_COUNTER(0x770) timeout. Will cause a leak "
         "of a command resource\n", "nic-firmware-failure"),
        (MLX + "print_health_info:432:(pid 0): synd 0x1: firmware internal error\n",
         "nic-firmware-failure"),
        (MLX + "mlx5_load_one failed with error code -22\n", "nic-init-failed"),
        (MLX + "probe_one:1689:(pid 88): mlx5_init_one failed with error code -110\n",
         "nic-init-failed"),
        (MLX + "probe with driver mlx5_core failed with error -22\n", "nic-init-failed"),
        ("[ 1.0] mlx5_core: probe of 0000:9a:00.0 failed with error -22\n", "nic-init-failed"),
    ],
)  # fmt: skip
def test_an_adapter_fails(text: str, name: str) -> None:
    found = only(text)
    assert (found.name, found.severity, found.subject.device) == (
        name, Severity.ERROR, "0000:9a:00.0",
    )  # fmt: skip


def test_an_adapter_that_recovered_is_to_be_looked_into() -> None:
    failed = MLX + "poll_health:802:(pid 0): device's health compromised - reached miss count\n"
    back = MLX + "mlx5_health_try_recover:335:(pid 9): health recovery succeeded\n"
    assert findings(failed + back) == [("nic-firmware-failure", "warning")]
    assert findings(failed + back + failed) == [("nic-firmware-failure", "error")]
    assert findings(back) == []


@pytest.mark.parametrize(
    "text",
    [
        MLX + "firmware version: 28.39.1002\n",
        MLX + "Port module event: module 0, Cable plugged\n",
        "[ 1.0] ata1: probe of 0000:9a:00.0 failed with error -22\n",
        "[ 1.0] EXT4-fs: Fatal error 1 detected\n",
        "Mar 11 06:20:17 n monitor[7]: mlx5_core 0000:9a:00.0: device's health compromised\n",
    ],
)
def test_an_adapter_that_works(text: str) -> None:
    assert findings(text) == []


def test_what_the_driver_asks_for_after_a_fault_of_a_program_stands_by_itself() -> None:
    asks = x(154, "GPU recovery action changed from 0x0 (None) to {}").format
    reboot, reset = asks("0x2 (Node Reboot Required)"), asks("0x1 (GPU Reset Required)")
    assert findings(x(31) + reboot)[0] == ("gpu-needs-reboot", "critical")
    assert findings(x(13) + reset)[0] == ("gpu-needs-reset", "error")
    assert findings(x(31) + asks("0x0 (None)")) == [("gpu-application-fault", "warning")]
    assert findings(x(119) + reset) == [("gpu-firmware-failure", "critical")]


# -- tasks that hang ---------------------------------------------------------------------------

_HANGS = (
    "[  98.1] INFO: task nvidia-smi:48120 blocked for more than 120 seconds.\n"
    "[  98.1]       Tainted: P           OE     5.15.0-105-generic\n"
    "[  98.1] Call Trace:\n"
    "[  98.1]  schedule+0x69/0x110\n"
)
_IN_DRIVER = "[  98.1]  os_acquire_rwlock_write+0x35/0x40 [nvidia]\n"


@pytest.mark.parametrize("module", ["nvidia", "nvidia_uvm", "nvidia-peermem"])
def test_a_task_hangs_in_the_gpu_driver(module: str) -> None:
    found = only(_HANGS + _IN_DRIVER.replace("[nvidia]", f"[{module}]"))
    assert (found.name, found.severity) == ("driver-not-answering", Severity.ERROR)
    assert "nvidia-smi (pid 48120) waits in it for 120 s" in found.title
    lost = "[  97.0] NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.\n"
    assert [name.partition("@")[0] for name in diagnose(lost + _HANGS + _IN_DRIVER).root_ids] == [
        "gpu-lost"
    ]


@pytest.mark.parametrize(
    "text",
    [
        _HANGS,
        _HANGS + "[  98.1]  nfs_wait_bit_killable+0x1e/0x90 [nfs]\n",
        _IN_DRIVER,
        _HANGS + "[  98.2] usb 1-1: reset\n" * 100 + _IN_DRIVER,
        _HANGS + "[  98.2] [drm] [nvidia-drm] [GPU ID 0x00001b00] Loading driver\n",
    ],
    ids=["no frame of it", "another driver", "a trace of another kind", "much later", "no frame"],
)
def test_a_task_hangs_elsewhere(text: str) -> None:
    assert findings(text) == []


def test_a_gpu_without_address_space_is_not_started() -> None:
    text = (
        "[ 9.8] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
        "               NVRM: BAR1 is 0M @ 0x0 (PCI:0000:c1:00.0)\n"
        "[ 9.9] NVRM: None of the NVIDIA devices were initialized.\n"
    )
    assert findings(text) == [("adapter-init-failed", "critical")]
