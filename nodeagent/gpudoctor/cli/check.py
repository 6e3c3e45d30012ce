"""`gpudoctor check`: a pod, pods, a node, a job, or this host, live or recorded."""

from __future__ import annotations

from typing import Any

import click

from gpudoctor import readings, registry
from gpudoctor.catalogue import Entry
from gpudoctor.cli import output
from gpudoctor.readings import Reading
from gpudoctor.sources import bundle
from gpudoctor.sources.bundle import Bundle
from gpudoctor.sources.text import open_input


@click.command("check")
@click.option("--pod", metavar="[NS/]NAME", help="The pod to diagnose.")
@click.option("-n", "--namespace", help="Its namespace.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="FILE",
    help="A recorded bundle or dump instead of the live cluster; several are put together.",
)
@click.option("--select", multiple=True, metavar="CODE", help="Only findings with this prefix.")
@click.option("--ignore", multiple=True, metavar="CODE", help="No findings with this prefix.")
@output.options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    pod: str | None,
    namespace: str | None,
    sources: tuple[str, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    **emitting: Any,
) -> None:
    """Say what is wrong with a pod, a node, or this host, and why."""
    checks = registry.load()
    recorded = _load(sources)
    reading = _read(recorded, pod, namespace)
    report = readings.judge(reading, checks, _selection(select, ignore))
    ctx.exit(output.emit(report, **emitting))


def _load(sources: tuple[str, ...]) -> Bundle:
    loaded = [bundle.decode(open_input(name).read(), name) for name in sources]
    return loaded[0]


def _read(recorded: Bundle, pod: str | None, namespace: str | None) -> Reading:
    from gpudoctor.readings import kubernetes

    source = kubernetes.open_bundle(recorded)
    if pod is None:
        raise click.UsageError("say which pod: --pod NAME")
    in_name, _, name = pod.rpartition("/")
    return kubernetes.read_pod(
        source, kubernetes.find_pod(source.cluster, name, in_name or namespace)
    )


def _selection(select: tuple[str, ...], ignore: tuple[str, ...]) -> Any:
    def selected(entry: Entry) -> bool:
        wanted = not select or entry.code.startswith(select)
        return wanted and not (ignore and entry.code.startswith(ignore))

    return selected
