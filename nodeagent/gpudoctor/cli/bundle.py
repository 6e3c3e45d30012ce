"""`gpudoctor bundle`: records what a later diagnosis needs, redacted, into one file."""

from __future__ import annotations

import time

import click
import msgspec

from gpudoctor.cli import cluster, output
from gpudoctor.cli.cluster import Access
from gpudoctor.readings import host as hosts
from gpudoctor.readings.host_facts import Services
from gpudoctor.sources import archive, redaction
from gpudoctor.sources.bundle import Bundle, HostRecording, Scope
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder

_PROGRAMS = (
    "nvidia-smi topo -m",
    "nvidia-smi -q",
    "nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader",
    "nvidia-smi --query-gpu=pstate,utilization.gpu --format=csv,noheader",
    "lspci -vvv",
    "rdma system",
    "modinfo -F license nvidia",
    "dmesg",
)
_ALSO = ("/proc/sys/kernel/hostname", "/proc/modules", "/proc/meminfo", "/etc/os-release")
_BOUND = 20.0
"""Seconds a program may take: `nvidia-smi -q` needs several on eight GPUs."""


@click.command("bundle")
@click.option("--pod", metavar="[NS/]NAME", help="Also what the cluster says of this pod.")
@click.option("--node", metavar="NAME", help="Also what the cluster says of this node.")
@click.option("-n", "--namespace", help="The namespace of the pod.")
@cluster.options
@click.option("--no-host", is_flag=True, help="Leave out this host.")
@output.host_root
@click.option(
    "--host-name",
    default=hosts.LOCAL,
    help="Record the host under this node's name.",
    metavar="NAME",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0, max=3600),
    default=0,
    help="Look at the counters a second time after so many seconds.",
)
@click.option("--no-redact", is_flag=True, help="Keep addresses, host and user names.")
@click.argument("file")
def command(
    file: str,
    pod: str | None,
    node: str | None,
    namespace: str | None,
    access: Access,
    no_host: bool,
    host_root: str | None,
    host_name: str,
    interval: float,
    no_redact: bool,
) -> None:
    """Record this host, and with --pod or --node the cluster, into FILE (.tar.gz or .json)."""
    if "" in (pod, node):
        raise click.UsageError("the name after --pod or --node is empty")
    if no_host and pod is None and node is None:
        raise click.UsageError("--no-host leaves nothing to record without --pod or --node")
    archive.check(file)
    bundle = Bundle(now=hosts.now(), scope=Scope())
    if pod or node:
        bundle = _cluster(pod, node, namespace, access)
    if not no_host:
        recording = record_host(host_root, interval)
        bundle = msgspec.structs.replace(bundle, hosts={**bundle.hosts, host_name: recording})
    archive.write(bundle if no_redact else redaction.redact(bundle), file)
    click.echo(f"{file}: {_contents(bundle)}", err=True)


def _contents(bundle: Bundle) -> str:
    counts = {"object": bundle.objects, "log": bundle.logs, "host": bundle.hosts}
    held = ", ".join(f"{len(of)} {name}{'s' * (len(of) != 1)}" for name, of in counts.items())
    unread = sum(len(host["not_read"]) for host in archive.manifest(bundle)["hosts"].values())
    return f"{held}; not there or not readable: {unread + len(bundle.scope.denied)}"


def _cluster(pod: str | None, node: str | None, namespace: str | None, access: Access) -> Bundle:
    from gpudoctor.sources.kubernetes import gather  # imported late: requests is slow

    with access.connect() as connection:
        if pod:
            within, _, name = pod.rpartition("/")
            return gather.gather_pod(connection, within or namespace or connection.namespace, name)
        return gather.gather_node(connection, node or "")


def record_host(host_root: str | None = None, interval: float = 0) -> HostRecording:
    """Record all that a check reads of this host, and what a better one may want to read."""
    with LiveHost(host_root, bound=_BOUND, programs=_PROGRAMS) as live:
        recorder = Recorder(live)
        hosts.read(recorder, hosts.LOCAL, None, services=Services(host_root or ""))
        for path in _ALSO:
            recorder.read_bytes(path)
        for program in _PROGRAMS:
            recorder.run(program.split(" "))
        if not interval:
            return HostRecording(tree=recorder.tree)
        time.sleep(interval)
        later = Recorder(live)
        hosts.read(later, hosts.LOCAL, None)
    changed = {
        path: entry for path, entry in later.tree.items() if recorder.tree.get(path) != entry
    }
    return HostRecording(tree=recorder.tree, tree_later=changed)
