"""The Kubernetes cases: loading them and asking gpudoctor, as `check --pod --from` does."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gpudoctor import readings, registry
from gpudoctor.readings import kubernetes
from gpudoctor.report import Report, Severity
from gpudoctor.sources.bundle import Bundle, Scope

FOLDER = Path(__file__).parent / "cases" / "k8s"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> dict[str, Any]:
    """Return a fresh copy of a case."""
    case: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return case


@cache
def checks() -> registry.Registry:
    """The installed checks."""
    return registry.load()


def subject_of(case: dict[str, Any]) -> tuple[str, str]:
    """Namespace and name of the pod that the case asks about."""
    namespace, _, name = case["command"].split()[-1].partition("/")
    return namespace, name


def find(case: dict[str, Any], kind: str, name: str) -> Any:
    """The object of that kind and name in a case, to be changed."""
    return next(
        obj for obj in case["objects"] if obj["kind"] == kind and obj["metadata"]["name"] == name
    )


def subject(case: dict[str, Any]) -> Any:
    """The pod that the case asks about, to be changed."""
    return find(case, "Pod", subject_of(case)[1])


def ask_changed(number: str, change: Callable[[dict[str, Any]], None]) -> tuple[Report, set[str]]:
    """Diagnose a case after a change to it; the report, and the names of more than a note."""
    case = load(next(name for name in NAMES if name.startswith(f"{number}-")))
    change(case)
    report = ask(case)
    return report, {f.name for f in report.findings if f.severity is not Severity.INFO}


def ask(case: dict[str, Any], *, complete: bool = True) -> Report:
    """Diagnose the case's pod from its objects and logs."""
    namespace, name = subject_of(case)
    recorded = Bundle(
        scope=Scope(objects="complete" if complete else "partial"),
        objects=tuple(msgspec.Raw(msgspec.json.encode(obj)) for obj in case["objects"]),
        logs=case.get("logs", {}),
    )
    return ask_bundle(recorded, namespace, name)


def ask_bundle(recorded: Bundle, namespace: str, name: str) -> Report:
    """Diagnose a pod of a bundle."""
    source = kubernetes.Input(recorded)
    return readings.judge(kubernetes.read_pod_named(source, name, namespace), checks())
