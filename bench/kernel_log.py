"""`explain` on a kernel log of 1 GiB: time against grep, peak memory, and that of a small one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZE = 1 << 30
SMALL = 1 << 24
BUDGET_MIB = 150
_ORDINARY = (
    "audit: type=1400 audit(1741674017.118:4711): apparmor=\"ALLOWED\" operation=\"open\"",
    "IPv6: ADDRCONF(NETDEV_CHANGE): cali0f7d4c1c2b3: link becomes ready",
    "mlx5_core 0000:9a:00.0 ens10f0np0: Link up",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-0a1b2c",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
)  # fmt: skip
_TELLING = (
    "NVRM: Xid (PCI:0000:{bus:02x}:00): 31, pid={pid}, name=python3, Ch 00000008, MMU Fault",
    "NVRM: Xid (PCI:0000:{bus:02x}:00): 43, pid={pid}, name=python3, Ch 00000008",
    "pcieport 0000:{bus:02x}:01.0: AER: Corrected error message received from 0000:{bus:02x}:00.0",
)
_TELLING_EVERY = 50


def write(path: Path, size: int) -> None:
    """Write a log in which one line in 50 is about a GPU, as a day of a bad node has it."""
    block = bytearray()
    for number in range(100_000):
        text = _ORDINARY[number % len(_ORDINARY)]
        if number % _TELLING_EVERY == 0:
            text = _TELLING[number // _TELLING_EVERY % len(_TELLING)]
            text = text.format(bus=0x18 + number % 8, pid=40_000 + number % 999)
        block += f"[{number / 7:14.6f}] {text}\n".encode()
    with path.open("wb") as out:
        for _ in range(-(-size // len(block))):
            out.write(block)


def _measured(command: list[str]) -> tuple[float, float]:
    """Return seconds and the child's own peak memory in MiB."""
    started = time.monotonic()
    # Not /dev/null: there grep stops at the first match.
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout as answer:
        answer.read()
    _, _, usage = os.wait4(child.pid, 0)
    child.returncode = 0
    return time.monotonic() - started, usage.ru_maxrss / 1024


def run() -> None:
    """Print the figures against their budgets."""
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "large.log", Path(folder) / "small.log"
        write(large, SIZE)
        write(small, SMALL)
        explain = [sys.executable, "-m", "gpudoctor", "explain", "-o", "json"]
        _, small_mib = _measured([*explain, str(small)])
        seconds, mib = _measured([*explain, str(large)])
        grep = shutil.which("grep")
        assert grep is not None
        baseline, _ = _measured([grep, "-c", "NVRM", str(large)])
    print(f"kernel log of {SIZE >> 20} MiB, 1 line in {_TELLING_EVERY} about a GPU:", end=" ")
    print(f"{seconds:.1f} s, {(SIZE >> 20) / seconds:.0f} MiB/s, grep -c {baseline:.1f} s")
    print(f"  {mib:.0f} MiB (budget {BUDGET_MIB} MiB), {small_mib:.0f} MiB for {SMALL >> 20} MiB")
