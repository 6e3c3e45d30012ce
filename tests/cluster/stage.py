"""Puts a situation on the cluster, hears what the scheduler says, asks gpudoctor, and clears up."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.situations import Situation

CLUSTER_WIDE = {
    "DeviceClass",
    "Node",
    "PersistentVolume",
    "PriorityClass",
    "ResourceSlice",
    "StorageClass",
}
_NUMBERS = itertools.count(1)  # a namespace is used once: its end takes the controller a while
_NOT_READY = "node.kubernetes.io/not-ready"


@contextlib.contextmanager
def staged(admin: Admin, situation: Situation) -> Iterator[str]:
    """The namespace with the situation in it, its causes in effect before its pod is created."""
    words = "".join(c if c.isalnum() else "-" for c in situation.name.lower())
    namespace = f"s{next(_NUMBERS)}-{words}"[:63].strip("-")
    make_namespace(admin, namespace)
    placed: list[JSON] = []
    try:
        for manifest in [*situation.objects, situation.pod]:
            placed.append(create(admin, namespace, manifest))
            if manifest is not situation.pod:
                settle(admin, placed[-1])
        yield namespace
    finally:
        clear(admin, namespace, placed)


def make_namespace(admin: Admin, name: str) -> None:
    """A namespace with the service account that pods need."""
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": name},
    }
    wait_for(f"default service account in {name}", lambda: admin.exists(account))


def create(admin: Admin, namespace: str, manifest: JSON) -> JSON:
    """Create the object, in the namespace where its kind has one and it names no other."""
    placed = dict(manifest)
    if manifest["kind"] not in CLUSTER_WIDE and "namespace" not in manifest["metadata"]:
        placed["metadata"] = {**manifest["metadata"], "namespace": namespace}
    return admin.create(placed)


def settle(admin: Admin, placed: JSON) -> None:
    """Wait for what controllers and scheduler do with the object before others may lean on it."""
    kind, name = placed["kind"], placed["metadata"]["name"]
    if kind == "Node":
        ready = placed["status"]["conditions"][0]["status"] == "True"
        wait_for(f"taints of node {name}", lambda: _is_tainted(admin.get(placed)) is not ready)
    elif kind == "Pod":
        wait_for(f"node for pod {name}", lambda: admin.get(placed)["spec"].get("nodeName"))
    elif kind == "ResourceQuota":
        wait_for(f"hard limits of quota {name}", lambda: admin.get(placed)["status"].get("hard"))
    elif kind == "PersistentVolumeClaim" and placed["spec"]["storageClassName"] != "absent":
        wait_for(f"volume for {name}", lambda: admin.get(placed)["status"]["phase"] == "Bound")


def _is_tainted(node: JSON) -> bool:
    return any(taint["key"] == _NOT_READY for taint in node["spec"].get("taints", ()))


def heard(admin: Admin, namespace: str, situation: Situation) -> JSON:
    """The event (or PodScheduled condition) that says what it should; {} if none is expected."""
    if not situation.event and not situation.says:
        return {}

    def newest() -> JSON | None:
        return next((m for m in _messages(admin, namespace, situation) if _fits(m)), None)

    def _fits(message: JSON) -> bool:
        return all(words in message["message"] for words in situation.says)

    try:
        return wait_for(f"message with {situation.says}", newest)
    except AssertionError as error:
        seen = [message["message"] for message in _messages(admin, namespace, situation)]
        raise AssertionError(f"{error}; it says {seen}") from error


def _messages(admin: Admin, namespace: str, situation: Situation) -> list[JSON]:
    name = situation.asked.partition("/")[2]
    if not situation.event:
        pod = admin.list("v1", "Pod", namespace, fieldSelector=f"metadata.name={name}")[0]
        return [c for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
    of = f"reason={situation.event},involvedObject.name={name}"
    events = admin.list("v1", "Event", namespace, fieldSelector=of)
    return sorted(events, key=_last_seen, reverse=True)


def _last_seen(event: JSON) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or ""
    )


def ask(
    kubeconfig: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `gpudoctor check … -o json` as a person would."""
    return subprocess.run(
        [sys.executable, "-m", "gpudoctor", "check", *arguments, "-o", "json",
         "--kubeconfig", str(kubeconfig)],
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip


def report(answer: subprocess.CompletedProcess[str]) -> JSON:
    """The JSON report that it printed; AssertionError shows what it said instead."""
    assert answer.stdout, f"exit status {answer.returncode}, stderr: {answer.stderr}"
    decoded: JSON = json.loads(answer.stdout)
    return decoded


def clear(admin: Admin, namespace: str, placed: list[JSON]) -> None:
    """Take everything away, so that the next situation's scheduler sees only its own nodes."""
    left = admin.list("v1", "Pod", namespace)
    for pod in left:
        admin.delete({"apiVersion": "v1", "kind": "Pod"} | pod)
    for manifest in reversed(placed):
        admin.delete(manifest)
    seen_by_all = [manifest for manifest in placed if manifest["kind"] in CLUSTER_WIDE]
    wait_for(f"end of {namespace}", lambda: not any(map(admin.exists, seen_by_all)))
