"""Dynamic resource allocation around one pod: claims, published devices, taints, the kubelet.

Reads resource.k8s.io v1, v1beta2 and v1beta1. Only the highest generation of a pool counts, and
only when all its slices are there. Of CEL selectors only the plainest are evaluated (`cel`): which
devices any other picks is left to the scheduler's words.
Source: kubernetes api/resource, pkg/kubelet/cm/dra, dra-driver-nvidia-gpu v0.4.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from gpudoctor.facts.kubernetes import cel, fields, parse, placement
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.model import (
    AllocatedDevice,
    Condition,
    Event,
    Meta,
    Node,
    Pod,
    Scope,
    Taint,
    Toleration,
)
from gpudoctor.facts.kubernetes.resources import is_gpu
from gpudoctor.facts.kubernetes.situation import PodLogLine, PodSituation, SchedulingFailure

GROUP = "resource.k8s.io"
COMPUTE_DOMAIN_GROUP = "resource.nvidia.com"
COMPUTE_DOMAIN_DRIVER = "compute-domain.nvidia.com"
CLIQUE = "nvidia.com/gpu.clique"
# A driver that also gives out the cards which a device plugin advertises under this key.
PLUGIN_KEYS = {
    "gpu.nvidia.com": "nvidia.com/gpu",
    "gpu.amd.com": "amd.com/gpu",
    "gpu.intel.com": "gpu.intel.com/xe",
}
_DRIVER_OF_CLASS = re.compile(r"""device\.driver\s*==\s*["'](?P<driver>[\w.-]+)["']""")


class Device(msgspec.Struct, frozen=True):
    """A published device; attribute values are texts. `node` is None for one of several nodes."""

    driver: str
    pool: str
    name: str
    node: str | None
    attributes: dict[str, str]
    taints: tuple[Taint, ...]
    slice: Meta

    @property
    def id(self) -> str:
        """driver/pool/device, as the kubelet names it."""
        return f"{self.driver}/{self.pool}/{self.name}"


class Pool(msgspec.Struct, frozen=True):
    """The slices of a pool's highest generation."""

    driver: str
    name: str
    generation: int
    wanted_slices: int
    slices: tuple[Meta, ...]
    older_slices: int
    devices: tuple[Device, ...]

    @property
    def is_incomplete(self) -> bool:
        """Whether slices of the highest generation are missing."""
        return len(self.slices) < self.wanted_slices


class DeviceRequest(msgspec.Struct, frozen=True):
    """One way to satisfy a claim's request. `count` is None for all matching devices."""

    name: str
    device_class: str
    count: int | None
    selectors: tuple[str, ...]
    tolerations: tuple[Toleration, ...]
    admin: bool = False


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A ResourceClaim. Each of `requests` is a list of alternatives. `allocated` are device ids."""

    meta: Meta
    requests: tuple[tuple[DeviceRequest, ...], ...] = ()
    is_constrained: bool = False
    is_allocated: bool = False
    allocated: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    reserved_for: tuple[str, ...] = ()
    domain_ids: tuple[str, ...] = ()


class DeviceClass(msgspec.Struct, frozen=True):
    """A DeviceClass: its selectors, and the extended resource that it serves."""

    name: str
    selectors: tuple[str, ...] = ()
    extended_resource: str | None = None

    @property
    def driver(self) -> str | None:
        """The driver that the selectors name."""
        for selector in self.selectors:
            if match := _DRIVER_OF_CLASS.search(selector):
                return match["driver"]
        return None


class ComputeDomain(msgspec.Struct, frozen=True):
    """A ComputeDomain of the NVIDIA DRA driver; `nodes` are name and status."""

    meta: Meta
    status: str
    wanted_nodes: int
    nodes: tuple[tuple[str, str], ...]


class TaintedDevice(msgspec.Struct, frozen=True):
    """A device with the taints that keep the pod off; `source` is the object that bears them."""

    device: Device
    taints: tuple[Taint, ...]
    source: Meta


class Overlap(msgspec.Struct, frozen=True):
    """One node where a device plugin and a DRA driver both give out the same cards.

    `by_plugin` and `by_dra` are how many devices each has given to pods. `shared` are card
    UUIDs that both have given out, with the pods.
    """

    node: Meta
    driver: str
    resource: str
    cards: int
    published: int
    slice: Meta
    by_plugin: int
    by_dra: int
    shared: tuple[tuple[str, tuple[str, ...]], ...] = ()


class DraSituation(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that gets devices by DRA, or runs beside those that do.

    `claims` are those found for it, `absent` the names of those that are not in the input.
    `pools` are the pools of the drivers that could serve them. For a pod without a node,
    `tainted` are devices of those with taints that its claims do not tolerate, and `taken` the
    ids of devices that claims of others hold, `holders` the claims that hold each of them.
    `unfit` are the ids of devices that no request of the pod can match, `unevaluated` the CEL
    selectors that nobody evaluated here.
    """

    pod: Pod
    node: Node | None = None
    claims: tuple[Claim, ...] = ()
    absent: tuple[str, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    pools: tuple[Pool, ...] = ()
    tainted: tuple[TaintedDevice, ...] = ()
    taken: frozenset[str] = frozenset()
    holders: tuple[tuple[str, Claim], ...] = ()
    unfit: frozenset[str] = frozenset()
    own_devices: tuple[Device, ...] = ()
    unevaluated: tuple[str, ...] = ()
    uses_dra: bool = False
    failure: SchedulingFailure | None = None
    events: tuple[Event, ...] = ()
    prepare: tuple[Event, ...] = ()
    waits: tuple[PodLogLine, ...] = ()
    domains: tuple[ComputeDomain, ...] = ()
    cliques: dict[str, str] = {}
    overlap: Overlap | None = None
    health: tuple[AllocatedDevice, ...] = ()
    disruption: Condition | None = None
    ready: bool = False
    ooms: tuple[PodLogLine, ...] = ()
    scope: Scope = Scope()


def read(cluster: Cluster, situation: PodSituation) -> DraSituation | None:
    """Return what DRA has to do with this pod, None if nothing."""
    pod = situation.pod
    classes = cluster.derived(_classes)
    extended = _extended_classes(pod, classes)
    pools = cluster.derived(_pools)
    overlap = _overlap(cluster, situation)
    uses_dra = bool(pod.claims or extended)
    if not uses_dra and overlap is None:
        return None
    claims, absent = _claims_of(cluster, pod)
    wanted_classes = {alt.device_class for c in claims for alts in c.requests for alt in alts}
    wanted_classes |= {found.name for found in extended}
    drivers = _drivers(wanted_classes, classes, claims)
    relevant = tuple(pool for pool in pools if pool.driver in drivers)
    allocated = {device for claim in claims for device in claim.allocated}
    holders = () if pod.node else tuple(_holders(cluster, claims))
    asked = list(_asked(claims, extended, classes))
    ready = pod.condition("Ready")
    return DraSituation(
        pod=pod,
        node=situation.node,
        claims=claims,
        absent=absent,
        classes=tuple(found for found in classes if found.name in wanted_classes),
        pools=relevant,
        tainted=() if pod.node else tuple(_tainted(cluster, relevant, _tolerations(claims))),
        taken=frozenset(device for device, _ in holders),
        holders=holders,
        unfit=frozenset() if pod.node else frozenset(_unfit(relevant, asked)),
        own_devices=tuple(d for pool in pools for d in pool.devices if d.id in allocated),
        unevaluated=tuple(s for one in asked for s in one if not cel.is_plain(s)),
        uses_dra=uses_dra,
        failure=situation.failure,
        events=situation.events,
        prepare=situation.events_with("FailedPrepareDynamicResources"),
        waits=situation.lines_of("compute-domain-wait"),
        domains=tuple(_domains(cluster, pod, claims)),
        cliques={
            name: node.labels[CLIQUE]
            for name, node in cluster.nodes.items()
            if CLIQUE in node.labels
        },
        overlap=overlap,
        health=tuple(
            device
            for status in pod.statuses
            for device in status.devices
            if device.resource.startswith("claim:")
        ),
        disruption=pod.condition("DisruptionTarget"),
        ready=ready is not None and ready.status == "True",
        ooms=situation.lines_of("gpu-oom", "gpu-memory-held-elsewhere"),
        scope=cluster.scope,
    )


def _claims_of(cluster: Cluster, pod: Pod) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
    """Return the pod's claims, and the names of those that are not in the input or not made."""
    claims = cluster.derived(_claims)
    found: list[Claim] = []
    absent: list[str] = []
    for wanted in pod.claims:
        claim = claims.get((pod.meta.namespace, wanted.claim))
        if claim is not None:
            found.append(claim)
        else:
            absent.append(wanted.claim or f"{wanted.name} (template {wanted.template})")
    return tuple(found), tuple(absent)


def _claims(cluster: Cluster) -> dict[tuple[str | None, str | None], Claim]:
    """Index the claims by namespace and name."""
    read = map(_claim, cluster.of_kind(GROUP, "ResourceClaim"))
    return {(claim.meta.namespace, claim.meta.name): claim for claim in read}


def _claim(obj: JsonObject) -> Claim:
    spec = fields.mapping(obj, "spec", "devices")
    allocation = fields.mapping(obj, "status", "allocation")
    results = fields.objects(allocation, "devices", "results")
    return Claim(
        meta=parse.meta(obj),
        requests=tuple(_alternatives(item) for item in fields.objects(spec, "requests")),
        is_constrained=bool(fields.objects(spec, "constraints")),
        is_allocated=bool(allocation),
        allocated=tuple(
            "/".join(fields.text(result, key) or "" for key in ("driver", "pool", "device"))
            for result in results
        ),
        drivers=tuple(dict.fromkeys(fields.text(result, "driver") or "" for result in results)),
        reserved_for=tuple(
            fields.text(item, "name") or "" for item in fields.objects(obj, "status", "reservedFor")
        ),
        domain_ids=tuple(
            found
            for listed in (
                fields.objects(spec, "config"),
                fields.objects(allocation, "devices", "config"),
            )
            for item in listed
            if (found := fields.text(item, "opaque", "parameters", "domainID"))
        ),
    )


def _alternatives(item: JsonObject) -> tuple[DeviceRequest, ...]:
    """One request: v1 and v1beta2 nest it under `exactly` or `firstAvailable`, v1beta1 does not."""
    name = fields.text(item, "name") or ""
    listed = fields.objects(item, "firstAvailable")
    if not listed:
        listed = [fields.mapping(item, "exactly") or item]
    return tuple(
        DeviceRequest(
            name=name,
            device_class=fields.text(each, "deviceClassName") or "",
            count=None
            if fields.text(each, "allocationMode") == "All"
            else fields.integer(each, "count") or 1,
            selectors=_selectors(each),
            tolerations=tuple(parse.toleration(t) for t in fields.objects(each, "tolerations")),
            admin=fields.flag(each, "adminAccess"),
        )
        for each in listed
    )


def _selectors(item: JsonObject) -> tuple[str, ...]:
    return tuple(
        expression
        for selector in fields.objects(item, "selectors")
        if (expression := fields.text(selector, "cel", "expression"))
    )


def _classes(cluster: Cluster) -> tuple[DeviceClass, ...]:
    return tuple(
        DeviceClass(
            name=fields.text(obj, "metadata", "name") or "",
            selectors=_selectors(fields.mapping(obj, "spec")),
            extended_resource=fields.text(obj, "spec", "extendedResourceName"),
        )
        for obj in cluster.of_kind(GROUP, "DeviceClass")
    )


def _extended_classes(pod: Pod, classes: Iterable[DeviceClass]) -> list[DeviceClass]:
    """The classes that serve the pod's extended resources: by their name, or as
    deviceclass.resource.kubernetes.io/<class>, which every class serves.
    """
    prefix = "deviceclass.resource.kubernetes.io/"
    asked = set(pod.requests)
    return [
        found
        for found in classes
        if (found.extended_resource in asked) or f"{prefix}{found.name}" in asked
    ]


def _drivers(
    wanted: set[str], classes: Iterable[DeviceClass], claims: Iterable[Claim]
) -> frozenset[str]:
    """Return the drivers that serve these classes.

    A class that is not in the input is often named like its driver, with more before it:
    gpu.nvidia.com, mig.nvidia.com, compute-domain-default-channel.nvidia.com.
    """
    by_class = {found.name: found.driver for found in classes}
    found = {driver for claim in claims for driver in claim.drivers}
    for name in wanted:
        driver = by_class.get(name)
        if driver:
            found.add(driver)
        else:
            found.add(name)
            if name.endswith(".nvidia.com"):
                is_domain = name.startswith("compute-domain")
                found.add(COMPUTE_DOMAIN_DRIVER if is_domain else "gpu.nvidia.com")
    return frozenset(found)


def _pools(cluster: Cluster) -> tuple[Pool, ...]:
    by_pool: dict[tuple[str, str], list[JsonObject]] = defaultdict(list)
    for obj in cluster.of_kind(GROUP, "ResourceSlice"):
        spec = fields.mapping(obj, "spec")
        by_pool[fields.text(spec, "driver") or "", fields.text(spec, "pool", "name") or ""].append(
            obj
        )
    return tuple(_pool(driver, name, objs) for (driver, name), objs in sorted(by_pool.items()))


def _generation(obj: JsonObject) -> int:
    return fields.integer(obj, "spec", "pool", "generation") or 0


def _pool(driver: str, name: str, objs: list[JsonObject]) -> Pool:
    newest = max(_generation(obj) for obj in objs)
    current = [obj for obj in objs if _generation(obj) == newest]
    counts = [fields.integer(obj, "spec", "pool", "resourceSliceCount") or 1 for obj in current]
    return Pool(
        driver=driver,
        name=name,
        generation=newest,
        wanted_slices=max(counts),
        slices=tuple(parse.meta(obj) for obj in current),
        older_slices=len(objs) - len(current),
        devices=tuple(_devices(driver, name, current)),
    )


def _devices(driver: str, pool: str, objs: list[JsonObject]) -> Iterator[Device]:
    for obj in objs:
        data = parse.meta(obj)
        node = fields.text(obj, "spec", "nodeName")
        for item in fields.objects(obj, "spec", "devices"):
            # v1beta1 nests the fields under `basic`.
            body = fields.mapping(item, "basic") or item
            yield Device(
                driver=driver,
                pool=pool,
                name=fields.text(item, "name") or "",
                node=fields.text(body, "nodeName") or node,
                attributes=_attributes(body),
                taints=tuple(parse.taint(taint) for taint in fields.objects(body, "taints")),
                slice=data,
            )


def _attributes(body: JsonObject) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in fields.mapping(body, "attributes").items():
        written = [
            text
            for kind in ("string", "int", "bool", "version")
            if (text := fields.text(value, kind)) is not None
        ]
        found[key] = written[0] if written else ""
    return found


def _tolerations(claims: Iterable[Claim]) -> tuple[Toleration, ...]:
    return tuple(
        toleration
        for claim in claims
        for alternatives in claim.requests
        for alternative in alternatives
        for toleration in alternative.tolerations
    )


def _tainted(
    cluster: Cluster, pools: Iterable[Pool], tolerations: tuple[Toleration, ...]
) -> Iterator[TaintedDevice]:
    """Return devices with taints that block: their own, or those of a DeviceTaintRule."""
    rules = [
        (parse.meta(obj), fields.mapping(obj, "spec", "deviceSelector"), taint)
        for obj in cluster.of_kind(GROUP, "DeviceTaintRule")
        if (taint := parse.taint(fields.mapping(obj, "spec", "taint"))).key
    ]
    for pool in pools:
        for device in pool.devices:
            open_taints = placement.untolerated(tolerations, device.taints)
            if open_taints:
                yield TaintedDevice(device, open_taints, device.slice)
            for source, selector, taint in rules:
                if _selects(selector, device) and placement.untolerated(tolerations, [taint]):
                    yield TaintedDevice(device, (taint,), source)


def _selects(selector: JsonObject, device: Device) -> bool:
    """Whether a DeviceTaintRule is about the device; class and CEL selectors are not evaluated."""
    if fields.text(selector, "deviceClassName") or fields.objects(selector, "selectors"):
        return False
    return all(
        wanted in (None, have)
        for wanted, have in (
            (fields.text(selector, "driver"), device.driver),
            (fields.text(selector, "pool"), device.pool),
            (fields.text(selector, "device"), device.name),
        )
    )


def _holders(cluster: Cluster, own: Iterable[Claim]) -> Iterator[tuple[str, Claim]]:
    """Yield the devices that claims of others hold, each with its claim."""
    mine = {claim.meta.path for claim in own}
    for claim in cluster.derived(_claims).values():
        admin = any(alternative.admin for alts in claim.requests for alternative in alts)
        if claim.meta.path not in mine and not admin:
            yield from ((device, claim) for device in claim.allocated)


def _asked(
    claims: Iterable[Claim], extended: Iterable[DeviceClass], classes: Iterable[DeviceClass]
) -> Iterator[tuple[str, ...]]:
    """Yield the selectors of each way in which a request of the pod can be satisfied."""
    by_name = {found.name: found.selectors for found in classes}
    for claim in claims:
        for alternatives in claim.requests:
            for one in alternatives:
                yield (*by_name.get(one.device_class, ()), *one.selectors)
    yield from (found.selectors for found in extended)


def _unfit(pools: Iterable[Pool], asked: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the ids of devices that no way of asking can match."""
    for pool in pools:
        for device in pool.devices:
            ways = (
                all(cel.may_match(s, device.driver, device.attributes) for s in selectors)
                for selectors in asked
            )
            if asked and not any(ways):
                yield device.id


def _domains(cluster: Cluster, pod: Pod, claims: Iterable[Claim]) -> Iterator[ComputeDomain]:
    """Return the ComputeDomains of the pod: by the id in its claim, or by the claim template."""
    ids = {found for claim in claims for found in claim.domain_ids}
    templates = {wanted.template for wanted in pod.claims if wanted.template}
    for obj in cluster.of_kind(COMPUTE_DOMAIN_GROUP, "ComputeDomain"):
        data = parse.meta(obj)
        template = fields.text(obj, "spec", "channel", "resourceClaimTemplate", "name")
        same_place = data.namespace == pod.meta.namespace
        if data.uid in ids or (same_place and template in templates):
            yield ComputeDomain(
                meta=data,
                status=fields.text(obj, "status", "status") or "",
                wanted_nodes=fields.integer(obj, "spec", "numNodes") or 0,
                nodes=tuple(
                    (fields.text(item, "name") or "", fields.text(item, "status") or "")
                    for item in fields.objects(obj, "status", "nodes")
                ),
            )


def _cards_by_node(cluster: Cluster) -> dict[tuple[str | None, str], list[Device]]:
    """Index whole cards by node and driver, for the drivers that a device plugin competes with."""
    index: dict[tuple[str | None, str], list[Device]] = defaultdict(list)
    for pool in cluster.derived(_pools):
        if pool.driver in PLUGIN_KEYS:
            for device in filter(_is_card, pool.devices):
                index[device.node, pool.driver].append(device)
    return index


def _overlap(cluster: Cluster, situation: PodSituation) -> Overlap | None:
    """Return how a device plugin and a DRA driver give out the same cards of the pod's node."""
    node, pod = situation.node, situation.pod
    if node is None or not (pod.claims or any(is_gpu(resource) for resource in pod.requests)):
        return None
    index = cluster.derived(_cards_by_node)
    for driver, key in PLUGIN_KEYS.items():
        cards = int(node.allocatable.get(key, 0))
        published = index.get((node.name, driver), [])
        if not cards or not published:
            continue
        by_plugin = sum(int(o.requests.get(key, 0)) for o in cluster.occupants(node.name))
        given = _given_on(cluster, {device.id for device in published})
        return Overlap(
            node=node.meta,
            driver=driver,
            resource=key,
            cards=cards,
            published=len(published),
            slice=published[0].slice,
            by_plugin=by_plugin,
            by_dra=len(given),
            shared=tuple(_shared(cluster, node.name, {d.id: d for d in published}, key)),
        )
    return None


def _is_card(device: Device) -> bool:
    return device.attributes.get("type", "gpu") == "gpu"


def _given_on(cluster: Cluster, devices: set[str]) -> set[str]:
    return {
        device
        for claim in cluster.derived(_claims).values()
        for device in claim.allocated
        if device in devices
    }


def _shared(
    cluster: Cluster, node: str, published: dict[str, Device], key: str
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the UUIDs that the kubelet reports for the plugin's key and for a claim as well."""
    plugin: dict[str, list[str]] = defaultdict(list)
    claimed: dict[str, list[str]] = defaultdict(list)
    for entry in cluster.pods:
        if entry.node != node:
            continue
        pod = cluster.pod(entry)
        for status in pod.statuses:
            for device in status.devices:
                if device.resource == key:
                    plugin[device.id].append(pod.meta.short)
                elif device.id in published:
                    uuid = published[device.id].attributes.get("uuid", device.id)
                    claimed[uuid].append(pod.meta.short)
    # Not every kubelet reports a claim's devices in the pod's status; the allocation itself does.
    for claim in cluster.derived(_claims).values():
        for allocated in claim.allocated:
            if allocated in published:
                uuid = published[allocated].attributes.get("uuid", allocated)
                claimed[uuid] += claim.reserved_for or (claim.meta.short,)
    for uuid in sorted(plugin.keys() & claimed.keys()):
        yield uuid, tuple(dict.fromkeys(plugin[uuid] + claimed[uuid]))
