"""Quotas that schedulers keep themselves: a pod waits for one, whatever nodes are free."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes.queues import QueueSituation
from gpudoctor.report import Evidence

CHECKS = CheckSet()

_FIX = {
    "yunikorn": "See what else runs in the queue, and its limits: they stand in queues.yaml of the "
    "ConfigMap yunikorn-configs. The request may also be more than the queue can ever give.",
}
_ELASTIC = (
    "See what else uses the quota, and its max: kubectl get elasticquotas -A. The request may "
    "also be more than the quota can ever give."
)


@CHECKS.check(QueueSituation)
def quota_of_a_scheduler(situation: QueueSituation) -> Iterator[Result]:
    """The pod's scheduler itself says that a quota has no room for the pod."""
    found, pod = situation.quota, situation.pod
    if found is None or pod is None or not situation.held:
        return
    yield finding(
        "queue-waiting-for-quota",
        pod.subject,
        f"Scheduler {pod.scheduler} keeps the pod back, because {found.queue} has no room for it"
        f"{f' ({found.short})' if found.short else ''}. Free nodes do not matter before that.",
        found.evidence,
        Evidence(pod.meta.path, "spec.schedulerName", pod.scheduler),
        values={
            "pod": pod.meta.short,
            "queue": found.queue,
            "reason": found.short or "its quota is in use",
        },
        fix=_FIX.get(pod.scheduler, _ELASTIC),
    )
