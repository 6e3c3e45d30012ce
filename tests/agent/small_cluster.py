"""A Kubernetes API of one node: as much of it as an agent uses, kept in memory, over HTTPS.

Server-side apply is real as far as it matters here: a manager owns the labels that it applied,
those that it no longer applies go, and another's value is a conflict. `writes` lists what changed
something, in order. What the real API server does with the same requests is tests/cluster's.
"""

from __future__ import annotations

import copy
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from gpudoctor.publish import names
from tests.kubernetes_objects import Object
from tests.sources.kubernetes.api_server import Answer, Asked, status

NODE = "gpu-0"
T = TypeVar("T")
WAIT_SECONDS = 60.0


class SmallCluster:
    """`answer` is what `api_server.serving` calls. `outage` answers everything with its status."""

    def __init__(self, node: Object) -> None:
        self.node = node
        self.node.setdefault("metadata", {})["managedFields"] = []
        self.objects: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.writes: list[str] = []
        self.requests: list[str] = []
        self.outage = 0
        self.refuse: Callable[[Asked], Answer | None] = lambda _asked: None
        self._version = 100
        self._changed = threading.Condition()
        self._streams: list[queue.Queue[bytes | None]] = []
        self._history: list[tuple[int, bytes]] = []

    # -- what a test does ----------------------------------------------------------------------

    def put_pod(self, pod: Object) -> None:
        with self._changed:
            known = pod["metadata"]["uid"] in self.pods
            self.pods[pod["metadata"]["uid"]] = pod
            self._tell("MODIFIED" if known else "ADDED", pod)

    def delete_pod(self, pod: Object) -> None:
        with self._changed:
            del self.pods[pod["metadata"]["uid"]]
            self._tell("DELETED", pod)

    def say(self, event: Object) -> None:
        """Send one event of its own to all who watch."""
        with self._changed:
            for stream in self._streams:
                stream.put(json.dumps(event).encode() + b"\n")

    def end_streams(self) -> None:
        with self._changed:
            for stream in self._streams:
                stream.put(None)
            self._streams.clear()

    def wait(self, what: str, ask: Callable[[], T | None], seconds: float = WAIT_SECONDS) -> T:
        """Return the first true answer; asked after each request, and never too soon given up."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (answer := ask()):
                left = deadline - time.monotonic()
                assert left > 0, f"no {what} within {seconds:.0f} s: {self.writes}"
                self._changed.wait(left)
            return answer

    def wait_polling(self, what: str, ask: Callable[[], T | None]) -> T:
        """Return the first true answer of something that no request announces."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (answer := ask()):
            assert time.monotonic() < deadline, f"no {what} within {WAIT_SECONDS:.0f} s"
            with self._changed:
                self._changed.wait(0.05)
        return answer

    def labels(self) -> dict[str, str]:
        """Ours on the node, by name without prefix."""
        found: dict[str, str] = self.node["metadata"].get("labels", {})
        ours = {key: value for key, value in found.items() if names.is_ours(key)}
        return {key.partition("/")[2]: value for key, value in ours.items()}

    def condition(self) -> Object | None:
        """Ours on the node."""
        conditions = self.node["status"].get("conditions", ())
        return next((one for one in conditions if one["type"] == names.NODE_CONDITION), None)

    def diagnosis(self, name: str) -> Object | None:
        """The status of the Diagnosis of that name, in whatever namespace."""
        for path, found in self.objects.items():
            if path.endswith(f"/diagnoses/{name}"):
                status_: Object | None = found.get("status")
                return status_
        return None

    def renewals(self) -> int:
        return sum("/leases/" in write for write in self.writes)

    def other_writes(self) -> list[str]:
        return [write for write in self.writes if "/leases/" not in write]

    # -- what the server does ------------------------------------------------------------------

    def answer(self, asked: Asked) -> Answer:
        try:
            with self._changed:
                self.requests.append(f"{asked.method} {asked.path}")
                if self.outage:
                    return status(self.outage, "the server is not there")
                refused = self.refuse(asked)
                if refused is not None:
                    return refused
                return self._write(asked) if asked.method == "PATCH" else self._read(asked)
        finally:
            with self._changed:
                self._changed.notify_all()

    def _read(self, asked: Asked) -> Answer:
        if asked.path == f"/api/v1/nodes/{NODE}":
            return Answer(copy.deepcopy(self.node))
        if asked.path == "/api/v1/pods":
            assert asked.query["fieldSelector"] == f"spec.nodeName={NODE}"
            if asked.query.get("watch"):
                return Answer(pieces=self._stream(int(asked.query["resourceVersion"])))
            meta = {"resourceVersion": str(self._version)}
            return Answer({"kind": "PodList", "metadata": meta, "items": list(self.pods.values())})
        if asked.path in self.objects:
            return Answer(self.objects[asked.path])
        return status(404, f"{asked.path} not found", name=asked.path.rpartition("/")[2])

    def _write(self, asked: Asked) -> Answer:
        assert asked.headers["Content-Type"] == "application/apply-patch+yaml"
        manager, body = asked.query["fieldManager"], json.loads(asked.body)
        if asked.path.startswith("/api/v1/nodes/"):
            assert asked.path.startswith(f"/api/v1/nodes/{NODE}"), "another node"
            before = copy.deepcopy(self.node)
            if asked.path.endswith("/status"):
                self._apply_conditions(body["status"]["conditions"])
            elif (conflict := self._apply_labels(manager, body["metadata"]["labels"])) is not None:
                return conflict
            if self.node != before:
                self.writes.append(asked.path)
            return Answer(self.node)
        path = asked.path.removesuffix("/status")
        if path != asked.path and path not in self.objects:
            return status(404, f"{path} not found", name=path.rpartition("/")[2])
        applied = {"status": body["status"]} if path != asked.path else body
        merged = {**self.objects.get(path, {}), **applied}
        if merged != self.objects.get(path):
            self.objects[path] = merged
            self.writes.append(asked.path)
        return Answer(merged)

    def _apply_conditions(self, applied: list[Object]) -> None:
        conditions = self.node["status"].setdefault("conditions", [])
        for one in applied:
            conditions[:] = [kept for kept in conditions if kept["type"] != one["type"]]
            conditions.append(one)

    def _apply_labels(self, manager: str, applied: dict[str, str]) -> Answer | None:
        labels = self.node["metadata"].setdefault("labels", {})
        managed = self.node["metadata"]["managedFields"]
        own = next((entry for entry in managed if entry["manager"] == manager), None)
        owned = {} if own is None else own["fieldsV1"]["f:metadata"]["f:labels"]
        contested = [
            key
            for key, value in applied.items()
            if f"f:{key}" not in owned and labels.get(key, value) != value
        ]
        if contested:
            words = "; ".join(f".metadata.labels.{key}" for key in contested)
            return status(409, f"Apply failed with {len(contested)} conflict: {words}")
        for key in owned:
            if key.removeprefix("f:") not in applied:
                labels.pop(key.removeprefix("f:"), None)
        labels.update(applied)
        if own is not None:
            managed.remove(own)
        fields: Object = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in applied}}}
        managed.append({"manager": manager, "operation": "Apply", "fieldsV1": fields})
        return None

    def _tell(self, kind: str, pod: Object) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        line = json.dumps({"type": kind, "object": pod}).encode() + b"\n"
        self._history.append((self._version, line))
        for stream in self._streams:
            stream.put(line)
        self._changed.notify_all()

    def _stream(self, since: int) -> Iterator[bytes]:
        lines: queue.Queue[bytes | None] = queue.Queue()
        for version, line in self._history:
            if version > since:
                lines.put(line)
        self._streams.append(lines)
        return iter(lines.get, None)
