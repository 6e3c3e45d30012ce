"""`gpudoctor labels`: which labels a node would get, with the fact behind each."""

from __future__ import annotations

import sys

import click

from gpudoctor import registry
from gpudoctor import report as contract
from gpudoctor.cli import cluster, pipe
from gpudoctor.cli import output as outputs
from gpudoctor.cli.cluster import Access
from gpudoctor.report import Report


@click.command("labels")
@click.option("--node", metavar="NAME", help="This node: what is published, and what has it now.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="FILE",
    help="A bundle or dump instead of the live host or cluster; - is standard input.",
)
@cluster.options
@outputs.host_root
@click.option(
    "-n",
    "--namespace",
    default="gpudoctor",
    show_default=True,
    help="Where the agents run: the nodes' Diagnosis objects are there.",
)
@click.option("--no-color", is_flag=True, help="No colour, even on a terminal.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the answer.",
)
def command(
    node: str | None,
    sources: tuple[str, ...],
    access: Access,
    host_root: str | None,
    namespace: str,
    no_color: bool,
    output: str,
) -> None:
    """Show the node labels of this host, or of a node: each value, and the fact behind it.

    With --node, `value` is what its agent published last and `now` what the Node object has.
    What is not known has no label; `because` says what is missing.
    """
    from gpudoctor.readings import labels  # imported late: --help needs none of it

    checks = registry.load()
    if sources:
        from gpudoctor.sources import recorded

        report = labels.of_bundle(recorded.load(sources), node, checks)
    elif node:
        report = _live(node, namespace, access)
    else:
        report = labels.of_host(host_root, checks)
    with pipe.printing():
        if output == "json":
            sys.stdout.buffer.write(contract.encode(report))
            return
        from gpudoctor.render import labels as table

        table.render(report, sys.stdout, color=False if no_color else None)


def _live(name: str, namespace: str, access: Access) -> Report:
    from gpudoctor.readings import labels
    from gpudoctor.sources.kubernetes import published  # imported late: requests is slow

    with access.connect() as connection:
        bundle = published.gather_labels(connection, name, namespace)
    return labels.of_bundle(bundle, name, registry.load())
