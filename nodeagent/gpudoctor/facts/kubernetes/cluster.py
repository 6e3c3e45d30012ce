"""All objects of one input, indexed, decoded only as far as they are asked for.

A dump of 20,000 pods must answer in seconds: each pod is decoded once for what it occupies
and how it is found, and becomes a full `Pod` only when a question is about it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from gpudoctor.facts.kubernetes import fields, parse
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.model import (
    DaemonSet,
    Event,
    Node,
    Occupant,
    Pod,
    Scope,
)

T = TypeVar("T")

_TIMES = re.compile(
    rb'"\w*(?:[tT]imestamp|[tT]ime|At)"\s*:\s*"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)"'
)


class PodEntry(msgspec.Struct, frozen=True):
    """A pod of the index: enough to find it without reading it whole."""

    namespace: str
    name: str
    owner: str | None
    node: str | None
    labels: dict[str, str]
    raw: msgspec.Raw


class Cluster:
    """The objects of one input. Kinds that have no index of their own are under `of_kind`."""

    def __init__(
        self, objects: Iterable[msgspec.Raw], scope: Scope, now: datetime | None = None
    ) -> None:
        self.scope = scope
        self.nodes: dict[str, Node] = {}
        self.pods: list[PodEntry] = []
        self.events: list[Event] = []
        self.daemon_sets: list[DaemonSet] = []
        self.unreadable = 0
        self._occupants: dict[str, list[Occupant]] = defaultdict(list)
        self._others: dict[tuple[str, str], list[JsonObject]] = defaultdict(list)
        self._pods_read: dict[tuple[str, str], Pod] = {}
        self._derived: dict[Callable[[Cluster], Any], Any] = {}
        newest = b""
        for raw in objects:
            newest = max([newest, *_TIMES.findall(bytes(raw))])
            self._add(raw)
        self.now = now or fields.moment(newest.decode() or None)

    def _add(self, raw: msgspec.Raw) -> None:
        try:
            obj = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.unreadable += 1
            return
        if not isinstance(obj, dict):
            self.unreadable += 1
            return
        group = (fields.text(obj, "apiVersion") or "").rpartition("/")[0]
        match group, fields.text(obj, "kind"):
            case "", "Pod":
                self._add_pod(obj, raw)
            case "", "Node":
                found = parse.node(obj)
                self.nodes[found.name] = found
            case (("" | "events.k8s.io"), "Event"):
                self.events.append(parse.event(obj))
            case "apps", "DaemonSet":
                self.daemon_sets.append(parse.daemon_set(obj))
            case _, kind:
                self._others[group, kind or ""].append(obj)

    def _add_pod(self, obj: JsonObject, raw: msgspec.Raw) -> None:
        data = parse.meta(obj)
        self.pods.append(
            PodEntry(
                namespace=data.namespace or "default",
                name=data.name,
                owner=data.owner,
                node=fields.text(obj, "spec", "nodeName"),
                labels=data.labels,
                raw=raw,
            )
        )
        held = parse.occupant(obj)
        if held is not None:
            self._occupants[held.node].append(held)

    def occupants(self, node: str) -> list[Occupant]:
        """Return the pods bound to that node that have not ended."""
        return self._occupants.get(node, [])

    def of_kind(self, group: str, kind: str) -> list[JsonObject]:
        """Return the objects of a kind, matched by API group because words like Job repeat."""
        return self._others.get((group, kind), [])

    def one(self, group: str, kind: str, name: str, namespace: str | None) -> JsonObject | None:
        """Return the object of that kind and name (namespace None for cluster-wide kinds)."""
        for obj in self.of_kind(group, kind):
            if fields.text(obj, "metadata", "name") == name and (
                namespace is None or fields.text(obj, "metadata", "namespace") == namespace
            ):
                return obj
        return None

    def pod(self, entry: PodEntry) -> Pod:
        """Return the whole pod of an index entry."""
        key = (entry.namespace, entry.name)
        if key not in self._pods_read:
            obj = msgspec.json.decode(entry.raw)
            obj["metadata"] = fields.mapping(obj, "metadata") | {"namespace": entry.namespace}
            self._pods_read[key] = parse.pod(obj)
        return self._pods_read[key]

    def derived(self, build: Callable[[Cluster], T]) -> T:
        """Return what `build` makes of this input, made once: indexes of the modules beside this.

        A question about each of thousands of pods must not read all other objects each time.
        """
        if build not in self._derived:
            self._derived[build] = build(self)
        found: T = self._derived[build]
        return found

    def owned_by(self, namespace: str, owner: str) -> Iterator[Pod]:
        """Yield the pods that have this controlling owner (Kind/name)."""
        for entry in self._pods_by_owner.get((namespace, owner), ()):
            yield self.pod(entry)

    @cached_property
    def _pods_by_owner(self) -> dict[tuple[str, str], list[PodEntry]]:
        index: dict[tuple[str, str], list[PodEntry]] = defaultdict(list)
        for entry in self.pods:
            if entry.owner:
                index[entry.namespace, entry.owner].append(entry)
        return index

    def on_node(self, node: str) -> list[PodEntry]:
        """Return the pods bound to a node, those that have ended as well."""
        return self._pods_by_node.get(node, [])

    @cached_property
    def _pods_by_node(self) -> dict[str, list[PodEntry]]:
        index: dict[str, list[PodEntry]] = defaultdict(list)
        for entry in self.pods:
            if entry.node:
                index[entry.node].append(entry)
        return index

    def named_alike(self, namespace: str | None, base: str) -> list[PodEntry]:
        """Return the pods whose name is the base and one part more: base-0, base-1, …"""
        return self._pods_by_base.get((namespace, base), [])

    @cached_property
    def _pods_by_base(self) -> dict[tuple[str | None, str], list[PodEntry]]:
        index: dict[tuple[str | None, str], list[PodEntry]] = defaultdict(list)
        for entry in self.pods:
            index[entry.namespace, entry.name.rpartition("-")[0]].append(entry)
        return index

    @cached_property
    def _events_by_subject(self) -> dict[tuple[str, str], list[Event]]:
        index: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for found in self.events:
            index[found.about.kind, found.about.name].append(found)
        return index

    def events_of(
        self, kind: str, name: str, namespace: str | None, uid: str | None = None
    ) -> list[Event]:
        """Return the events about an object, oldest first.

        Events of an earlier object of the same name are left out where both uids are known.
        """
        found = [
            event
            for event in self._events_by_subject.get((kind, name), [])
            if (namespace is None or event.about.namespace in (None, namespace))
            and (uid is None or event.about_uid in (None, uid))
        ]
        return sorted(found, key=lambda event: event.seen.timestamp() if event.seen else 0.0)
