"""`gpudoctor topo`: the matrix, and which NIC and CPUs serve which GPU; live or recorded."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpudoctor import readings, registry
from gpudoctor.cli import output, pipe
from gpudoctor.readings import Reading
from gpudoctor.sources import bundle
from gpudoctor.sources.text import open_input


@click.command("topo")
@click.option("--from", "source", metavar="FILE", help="A bundle, or `nvidia-smi topo -m` text.")
@output.host_root
@output.options
@click.pass_context
def command(
    ctx: click.Context, /, source: str | None, host_root: str | None, **emitting: Any
) -> None:
    """Draw who is near to whom: GPUs, NVLink, NICs, NUMA nodes, CPUs."""
    reading = _recorded(source) if source else _live(host_root)
    report = readings.judge(reading, registry.load(), lambda entry: entry.layer == "TOP")
    if emitting["output"] != "text":
        ctx.exit(output.emit(report, **emitting))
    from gpudoctor.render import topology  # imported late: rich is slow to start

    with pipe.printing():
        topology.render(report, sys.stdout, color=False if emitting["no_color"] else None)
    ctx.exit(output.exit_status(report, emitting["fail_on"]))


def _live(host_root: str | None) -> Reading:
    from gpudoctor.readings import host

    return host.read_live(host_root)


def _recorded(source: str) -> Reading:
    with open_input(source) as text:
        if not bundle.is_bundle(text.head):
            return readings.load("topology").read(text)
        raw = text.read()
    from gpudoctor.readings import host

    return host.read_recorded(bundle.decode(raw, source))
