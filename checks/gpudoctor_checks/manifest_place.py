"""Manifests beside a live cluster: whether nodes, quotas and classes that they name are there.

An autoscaler may still bring nodes, and an admission plugin tolerations: what only nodes show is
a warning. What the API server would refuse is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import msgspec

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import resources
from gpudoctor.facts.kubernetes.manifest_place import PlacedManifest, Pools, evidence
from gpudoctor.facts.kubernetes.placement import NodeFit
from gpudoctor.facts.node.needs import ANNOTATION, Needs, parse
from gpudoctor.report import Evidence, Severity
from gpudoctor_checks import supply

CHECKS = CheckSet()

_SHOWN = 3


def _wanted(placed: PlacedManifest) -> dict[str, Decimal]:
    """Extended resources that the pod asks for: those that only some nodes have."""
    asked = placed.pod.requests
    return {
        name: amount
        for name, amount in asked.items()
        if amount > 0 and resources.is_extended(name) and not resources.is_accounting(name)
    }


@CHECKS.check(PlacedManifest)
def nodes(placed: PlacedManifest) -> Iterator[Result]:
    """No node has what the pod asks for, has enough of it, or would let the pod in."""
    fits, wanted = placed.fits, _wanted(placed)
    if fits is None or not wanted:
        return
    missing = [name for name in wanted if not _having(fits, name)]
    for name in missing:
        yield _absent(placed, name)
    if missing:
        return
    with_all = [fit for fit in fits if all(_has(fit, name) for name in wanted)]
    if not with_all:
        return  # each is somewhere, no node has them together: the scheduler's to tell
    admitted = [fit for fit in with_all if not (fit.untolerated or fit.unmatched)]
    if not admitted:
        yield _not_let_in(placed, with_all)
        return
    for name, amount in wanted.items():
        largest = max(fit.node.allocatable[name] for fit in admitted)
        if amount > largest:
            yield _too_large(placed, name, amount, largest, admitted)


def _has(fit: NodeFit, name: str) -> bool:
    return fit.node.allocatable.get(name, Decimal(0)) > 0


def _having(fits: tuple[NodeFit, ...], name: str) -> list[NodeFit]:
    return [fit for fit in fits if _has(fit, name)]


def _absent(placed: PlacedManifest, name: str) -> Draft:
    fits = placed.fits or ()
    alike = resources.is_rdma if resources.is_rdma(name) else resources.is_gpu
    others = sorted({
        key for fit in fits for key in fit.node.allocatable if alike(key) and _has(fit, key)
    })  # fmt: skip
    offered = f"; they offer {', '.join(others[:5])}" if others else ""
    return finding(
        "no-gpu-node",
        msgspec.structs.replace(placed.pod.subject, device=name),
        f"None of the cluster's {len(fits)} nodes offers {name}{offered}.",
        supply.request_evidence(placed.manifest.situation, name),
        *supply.allocatable_evidence([fit.node for fit in fits], name, "offers none"),
        values={"resource": name},
        severity=Severity.WARNING,
    )


def _not_let_in(placed: PlacedManifest, fits: list[NodeFit]) -> Draft:
    """The nodes that have it all are kept from the pod by labels, or by taints."""
    pod = placed.pod
    tainted = [fit for fit in fits if not fit.unmatched]
    if tainted:
        taints = list(dict.fromkeys(taint for fit in tainted for taint in fit.untolerated))
        named = ", ".join(map(str, taints[:_SHOWN]))
        names = supply.names([fit.node for fit in tainted])
        return finding(
            "missing-toleration",
            pod.subject,
            f"{supply.have([fit.node for fit in tainted])} what the pod asks for and the taint "
            f"{named}, which the pod has no toleration for.",
            *(
                Evidence(fit.node.meta.path, "spec.taints", ", ".join(map(str, fit.untolerated)))
                for fit in tainted[:_SHOWN]
            ),
            values={"pod": pod.meta.short, "name": named, "nodes": names},
            severity=Severity.WARNING,
        )
    return finding(
        "node-selector-mismatch",
        pod.subject,
        f"{supply.have([fit.node for fit in fits])} what the pod asks for, and none has the labels "
        f"that it selects: {', '.join(fits[0].unmatched)}.",
        *(
            Evidence(fit.node.meta.path, "metadata.labels", ", ".join(fit.unmatched), "not matched")
            for fit in fits[:_SHOWN]
        ),
        values={"pod": pod.meta.short},
        severity=Severity.WARNING,
    )


def _too_large(
    placed: PlacedManifest, name: str, amount: Decimal, largest: Decimal, fits: list[NodeFit]
) -> Draft:
    number = supply.number
    return finding(
        "request-exceeds-largest-node",
        placed.pod.subject,
        f"The pod's containers need {number(amount)} {name} together on one node; the largest node "
        f"that it may use has {number(largest)}.",
        supply.request_evidence(placed.manifest.situation, name),
        *supply.allocatable_evidence(
            sorted((fit.node for fit in fits), key=lambda node: -node.allocatable[name]),
            name, "the largest",
        ),
        values={
            "pod": placed.pod.meta.short,
            "resource": name,
            "wanted": number(amount),
            "offered": number(largest),
        },
        severity=Severity.WARNING,
    )  # fmt: skip


@CHECKS.check(PlacedManifest)
def runtime_class(placed: PlacedManifest) -> Iterator[Result]:
    """The pod names a RuntimeClass that does not exist: the API server refuses its pods."""
    name, known = placed.pod.runtime_class, placed.runtime_classes
    if name is None or known is None or name in known:
        return
    listed = ", ".join(sorted(known)) or "none"
    yield finding(
        "runtimeclass-missing",
        placed.pod.subject,
        f"RuntimeClass {name!r} does not exist in the cluster; there is {listed}.",
        Evidence(placed.pod.meta.path, "spec.runtimeClassName", name),
        values={"class": name, "pod": placed.pod.meta.short},
    )


@CHECKS.check(PlacedManifest)
def quota(placed: PlacedManifest) -> Iterator[Result]:
    """All pods of the job together ask for more than a quota allows, or has left."""
    members = placed.manifest.members
    for one in placed.quotas:
        for name, amount in placed.pod.requests.items():
            total = amount * members
            keys = (f"requests.{name}", name)
            hard = min((one.hard[key] for key in keys if key in one.hard), default=None)
            free = one.free(name)
            if hard is None or free is None or total <= free:
                continue
            number = supply.number
            yield finding(
                "resourcequota-exceeded",
                placed.pod.subject,
                f"{members} pods ask for {number(total)} {name} together; ResourceQuota "
                f"{one.meta.name} allows {number(hard)} and has {number(free)} left.",
                supply.request_evidence(placed.manifest.situation, name),
                Evidence(one.meta.path, f"status.hard[{name}]", number(hard)),
                values={"name": one.meta.name, "resource": name},
                severity=Severity.ERROR if total > hard else Severity.WARNING,
            )


@CHECKS.check(PlacedManifest)
def pools(placed: PlacedManifest) -> Iterator[Result]:
    """What the policy gpudoctor-pools refuses: more GPUs than a node has, or a need none serves."""
    found = placed.pools
    if found is None:
        return
    most, asked = found.gpus_per_node, supply.gpu_requests(placed.manifest.situation)
    total = sum(asked.values(), Decimal(0))
    if most is not None and total > most:
        name = max(asked, key=lambda key: asked[key])
        yield finding(
            "request-exceeds-largest-node",
            placed.pod.subject,
            f"A pod asks for {supply.number(total)} GPUs; no node has more than "
            f"{supply.number(most)}.",
            supply.request_evidence(placed.manifest.situation, name),
            evidence(found, "gpusPerNode", supply.number(most)),
            values={
                "pod": placed.pod.meta.short,
                "resource": name,
                "wanted": supply.number(total),
                "offered": supply.number(most),
            },
        )
    yield from _not_offered(placed, found)


def _not_offered(placed: PlacedManifest, found: Pools) -> Iterator[Result]:
    if found.offers is None or placed.manifest.declared is None:
        return
    try:
        declared = parse(placed.manifest.declared, ANNOTATION)
    except InputError:
        return  # told by the rule about needs
    for need in _kinds(declared):
        if need not in found.offers:
            offered = ",".join(sorted(found.offers)) or "nothing"
            yield finding(
                "needs-not-offered",
                placed.pod.subject,
                f"The pod declares that it needs {need}, and no pool of nodes offers it; there is "
                f"{offered}.",
                Evidence(
                    placed.pod.meta.path,
                    f"metadata.annotations[{ANNOTATION}]",
                    placed.manifest.declared,
                ),
                evidence(found, "offers", offered),
                values={"pod": placed.pod.meta.short, "need": need},
            )


def _kinds(declared: Needs) -> list[str]:
    return [name for name in ("rdma", "gdr", "nvlink") if getattr(declared, name)]
