"""Placement: why no node takes the pod, although the devices exist.

The nodes are evaluated as the scheduler evaluates them; its message is used for what only it
knows (volumes, spread, inter-pod affinity) and for how many nodes the input lacks. A pod that
may enter nodes with its GPUs is judged on those alone: what other pools refuse is not its cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes import resources
from gpudoctor.facts.kubernetes.model import Node, Occupant
from gpudoctor.facts.kubernetes.placement import NodeFit
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Certainty, Evidence, Severity
from gpudoctor_checks import supply
from gpudoctor_checks.sharing import is_renamed_product

CHECKS = CheckSet()

_SHOWN = 4
_NO_NODES = "no nodes available to schedule pods"
_ONLY_SCHEDULER_KNOWS = (
    ("volume node affinity conflict", "volume-affinity-conflict"),
    ("persistentvolume's node affinity", "volume-affinity-conflict"),  # the same, by 1.34
    ("no available volume zone", "volume-affinity-conflict"),
    ("unbound immediate persistentvolumeclaims", "volume-unbound"),
    ('persistentvolumeclaim "', "volume-unbound"),  # not found, being deleted, lost
    ("available persistent volumes to bind", "volume-unbound"),
    ("topology spread constraints", "topology-spread-unsatisfied"),
    ("anti-affinity rules", "pod-affinity-unsatisfied"),
    ("pod affinity rules", "pod-affinity-unsatisfied"),
    ("pod affinity/anti-affinity", "pod-affinity-unsatisfied"),
    ("free ports for the requested pod ports", "host-port-taken"),
)


def _pool(situation: PodSituation) -> list[NodeFit]:
    """Nodes that advertise every GPU resource of the pod, whether it may enter them or not."""
    wanted = supply.gpu_requests(situation)
    return [
        fit
        for fit in situation.fits
        if all(fit.node.allocatable.get(resource, Decimal(0)) > 0 for resource in wanted)
    ]


def _eligible(situation: PodSituation) -> list[NodeFit]:
    return [fit for fit in _pool(situation) if fit.is_admitted]


def _missing_note(situation: PodSituation) -> str:
    if not situation.nodes_missing:
        return ""
    return f" {situation.nodes_missing} more nodes that the scheduler counted are not in the input."


@CHECKS.check(PodSituation)
def capacity(situation: PodSituation) -> Iterator[Result]:
    """Every node that the pod may enter has too few GPUs free."""
    if not supply.is_waiting_for_a_node(situation):
        return
    eligible = _eligible(situation)
    for resource, wanted in supply.gpu_requests(situation).items():
        short = [fit for fit in eligible if fit.shortage(resource)]
        if not eligible or len(short) < len(eligible):
            continue
        if supply.unhealthy(situation, resource):
            # The device layer has the cause; "in use" would be the wrong story.
            continue
        # A broken node is a nearer cause than full ones, which stay worth knowing.
        severity = Severity.INFO if supply.broken(situation, resource) else None
        yield _capacity_finding(situation, resource, wanted, short, severity)


def _capacity_finding(
    situation: PodSituation,
    resource: str,
    wanted: Decimal,
    short: Sequence[NodeFit],
    severity: Severity | None,
) -> Result:
    nodes = [fit.node for fit in short]
    largest = max(node.allocatable[resource] for node in nodes)
    free = [max(fit.free.get(resource, Decimal(0)), Decimal(0)) for fit in short]
    total, pod, number = sum(free, Decimal(0)), situation.pod.meta.short, supply.number
    values = {"pod": pod, "resource": resource, "wanted": number(wanted), "count": number(wanted)}
    request = supply.request_evidence(situation, resource)
    common = tuple(supply.failure_evidence(situation))
    related = (situation.subject, *supply.subjects(nodes))
    if wanted > largest:
        return finding(
            "request-exceeds-largest-node",
            situation.subject,
            f"The pod's containers need {number(wanted)} {resource} together on one node; the "
            f"largest node it may use has {number(largest)}. This never fits, however long it "
            f"waits.{_missing_note(situation)}",
            request,
            *supply.allocatable_evidence(
                sorted(nodes, key=lambda n: -n.allocatable[resource]), resource, "the largest"
            ),
            *common,
            values=values | {"offered": number(largest)},
            related=related,
            leans_on=("Node",),
            severity=severity,
        )
    free_evidence = _free_evidence(short, resource)
    holders = _holders_evidence(short, resource)
    if total >= wanted and max(free) < wanted:
        return finding(
            "gpu-fragmentation",
            situation.subject,
            f"{number(total)} {resource} are free on {len(nodes)} nodes, at most "
            f"{number(max(free))} on one, and the pod needs {number(wanted)} on one node."
            f"{_missing_note(situation)}",
            *free_evidence,
            *holders,
            request,
            *common,
            values=values | {"count": number(total)},
            related=related,
            leans_on=("Node", "Pod"),
            severity=severity,
        )
    return finding(
        "gpu-capacity-exhausted",
        situation.subject,
        f"{_usable(len(nodes))} {number(total)} {resource} free{' together' * (len(nodes) > 1)}; "
        f"it needs {number(wanted)} on one node.{_missing_note(situation)}",
        *free_evidence,
        *holders,
        request,
        *common,
        values=values,
        related=related,
        leans_on=("Node", "Pod"),
        severity=severity,
    )


def _counted(nodes: int) -> str:
    return f"{nodes or 'no'} node{'s' * (nodes != 1)}"


def _usable(nodes: int) -> str:
    if nodes == 1:
        return "The only node that the pod may use has"
    return f"The {nodes} nodes that the pod may use have"


def _free_evidence(short: Sequence[NodeFit], resource: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            fit.node.meta.path,
            f"allocatable minus bound pods [{resource}]",
            f"{supply.number(fit.node.allocatable[resource])} - "
            f"{supply.number(fit.node.allocatable[resource] - fit.free[resource])} = "
            f"{supply.number(fit.free[resource])} free",
        )
        for fit in short[:_SHOWN]
    )


def _holders_evidence(short: Sequence[NodeFit], resource: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            f"Pod/{held.namespace}/{held.name}",
            f"requests[{resource}]",
            f"{supply.number(held.requests[resource])} on {held.node}",
            "terminating" if held.terminating else None,
        )
        for held in _holders(short, resource)[:_SHOWN]
    )


def _holders(fits: Sequence[NodeFit], resource: str) -> list[Occupant]:
    """The pods that hold most of the resource, the largest first."""
    found = [held for fit in fits for held in fit.occupants if held.requests.get(resource)]
    return sorted(found, key=lambda held: -held.requests[resource])


@CHECKS.check(PodSituation)
def no_gpu_node(situation: PodSituation) -> Iterator[Result]:
    """No node has hardware or resource of the wanted kind: nothing to repair, nothing in use."""
    failure = situation.failure
    if failure is None or not supply.is_waiting_for_a_node(situation) or situation.nodes_missing:
        return
    if not situation.fits and _NO_NODES not in failure.raw:
        return  # the input lacks the nodes; the cluster may have them
    for resource in supply.gpu_requests(situation):
        if resources.is_accounting(resource) or any(
            supply.has_hardware(fit.node, resource) or supply.knows_vendor(fit.node, resource)
            for fit in situation.fits
        ):
            continue
        told = resource in failure.message.insufficient() or not situation.fits
        if not told and any(fit.is_admitted for fit in situation.fits):
            continue  # a device class serves it: the claims have the cause
        nodes = [fit.node for fit in situation.fits]
        added = situation.not_provisioned()
        more = f" No node is added either: {added.message}" if added else ""
        yield finding(
            "no-gpu-node",
            situation.subject,
            f"The cluster has {_counted(len(nodes))}"
            + (f", without {resource} and without labels of such hardware." if nodes else ".")
            + more,
            *supply.failure_evidence(situation),
            supply.request_evidence(situation, resource),
            *supply.allocatable_evidence(nodes, resource, "no such key"),
            values={"resource": resource},
            related=(situation.subject, *supply.subjects(nodes)),
            leans_on=("Node",),
            certainty=Certainty.CERTAIN if told else Certainty.LIKELY,
        )


@CHECKS.check(PodSituation)
def other_resources(situation: PodSituation) -> Iterator[Result]:
    """Nodes have the GPUs free and lack something else."""
    if not supply.is_waiting_for_a_node(situation):
        return
    gpus = supply.gpu_requests(situation)
    with_gpus = [
        fit for fit in _eligible(situation) if not any(fit.shortage(resource) for resource in gpus)
    ]
    if not with_gpus or not all(_plain_shortages(fit) for fit in with_gpus):
        return
    lacking = sorted({name for fit in with_gpus for name in _plain_shortages(fit)})
    # The shortage that the most nodes share is the one to name first.
    lacking.sort(key=lambda name: -sum(name in _plain_shortages(fit) for fit in with_gpus))
    first = lacking[0]
    nodes = [fit.node for fit in with_gpus]
    yield finding(
        "non-gpu-resource-exhausted",
        situation.subject,
        f"{supply.have(nodes)} the pod's GPUs free, but too little {', '.join(lacking)}."
        f"{_missing_note(situation)}",
        *(
            Evidence(
                fit.node.meta.path,
                f"allocatable minus bound pods [{name}]",
                f"{_amount(short.free)} free of {_amount(short.allocatable)}, wanted "
                f"{_amount(short.wanted)}",
            )
            for fit in with_gpus[:_SHOWN]
            for name in lacking
            if (short := fit.shortage(name))
        ),
        # A slot of `pods` is taken without being asked for.
        *([supply.request_evidence(situation, first)] if first in situation.pod.requests else []),
        *supply.failure_evidence(situation),
        values={"pod": situation.pod.meta.short, "resource": ", ".join(lacking)},
        related=(situation.subject, *supply.subjects(nodes)),
        leans_on=("Node", "Pod"),
    )


def _plain_shortages(fit: NodeFit) -> list[str]:
    """What the node has too little of.

    Left out are keys that an extender counts and no node advertises, and those that a node does
    not have at all, which is a matter of the device layer.
    """
    return [
        short.resource
        for short in fit.shortages
        if not resources.is_accounting(short.resource)
        and not (short.allocatable == 0 and _is_of_device_layer(short.resource))
    ]


def _is_of_device_layer(resource: str) -> bool:
    return resources.is_rdma(resource) or resource.startswith("hugepages-")


def _amount(amount: Decimal) -> str:
    """Write bytes in GiB where they are many, other amounts plainly."""
    gib = Decimal(2**30)
    return f"{amount / gib:.1f} Gi" if amount >= gib else supply.number(amount)


@CHECKS.check(PodSituation)
def refused_entry(situation: PodSituation) -> Iterator[Result]:
    """No node with the pod's GPUs lets it in: taints, selectors, cordons, unready nodes."""
    if not supply.is_waiting_for_a_node(situation) or not situation.fits:
        return
    pool = _pool(situation)
    gpus = supply.gpu_requests(situation)
    upgrading = [
        fit
        for fit in situation.fits
        if all(supply.has_hardware(fit.node, resource) for resource in gpus)
        and supply.upgrade_of(fit.node)
    ]
    refusing = [fit for fit in pool if not fit.is_admitted]
    if any(fit.is_admitted for fit in pool) or not (refusing or upgrading):
        return
    # Room first: a full node would not help if it let the pod in.
    roomy = [fit for fit in refusing if not any(fit.shortage(resource) for resource in gpus)]
    candidates = roomy or refusing
    # A pod that selects its pool does not mean the others: they only show where none matches.
    if any(not fit.unmatched for fit in [*candidates, *upgrading]) or _matching_broken(situation):
        candidates = [fit for fit in candidates if not fit.unmatched]
    if any(supply.broken(situation, resource) for resource in gpus) and not roomy:
        return
    fewest = min((_hurdles(fit) for fit in candidates), default=0)
    nearest = [fit for fit in candidates if _hurdles(fit) == fewest]
    yield from _taints(situation, [fit for fit in nearest if fit.untolerated])
    yield from _selectors(situation, [fit for fit in nearest if fit.unmatched])
    yield from _not_ready(situation, [fit for fit in nearest if fit.condition_taints])
    cordoned = [fit for fit in nearest if fit.cordoned]
    yield from _cordons(situation, cordoned or [fit for fit in upgrading if fit.cordoned])


def _matching_broken(situation: PodSituation) -> bool:
    """Whether a node that the pod selects has the hardware and does not advertise it."""
    return any(supply.broken(situation, resource) for resource in supply.gpu_requests(situation))


def _hurdles(fit: NodeFit) -> int:
    return sum(map(bool, (fit.cordoned, fit.untolerated, fit.unmatched, fit.condition_taints)))


def _taints(situation: PodSituation, fits: Sequence[NodeFit]) -> Iterator[Result]:
    if not fits:
        return
    nodes = [fit.node for fit in fits]
    taints = list(dict.fromkeys(taint for fit in fits for taint in fit.untolerated))
    named = ", ".join(map(str, taints[:_SHOWN]))
    yield finding(
        "missing-toleration",
        situation.subject,
        f"{supply.have(nodes)} what the pod asks for and the taint {named}, which the pod "
        f"has no toleration for.{_missing_note(situation)}",
        *(
            Evidence(fit.node.meta.path, "spec.taints", ", ".join(map(str, fit.untolerated)))
            for fit in fits[:_SHOWN]
        ),
        *_offers(situation, fits),
        *supply.failure_evidence(situation),
        values={
            "pod": situation.pod.meta.short,
            "name": named,
            "nodes": supply.names(nodes),
        },
        related=(situation.subject, *supply.subjects(nodes)),
        leans_on=("Node",),
        fix="If the pod may run there, add to spec.tolerations: "
        + ", ".join(taint.toleration for taint in taints[:_SHOWN]),
    )


def _offers(situation: PodSituation, fits: Sequence[NodeFit]) -> Iterator[Evidence]:
    for resource in supply.gpu_requests(situation):
        yield from _free_evidence([f for f in fits if resource in f.free], resource)


def _selectors(situation: PodSituation, fits: Sequence[NodeFit]) -> Iterator[Result]:
    # A product label that sharing has renamed is a cause of its own name.
    fits = [fit for fit in fits if not is_renamed_product(situation.pod, fit)]
    if not fits:
        return
    nodes = [fit.node for fit in fits]
    missing = list(dict.fromkeys(text for fit in fits for text in fit.unmatched))
    keys = [text.partition("=")[0].partition(" ")[0] for text in missing]
    yield finding(
        "node-selector-mismatch",
        situation.subject,
        f"The pod wants nodes with {'; '.join(missing[:_SHOWN])}. No node with its GPUs free has "
        f"that.{_missing_note(situation)}",
        Evidence(
            situation.pod.meta.path,
            "spec.nodeSelector, spec.affinity.nodeAffinity",
            "; ".join(missing[:_SHOWN]),
        ),
        *(
            Evidence(
                node.meta.path, f"metadata.labels[{key}]", node.labels.get(key, "no such label")
            )
            for node in nodes[:_SHOWN]
            for key in dict.fromkeys(keys)
        ),
        *supply.failure_evidence(situation),
        values={"pod": situation.pod.meta.short},
        related=(situation.subject, *supply.subjects(nodes)),
        leans_on=("Node",),
    )


def _not_ready(situation: PodSituation, fits: Sequence[NodeFit]) -> Iterator[Result]:
    if not fits:
        return
    nodes = [fit.node for fit in fits]
    taints = ", ".join(dict.fromkeys(str(t) for fit in fits for t in fit.condition_taints))
    yield finding(
        "node-not-ready",
        nodes[0].subject,
        f"{supply.have(nodes)} the pod's GPUs and the taint {taints}, which the node controller or "
        "an agent of the node takes away when the node is ready. To tolerate it repairs nothing.",
        *(
            Evidence(node.meta.path, "status.conditions[Ready]", _ready(node))
            for node in nodes[:_SHOWN]
        ),
        *(
            Evidence(fit.node.meta.path, "spec.taints", ", ".join(map(str, fit.condition_taints)))
            for fit in fits[:_SHOWN]
        ),
        *supply.failure_evidence(situation),
        values={"nodes": supply.names(nodes), "reason": taints},
        related=(situation.subject, *supply.subjects(nodes)),
        leans_on=("Node",),
        fix=None
        if any((ready := node.condition("Ready")) and ready.status != "True" for node in nodes)
        else f"Find out why what takes {taints} away has not done so: see the agent's pod on "
        f"{nodes[0].name}.",
    )


def _ready(node: Node) -> str:
    ready = node.condition("Ready")
    return f"{ready.status} {ready.reason} {ready.message}".strip() if ready else "not there"


def _cordons(situation: PodSituation, fits: Sequence[NodeFit]) -> Iterator[Result]:
    if not fits:
        return
    nodes = [fit.node for fit in fits]
    yield finding(
        "node-cordoned",
        nodes[0].subject,
        f"{supply.have(nodes)} the pod's GPUs, but no new pods are let in: {_who(fits)}."
        f"{_missing_note(situation)}",
        *(_cordon_evidence(fit) for fit in fits[:_SHOWN]),
        *supply.failure_evidence(situation),
        values={"nodes": supply.names(nodes)},
        related=(situation.subject, *supply.subjects(nodes)),
        leans_on=("Node",),
        fix=_STAYS_OUT if all(fit.leaving for fit in fits) else None,
    )


_STAYS_OUT = (
    "Do not tolerate the taint: the pod would go with the node. Wait for a new node, or keep this "
    "one in its autoscaler's settings."
)


def _who(fits: Sequence[NodeFit]) -> str:
    nodes = f"the node{'s' if len(fits) > 1 else ''}"
    if all(fit.leaving for fit in fits):
        return f"an autoscaler or termination handler is about to remove {nodes}"
    return f"somebody or something cordoned {nodes}"


def _cordon_evidence(fit: NodeFit) -> Evidence:
    if fit.leaving and not fit.node.unschedulable:
        return Evidence(fit.node.meta.path, "spec.taints", ", ".join(map(str, fit.leaving)))
    return Evidence(fit.node.meta.path, "spec.unschedulable", "true", _cordoned_by(fit.node))


def _cordoned_by(node: Node) -> str | None:
    """What the node itself says about who cordoned it and why."""
    said = [
        f"{key}={value}"
        for source in (node.labels, node.meta.annotations)
        for key, value in sorted(source.items())
        if any(word in key for word in ("cordon", "nvsentinel-state", "maintenance"))
    ]
    return ", ".join(said) or None


@CHECKS.check(PodSituation)
def scheduler_knows(situation: PodSituation) -> Iterator[Result]:
    """Volumes, spread and inter-pod affinity: the scheduler's own words, where GPUs are free."""
    failure = situation.failure
    if failure is None or not supply.is_waiting_for_a_node(situation):
        return
    gpus = supply.gpu_requests(situation)
    eligible = _eligible(situation)
    open_nodes = [fit for fit in eligible if not _plain_shortages(fit)]
    if eligible and not open_nodes:
        return
    seen = set()
    for phrase, name in _ONLY_SCHEDULER_KNOWS:
        said = [r for r in failure.message.reasons if phrase in r.text.lower()]
        if not said or name in seen:
            continue
        seen.add(name)
        nodes = [fit.node for fit in open_nodes]
        where = f" {supply.have(nodes)} the GPUs free." if nodes and gpus else ""
        yield finding(
            name,
            situation.subject,
            f"The scheduler says: {said[0].text}.{where}{_missing_note(situation)}",
            failure.evidence,
            *(
                Evidence(situation.pod.meta.path, f"spec.volumes[{volume.name}]", volume.claim)
                for volume in situation.pod.volumes
                if volume.claim and name.startswith("volume")
            ),
            *(_unbound(situation) if name == "volume-unbound" else ()),
            *_offers(situation, open_nodes),
            values={"pod": situation.pod.meta.short},
            related=(situation.subject, *supply.subjects(nodes)),
            certainty=Certainty.CERTAIN if nodes or not gpus else Certainty.LIKELY,
            leans_on=("Node",),
        )


def _unbound(situation: PodSituation) -> Iterator[Evidence]:
    """Yield the claims that have no volume, and what their provisioner says."""
    for claim in situation.volume_claims:
        if not claim.is_bound:
            modes = ", ".join(claim.modes)
            asks = f"{claim.phase}: {modes} of class {claim.storage_class or '(the default)'}"
            yield Evidence(claim.meta.path, "status.phase", asks)
            if claim.said is not None:
                said = claim.said
                path = f"{said.reason} (x{said.count})"
                yield Evidence(str(said.about), path, said.message)


@CHECKS.check(PodSituation)
def without_nodes(situation: PodSituation) -> Iterator[Result]:
    """The input has no node objects: what the scheduler's message alone can prove."""
    failure = situation.failure
    if failure is None or situation.fits or not supply.is_waiting_for_a_node(situation):
        return
    message, nodes = failure.message, failure.message.nodes or 0
    common = {
        "related": (situation.subject,),
        "certainty": Certainty.LIKELY,
    }
    named = {"pod": situation.pod.meta.short, "nodes": f"{nodes} nodes"}
    taints = [r for r in message.reasons if "taint" in r.text]
    insufficient = {r: n for r, n in message.insufficient().items() if resources.is_gpu(r)}
    if insufficient and message.without_victims() >= sum(insufficient.values()):
        resource = next(iter(insufficient))
        wanted = supply.number(situation.pod.requests.get(resource, Decimal(0)))
        yield finding(
            "gpu-capacity-exhausted",
            situation.subject,
            f"The scheduler found {insufficient[resource]} nodes that would have room for the pod "
            f"if something else left them. How much {resource} is free where, the input does not "
            "say.",
            failure.evidence,
            values=named | {"resource": resource, "count": wanted},
            related=(situation.subject,),
            certainty=Certainty.POSSIBLE,
        )
    elif taints and not message.insufficient() and message.count("taint") >= nodes > 0:
        key = next((f"{t[0]}={t[1]}" for r in taints if (t := r.taint)), "a taint")
        yield finding(
            "missing-toleration",
            situation.subject,
            f"All {nodes} nodes have taints that the pod does not tolerate.",
            failure.evidence,
            values=named | {"name": key},
            **common,  # type: ignore[arg-type]
        )
    elif message.count("node affinity/selector") + message.count("node selector") >= nodes > 0:
        yield finding(
            "node-selector-mismatch",
            situation.subject,
            f"None of the {nodes} nodes matches the pod's node selector or affinity.",
            failure.evidence,
            values=named,
            **common,  # type: ignore[arg-type]
        )


@CHECKS.check(PodSituation)
def gated(situation: PodSituation) -> Iterator[Result]:
    """A scheduling gate of nobody we know holds the pod."""
    pod = situation.pod
    unknown = [gate for gate in pod.gates if not gate.startswith("kueue.x-k8s.io/")]
    if pod.node is None and unknown and not pod.is_terminal:
        yield finding(
            "scheduling-gated",
            situation.subject,
            f"The scheduler does not look at the pod until its gate {', '.join(unknown)} is "
            "removed by whoever set it.",
            Evidence(pod.meta.path, "spec.schedulingGates", ", ".join(unknown)),
            values={"pod": pod.meta.short, "name": ", ".join(unknown)},
        )
