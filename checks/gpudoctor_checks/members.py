"""A pod and the other members of its job: who failed first, who is not there, who cannot run.

A job of a fixed size does nothing before all its members are there. The one that is asked about is
often the one that is well: it waits, and its own status says Ready.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.kubernetes import mentions
from gpudoctor.facts.kubernetes.components import Trouble, troubles
from gpudoctor.facts.kubernetes.membership import Membership
from gpudoctor.facts.kubernetes.model import Container, ContainerStatus, Pod
from gpudoctor.facts.kubernetes.model import State as ContainerState
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Blame, Certainty, Evidence, Severity, Unknown
from gpudoctor.sources import jobs
from gpudoctor_checks import supply
from gpudoctor_checks.workload import end_text, ended

CHECKS = CheckSet()

_TO_COME = timedelta(minutes=10)
"""How long a controller may take to make a pod, and a node to start it."""
_SHOWN = 4
_OFTEN = 3
_WAITS = ("peer-lost", "peer-awaited")


@CHECKS.check(PodSituation)
def peer_failed_first(situation: PodSituation) -> Iterator[Result]:
    """Another member of the job ended badly before this pod did."""
    pod = situation.pod
    own = [end.finished for _, end, _ in ended(situation) if end.finished]
    followed = situation.lines_of("peer-lost")
    if not own and not followed:
        return
    first: tuple[Pod, Trouble, ContainerState] | None = None
    for peer in situation.peers:
        for status in peer.statuses:
            end = status.latest_end
            bad = next((t for t in troubles(peer) if t.container == status.name), None)
            if end is None or bad is None or end.exit_code in (0, None) or end.finished is None:
                continue
            if first is None or (first[2].finished and end.finished < first[2].finished):
                first = (peer, bad, end)
    if first is None or first[2].finished is None:
        return
    peer, bad, end = first
    if own and min(own) <= first[2].finished:
        return
    yield finding(
        "peer-pod-failed-first",
        pod.subject,
        f"{peer.meta.name} of the same job ended with {end.reason} (exit code {end.exit_code}) "
        f"before this pod; what this pod reports follows from that. Look there: gpudoctor check "
        f"--pod {peer.meta.short}",
        Evidence(
            peer.meta.path,
            bad.field,
            f"{end.reason}, exit code {end.exit_code}, "
            f"{end.finished.isoformat() if end.finished else ''}",
        ),
        *(line.evidence for line in followed[-1:]),
        *(Evidence(pod.meta.path, field, end_text(s, e)) for s, e, field in ended(situation)),
        values={"pod": pod.meta.short, "name": peer.meta.short},
        severity=Severity.ERROR if own else None,
        related=(peer.subject,),
        lost=(peer.subject,),
        leans_on=("Pod",),
    )


@CHECKS.check(PodSituation)
def waits_for_peer(situation: PodSituation) -> Iterator[Result]:
    """The pod waits by name for another member of the job, and that one does not run."""
    pod = situation.pod
    for container, how in _waiting(situation):
        said = [line for line in situation.lines_of(*_WAITS) if line.container == container.name]
        spec = " ".join((*container.command, *container.args, *container.env.values()))
        words = spec if container.is_init else " ".join((spec, *(x.line.text for x in said)))
        field = "spec.initContainers" if container.is_init else "spec.containers"
        status = pod.status_of(container.name)
        for peer in situation.peers:
            why = _not_running(situation, peer)
            if why is None or not any(mentions.names(words, name) for name in _called(peer)):
                continue
            if status is not None and status.ready and peer.phase != "Failed":
                continue  # a container that is ready may have waited for it long ago
            yield finding(
                "peer-pod-failed-first",
                pod.subject,
                f"{how} {container.name} waits for {peer.meta.name} of the same job, which "
                f"does not run ({why.value}). Look there: gpudoctor check --pod {peer.meta.short}",
                why,
                Evidence(pod.meta.path, f"{field}[{container.name}]", spec[:200]),
                *(line.evidence for line in said[-1:]),
                values={"pod": pod.meta.short, "name": peer.meta.short},
                severity=Severity.ERROR,
                related=(peer.subject,),
                awaits=(peer.subject,),
                leans_on=("Pod",),
            )
            return


_RAY_TYPE = "ray.io/node-type"


def _called(pod: Pod) -> Iterator[str]:
    """Yield the names by which others reach a member: its own, its host name, its service's."""
    yield pod.meta.name
    if pod.hostname:
        yield pod.hostname
    if pod.meta.labels.get(_RAY_TYPE) == "head":
        yield f"{pod.meta.labels.get(jobs.RAY.label)}-head-svc"


def _waiting(situation: PodSituation) -> Iterator[tuple[Container, str]]:
    """Yield the containers that wait for somebody, each with what it is called.

    An init container that runs on or fails; a main one whose log says that it reaches nobody.
    """
    lines = situation.lines_of(*_WAITS)
    for status in situation.pod.statuses:
        container = situation.pod.container(status.name)
        if container is None:
            continue
        if not status.is_init:
            if any(line.container == status.name for line in lines):
                yield container, "Container"
        elif not status.ready and (status.state.kind == "running" or status.restarts):
            yield container, "Init container"


_INDEXES = (
    "training.kubeflow.org/replica-index",
    "batch.kubernetes.io/job-completion-index",
    "jobset.sigs.k8s.io/job-index",
)


def _not_running(situation: PodSituation, pod: Pod) -> Evidence | None:
    """Why a member does not run and will not by itself, None where it does or has ended well."""
    path = pod.meta.path
    if pod.phase == "Failed":
        return None if _is_replaced(situation, pod) else _failure_of(pod)
    if pod.is_terminal:
        return None
    bad = _ails(situation, pod)
    if bad is not None:
        return Evidence(path, bad.field, f"{bad.reason}: {bad.message}".rstrip(": "))
    refused = pod.condition("PodScheduled")
    if pod.node is None and pod.gates:
        return Evidence(path, "spec.schedulingGates", ", ".join(pod.gates))
    if pod.node is None and refused is not None and refused.status == "False":
        said = refused.message or refused.reason
        return Evidence(path, "status.conditions[PodScheduled]", said)
    return None


def _ails(situation: PodSituation, pod: Pod) -> Trouble | None:
    """What is wrong with a container now; one that was restarted once and runs is not meant."""
    for trouble in troubles(pod):
        status = pod.status_of(trouble.container)
        runs = status is not None and status.state.kind == "running"
        if trouble.kind != "init" and not (status and runs and not _loops(situation, status)):
            return trouble
    return None


def _loops(situation: PodSituation, status: ContainerStatus) -> bool:
    """Whether a container that runs just now has ended again and again."""
    ended_at, now = status.last.finished, situation.now
    lately = ended_at is not None and now is not None and now - ended_at < _TO_COME
    return status.restarts >= _OFTEN and lately


def _failure_of(pod: Pod) -> Evidence:
    bad = next(iter(troubles(pod)), None)
    said = f"Failed: {pod.reason or 'a container ended badly'}"
    if bad is not None:
        said = f"Failed: {bad.container} ended with {bad.reason}, exit code {bad.exit_code}"
    return Evidence(pod.meta.path, "status.phase", said)


def _is_replaced(situation: PodSituation, pod: Pod) -> bool:
    """Whether a member of the same role and number was made for one that failed."""
    others = [
        one
        for one in (situation.pod, *situation.peers)
        if one.meta.name != pod.meta.name and one.phase != "Failed"
    ]
    roles = {
        key: value for key, value in pod.meta.labels.items() if "replica" in key or key in _INDEXES
    }
    made = pod.meta.created
    return any(
        all(one.meta.labels.get(key) == value for key, value in roles.items())
        and one.meta.owner == pod.meta.owner
        and (made is None or one.meta.created is None or one.meta.created > made)
        for one in others
    )


# -- members that are not there ------------------------------------------------------------------


@CHECKS.check(PodSituation)
def members_missing(situation: PodSituation) -> Iterator[Result]:
    """The pod runs, and its job has fewer members than it needs, or some that cannot run."""
    job = situation.membership
    if not _depends_on_others(situation):
        return
    if job is None:
        yield from _may_wait(situation)
        return
    if _came_once(situation, job):
        return
    if job.missing and not job.whole:
        yield Unknown(
            f"members of {job.job}",
            f"{len(job.came)} of {job.wanted} are in the input, which may not be all there is",
        )
    elif job.missing and not _is_young(situation, job):
        yield from _not_made(situation, job)
        yield from _quota_is_used_up(situation, job)
    if not job.missing or not job.whole:
        yield from _held_up(situation, job)


def _may_wait(situation: PodSituation) -> Iterator[Result]:
    """Another pod of the job cannot run, and nothing in the input says whether the job needs it."""
    labels, owner = situation.pod.meta.labels, situation.pod.meta.owner or ""
    job = next((one for one in jobs.LABELS if one.sized and one.label in labels), None)
    if job is None:
        return
    kind = job.kind_of(labels, owner)
    if all(situation.scope.has_all(one.name) for one in ((kind,) if kind else job.kinds)):
        return
    called = f"{kind.name if kind else 'the job'} {labels[job.label]}"
    for peer in situation.peers:
        if peer.phase != "Failed" and _is_old(situation, peer) and _not_running(situation, peer):
            yield Unknown(
                f"whether this pod waits for {peer.meta.name}",
                f"that one cannot run, and {called}, which says how many members it needs, is not "
                "in the input",
            )
            return


def _depends_on_others(situation: PodSituation) -> bool:
    """Whether the pod runs and nothing is wrong with it but that it may wait for others."""
    pod = situation.pod
    if pod.node is None or pod.is_terminal or pod.meta.deleted:
        return False
    running = [s for s in pod.statuses if not s.is_init and s.state.kind == "running"]
    return bool(running) and (_ails(situation, pod) is None or bool(situation.lines_of(*_WAITS)))


def _came_once(situation: PodSituation, job: Membership) -> bool:
    """Whether NCCL's log shows that the members have met: then one went, and others tell why."""
    log = situation.nccl
    if log is None:
        return False
    met = any(c.completed and (c.nnodes or 0) > 1 for c in log.communicators)
    return met or log.nodes >= job.wanted


def _is_young(situation: PodSituation, job: Membership) -> bool:
    """Whether the newest pod of the job was made a moment ago: more may follow."""
    now, times = situation.now, [job.started]
    times += [e.seen for e in situation.owner_events if e.reason.startswith("SuccessfulCreate")]
    newest = max((time for time in times if time), default=None)
    return now is None or newest is None or now - newest < _TO_COME


def _severity(job: Membership) -> Severity | None:
    """A Ray cluster works with the members that it has; only what asks for all of them waits."""
    return Severity.WARNING if job.job.kind == "RayCluster" else None


def _not_made(situation: PodSituation, job: Membership) -> Iterator[Result]:
    pod, subject = situation.pod, job.job
    names = ", ".join(member.meta.name for member in job.came[:_SHOWN])
    told = [c for c in job.conditions if c.status == "True" and (c.reason or c.message)]
    yield finding(
        "rendezvous-member-missing",
        pod.subject,
        f"{subject.kind} {subject.name} wants {job.wanted} members and {len(job.came)} "
        f"{'exists' if len(job.came) == 1 else 'exist'} ({names}): {job.missing} of them "
        f"{'was' if job.missing == 1 else 'were'} never made, or deleted since. Ready says only "
        "that this container runs; the job waits for all. Why they are not made stands in events "
        "of the job, which live an hour.",
        job.said,
        Evidence(pod.meta.path, "members that exist", f"{len(job.came)} of {job.wanted}"),
        *(
            Evidence(str(subject), f"status.conditions[{c.type}] {c.reason}", c.message)
            for c in told[-1:]
        ),
        values={"member": f"{job.missing} of {job.wanted} members"},
        severity=_severity(job),
        certainty=Certainty.CERTAIN if job.by_object else Certainty.LIKELY,
        blame=Blame.PLATFORM,
        related=(subject,),
        fix=f"Read why they are not made: kubectl -n {pod.meta.namespace} describe "
        f"{subject.kind.lower()} {subject.name}; then the namespace's ResourceQuotas and the log "
        "of the job's controller.",
    )


def _quota_is_used_up(situation: PodSituation, job: Membership) -> Iterator[Result]:
    """A quota leaves less than one more member like this one asks for."""
    pod = situation.pod
    for quota in situation.quotas:
        for resource, wanted in pod.requests.items():
            limit = quota.limit(resource)
            if limit is None or limit[1] - limit[2] >= wanted:
                continue
            key, hard, used = limit
            yield finding(
                "resourcequota-exceeded",
                pod.subject,
                f"ResourceQuota {quota.meta.name} leaves {supply.number(hard - used)} of "
                f"{resource}, and one more member like {pod.meta.name} asks for "
                f"{supply.number(wanted)}: the API server refuses what is not there.",
                Evidence(
                    quota.meta.path,
                    f"status.used vs status.hard [{key}]",
                    f"{used:f} vs {hard:f}",
                ),
                supply.request_evidence(situation, resource),
                values={"name": quota.meta.name, "resource": resource},
                certainty=Certainty.LIKELY,
                related=(job.job,),
            )
            return


def _held_up(situation: PodSituation, job: Membership) -> Iterator[Result]:
    """All members exist, and some have failed or do not start."""
    others = [member for member in job.came if member.meta.name != situation.pod.meta.name]
    held = [
        (member, why)
        for member in others
        if _is_old(situation, member) and (why := _not_running(situation, member)) is not None
    ]
    if not held or 1 + len(others) - len(held) + job.ended >= job.wanted:
        return
    failed = [(member, why) for member, why in held if member.phase == "Failed"]
    if failed:
        yield _failed_for_good(situation, job, *failed[0])
    held = [pair for pair in held if pair not in failed]
    if held:
        yield _cannot_run(situation, job, held)


def _failed_for_good(situation: PodSituation, job: Membership, member: Pod, why: Evidence) -> Draft:
    pod = situation.pod
    return finding(
        "peer-pod-failed-first",
        pod.subject,
        f"{member.meta.name} of the same job has failed and is not made again; {job.job.kind} "
        f"{job.job.name} wants {job.wanted} members, so this pod waits for it. Look there: "
        f"gpudoctor check --pod {member.meta.short}",
        why,
        job.said,
        values={"pod": pod.meta.short, "name": member.meta.short},
        severity=Severity.WARNING,
        related=(member.subject,),
        lost=(member.subject,),
    )


def _cannot_run(
    situation: PodSituation, job: Membership, held: list[tuple[Pod, Evidence]]
) -> Draft:
    pod = situation.pod
    names = ", ".join(member.meta.name for member, _ in held[:_SHOWN])
    return finding(
        "rendezvous-member-missing",
        pod.subject,
        f"{job.job.kind} {job.job.name} wants {job.wanted} members, and {len(held)} of them "
        f"cannot run ({names}). Ready says only that this container runs; the job waits for all.",
        job.said,
        *(why for _, why in held[:_SHOWN]),
        values={"member": names},
        severity=_severity(job),
        certainty=Certainty.LIKELY,
        blame=Blame.PLATFORM,
        related=(job.job,),
        awaits=tuple(member.subject for member, _ in held[:_SHOWN]),
        fix=f"See why it does not run: gpudoctor check --pod {held[0][0].meta.short}",
    )


def _is_old(situation: PodSituation, pod: Pod) -> bool:
    made, now = pod.meta.created, situation.now
    return made is not None and now is not None and now - made >= _TO_COME
