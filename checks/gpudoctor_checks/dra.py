"""Dynamic resource allocation: claims, slices, drivers, compute domains.

A claim without allocation is the scheduler's matter: no device matches, is free, or is untainted.
A claim with one is the kubelet's: its driver must be registered there and prepare the devices.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import msgspec

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.kubernetes import mentions
from gpudoctor.facts.kubernetes.dra import (
    CLIQUE,
    Claim,
    ComputeDomain,
    Device,
    DraSituation,
    Overlap,
    Pool,
    TaintedDevice,
)
from gpudoctor.facts.kubernetes.model import Event, Taint
from gpudoctor.report import Certainty, Evidence, Severity, Unknown

CHECKS = CheckSet()

_NAMED = 3
_HOLDERS = 8
_UNREGISTERED = re.compile(
    r"(?:DRA driver|DRA plugin|plugin name|driver name|driver|plugin) \"?(?P<driver>[\w.-]+)\"? "
    r"(?:is )?not (?:registered|found in the list of registered DRA plugins)"
)
_DOMAIN_WAIT = re.compile(r"not ready in ComputeDomain|ComputeDomain\b.*\bnot ready", re.I | re.S)
_BAD_POOLS = (
    "invalid resource pools",
    "currently being updated",  # a claim of all devices, and a pool that lacks slices
    "currently invalid",
)
_REFUSED = (
    "cannot allocate all claims",
    "not enough devices",
    "device class",
    "CEL runtime error",  # an attribute that no device has
    "CEL compile error",
    *_BAD_POOLS,
)
_NO_CLASS = re.compile(r"device class (?P<name>\S+) does not exist")
_NOT_CREATED = "waiting for resource claim to be created"
_TAINT_MANAGER = "DeletionByDeviceTaintManager"


# On the node


def _prepare(situation: DraSituation) -> Event | None:
    """Return the newest failure to prepare the devices, for a pod that has not started."""
    pod = situation.pod
    if not pod.node or pod.phase != "Pending" or not situation.prepare:
        return None
    return situation.prepare[-1]


def _allocations(situation: DraSituation) -> Iterator[Evidence]:
    for claim in situation.claims[:_NAMED]:
        devices = ", ".join(claim.allocated) or "none"
        reserved = ", ".join(claim.reserved_for) or "nobody"
        value = f"{devices}; reserved for {reserved}"
        yield Evidence(claim.meta.path, "status.allocation", value)


def _slices_of(situation: DraSituation, driver: str) -> Iterator[Evidence]:
    node = situation.pod.node
    for pool in situation.pools:
        found = next((d for d in pool.devices if d.node == node), None)
        if pool.driver == driver and found is not None:
            value = f"{driver}, pool {pool.name}, generation {pool.generation}"
            yield Evidence(found.slice.path, "spec", value, "slices outlive the plugin")


def _event(event: Event) -> Evidence:
    return Evidence(event.path, f"{event.reason} (x{event.count})", event.message)


@CHECKS.check(DraSituation)
def dra_driver_not_registered(situation: DraSituation) -> Iterator[Result]:
    """The kubelet knows no plugin of the driver whose devices the pod was given."""
    event, pod = _prepare(situation), situation.pod
    match = _UNREGISTERED.search(event.message) if event else None
    if event is None or match is None:
        return
    driver, node = match["driver"], pod.node or ""
    yield finding(
        "dra-driver-not-registered",
        pod.subject,
        f"{pod.meta.short} is placed on {node} and its claims are allocated, but the kubelet there "
        f"has no plugin {driver} to prepare them: its pod or registration socket is missing.",
        _event(event),
        *_allocations(situation),
        *_slices_of(situation, driver),
        values={"driver": driver, "node": node},
        related=(situation.node.subject,) if situation.node else (),
    )


@CHECKS.check(DraSituation)
def dra_prepare_failed(situation: DraSituation) -> Iterator[Result]:
    """The driver is registered and refuses to prepare the devices."""
    event, pod = _prepare(situation), situation.pod
    if event is None or _UNREGISTERED.search(event.message) or _DOMAIN_WAIT.search(event.message):
        return
    claim = _claim_named_in(situation, event.message)
    drivers = (
        [d for d in claim.drivers if d in event.message] or list(claim.drivers) if claim else []
    )
    driver = drivers[0] if drivers else "the DRA driver"
    yield finding(
        "dra-prepare-failed",
        pod.subject,
        f"{driver} cannot prepare the devices of {pod.meta.short} on {pod.node}: {event.message}",
        _event(event),
        *_allocations(situation),
        values={
            "driver": driver,
            "claim": claim.meta.short if claim else pod.meta.short,
            "node": pod.node or "",
        },
        related=(situation.node.subject,) if situation.node else (),
    )


def _claim_named_in(situation: DraSituation, text: str) -> Claim | None:
    named = [claim for claim in situation.claims if mentions.names(text, claim.meta.name)]
    return next(iter(named or situation.claims), None)


@CHECKS.check(DraSituation)
def compute_domain_not_ready(situation: DraSituation) -> Iterator[Result]:
    """The pod's ComputeDomain is not ready, so its channel cannot be prepared."""
    pod, event = situation.pod, _prepare(situation)
    if not pod.node or pod.phase != "Pending":
        return
    told = event is not None and bool(_DOMAIN_WAIT.search(event.message))
    bad = [domain for domain in situation.domains if domain.status not in ("Ready", "")]
    if not told and not bad:
        return
    evidence = [_event(event)] if told and event else []
    evidence += [line.evidence for line in situation.waits]
    domain = next(iter(bad or situation.domains), None)
    name = domain.meta.short if domain else f"of {pod.meta.short}"
    detail = "the daemons of its nodes have not all joined"
    if domain is not None:
        evidence += _domain_evidence(domain)
        waiting = [node for node, status in domain.nodes if status != "Ready"]
        if len(domain.nodes) < domain.wanted_nodes:
            detail = f"{len(domain.nodes)} of {domain.wanted_nodes} nodes have joined it"
        elif waiting:
            detail = f"its daemon is not ready on {', '.join(waiting[:_NAMED])}"
        evidence += _cliques(situation, domain)
        if len(_cliques_of(situation, domain)) > 1:
            detail += "; its nodes are of several NVLink cliques"
    yield finding(
        "compute-domain-not-ready",
        pod.subject,
        f"ComputeDomain {name} is not ready: {detail}.",
        *evidence,
        *_allocations(situation),
        values={"name": name},
        certainty=Certainty.CERTAIN if told else Certainty.LIKELY,
        related=(domain.meta.subject,) if domain else (),
    )


def _domain_evidence(domain: ComputeDomain) -> Iterator[Evidence]:
    path = domain.meta.path
    yield Evidence(path, "status.status", domain.status or "absent")
    nodes = ", ".join(f"{node} {status}".strip() for node, status in domain.nodes)
    yield Evidence(path, "status.nodes", f"{nodes or 'none'} (spec.numNodes {domain.wanted_nodes})")


def _cliques_of(situation: DraSituation, domain: ComputeDomain) -> set[str]:
    return {situation.cliques[node] for node, _ in domain.nodes if node in situation.cliques}


def _cliques(situation: DraSituation, domain: ComputeDomain) -> Iterator[Evidence]:
    if len(_cliques_of(situation, domain)) > 1:
        for node, _ in domain.nodes[:_NAMED]:
            clique = situation.cliques.get(node, "absent")
            yield Evidence(f"Node/{node}", f"metadata.labels[{CLIQUE}]", clique)


# Before placement


class _Supply(msgspec.Struct, frozen=True):
    """The best node for the pod's claims: its devices free, tainted and taken, and the need.

    `wanted` is None for a claim of all devices.
    """

    wanted: int | None
    free: int
    tainted: int
    taken: int
    published: int


def _refused(situation: DraSituation) -> str | None:
    """Return the scheduler's words if it is the claims that it could not allocate."""
    pod, failure = situation.pod, situation.failure
    if pod.node or pod.gates or failure is None or not situation.uses_dra:
        return None
    return failure.raw if any(phrase in failure.raw for phrase in _REFUSED) else None


def _open_claims(situation: DraSituation) -> list[Claim]:
    return [claim for claim in situation.claims if not claim.is_allocated]


def _wanted(situation: DraSituation) -> int | None:
    """How many devices the claims ask for at least; None if one asks for all."""
    total = 0
    for claim in _open_claims(situation):
        for alternatives in claim.requests:
            counts = [a.count for a in alternatives if a.count is not None]
            if not counts:
                return None
            total += min(counts)
    return max(total, 1)


def _supply(situation: DraSituation) -> _Supply:
    """Count devices by node, incomplete pools left out: the scheduler leaves them out too."""
    tainted = {item.device.id for item in situation.tainted}
    by_node: dict[str | None, list[Device]] = defaultdict(list)
    for pool in situation.pools:
        if not pool.is_incomplete:
            for device in pool.devices:
                if device.id not in situation.unfit:
                    by_node[device.node].append(device)
    wanted = _wanted(situation)

    def count(devices: list[Device]) -> _Supply:
        taken = [d for d in devices if d.id in situation.taken]
        left = [d for d in devices if d.id not in situation.taken]
        bad = [d for d in left if d.id in tainted]
        return _Supply(wanted, len(left) - len(bad), len(bad), len(taken), len(devices))

    counted = [count(devices) for devices in by_node.values()]
    empty = _Supply(wanted, 0, 0, 0, 0)
    return max(counted, key=lambda s: (s.free, s.free + s.tainted, s.published), default=empty)


def _is_taint(supply: _Supply) -> bool:
    """Whether the claims would fit but for taints."""
    if supply.wanted is None:
        return supply.tainted > 0
    return supply.free < supply.wanted <= supply.free + supply.tainted


def _is_full(supply: _Supply) -> bool:
    """Whether the claims would fit if nobody held a device."""
    if supply.wanted is None:
        return supply.taken > 0 and not supply.tainted
    room = supply.free + supply.tainted
    return room < supply.wanted <= room + supply.taken


def _is_all_in_use(situation: DraSituation, supply: _Supply) -> bool:
    """Whether use is what is in the way; a selector left open matters only where some are free."""
    return _is_full(supply) and (not situation.unevaluated or not supply.free)


def _blames_pools(situation: DraSituation) -> bool:
    said = _refused(situation) or ""
    return any(words in said for words in _BAD_POOLS)


def _incomplete(situation: DraSituation) -> list[Pool]:
    """The pools that lack slices, where the input or the scheduler says that it is so."""
    if not _blames_pools(situation) and not situation.scope.has_all("ResourceSlice"):
        return []
    return [pool for pool in situation.pools if pool.is_incomplete]


@CHECKS.check(DraSituation)
def dra_pool_incomplete(situation: DraSituation) -> Iterator[Result]:
    """A driver has not published all slices of a pool: the scheduler leaves the pool out."""
    said = _refused(situation)
    if said is None:
        return
    told = _blames_pools(situation)
    pools = _incomplete(situation)
    if not pools and told:
        yield Unknown("the incomplete resource pool", "its slices are not in the input")
    for pool in pools:
        yield _pool_draft(situation, pool, told)


def _pool_draft(situation: DraSituation, pool: Pool, told: bool) -> Draft:
    older = pool.older_slices
    stale = f" ({older} more of an older one, which do not count)" if older else ""
    counted = f"{len(pool.slices)} of {pool.wanted_slices} slices"
    failure = situation.failure
    return finding(
        "dra-pool-incomplete",
        situation.pod.subject,
        f"Pool {pool.name} of {pool.driver} has {counted} of generation {pool.generation}{stale}: "
        "none of its devices is given out.",
        *(
            Evidence(
                meta.path,
                "spec.pool",
                f"generation {pool.generation}, resourceSliceCount {pool.wanted_slices}, "
                f"{len(pool.slices)} present",
            )
            for meta in pool.slices[:_NAMED]
        ),
        *((failure.evidence,) if failure else ()),
        values={"name": pool.name, "driver": pool.driver},
        certainty=Certainty.CERTAIN if told else Certainty.LIKELY,
        leans_on=("ResourceSlice",),
    )


@CHECKS.check(DraSituation)
def dra_device_tainted(situation: DraSituation) -> Iterator[Result]:
    """Devices that would do are tainted, and the claim does not tolerate it."""
    if _refused(situation) is None or not _is_taint(_supply(situation)):
        return
    free = [item for item in situation.tainted if item.device.id not in situation.taken]
    yield _tainted(
        situation,
        free,
        "Free, but with taints that the claim does not tolerate",
        (situation.failure.evidence,) if situation.failure else (),
        certainty=Certainty.LIKELY if situation.unevaluated else Certainty.CERTAIN,
        leans_on=("ResourceSlice", "ResourceClaim"),
    )


def _tainted(
    situation: DraSituation,
    items: list[TaintedDevice],
    words: str,
    evidence: tuple[Evidence, ...],
    certainty: Certainty = Certainty.CERTAIN,
    severity: Severity | None = None,
    leans_on: tuple[str, ...] = (),
) -> Draft:
    taints = ", ".join(dict.fromkeys(str(taint) for item in items for taint in item.taints))
    devices = ", ".join(dict.fromkeys(_place(item.device) for item in items[:_NAMED]))
    claims = ", ".join(claim.meta.short for claim in situation.claims[:_NAMED])
    return finding(
        "dra-device-tainted",
        situation.pod.subject,
        f"{words}: {devices} ({taints}).",
        *(
            Evidence(
                item.source.path,
                f"spec.devices[{item.device.name}].taints"
                if item.source.kind == "ResourceSlice"
                else "spec.taint",
                ", ".join(str(taint) for taint in item.taints),
            )
            for item in items[:_NAMED]
        ),
        *evidence,
        values={
            "device": devices,
            "claim": claims or situation.pod.meta.short,
            "reason": taints,
        },
        certainty=certainty,
        severity=severity,
        related=(situation.node.subject,) if situation.node else (),
        leans_on=leans_on,
    )


def _place(device: Device) -> str:
    return f"{device.name} on {device.node}" if device.node else f"{device.name} of {device.pool}"


@CHECKS.check(DraSituation)
def dra_own_device_tainted(situation: DraSituation) -> Iterator[Result]:
    """A device of the pod was tainted after it got it: it is put out, or runs on a sick device."""
    target = situation.disruption
    evicted = target is not None and target.reason == _TAINT_MANAGER and target.status == "True"
    items = [
        TaintedDevice(device, blocking, device.slice)
        for device in situation.own_devices
        if (blocking := _blocking(device.taints))
    ]
    if evicted and target is not None:
        path = f"status.conditions[DisruptionTarget] {target.reason}"
        evidence = (Evidence(situation.pod.meta.path, path, target.message),)
        yield _tainted(situation, items, "The pod was evicted for a taint of its device", evidence)
    elif items and situation.pod.node:
        sick = tuple(
            Evidence(
                situation.pod.meta.path,
                f"status.containerStatuses[].allocatedResourcesStatus[{device.resource}]",
                f"{device.id} {device.health} {device.message}".strip(),
            )
            for device in situation.health
            if device.health == "Unhealthy"
        )
        well = situation.ready and not sick
        yield _tainted(
            situation,
            items,
            "A device that the pod has was tainted since",
            sick,
            certainty=Certainty.LIKELY,
            severity=Severity.INFO if well else Severity.WARNING,
        )


def _blocking(taints: tuple[Taint, ...]) -> tuple[Taint, ...]:
    return tuple(taint for taint in taints if taint.effect in ("NoSchedule", "NoExecute"))


@CHECKS.check(DraSituation)
def dra_no_matching_device(situation: DraSituation) -> Iterator[Result]:
    """Devices are there and free, and still the scheduler finds none for the claim."""
    said = _refused(situation)
    if said is None or _incomplete(situation) or _blames_pools(situation):
        return
    supply = _supply(situation)
    if _is_taint(supply) or _is_all_in_use(situation, supply):
        return
    yield from _not_evaluated(situation)
    pod, claims = situation.pod, _open_claims(situation)
    drivers = ", ".join(dict.fromkeys(pool.driver for pool in situation.pools))
    if match := _NO_CLASS.search(said):
        why = f"there is no DeviceClass {match['name']}"
    elif supply.published:
        best = f"the best node publishes {supply.published}, {supply.free} of them free"
        why = f"devices of {drivers} exist ({best}), so selectors, count or constraints leave none"
    elif situation.unfit:
        why = f"none of the {len(situation.unfit)} devices of {drivers} matches what is asked for"
    elif situation.scope.has_all("ResourceSlice"):
        why = "no driver publishes a device of the wanted class"
    else:
        why = "no device of the wanted class is in the input"
    wanted = "all" if supply.wanted is None else f"{supply.wanted} or more"
    yield finding(
        "dra-no-matching-device",
        pod.subject,
        f"The scheduler cannot allocate the claims of {pod.meta.short}"
        f"{f', which want {wanted} devices' if claims else ''}: {why}.",
        *((situation.failure.evidence,) if situation.failure else ()),
        *_requests(claims),
        *_published(situation),
        values={"claim": ", ".join(c.meta.short for c in claims) or pod.meta.short},
        certainty=_certainty(situation, supply),
        leans_on=("ResourceSlice", "ResourceClaim"),
    )


def _certainty(situation: DraSituation, supply: _Supply) -> Certainty:
    """How sure it is that selectors, count or constraints are to blame."""
    if not situation.claims and situation.absent:
        return Certainty.POSSIBLE
    return Certainty.LIKELY if _is_full(supply) else Certainty.CERTAIN


@CHECKS.check(DraSituation)
def dra_devices_in_use(situation: DraSituation) -> Iterator[Result]:
    """All devices that could serve the claim are held by claims of others."""
    if _refused(situation) is None or _incomplete(situation):
        return
    supply = _supply(situation)
    if not _is_all_in_use(situation, supply):
        return
    yield from _not_evaluated(situation)
    pod, claims = situation.pod, _open_claims(situation)
    wanted = [alts[0].device_class for claim in claims for alts in claim.requests if alts]
    resource = f"devices of class {wanted[0]}" if wanted else "devices"
    count = "all" if supply.wanted is None else str(supply.wanted)
    yield finding(
        "gpu-capacity-exhausted",
        pod.subject,
        f"{pod.meta.short} claims {count} {resource}; at best {supply.free} are free on one node, "
        f"{supply.taken} more are allocated to other claims.",
        *((situation.failure.evidence,) if situation.failure else ()),
        *_requests(claims),
        *_held(situation),
        *_published(situation),
        values={"resource": resource, "pod": pod.meta.short, "count": count},
        certainty=Certainty.LIKELY if situation.unevaluated else Certainty.CERTAIN,
        leans_on=("ResourceSlice", "ResourceClaim"),
    )


def _held(situation: DraSituation) -> Iterator[Evidence]:
    """Yield who holds the devices that would do."""
    published = {device.id for pool in situation.pools for device in pool.devices}
    useful = published - situation.unfit
    named = [(device, claim) for device, claim in situation.holders if device in useful]
    for device, claim in named[:_HOLDERS]:
        users = ", ".join(claim.reserved_for[:_NAMED]) or "nobody"
        note = f"reserved for {users}"
        yield Evidence(claim.meta.path, "status.allocation", device, note)


def _not_evaluated(situation: DraSituation) -> Iterator[Result]:
    for selector in dict.fromkeys(situation.unevaluated):
        yield Unknown(
            f"which devices match {selector!r}",
            "CEL selectors are not evaluated here; the scheduler's words are taken",
        )


def _requests(claims: list[Claim]) -> Iterator[Evidence]:
    for claim in claims[:_NAMED]:
        for alternatives in claim.requests:
            written = " or ".join(
                f"{'all' if a.count is None else a.count} of class {a.device_class}"
                + (f" where {' and '.join(a.selectors)}" if a.selectors else "")
                for a in alternatives
            )
            yield Evidence(claim.meta.path, "spec.devices.requests", written)


def _published(situation: DraSituation) -> Iterator[Evidence]:
    for pool in situation.pools[:_NAMED]:
        names = ", ".join(_shown(device) for device in pool.devices[:_NAMED])
        more = f" and {len(pool.devices) - _NAMED} more" if len(pool.devices) > _NAMED else ""
        for meta in pool.slices[:1]:
            yield Evidence(meta.path, "spec.devices", f"{names}{more}")


def _shown(device: Device) -> str:
    product = device.attributes.get("productName") or device.attributes.get("type") or ""
    return f"{device.name} {product}".strip()


@CHECKS.check(DraSituation)
def dra_claim_not_made(situation: DraSituation) -> Iterator[Result]:
    """The pod's claim does not exist yet, so nothing can be said about devices."""
    failure = situation.failure
    told = any(event.reason == "FailedResourceClaimCreation" for event in situation.events)
    if failure is not None and _NOT_CREATED in failure.raw and not told:
        names = ", ".join(situation.absent) or "of the pod"
        yield Unknown(f"ResourceClaim {names}", "the scheduler waits for it to be created")


# Two that give out the same cards


@CHECKS.check(DraSituation)
def dra_device_plugin_double_allocation(situation: DraSituation) -> Iterator[Result]:
    """A device plugin and a DRA driver advertise the same cards of one node."""
    overlap, pod = situation.overlap, situation.pod
    if overlap is None or pod.is_terminal:
        return
    proved = bool(overlap.shared) or overlap.by_plugin + overlap.by_dra > max(
        overlap.cards, overlap.published
    )
    both = overlap.by_plugin > 0 and overlap.by_dra > 0
    severity: Severity | None = None
    if not proved:
        hurt = both and not situation.ready and bool(situation.ooms)
        severity = None if hurt else Severity.WARNING if both else None
    if not proved and not both:
        return
    yield finding(
        "dra-device-plugin-double-allocation",
        pod.subject,
        _overlap_words(overlap),
        Evidence(
            overlap.node.path,
            f"status.allocatable[{overlap.resource}]",
            f"{overlap.cards}, {overlap.by_plugin} given to pods",
        ),
        Evidence(
            overlap.slice.path,
            "spec.devices",
            f"{overlap.published} cards of {overlap.driver}, {overlap.by_dra} allocated to claims",
        ),
        *(
            Evidence(
                overlap.node.path, f"card {uuid}", f"given to {', '.join(pods)}", "by both of them"
            )
            for uuid, pods in overlap.shared[:_NAMED]
        ),
        values={"node": overlap.node.name},
        certainty=Certainty.CERTAIN if proved else Certainty.LIKELY,
        severity=severity,
        related=(overlap.node.subject,),
    )


def _overlap_words(overlap: Overlap) -> str:
    words = (
        f"On {overlap.node.name} the device plugin offers {overlap.cards} {overlap.resource} and "
        f"{overlap.driver} publishes {overlap.published} cards, the same ones: neither sees what "
        f"the other gives out ({overlap.by_plugin} and {overlap.by_dra})."
    )
    if overlap.shared:
        uuid, pods = overlap.shared[0]
        words += f" Card {uuid} was given to {' and '.join(pods)}."
    return words
