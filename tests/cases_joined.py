"""The joined cases: Kubernetes objects, logs, and the machine of the pod's node in one bundle.

As in `cases/k8s`, with two fields more. `hosts` has the machine of a node: `tree` is what differs
from the machine that it is `like` (`tests/machines.py`), `later` a second observation. `near` is
the near miss: what is given there takes the place of the case's own, and the answer is another.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gpudoctor import readings, registry
from gpudoctor.readings import kubernetes
from gpudoctor.report import Report
from gpudoctor.sources.bundle import Bundle, HostRecording, Scope
from tests.machines import gpu_node

FOLDER = Path(__file__).parent / "cases" / "joined"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
Case = dict[str, Any]


def load(name: str) -> Case:
    """Return a fresh copy of a case."""
    case: Case = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return case


def near(name: str) -> Case:
    """Return a case as its near miss."""
    case = load(name)
    changed: Case = case["near"]
    return case | changed


@cache
def checks() -> registry.Registry:
    """The installed checks."""
    return registry.load()


def bundle(case: Case, *, complete: bool = True) -> Bundle:
    """Put a case into the form of a recording."""
    return Bundle(
        scope=Scope(objects="complete" if complete else "partial"),
        objects=tuple(msgspec.Raw(msgspec.json.encode(obj)) for obj in case["objects"]),
        logs=case["logs"],
        hosts={
            name: HostRecording(
                tree=gpu_node(host["like"]) | host["tree"], tree_later=host.get("later", {})
            )
            for name, host in case["hosts"].items()
        },
    )


def ask(case: Case, *, complete: bool = True) -> Report:
    """Diagnose the case's pod."""
    namespace, _, name = case["command"].split()[-1].partition("/")
    source = kubernetes.Input(bundle(case, complete=complete))
    return readings.judge(kubernetes.read_pod_named(source, name, namespace), checks())
