"""Takes everything of ours out of the cluster: what `helm uninstall` runs at its end.

Agents may still be ending while it runs, so it goes over everything until it finds nothing more.
Events of ours are left: the API server deletes them within the hour, as all Events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import quote

import msgspec

from gpudoctor.controller import nodes as views
from gpudoctor.controller.nodes import Metadata, Node, decoded
from gpudoctor.controller.writer import Writer
from gpudoctor.errors import InputError
from gpudoctor.publish import names, strip, taint
from gpudoctor.publish.writes import Write, delete
from gpudoctor.sources.kubernetes.client import Client
from gpudoctor.sources.kubernetes.errors import ApiError, NotFoundError
from gpudoctor.sources.kubernetes.kinds import CONFIG_MAP, DIAGNOSIS, LEASE, NODE, Kind

_MOST_PASSES = 10
_OURS = "app.kubernetes.io/name=gpudoctor"


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


class CleanUp:
    """One clean-up; `say` hears of each object that something was removed from."""

    def __init__(self, client: Client, namespace: str, say: Callable[[str], None]) -> None:
        self._writer = Writer(client, lambda: True)
        self._namespace = namespace
        self._say = say
        self._removed: Counter[str] = Counter()

    def run(self) -> str:
        """Remove everything and return what it was in one line; InputError for what stayed."""
        for _ in range(_MOST_PASSES):
            before = self._removed.total()
            failures = [*self._nodes(), *self._objects()]
            if failures:
                raise InputError(f"not all is removed, run it again: {'; '.join(failures)}")
            if self._removed.total() == before:
                return self._told()
        raise InputError(
            "what is removed comes back: an agent or a controller still runs; delete the DaemonSet"
            " gpudoctor-agent and the Deployment gpudoctor-controller, and run it again"
        )

    def _told(self) -> str:
        told = ", ".join(f"{count} {what}" for what, count in sorted(self._removed.items()))
        return f"removed: {told}" if told else "nothing of ours was left"

    def _nodes(self) -> Iterator[str]:
        """Clean all nodes; yields what failed."""
        listed = self._writer.client.list(NODE, keep=views.keep_all)
        for raw in listed.objects:
            node = decoded(raw, Node, "Node")
            try:
                self._writer.on_node(node.metadata.name, self._clean, first=node)
            except ApiError as error:
                yield str(error)

    def _clean(self, node: Node) -> bool:
        meta = node.metadata
        name, version = meta.name, meta.resource_version
        keys = [*(meta.labels or ()), *(meta.annotations or ())]
        write = strip.keys(
            name, version, meta.labels or (), meta.annotations or (), names.CONTROLLER
        )
        if write:
            version = self._send(write, version)
            count = sum(map(names.is_ours, keys))
            self._note(
                f"Node/{name}: {count} labels and annotations", "labels and annotations", count
            )
        write = taint.lift(name, version, node.taints)
        if write:
            version = self._send(write, version)
            self._note(f"Node/{name}: taint {taint.KEY_EFFECT}", "taints")
        if node.condition is not None:
            self._send(strip.away(name, version, names.CONTROLLER), version)
            self._note(f"Node/{name}: condition {names.NODE_CONDITION}", "conditions")
        return True

    def _objects(self) -> Iterator[str]:
        """Delete the objects that agents and controller made; yields what failed."""
        for kind, namespace, labels in (
            (DIAGNOSIS, None, ""),
            (LEASE, self._namespace, _OURS),
        ):
            try:
                self._delete_all(kind, namespace, labels)
            except ApiError as error:
                yield str(error)
        try:
            self._delete(CONFIG_MAP, self._namespace, names.POOLS)
        except ApiError as error:
            yield str(error)

    def _delete_all(self, kind: Kind, namespace: str | None, labels: str) -> None:
        try:
            found = self._writer.client.list(kind, namespace, labels=labels, metadata_only=True)
        except NotFoundError:
            return  # the CRD is gone, and all of its kind with it
        for raw in found.objects:
            meta = decoded(raw, _Object, kind.name).metadata
            self._delete(kind, meta.namespace, meta.name)

    def _delete(self, kind: Kind, namespace: str, name: str) -> None:
        what = f"{kind.name} {namespace}/{name}"
        root = f"/apis/{kind.group}" if kind.group else "/api"
        path = (
            f"{root}/{kind.versions[0]}/namespaces/{quote(namespace, safe='')}"
            f"/{kind.plural}/{quote(name, safe='')}"
        )
        try:
            self._writer.send(delete(f"deletion of {what}", path), kind.plural)
        except NotFoundError:
            return
        self._note(what, kind.plural)

    def _send(self, write: Write, version: str) -> str:
        """Send a write to a node; the node's version after it."""
        answer = decoded(self._writer.send(write, "node"), Node, write.what)
        return answer.metadata.resource_version or version

    def _note(self, text: str, what: str, count: int = 1) -> None:
        self._removed[what] += count
        self._say(text)
