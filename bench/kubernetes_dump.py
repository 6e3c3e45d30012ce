"""`check --pod` on a dump of 5,000 nodes and 20,000 pods: seconds and peak memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NODES, PODS = 5_000, 20_000
BUDGET_S, BUDGET_MIB = 10, 1024
_KINDS = (("nvidia.com/gpu", "8"), ("cpu", "192"), ("memory", "2113393616Ki"), ("pods", "110"))


def node(number: int) -> dict[str, Any]:
    """A GPU node with the labels and conditions of a real one (about 3 kB)."""
    name = f"gpu-{number}"
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.F{i}": "true" for i in range(40)}
    labels |= {"kubernetes.io/hostname": name, "nvidia.com/gpu.present": "true"}
    labels["nvidia.com/gpu.product"] = "NVIDIA-H100-80GB-HBM3"
    conditions = [
        {"type": kind, "status": "False", "lastTransitionTime": "2026-11-20T08:00:00Z"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    conditions.append({**conditions[0], "type": "Ready", "status": "True"})
    status = {"capacity": dict(_KINDS), "allocatable": dict(_KINDS), "conditions": conditions}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"n{number}", "labels": labels},
        "spec": {},
        "status": status,
    }


def pod(number: int, bound: bool = True) -> dict[str, Any]:
    """A pod with two GPUs, about 4 kB as the API server returns it."""
    amounts = {"nvidia.com/gpu": "2", "cpu": "16", "memory": "128Gi"}
    env = [{"name": f"SETTING_{i}", "value": "x" * 40} for i in range(30)]
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": "main",
                "image": "example/train:1",
                "env": env,
                "resources": {"limits": amounts, "requests": amounts},
            }
        ],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    status: dict[str, Any] = {"phase": "Running"}
    if bound:
        spec["nodeName"] = f"gpu-{number % NODES}"
    else:
        message = f"0/{NODES} nodes are available: {NODES} Insufficient nvidia.com/gpu."
        status = {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                }
            ],
        }
    name = f"worker-{number}" if bound else "trainer-0"
    created = "2026-11-20T08:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"p{number}",
            "creationTimestamp": created,
            "labels": {"app": "train", "pod-template-hash": "abc"},
        },
        "spec": spec,
        "status": status,
    }


def _items() -> Iterator[dict[str, Any]]:
    yield pod(0, bound=False)
    yield from map(node, range(NODES))
    yield from map(pod, range(PODS))


def write(path: Path) -> None:
    """Write the dump as `kubectl get nodes,pods -A -o json` does."""
    with path.open("w", encoding="utf-8") as out:
        out.write('{"apiVersion": "v1", "kind": "List", "items": [\n')
        for position, item in enumerate(_items()):
            out.write((",\n" if position else "") + json.dumps(item, indent=1))
        out.write("]}\n")


def run() -> None:
    """Print the figures against their budgets."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump.json"
        write(dump)
        command = [sys.executable, "-m", "gpudoctor", "check", "--pod", "ml/trainer-0"]
        command += ["--from", str(dump), "-o", "json"]
        started = time.monotonic()
        answer = subprocess.run(command, check=False, capture_output=True)
        seconds = time.monotonic() - started
        size = dump.stat().st_size / 2**20
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    roots = json.loads(answer.stdout)["roots"]
    print(f"dump of {NODES} nodes and {PODS} pods, {size:.0f} MiB: {roots}")
    print(f"  {seconds:.1f} s (budget {BUDGET_S} s), {peak:.0f} MiB (budget {BUDGET_MIB} MiB)")
