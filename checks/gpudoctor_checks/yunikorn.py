"""YuniKorn's quotas: a pod that waits for its queue's, or its user's, whatever nodes are free."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes.queues import QueueSituation
from gpudoctor.report import Evidence

CHECKS = CheckSet()


@CHECKS.check(QueueSituation)
def yunikorn_quota(situation: QueueSituation) -> Iterator[Result]:
    """YuniKorn itself says that the quota has no room for the pod."""
    found, pod = situation.yunikorn, situation.pod
    if found is None or pod is None or not situation.held:
        return
    queue = found.queue or "the quota of its user"
    lacking = ", ".join(
        f"{resource}: {asked} asked, {left} left" for resource, (asked, left) in found.short.items()
    )
    yield finding(
        "queue-waiting-for-quota",
        pod.subject,
        f"YuniKorn keeps the pod back, because {queue} has no room for it"
        f"{f' ({lacking})' if lacking else ''}. Free nodes do not matter before that.",
        found.evidence,
        Evidence(pod.meta.path, "spec.schedulerName", pod.scheduler),
        values={
            "pod": pod.meta.short,
            "queue": queue,
            "reason": lacking or "its quota is in use",
        },
        fix="See what else runs in the queue, and its limits: they stand in queues.yaml of the "
        "ConfigMap yunikorn-configs. The request may also be more than the queue can ever give.",
    )
