"""`gpudoctor preflight` as a whole process on a healthy container, and beside a bare Python."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import nvml_library

BUDGET_S = 5.0
RUNS = 5
NEEDS = "gpus=8,nvlink,cuda=13.0,shm=1Gi,memlock=1Mi,numa"


def _seconds(command: list[str], environment: dict[str, str]) -> float:
    started = time.monotonic()
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    took = time.monotonic() - started
    assert ended.returncode == 0, ended.stdout.decode() + ended.stderr.decode()
    return took


def run() -> None:
    """Print the median of some runs against the budget."""
    with tempfile.TemporaryDirectory() as folder:
        nvml_library.build(Path(folder), "gpus=8")
        environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": folder}
        bare = [sys.executable, "-c", "pass"]
        whole = [sys.executable, "-m", "gpudoctor", "preflight", "--require", NEEDS]
        pairs = [(_seconds(bare, environment), _seconds(whole, environment)) for _ in range(RUNS)]
    python, preflight = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"preflight --require {NEEDS}, 8 GPUs by a library that answers at once")
    print(
        f"  {preflight:.2f} s (budget {BUDGET_S:g} s), {preflight / python:.0f} times a bare python"
    )
