"""`gpudoctor fleet`: the reports of all nodes side by side, and the odd ones out."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpudoctor.cli import cluster, output, pipe
from gpudoctor.cli.cluster import Access
from gpudoctor.publish.names import NAMESPACE
from gpudoctor.sources.bundle import Bundle


@click.command("fleet")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="FILE",
    help="A dump (`kubectl get gdx -n gpudoctor -o json`) or bundle instead of the live cluster; "
    "- is standard input.",
)
@cluster.options
@click.option(
    "-n", "--namespace", default=NAMESPACE, show_default=True, help="Where the agents run."
)
@output.options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    access: Access,
    namespace: str,
    **emitting: Any,
) -> None:
    """Summarise what the agents of all nodes published: verdicts, root causes, odd ones out.

    An odd one is a node that differs from at least 80 % of the nodes with its GPU model.
    """
    from gpudoctor.readings import fleet  # imported late: --help needs none of it

    report = fleet.read(_read(sources, namespace, access))
    if emitting["output"] != "text":
        ctx.exit(output.emit(report, **emitting))
    from gpudoctor.render import fleet as table

    with pipe.printing():
        table.render(report, sys.stdout, color=False if emitting["no_color"] else None)
    ctx.exit(output.exit_status(report, emitting["fail_on"]))


def _read(sources: tuple[str, ...], namespace: str, access: Access) -> Bundle:
    if sources:
        from gpudoctor.sources import recorded

        return recorded.load(sources)
    from gpudoctor.sources.kubernetes import published  # imported late: requests is slow

    with access.connect() as connection:
        return published.gather_fleet(connection, namespace)
