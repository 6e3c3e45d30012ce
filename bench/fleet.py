"""`gpudoctor fleet` on the Diagnoses of 10,000 nodes: seconds and peak memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NODES = 10_000
BUDGET_S, BUDGET_MIB = 5, 500
_LABELS = {
    "clique": None, "cuda": "13000", "driver": "580126009", "fabric": None, "gdr": "dmabuf",
    "gpu-arch": "hopper", "gpu-count": "8", "gpu-model": "h100", "gpu-nic": "pix",
    "memlock-mib": "64", "numa-aligned": "true", "numa-policy": "single-numa-node",
    "nvlink": "all", "nvlink-island-size": "8", "rack": "r7", "rdma": "ib", "rdma-gbps": "400",
    "rdma-rails": "8", "shm-mib": "64", "verdict": "healthy",
}  # fmt: skip


def finding(number: int, node: str) -> dict[str, Any]:
    """A finding of the size of a real one (about 1.2 kB)."""
    return {
        "id": f"nic-port-down@Node/{node}/mlx5_{number}", "code": "NET002",
        "name": "nic-port-down", "layer": "NET", "severity": "error", "certainty": "certain",
        "blame": "node", "audience": "admin",
        "subject": {"kind": "Node", "name": node, "device": f"mlx5_{number}"},
        "title": f"Port 1 of mlx5_{number} is down", "detail": "what was seen there " * 12,
        "evidence": [{"object": f"/sys/class/infiniband/mlx5_{number}/ports/1/state",
                      "value": "1: DOWN", "note": "not active"}] * 3,
        "fixes": {"admin": "Check the cable and the port of the switch. " * 3},
    }  # fmt: skip


def diagnosis(number: int) -> dict[str, Any]:
    """One node's: each has two notes, each twentieth a root cause, each hundredth a driver."""
    node = f"gpu-{number:05d}"
    findings = [finding(n, node) for n in range(3 if number % 20 == 0 else 2)]
    for note in findings[:2]:
        note |= {"severity": "info", "name": "cpu-not-pinned", "id": f"note-{note['id']}"}
    values = _LABELS | ({"driver": "570172008"} if number % 100 == 0 else {})
    roots = [one for one in findings if one["severity"] == "error"]
    status = {
        "subject": {"kind": "Node", "name": node},
        "verdict": "failing" if roots else "healthy",
        "node": node,
        "observedAt": "2026-11-20T08:00:00Z",
        "version": "0.1.0",
        "labels": [{"name": name, "because": "the fact that is behind this label " * 2}
                   | ({"value": value} if value else {}) for name, value in values.items()],
        "roots": [one["name"] for one in roots],
        "rootIds": [one["id"] for one in roots],
        "findings": findings,
    }  # fmt: skip
    metadata = {"name": f"node-{node}", "namespace": "gpudoctor", "uid": f"d{number}"}
    return {"apiVersion": "gpudoctor.io/v1alpha1", "kind": "Diagnosis", "metadata": metadata,
            "status": status}  # fmt: skip


def write(path: Path) -> None:
    """Write the dump as `kubectl get gdx -n gpudoctor -o json` does."""
    with path.open("w", encoding="utf-8") as out:
        out.write('{"apiVersion": "v1", "kind": "List", "items": [\n')
        for number in range(NODES):
            out.write((",\n" if number else "") + json.dumps(diagnosis(number), indent=1))
        out.write("]}\n")


def run() -> None:
    """Print the figures against their budgets."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "fleet.json"
        write(dump)
        size = dump.stat().st_size / 2**20
        print(f"dump of {NODES} Diagnoses, {size:.0f} MiB")
        before = 0.0
        for output in ("text", "json"):
            command = [sys.executable, "-m", "gpudoctor", "fleet", "--from", str(dump)]
            started = time.monotonic()
            answer = subprocess.run([*command, "-o", output], check=False, capture_output=True)
            seconds = time.monotonic() - started
            assert answer.returncode == 1, answer.stderr.decode()
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu, before = used.ru_utime + used.ru_stime - before, used.ru_utime + used.ru_stime
            peak = used.ru_maxrss / 1024
            print(f"  {output}: {seconds:.1f} s, CPU {cpu:.1f} s (budget {BUDGET_S} s), "
                  f"{peak:.0f} MiB (budget {BUDGET_MIB} MiB)")  # fmt: skip
