"""MIG, time-slicing, MPS, HAMi and Volcano vGPU.

Sharing changes names and numbers: which resource key counts a card, which product label the
node bears, how much memory a process sees. A pod written for the other form waits for ever, or
dies at a limit that is not the card's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.kubernetes.model import Condition, Node, Pod
from gpudoctor.facts.kubernetes.placement import NodeFit
from gpudoctor.facts.kubernetes.resources import is_accounting, is_gpu, vendor_of
from gpudoctor.facts.kubernetes.sharing import (
    MIG_CONFIG,
    MIG_STATE,
    MIG_STRATEGY,
    PRODUCT,
    SharingSituation,
    bare_product,
    family,
)
from gpudoctor.facts.kubernetes.vgpu import HAMI_HANDSHAKE, Card, CardRefusal, Slice
from gpudoctor.report import Blame, Certainty, Evidence, Severity

CHECKS = CheckSet()

_NAMED = 3
_MIB = 1 << 20
_CHANGING = ("pending", "rebooting")
_UNPICKED_SECONDS = 120


def _asked(pod: Pod, resource: str) -> Evidence:
    """Where the pod asks for the resource."""
    places = {False: -1, True: -1}
    for container in pod.containers:
        places[container.is_init] += 1
        amount = container.limits.get(resource) or container.requests.get(resource)
        if amount:
            listed = "initContainers" if container.is_init else "containers"
            path = f"spec.{listed}[{places[container.is_init]}].resources.limits"
            return Evidence(pod.meta.path, path, f"{resource} {amount:f}")
    return Evidence(pod.meta.path, "spec.resources.requests", resource)


def _amounts(node: Node, resources: Iterable[str]) -> Evidence:
    value = ", ".join(
        f"{r} {node.allocatable[r]:f}" if r in node.allocatable else f"{r} absent"
        for r in resources
    )
    return Evidence(node.meta.path, "status.allocatable", value)


def _open(situation: SharingSituation) -> list[NodeFit]:
    """The nodes where cordon, taints and selectors let the pod go."""
    return [fit for fit in situation.fits if fit.is_admitted]


def _siblings(node: Node, resource: str) -> list[str]:
    """The keys under which a node gives out the same vendor's accelerators instead."""
    vendor = vendor_of(resource)
    return [
        other
        for other, amount in node.allocatable.items()
        if amount > 0 and other != resource and vendor is not None and vendor_of(other) is vendor
    ]


@CHECKS.check(SharingSituation)
def mig_resource_name_mismatch(situation: SharingSituation) -> Iterator[Result]:
    """The nodes give their GPUs out under another name than the pod asks for."""
    if not situation.pending:
        return
    lacking = situation.failure.message.insufficient() if situation.failure else {}
    for resource in situation.wanted:
        if not is_gpu(resource) or (situation.failure and resource not in lacking):
            continue
        nodes = _open(situation)
        if any(
            max(f.node.allocatable.get(resource, 0), f.node.capacity.get(resource, 0)) > 0
            for f in nodes
        ):
            continue
        offering = [(f.node, names) for f in nodes if (names := _siblings(f.node, resource))]
        # The name is right there: the layout that would give it out has failed, which is told.
        failed = any(_lacks_for_failure(f.node, resource) for f in nodes)
        if offering and not failed:
            yield _mismatch(situation, resource, offering)


def _lacks_for_failure(node: Node, resource: str) -> bool:
    """Whether the node would offer the resource, had its MIG layout been applied."""
    layout, strategy = node.labels.get(MIG_CONFIG, ""), node.labels.get(MIG_STRATEGY, "")
    failed = node.labels.get(MIG_STATE) == "failed"
    return failed and bool(family(resource)) and _would_offer(layout, strategy, resource)


def _mismatch(
    situation: SharingSituation, resource: str, offering: list[tuple[Node, list[str]]]
) -> Draft:
    pod = situation.pod
    names = sorted({name for _, listed in offering for name in listed})
    nodes = ", ".join(node.name for node, _ in offering[:_NAMED])
    changing = any(node.labels.get(MIG_STATE) in _CHANGING for node, _ in offering)
    sure = situation.failure is not None and not situation.nodes_missing and not changing
    evidence = [_asked(pod, resource)]
    for node, listed in offering[:_NAMED]:
        evidence.append(_amounts(node, [resource, *listed]))
        evidence += [
            Evidence(node.meta.path, f"metadata.labels[{label}]", node.labels[label])
            for label in (MIG_STRATEGY, MIG_CONFIG, MIG_STATE)
            if label in node.labels
        ]
    if situation.failure is not None:
        evidence.append(situation.failure.evidence)
    why = "a MIG layout is being applied there" if changing else "nothing is broken there"
    return finding(
        "mig-resource-name-mismatch",
        pod.subject,
        f"{pod.meta.short} asks for {resource}, which no node that it may use offers; {nodes} "
        f"gives its GPUs out as {', '.join(names)} ({why}).",
        *evidence,
        values={
            "pod": pod.meta.short,
            "wanted": resource,
            "nodes": nodes,
            "offered": " or ".join(names[:_NAMED]),
        },
        certainty=Certainty.CERTAIN if sure else Certainty.LIKELY,
        related=[node.subject for node, _ in offering],
        leans_on=("Node",),
    )


@CHECKS.check(SharingSituation)
def mig_config_failed(situation: SharingSituation) -> Iterator[Result]:
    """The MIG manager could not apply the layout that a node is to have."""
    resources = [r for r in situation.wanted if family(r)]
    nodes = _open(situation) if situation.pending else list(situation.fits)
    if not resources:
        return
    resource = resources[0]
    offered = any(fit.node.allocatable.get(resource, Decimal(0)) > 0 for fit in nodes)
    for fit in nodes:
        node = fit.node
        if node.labels.get(MIG_STATE) != "failed":
            continue
        layout = node.labels.get(MIG_CONFIG, "")
        hurts = not offered and _would_offer(layout, node.labels.get(MIG_STRATEGY, ""), resource)
        evidence = [
            Evidence(node.meta.path, f"metadata.labels[{MIG_STATE}]", "failed"),
            Evidence(node.meta.path, f"metadata.labels[{MIG_CONFIG}]", layout or "absent"),
            _amounts(node, [resource, *_siblings(node, resource)]),
            _asked(situation.pod, resource),
        ]
        yield finding(
            "mig-config-failed",
            node.subject,
            f"mig-manager could not give {node.name} the layout {layout or '(no label)'}; in its "
            f"allocatable: {_amounts(node, [resource]).value}.",
            *evidence,
            values={"wanted": layout or "of its label", "node": node.name},
            severity=None if hurts else Severity.INFO,
            related=(situation.pod.subject,),
        )


def _would_offer(layout: str, strategy: str, resource: str) -> bool:
    """Whether the layout, once applied, gives out the resource; True where it cannot be told."""
    wanted = family(resource)
    if layout == "all-disabled":
        return wanted == "gpu"
    if not layout.startswith("all-") or layout in ("all-enabled", "all-balanced"):
        return True
    profile = layout.removeprefix("all-")
    return wanted == ("gpu" if strategy == "single" else f"mig-{profile}")


@CHECKS.check(SharingSituation)
def shared_gpu_request_above_one(situation: SharingSituation) -> Iterator[Result]:
    """The device plugin refused a request for several replicas of shared cards."""
    refused = situation.shared_limit
    pod = situation.pod
    if refused is None or pod.phase in ("Running", "Succeeded"):
        return
    yield finding(
        "shared-gpu-request-above-one",
        pod.subject,
        f"The device plugin refuses {refused.count} of {refused.resource} on {pod.node}: its cards "
        "are shared in replicas and failRequestsGreaterThanOne is set.",
        Evidence(refused.path, refused.field, refused.text),
        _asked(pod, refused.resource),
        *(_amounts(fit.node, [refused.resource]) for fit in situation.fits[:1] if pod.node),
        values={
            "pod": pod.meta.short,
            "count": str(refused.count),
            "resource": refused.resource,
        },
    )


# Names that sharing changes


@CHECKS.check(SharingSituation)
def node_selector_label_changed_by_sharing(situation: SharingSituation) -> Iterator[Result]:
    """The pod selects a product by its exact label, and sharing appended to that label."""
    wanted = _selected_products(situation.pod)
    if not situation.pending or not wanted:
        return
    if any(fit.node.labels.get(PRODUCT) in wanted for fit in situation.fits):
        return
    renamed = [fit for fit in situation.fits if is_renamed_product(situation.pod, fit)]
    if not renamed:
        return
    offered = sorted({fit.node.labels[PRODUCT] for fit in renamed})
    asked = ", ".join(sorted(wanted))
    evidence = [Evidence(situation.pod.meta.path, _selector_path(situation.pod), asked)]
    for fit in renamed[:_NAMED]:
        node = fit.node
        evidence.append(
            Evidence(node.meta.path, f"metadata.labels[{PRODUCT}]", node.labels[PRODUCT])
        )
    if situation.failure is not None:
        evidence.append(situation.failure.evidence)
    yield finding(
        "node-selector-label-changed-by-sharing",
        situation.pod.subject,
        f"{situation.pod.meta.short} selects {PRODUCT}={asked}, and no node bears that; "
        f"{', '.join(fit.node.name for fit in renamed[:_NAMED])} bears {', '.join(offered)}, the "
        "same card with what sharing appends to its label.",
        *evidence,
        values={
            "pod": situation.pod.meta.short,
            "wanted": f"{PRODUCT}={asked}",
            "offered": " or ".join(offered),
        },
        certainty=Certainty.LIKELY if situation.nodes_missing else Certainty.CERTAIN,
        related=[fit.node.subject for fit in renamed],
        leans_on=("Node",),
    )


def is_renamed_product(pod: Pod, fit: NodeFit) -> bool:
    """Whether all that the pod misses on the node is the product label as it was before sharing."""
    product = fit.node.labels.get(PRODUCT, "")
    bare = {bare_product(wanted) for wanted in _selected_products(pod)}
    return bare_product(product) in bare and all(PRODUCT in missing for missing in fit.unmatched)


def _selected_products(pod: Pod) -> frozenset[str]:
    chosen = {pod.node_selector[PRODUCT]} if PRODUCT in pod.node_selector else set()
    for term in pod.node_affinity or ():
        for requirement in term.labels:
            if requirement.key == PRODUCT and requirement.operator == "In":
                chosen.update(requirement.values)
    return frozenset(chosen)


def _selector_path(pod: Pod) -> str:
    if PRODUCT in pod.node_selector:
        return f"spec.nodeSelector[{PRODUCT}]"
    return f"spec.affinity.nodeAffinity {PRODUCT} In"


@CHECKS.check(SharingSituation)
def wrong_scheduler_name(situation: SharingSituation) -> Iterator[Result]:
    """Only a scheduler extender counts these resources, and the pod was given to another."""
    pod = situation.pod
    if not situation.pending:
        return
    keys = [resource for resource in situation.wanted if is_accounting(resource)]
    lacking = situation.failure.message.insufficient() if situation.failure else {}
    unknown = [
        key
        for key in keys
        if key in lacking and not any(fit.node.allocatable.get(key) for fit in situation.fits)
    ]
    needed = "volcano" if any(key.startswith("volcano.sh/") for key in keys) else "hami-scheduler"
    if unknown and situation.failure is not None and needed.partition("-")[0] not in pod.scheduler:
        yield finding(
            "wrong-scheduler-name",
            pod.subject,
            f"No node ever advertises {', '.join(unknown)}: {needed} counts it. {pod.scheduler} "
            "does not know that, so no node suits it.",
            Evidence(pod.meta.path, "spec.schedulerName", pod.scheduler),
            _asked(pod, unknown[0]),
            situation.failure.evidence,
            values={"pod": pod.meta.short, "offered": pod.scheduler, "wanted": needed},
        )
    elif not situation.failure:
        yield from _picked_by_nobody(situation)


def _picked_by_nobody(situation: SharingSituation) -> Iterator[Result]:
    """A pod whose scheduler does not run gets neither condition nor event."""
    pod = situation.pod
    waited = situation.waits_seconds
    if pod.scheduler == "default-scheduler" or pod.condition("PodScheduled") or situation.events:
        return
    if waited is None or waited < _UNPICKED_SECONDS:
        return
    # A group made for the pod shows that its scheduler's controllers are there.
    if any(key.endswith("group-name") for key in pod.meta.annotations) or pod.scheduling_group:
        return
    yield finding(
        "wrong-scheduler-name",
        pod.subject,
        f"No scheduler has looked at {pod.meta.short} in {waited / 60:.0f} min: "
        f"{pod.scheduler} does not run in this cluster, or does not answer to that name.",
        Evidence(pod.meta.path, "spec.schedulerName", pod.scheduler),
        Evidence(pod.meta.path, "status.conditions[PodScheduled]", "absent"),
        values={
            "pod": pod.meta.short,
            "offered": pod.scheduler,
            "wanted": "a scheduler that runs here",
        },
        certainty=Certainty.LIKELY,
        leans_on=("Event",),
    )


# HAMi and Volcano vGPU

_QUOTA_CODE = "ResourceQuotaNotFit"
_CODES = {
    "CardTypeMismatch": "the cards are of a type that the pod excludes",
    "CardUuidMismatch": "the pod names cards by UUID that are not these",
    "CardTimeSlicingExhausted": "all replicas of the cards are taken",
    "CardComputeUnitsExhausted": "no compute share is left on the cards",
    "CardInsufficientMemory": "no card has that much memory left",
    "CardInsufficientCore": "no card has that many gpucores left",
    "CardNotHealth": "the cards are not healthy",
    "CardUnhealthy": "the cards are not healthy",
    "CardCordoned": "the cards are cordoned",
    "NumaNotFit": "the cards that are left are not on one NUMA node",
    "ExclusiveDeviceAllocateConflict": "the pod asks for a card alone, and all have tenants",
    "CardNotFoundCustomFilterRule": "a custom filter rule leaves no card",
    "CardMigTopologyInfeasible": "no MIG layout of the cards has room for the slice",
    "CardQosPolicyMismatch": "the QoS policy of the cards is another",
    "CardAppClassMismatch": "the application class of the cards is another",
    "NodeInsufficientDevice": "no node has that many cards",
    "AllocatedCardsInsufficientRequest": "no node has that many suitable cards left",
    _QUOTA_CODE: "the namespace's quota for GPU memory or cores is used up",
    "ModeNotFit": "the nodes share their cards in another mode",
    "NodeUnfitPod": "no card of the nodes suits the slice",
}
_VOLCANO_WORDS = "not enough gpu fitted on this node"


@CHECKS.check(SharingSituation)
def hami_no_card_fits(situation: SharingSituation) -> Iterator[Result]:
    """The extender found no card that can hold the slice."""
    if not situation.pending or not situation.slices:
        return
    asked = _largest(situation.slices)
    refused = [r for r in situation.refusals if r.code in _CODES]
    specific = [r for r in refused if r.code != "NodeUnfitPod"] or refused
    if specific and all(r.code == _QUOTA_CODE for r in specific):
        yield _over_resource_quota(situation, asked, specific[0])
        return
    never = _never_fits(situation, asked) if _by_extender(situation) else None
    said = situation.failure.raw if situation.failure else ""
    if not specific and never is None and _VOLCANO_WORDS not in said:
        return
    if situation.unregistered is not None and never is None and not specific:
        return
    proved = never is not None or any(r.event for r in specific)
    pod = situation.pod
    reason = never or "; ".join(_CODES[r.code] for r in specific) or "no card has room for it"
    evidence = [_refusal(pod, refusal) for refusal in specific[:_NAMED]]
    evidence.append(Evidence(pod.meta.path, asked.field, asked.written))
    evidence += _registered(situation)
    if situation.failure is not None and not any(r.event for r in specific):
        evidence.append(situation.failure.evidence)
    by_codes = ", ".join(f"{r.count} nodes {r.code}" for r in specific)
    yield finding(
        "hami-no-card-fits",
        pod.subject,
        f"{pod.meta.short} asks for a slice with {asked.written}: {reason}"
        f"{f' ({by_codes})' if by_codes else ''}. The node's nvidia.com/gpu counts replicas, not "
        "cards, and says nothing about it.",
        *evidence,
        values={"pod": pod.meta.short, "reason": reason},
        certainty=Certainty.CERTAIN if proved else Certainty.LIKELY,
        blame=None if never else Blame.PLACEMENT,
        leans_on=() if any(r.event for r in specific) else ("Node",),
    )


def _over_resource_quota(situation: SharingSituation, asked: Slice, refused: CardRefusal) -> Draft:
    """HAMi counts gpumem and gpucores against the namespace's ResourceQuota itself."""
    pod = situation.pod
    limits = [
        (quota, key, hard)
        for quota in situation.quotas
        for key, hard in quota.hard.items()
        if is_accounting(key.removeprefix("limits.").removeprefix("requests."))
    ]
    names = ", ".join(dict.fromkeys(quota.meta.name for quota, _, _ in limits))
    resource = next((r for r in situation.wanted if is_accounting(r)), "GPU memory")
    return finding(
        "resourcequota-exceeded",
        pod.subject,
        f"A card has room for {asked.written} of {pod.meta.short}, the namespace's quota has not.",
        _refusal(pod, refused),
        Evidence(pod.meta.path, asked.field, asked.written),
        *(
            Evidence(
                quota.meta.path,
                f"status.used vs status.hard [{key}]",
                f"{quota.used.get(key, Decimal(0)):f} vs {hard:f}",
            )
            for quota, key, hard in limits[:_NAMED]
        ),
        values={"name": names or "(not in the input)", "resource": resource},
    )


def _by_extender(situation: SharingSituation) -> bool:
    """Whether an extender places this pod: by its scheduler, or by resources only it counts."""
    named = any(word in situation.pod.scheduler for word in ("hami", "volcano", "4pd"))
    return named or any(is_accounting(resource) for resource in situation.wanted)


def _largest(slices: tuple[Slice, ...]) -> Slice:
    return max(slices, key=lambda s: (s.memory or 0, s.cards, s.cores or 0))


def _never_fits(situation: SharingSituation, asked: Slice) -> str | None:
    """Say why the slice fits no card even when all are empty; None if some card could hold it."""
    nodes = [found.cards for found in situation.registered if found.cards]
    cards = [card for listed in nodes for card in listed]
    if not cards or len(nodes) < len(situation.registered):
        return None
    largest = max(card.memory for card in cards)
    if asked.memory is not None and asked.memory > largest:
        return f"{asked.memory} MiB on one card, and the largest has {largest} MiB"
    most = max(len(listed) for listed in nodes)
    if asked.cards > most:
        return f"{asked.cards} cards on one node, and the largest node has {most}"
    return None


def _refusal(pod: Pod, refusal: CardRefusal) -> Evidence:
    if refusal.event is not None:
        event = refusal.event
        return Evidence(event.path, f"{event.reason} (x{event.count})", event.message)
    return Evidence(
        pod.meta.path, "status.conditions[PodScheduled]", f"{refusal.count} {refusal.code}"
    )


def _registered(situation: SharingSituation) -> Iterator[Evidence]:
    for found in situation.registered[:_NAMED]:
        cards = found.cards
        value = "; ".join(_card(card) for card in cards or ()) or "cannot be read"
        yield Evidence(found.node.meta.path, f"metadata.annotations[{found.annotation}]", value)


def _card(card: Card) -> str:
    health = ", not healthy" if card.healthy is False else ""
    return (
        f"{card.id}: devmem {card.memory} MiB, devcore {card.cores}, count {card.replicas}{health}"
    )


@CHECKS.check(SharingSituation)
def hami_node_unregistered(situation: SharingSituation) -> Iterator[Result]:
    """HAMi's scheduler has no card registered for the nodes: its plugin there does not report."""
    said = situation.unregistered
    if said is None or not situation.pending or any(r.event for r in situation.refusals):
        return
    pod = situation.pod
    resource = next((r for r in situation.wanted if is_accounting(r)), next(iter(situation.wanted)))
    silent = [fit.node for fit in situation.fits if not _registers(situation, fit.node)]
    names = ", ".join(node.name for node in silent[:_NAMED]) or "the nodes"
    yield finding(
        "gpu-resource-not-advertised",
        pod.subject,
        f"HAMi knows no card of {names}: its device plugin there has not registered.",
        said,
        *(
            Evidence(
                node.meta.path,
                f"metadata.annotations[{HAMI_HANDSHAKE}]",
                node.meta.annotations.get(HAMI_HANDSHAKE, "absent"),
            )
            for node in silent[:_NAMED]
        ),
        values={"resource": resource, "nodes": names},
        certainty=Certainty.LIKELY,
        related=[node.subject for node in silent],
    )


def _registers(situation: SharingSituation, node: Node) -> bool:
    return any(found.node.name == node.name and found.cards for found in situation.registered)


@CHECKS.check(SharingSituation)
def engine_memory_exceeds_vgpu_quota(situation: SharingSituation) -> Iterator[Result]:
    """The process reached the memory limit of its slice, while the card may have plenty."""
    memory = situation.memory
    asked = next((s for s in situation.slices if s.memory), None)
    if not memory.hook and not (memory.oom and asked):
        return
    pod = situation.pod
    limit = _slice_limit(situation, asked)
    if limit is None:
        return
    mib, sure = limit
    card = _card_of(situation)
    lines = memory.hook or memory.oom
    evidence = [line.evidence for line in lines[-_NAMED:]]
    if asked is not None:
        evidence.append(Evidence(pod.meta.path, asked.field, asked.written))
    if memory.fraction is not None:
        evidence.append(
            Evidence(pod.meta.path, memory.fraction_field, f"memory fraction {memory.fraction}")
        )
    evidence += _registered(situation)
    of_card = f" of a card with {card} MiB" if card else ""
    yield finding(
        "engine-memory-exceeds-vgpu-quota",
        pod.subject,
        f"The process asked for more than its slice of {mib} MiB{of_card}: the limit is the "
        f"slice's, not the card's.{_advice(situation, mib, card)}",
        *evidence,
        values={"pod": pod.meta.short, "limit": f"{mib} MiB"},
        certainty=Certainty.CERTAIN if sure else Certainty.LIKELY,
        severity=Severity.WARNING if _is_ready(pod.condition("Ready")) else None,
    )


def _is_ready(condition: Condition | None) -> bool:
    return condition is not None and condition.status == "True"


def _slice_limit(situation: SharingSituation, asked: Slice | None) -> tuple[int, bool] | None:
    """Return the limit in MiB that was reached and whether that is proved; None if it is not."""
    memory = situation.memory
    if memory.hook:
        limit = memory.hook[-1].line.groups.get("limit", "")
        return (int(limit[:20]) // _MIB, True) if limit else None
    if asked is None or asked.memory is None or memory.total_gib is None:
        return None
    total = memory.total_gib * 1024
    if abs(total - asked.memory) > asked.memory * 0.02:
        return None
    card = _card_of(situation)
    if card is not None and card <= asked.memory * 1.02:
        return None
    return asked.memory, card is not None


def _card_of(situation: SharingSituation) -> int | None:
    """The memory (MiB) of the cards of the pod's node, where all are alike."""
    sizes = {card.memory for found in situation.registered for card in found.cards or ()}
    return sizes.pop() if len(sizes) == 1 and situation.pod.node else None


def _advice(situation: SharingSituation, mib: int, card: int | None) -> str:
    """Which total the engine's memory fraction counts from: that which it printed."""
    total, fraction = situation.memory.total_gib, situation.memory.fraction
    if total is None:
        return ""
    seen = total * 1024
    if abs(seen - mib) <= mib * 0.02:
        part = f" {fraction}" if fraction else ""
        return (
            f" The engine sees {total:g} GiB in all, which is the slice: its memory fraction{part} "
            "counts from that and has to leave room for graphs, NCCL and the CUDA context."
        )
    if card is not None and abs(seen - card) <= card * 0.05:
        return (
            f" The engine sees {total:g} GiB in all, which is the card: the slice is hidden from "
            f"it, so its memory fraction must stay below {mib / card:.2f}."
        )
    return ""
