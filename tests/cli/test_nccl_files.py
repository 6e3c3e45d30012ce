"""`gpudoctor nccl` on one file a rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.nccl_logs import Rank, ring, start

BOUND = 120


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    ranks = [Rank(f"node-{n}", n) for n in range(48)]
    lines = start(ranks, nnodes=48) + ring(ranks)
    for rank in ranks:
        own = [line for line in lines if line.startswith(f"{rank.host}:")]
        (tmp_path / f"{rank.host}.log").write_text("\n".join(own) + "\n")
    files = [str(path) for path in tmp_path.iterdir()]
    command = [sys.executable, "-m", "gpudoctor", "nccl", "-o", "json", *files]
    found = subprocess.run(
        ["sh", "-c", 'ulimit -n 32 && exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    facts = json.loads(found.stdout)["facts"]["nccl"]
    assert (facts["ranks"], facts["nodes"], facts["gdr"]) == (48, 48, "all")
