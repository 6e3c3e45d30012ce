"""`gpudoctor check`: a pod, pods, a node, a job, or this host, live or recorded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gpudoctor import readings, registry
from gpudoctor.catalogue import Entry
from gpudoctor.cli import cluster, output
from gpudoctor.cli.cluster import Access
from gpudoctor.errors import InputError
from gpudoctor.readings import Reading
from gpudoctor.report import ReportSubject
from gpudoctor.sources import recorded
from gpudoctor.sources.bundle import Bundle, Scope

if TYPE_CHECKING:
    from gpudoctor.readings.kubernetes import Input


class Target(msgspec.Struct, frozen=True):
    """What the command line asks about; at most one of them but `namespace` is set."""

    pod: str | None
    selector: str | None
    all_pods: bool
    node: str | None
    job: str | None
    namespace: str | None
    lint: str | None = None

    def __post_init__(self) -> None:
        if "" in (self.pod, self.selector, self.node, self.job):
            # As of an unset variable: it must not turn the question into one about this host.
            raise click.UsageError("the name after --pod, -l, --node or --job is empty")
        chosen = [self.pod, self.selector, self.all_pods, self.node, self.job, self.lint]
        if sum(map(bool, chosen)) > 1:
            raise click.UsageError("say one of --pod, -l, -A, --node, --job and --lint")

    @property
    def is_host(self) -> bool:
        """Whether nothing of the cluster is asked about: then it is this host."""
        return not (self.pod or self.selector or self.all_pods or self.node or self.job)


@click.command("check")
@click.option("--pod", metavar="[NS/]NAME", help="This pod.")
@click.option("-l", "--selector", metavar="SELECTOR", help="The pods with these labels.")
@click.option("-A", "all_pods", is_flag=True, help="All GPU pods that are not well.")
@click.option("--node", metavar="NAME", help="This node.")
@click.option("--job", metavar="KIND/NAME", help="The pods of this job, JobSet, RayCluster, …")
@click.option(
    "--lint",
    metavar="FILE",
    help="The pod templates of this manifest, before it is applied; with --context, --kubeconfig, "
    "--server or --from also against that cluster's nodes, quotas, runtime classes and pools.",
)
@click.option("-n", "--namespace", help="The namespace to look in.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="FILE",
    help="A bundle, a kubectl dump (yaml or json) or a log instead of the live cluster; "
    "- is standard input; several are put together.",
)
@cluster.options
@output.host_root
@click.option("--profile", metavar="FILE", help="What this site expects of its nodes (TOML).")
@click.option("--select", multiple=True, metavar="CODE", help="Only findings with this prefix.")
@click.option("--ignore", multiple=True, metavar="CODE", help="No findings with this prefix.")
@output.options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    pod: str | None,
    selector: str | None,
    all_pods: bool,
    node: str | None,
    job: str | None,
    lint: str | None,
    namespace: str | None,
    sources: tuple[str, ...],
    access: Access,
    host_root: str | None,
    profile: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    **emitting: Any,
) -> None:
    """Say what is wrong with a pod, a node or this host, and why.

    Without --pod, -l, -A, --node, --job or --lint it is about this host and container.
    """
    target = Target(pod, selector, all_pods, node, job, namespace, lint)
    checks = registry.load()
    selected = _selection(checks, select, ignore)
    if lint:
        reading = _lint(lint, target, sources, access)
    elif sources:
        reading = _read_files(sources, target)
    elif target.is_host:
        from gpudoctor.readings import host  # imported late: a pod needs none of it

        reading = host.read_live(host_root)
    else:
        reading = _read_live(target, access, host_root)
    if profile:
        from gpudoctor.readings import site  # imported late: few sites have one

        reading = site.apply(reading, site.load(profile), datetime.now(UTC).date())
    report = readings.judge(reading, checks, selected)
    ctx.exit(output.emit(report, **emitting))


def _lint(name: str, target: Target, sources: tuple[str, ...], access: Access) -> Reading:
    """Read manifests alone, or beside the cluster that an option names or a dump of one."""
    from gpudoctor.readings import manifests  # imported late: only this needs them

    found, objects = manifests.load(name)
    around = recorded.load(sources) if sources else None
    namespace = target.namespace
    if not sources and any(access):
        from gpudoctor.sources.kubernetes import gather

        live = access.connect()
        try:
            namespace = namespace or live.namespace
            spaces = {one.pod.meta.namespace or namespace: None for one in found}
            around = gather.gather_for_manifests(live, spaces)
        finally:
            live.close()
    return manifests.read(name, found, objects, around, namespace)


def _read_live(target: Target, access: Access, host_root: str | None) -> Reading:
    from gpudoctor.readings import joined, kubernetes
    from gpudoctor.sources.kubernetes import gather  # imported late: requests is slow

    connection = access.connect()
    try:
        namespace = target.namespace or connection.namespace
        if target.pod:
            in_name, _, name = target.pod.rpartition("/")
            target = msgspec.structs.replace(target, namespace=in_name or namespace, pod=name)
            gathered = gather.gather_pod(connection, target.namespace or namespace, name)
        elif target.node:
            gathered = gather.gather_node(
                connection, target.node, *filter(None, [target.namespace])
            )
        elif selector := target.selector:
            target = msgspec.structs.replace(target, namespace=namespace)
            gathered = gather.gather_selected(connection, namespace, selector)
        elif job := target.job:
            target = msgspec.structs.replace(target, namespace=namespace)
            gathered = gather.gather_job(connection, namespace, *_job(job))
        else:
            gathered = gather.gather_gpu_pods(connection)
    finally:
        connection.close()
    source = kubernetes.Input(gathered)
    joined.look_around(source, host_root)
    return _read_objects(source, target)


def _read_files(sources: tuple[str, ...], target: Target) -> Reading:
    read_from = recorded.load(sources)
    says_nothing = read_from.scope == Scope() and not read_from.objects and not read_from.hosts
    if says_nothing and (target.is_host or target.all_pods):
        raise InputError(
            f"neither a Kubernetes object nor a host is in {', '.join(sources)}; "
            "`gpudoctor explain FILE` reads logs and tables"
        )
    return _read(read_from, target)


def _read(read_from: Bundle, target: Target) -> Reading:
    from gpudoctor.readings import kubernetes  # imported late: a host needs none of it

    if target.is_host and read_from.hosts:
        from gpudoctor.readings import host

        return host.read_recorded(read_from)
    return _read_objects(kubernetes.Input(read_from), target)


def _read_objects(source: Input, target: Target) -> Reading:
    from gpudoctor.readings import kubernetes

    namespace = target.namespace
    if target.pod:
        in_name, _, name = target.pod.rpartition("/")
        return kubernetes.read_pod_named(source, name, in_name or namespace)
    if target.node:
        return kubernetes.read_node(source, target.node)
    return _read_many(source, target)


def _read_many(source: Input, target: Target) -> Reading:
    from gpudoctor.readings import kubernetes

    namespace = target.namespace
    if target.selector:
        entries = kubernetes.pods_with_labels(source, target.selector, namespace)
        subject = ReportSubject("Pods", target.selector, namespace)
        missing = f"no pod has the labels {target.selector}"
    elif target.job:
        kind, name = _job(target.job)
        entries = kubernetes.pods_of_job(source, kind, name, namespace)
        if not entries and (refused := kubernetes.read_refused(source, kind, name, namespace)):
            return refused
        return kubernetes.read_job(source, kind, name, namespace, entries)
    else:
        return kubernetes.read_gpu_pods(source, namespace, only_unwell=target.all_pods)
    if not entries:
        raise InputError(missing + (f" in namespace {namespace}" if namespace else ""))
    return kubernetes.read_pods(source, subject, entries)


def _job(written: str) -> tuple[str, str]:
    kind, slash, name = written.partition("/")
    if not slash or not name:
        raise click.BadParameter("write it as KIND/NAME, e.g. job/train", param_hint="--job")
    return kind, name


def _selection(
    checks: registry.Registry, select: tuple[str, ...], ignore: tuple[str, ...]
) -> Callable[[Entry], bool]:
    codes = [entry.code for entry in checks.catalogue]
    for prefix in (*select, *ignore):
        if not any(code.startswith(prefix) for code in codes):
            raise click.UsageError(f"no finding's code begins with {prefix!r}; see `runbook`")

    def selected(entry: Entry) -> bool:
        wanted = not select or entry.code.startswith(select)
        return wanted and not (ignore and entry.code.startswith(ignore))

    return selected
