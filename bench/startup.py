"""Start-up of the program as a whole process, against a bare `python3 -c pass` in the same run.

The package is installed as a user would have it (a wheel, compiled), since an editable install
adds a finder of its own to every start.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROUNDS = 15
BUDGETS = {"--version": 6, "check --from a sample": 12}


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=False, capture_output=True)
    return time.perf_counter() - started


def run() -> None:
    """Print each ratio against its budget; the rounds are interleaved, so load hits all alike."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        binaries = Path(folder) / "bin"
        pip = [str(binaries / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, *constraints, str(ROOT)], check=True)
        program = str(binaries / "gpudoctor")
        sample = str(ROOT / "samples" / "trainer-without-rdma.json")
        commands = {
            "bare": [str(binaries / "python3"), "-c", "pass"],
            "--version": [program, "--version"],
            "check --from a sample": [program, "check", "--pod", "trainer-0", "--from", sample],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                times[name].append(_seconds(command))
    bare = statistics.median(times["bare"])
    print(f"python3 -c pass: {bare * 1000:.0f} ms (Python {sys.version.split()[0]})")
    for name, budget in BUDGETS.items():
        ratio = statistics.median(times[name]) / bare
        print(f"{name}: {ratio:.1f}x (budget {budget}x)")
