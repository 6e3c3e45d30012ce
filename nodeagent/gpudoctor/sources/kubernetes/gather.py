"""Reads from a live cluster what one diagnosis needs, as a bundle that can be saved and replayed.

A pod costs at most 8 requests; for one without a node a paged list of the bound pods is added,
for nobody can know otherwise what is free. What is refused or does not answer is noted in the
scope and the reading goes on; only without its subject there is nothing to say.

Logs are what the kubelet still has of the newest file: a start-up part that is missing in them
is unknown, not absent, and no scope here ever calls logs complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.publish.names import NAMESPACE, POOLS
from gpudoctor.sources.bundle import Bundle, Scope
from gpudoctor.sources.kubernetes import kinds, plan
from gpudoctor.sources.kubernetes.client import Client, Listing
from gpudoctor.sources.kubernetes.errors import (
    ApiError,
    ForbiddenError,
    GarbledError,
    NotFoundError,
    NotServedError,
    RefusedError,
    UnreachableError,
)
from gpudoctor.sources.kubernetes.plan import Get, List, Log, Step
from gpudoctor.sources.kubernetes.views import EventView, NodeView, ObjectView, PodView

BUDGET = 8
_BUDGET_OF_MANY = 80
_LOG_HEAD_BYTES = 4 << 20
_LOG_TAIL_LINES = 5_000
_LOG_TAIL_BYTES = 2 << 20
_LOG_GAP = "... [gpudoctor: the middle of a long log was not read] ...\n"
_FEW_NODES = 3
_NEAR_NAMES = 8

V = TypeVar("V")
_Name = tuple[str | None, str | None]


class _Reading:
    """What has been read so far. `budget` is the number of requests left for steps.

    `has_all_pods` says that all pods of the cluster were looked at: no step lists pods again.
    """

    def __init__(self, client: Client, budget: int, *, has_all_pods: bool = False) -> None:
        self._has_all_pods = has_all_pods
        self._client = client
        self.budget = budget
        self._objects: dict[tuple[str, str | None, str], msgspec.Raw] = {}
        self._logs: dict[str, str] = {}
        self._denied: list[str] = []
        self._settled: dict[str, bool] = {}
        self._done: set[Step] = set()
        self._lost = False
        self._start = client.requests

    def bundle(self) -> Bundle:
        """Return everything that was read."""
        settled = tuple(kind for kind, whole in self._settled.items() if whole)
        if self._has_all_pods:
            settled += (kinds.POD.name,)
        return Bundle(
            now=self._client.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            scope=Scope(denied=tuple(dict.fromkeys(self._denied)), complete_kinds=settled),
            objects=tuple(self._objects.values()),
            logs=self._logs,
        )

    def run(self, steps: Iterable[Step], *, free: bool = False) -> None:
        """Make the steps in order, as far as the budget goes; `free` ones do not count."""
        for step in steps:
            self.read(step, free=free)

    def read(self, step: Step, *, free: bool = False) -> list[msgspec.Raw]:
        """Make one step and return its objects; none if it was refused or the budget is spent.

        A paged list counts once, however many pages it has.
        """
        if step in self._done:
            return []
        if self._has_all_pods and isinstance(step, List) and step.kind == kinds.POD:
            return []
        if self._lost or not (free or self.budget > 0):
            self._unsettle(step)
            return []
        self._done.add(step)
        self._start = before = self._client.requests
        try:
            if isinstance(step, Log):
                self._read_log(step)
                return []
            return self._objects_of(step)
        except ApiError as error:
            self._note(step, error)
            return []
        finally:
            if not free:
                paged = isinstance(step, List) and step.max_pages > 1
                self.budget -= 1 if paged else self._client.requests - before

    def read_events(self, namespace: str | None, pods: set[_Name]) -> list[EventView]:
        """Read a namespace's events (or all), keep and return those about the pods."""
        step = List(kinds.EVENT, namespace, max_pages=plan.ALL_PAGES, settles=False)
        self.budget -= 1
        try:
            listing = self._ask(step)
        except ApiError as error:
            self._note(step, error)
            return []
        kept = []
        for raw in listing.objects:
            event = _view(raw, EventView)
            about = event.involved_object
            if about and about.kind == "Pod" and (about.namespace, about.name) in pods:
                self.keep([raw])
                kept.append(event)
        return kept

    def keep(self, objects: Iterable[msgspec.Raw]) -> None:
        """Record objects; the first reading of an object stays."""
        for raw in objects:
            seen = _view(raw, ObjectView)
            key = (seen.kind, seen.metadata.namespace, seen.metadata.name)
            self._objects.setdefault(key, raw)

    def _objects_of(self, step: Get | List) -> list[msgspec.Raw]:
        listing = self._ask(step)
        found = list(listing.objects)
        if isinstance(step, List) and step.numbered:
            found = [raw for raw in found if step.keeps(_view(raw, ObjectView).metadata.name)]
        self.keep(found)
        if step.settles:
            self.settle(_settled_by(step), listing.whole)
        return found

    def _ask(self, step: Get | List) -> Listing:
        try:
            if isinstance(step, Get):
                found = self._client.get(step.kind, step.name, step.namespace, tries=self.budget)
                return Listing((found,), whole=True)
            return self._client.list(
                step.kind,
                step.namespace,
                fields=step.fields,
                labels=step.labels,
                max_pages=step.max_pages,
                tries=max(self.budget, 1),
            )
        except NotFoundError as error:
            if isinstance(error, NotServedError) and not error.all_tried:
                raise
            # That it is not there, or that its kind is not served, is an answer as well.
            return Listing((), whole=True)

    def _read_log(self, step: Log) -> None:
        key = f"{step.namespace}/{step.pod}/{step.container}" + "!previous" * step.previous
        try:
            head = self._log(step, limit_bytes=_LOG_HEAD_BYTES)
            self._logs[key] = head
            spent = self._client.requests - self._start
            if len(head.encode()) >= _LOG_HEAD_BYTES and spent < self.budget:
                tail = self._log(step, tail_lines=_LOG_TAIL_LINES, limit_bytes=_LOG_TAIL_BYTES)
                self._logs[key] = _joined(head, tail)
        except RefusedError as error:
            # 400: the container has not started yet, or was never restarted: no such log.
            if error.status != 400:
                raise
        except NotServedError:
            return

    def _log(self, step: Log, limit_bytes: int, tail_lines: int | None = None) -> str:
        return self._client.log(
            step.namespace,
            step.pod,
            step.container,
            previous=step.previous,
            limit_bytes=limit_bytes,
            tail_lines=tail_lines,
        )

    def _note(self, step: Step, error: ApiError) -> None:
        self._unsettle(step)
        if isinstance(error, ForbiddenError):
            if isinstance(step, Log) or not step.optional:
                self._denied.append(str(step))
            return
        if isinstance(error, NotFoundError):
            return
        self._denied.append(f"{step}: {error}")
        # A server that cannot be reached any more would cost its time-out for each step left.
        self._lost = isinstance(error, UnreachableError)

    def settle(self, kind: str, whole: bool) -> None:
        """Note that every object of the kind that matters was read, or not."""
        self._settled[kind] = whole and self._settled.get(kind, True)

    def stop(self) -> None:
        """Give up the steps that are left: only what was read once for all stays settled."""
        once = {step.kind.name for step in (plan.NODES, plan.DAEMON_SETS)}
        self._settled = {kind: whole for kind, whole in self._settled.items() if kind in once}

    def _unsettle(self, step: Step) -> None:
        if isinstance(step, Get | List) and step.settles:
            self.settle(_settled_by(step), False)


def _settled_by(step: Get | List) -> str:
    return (step.settles_as if isinstance(step, List) else "") or step.kind.name


def gather_pod(client: Client, namespace: str, name: str) -> Bundle:
    """Read one pod and what decides its state; InputError if there is no such pod or no access.

    For a pod that a controller was refused to make, what is said about it is read instead.
    """
    reading = _Reading(client, BUDGET - 1)
    try:
        subject = client.get(kinds.POD, name, namespace)
    except NotFoundError as error:
        if any(name.startswith(about) for about in _absent_pods(reading, namespace)):
            return reading.bundle()
        raise InputError(f"{error}{_near(client, namespace, name)}") from error
    reading.keep([subject])
    pod = _view(subject, PodView)
    events = _views(reading.read(plan.events_of(pod)), EventView)
    if pod.spec.node_name:
        node, neighbours = _node(reading, pod.spec.node_name)
        _published(reading, pod, node)
        _bound(reading, pod, node, neighbours, events)
        return reading.bundle()
    reading.run(plan.before_nodes(pod))
    nodes, bound = _capacity(reading)
    reading.run(plan.of_pending_pod(pod, nodes, bound, events))
    return reading.bundle()


def gather_node(client: Client, name: str, agents: str = NAMESPACE) -> Bundle:
    """Read one node, its events, its pods, what its agent published in the namespace `agents`,
    and the logs of its device software.
    """
    raw = client.get(kinds.NODE, name)
    reading = _Reading(client, BUDGET - 1)
    reading.keep([raw])
    pods = _views(reading.read(plan.pods_on(name)), PodView)
    fields = f"involvedObject.kind=Node,involvedObject.name={name}"
    reading.read(List(kinds.EVENT, fields=fields, settles=False))
    reading.read(plan.DAEMON_SETS)
    if _view(raw, NodeView).has_agent:
        reading.run(plan.published_of_node(name, agents))
    software = [pod for pod in pods if plan.is_device_software(pod)]
    reading.run(plan.one_log_each(sorted(software, key=lambda pod: pod.is_ready)))
    if any(pod.spec.resource_claims for pod in pods):
        reading.read(List(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={name}", settles=False))
    return reading.bundle()


def gather_selected(client: Client, namespace: str | None, selector: str) -> Bundle:
    """Read the pods of a label selector, in one namespace or all, and what decides their state."""
    return _gather_found(client, namespace, client.list(kinds.POD, namespace, labels=selector))


def gather_job(client: Client, namespace: str, kind: str, name: str) -> Bundle:
    """Read the pods of a job and what decides their state; of one without pods, what holds it.

    Pods are found by the name whatever its kind; the job itself is read by one of `kinds.JOBS`.
    """
    everyone = client.list(kinds.POD, namespace)
    members = [raw for raw in everyone.objects if plan.is_of_job(_view(raw, PodView), name)]
    if members or kind.lower() not in kinds.JOBS:
        return _gather_found(client, namespace, Listing(tuple(members), everyone.whole))
    reading = _Reading(client, BUDGET - 1)
    jobs = reading.read(Get(kinds.JOBS[kind.lower()], name, namespace))
    # Each controller has a reason of its own for what it could not make.
    _absent_pods(reading, namespace, "type=Warning")
    for job in _views(jobs, ObjectView):
        reading.run(plan.queue_of(job))
    return reading.bundle()


def gather_for_manifests(client: Client, namespaces: Iterable[str]) -> Bundle:
    """Read what new pods would meet: nodes, runtime classes, quotas, and what pools offer."""
    reading = _Reading(client, BUDGET)
    reading.read(plan.NODES)
    reading.read(List(kinds.RUNTIME_CLASS))
    reading.read(Get(kinds.CONFIG_MAP, POOLS, NAMESPACE, settles=False))
    reading.run(List(kinds.RESOURCE_QUOTA, namespace) for namespace in namespaces)
    return reading.bundle()


def _gather_found(client: Client, namespace: str | None, found: Listing) -> Bundle:
    reading = _Reading(client, _BUDGET_OF_MANY)
    reading.keep(found.objects)
    pods = _views(found.objects, PodView)
    if not pods:
        _absent_pods(reading, namespace)
    events = _events(reading, pods, namespace)
    nodes, around = _surroundings(reading, pods)
    _each(reading, pods, events, nodes, around)
    return reading.bundle()


def gather_gpu_pods(client: Client) -> Bundle:
    """Read all pods that ask for devices, in all namespaces, and what keeps the unwell ones so."""
    found = client.list(kinds.POD)
    reading = _Reading(client, _BUDGET_OF_MANY, has_all_pods=found.whole)
    everyone = _views(found.objects, PodView)
    pods = [pod for pod in everyone if pod.uses_devices]
    nodes = {pod.spec.node_name for pod in pods}
    # Pods elsewhere take nothing from GPU nodes, unless they are the devices' own software.
    reading.keep(
        raw
        for raw, pod in zip(found.objects, everyone, strict=True)
        if pod.uses_devices or pod.spec.node_name in nodes or plan.is_device_software(pod)
    )
    _each(
        reading,
        [pod for pod in pods if not pod.is_well],
        _events(reading, pods, None),
        _views(reading.read(plan.NODES), NodeView),
        everyone,
    )
    return reading.bundle()


def _near(client: Client, namespace: str, name: str) -> str:
    """The pods whose names are like the one that is not there, for the message."""
    from difflib import get_close_matches

    try:
        listing = client.list(kinds.POD, namespace, max_pages=1)
    except ApiError:
        return ""
    names = [pod.metadata.name for pod in _views(listing.objects, PodView)]
    near = get_close_matches(name, names, _NEAR_NAMES, 0.5)
    if near:
        return f"; near in namespace {namespace}: {', '.join(near)}"
    return f"; namespace {namespace} has {len(names)} pods" + "+" * (not listing.whole)


def _node(reading: _Reading, name: str) -> tuple[NodeView | None, list[PodView]]:
    """The pod's node and its pods. One node is not all nodes: this settles nothing."""
    nodes = _views(reading.read(Get(kinds.NODE, name, settles=False)), NodeView)
    neighbours = _views(reading.read(plan.pods_on(name)), PodView)
    return next(iter(nodes), None), neighbours


def _published(reading: _Reading, pod: PodView, node: NodeView | None) -> None:
    """What agents published: about the pod, else about its node, where the default install is."""
    steps = list(plan.published_of_pod(pod, node))
    found = [raw for step in steps for raw in reading.read(step)]
    if steps and not found and node is not None:
        reading.run(plan.published_of_node(node.metadata.name, NAMESPACE))


def _bound(
    reading: _Reading,
    pod: PodView,
    node: NodeView | None,
    neighbours: list[PodView],
    events: list[EventView],
) -> None:
    reading.run(plan.of_bound_pod(pod, node, neighbours, events))
    members: list[PodView] = []
    for step in plan.peers(pod):
        members += _views(reading.read(step), PodView)
    for step in plan.events_of_owner(pod):
        told = _views(reading.read(step), EventView)
        reading.run(plan.of_owner(pod, told))
    reading.run(plan.of_bound_pods_job(pod, members))


def _capacity(reading: _Reading) -> tuple[list[NodeView], list[PodView]]:
    """All nodes, and all pods that take from them."""
    nodes = _views(reading.read(plan.NODES), NodeView)
    bound = _views(reading.read(plan.BOUND_PODS, free=True), PodView)
    return nodes, bound


def _events(reading: _Reading, pods: list[PodView], namespace: str | None) -> list[EventView]:
    """The events of these pods alone; of one pod by its name, of many out of all."""
    if len(pods) == 1:
        return _views(reading.read(plan.events_of(pods[0])), EventView)
    if not pods:
        return []
    return reading.read_events(namespace, {(p.metadata.namespace, p.metadata.name) for p in pods})


def _absent_pods(
    reading: _Reading, namespace: str | None, fields: str = "type=Warning,reason=FailedCreate"
) -> list[str]:
    """What can keep a controller or queue from making any pod; names of those that were refused."""
    refused = _views(
        reading.read(List(kinds.EVENT, namespace, fields=fields, settles=False)), EventView
    )
    reading.run([List(kinds.RESOURCE_QUOTA, namespace), List(kinds.WORKLOAD, namespace)])
    return [event.involved_object.name or "" for event in refused if event.involved_object]


def _surroundings(reading: _Reading, pods: list[PodView]) -> tuple[list[NodeView], list[PodView]]:
    """The nodes of the pods and what runs there, or all if they are many or some have none."""
    names = list(dict.fromkeys(pod.spec.node_name for pod in pods if pod.spec.node_name))
    if len(names) > _FEW_NODES or not all(pod.is_bound for pod in pods):
        return _capacity(reading)
    nodes: list[NodeView] = []
    around: list[PodView] = []
    for name in names:
        node, neighbours = _node(reading, name)
        nodes += [node] if node else []
        around += neighbours
    return nodes, around


def _each(
    reading: _Reading,
    pods: list[PodView],
    events: list[EventView],
    nodes: list[NodeView],
    around: list[PodView],
) -> None:
    """Make each pod's own steps, those of unwell pods first.

    Of `around`, only the devices' software is of use here: it is picked out once.
    """
    software = [pod for pod in around if plan.is_device_software(pod)]
    by_name = {node.metadata.name: node for node in nodes}
    about: dict[_Name, list[EventView]] = {}
    for event in events:
        if event.involved_object:
            key = (event.involved_object.namespace, event.involved_object.name)
            about.setdefault(key, []).append(event)
    for pod in sorted(pods, key=lambda pod: pod.is_well):
        if reading.budget <= 0:
            reading.stop()
            return
        if pod.status.phase == "Succeeded":
            continue
        told = about.get((pod.metadata.namespace, pod.metadata.name), [])
        if pod.spec.node_name:
            here = [other for other in software if other.spec.node_name == pod.spec.node_name]
            node = by_name.get(pod.spec.node_name)
            _published(reading, pod, node)
            _bound(reading, pod, node, here, told)
        else:
            reading.run(plan.before_nodes(pod))
            reading.run(plan.of_pending_pod(pod, nodes, software, told))


def _joined(head: str, tail: str) -> str:
    """Head and tail of a log as one text, without what both have."""
    whole_lines = head[: head.rfind("\n") + 1]
    first = tail.partition("\n")[0] + "\n"
    start = whole_lines.find(first)
    while start >= 0:
        if tail.startswith(whole_lines[start:]):
            return whole_lines[:start] + tail
        start = whole_lines.find(first, start + 1)
    return whole_lines + _LOG_GAP + tail


def _view(raw: msgspec.Raw, view: type[V]) -> V:
    try:
        return msgspec.json.decode(raw, type=view)
    except (msgspec.MsgspecError, ValueError) as error:
        raise GarbledError(f"an object of the API server cannot be read: {error}") from error


def _views(objects: Iterable[msgspec.Raw], view: type[V]) -> list[V]:
    return [_view(raw, view) for raw in objects]
