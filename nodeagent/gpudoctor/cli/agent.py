"""`gpudoctor agent`: what the DaemonSet runs on each node."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import click

from gpudoctor.cli import cluster, daemon, output
from gpudoctor.cli.cluster import Access
from gpudoctor.errors import InputError
from gpudoctor.publish import names
from gpudoctor.publish import nfd as nfd_file

_say = daemon.speaker("agent")


@click.command("agent")
@click.option(
    "--node",
    envvar="NODE_NAME",
    metavar="NAME",
    help="The name of this node.  [default: $NODE_NAME]",
)
@output.host_root
@click.option(
    "--period",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="Seconds between two looks at the node.",
)
@daemon.listen
@click.option(
    "--observe",
    multiple=True,
    metavar="CODE",
    help="Findings with this prefix decide nothing: metrics and Diagnosis have them as info.",
)
@click.option(
    "--checks",
    multiple=True,
    metavar="NAME",
    help="Also run the checks of this entry point of another distribution.",
)
@click.option(
    "--nfd",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write the labels into this folder, for Node Feature Discovery to put on the node, and "
    f"nothing to the node itself; on a host it is {nfd_file.FOLDER}.",
)
@cluster.options_of_daemon
@click.option(
    "--write-nvml",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Instead of all that, write what NVML says into this folder, for the agent to read.",
)
def command(
    node: str | None,
    host_root: str | None,
    period: float,
    listen: str,
    observe: tuple[str, ...],
    checks: tuple[str, ...],
    nfd: Path | None,
    access: Access,
    write_nvml: Path | None,
) -> None:
    """Look at this node each period and publish what stays true.

    Labels, a condition, Events and Diagnosis objects, as `gpudoctor labels` shows them; a Lease
    says that they still hold. It runs until SIGTERM, which takes nothing back: the next agent
    takes over. $POD_NAMESPACE and $POD_NAME say where it runs.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if write_nvml is not None:
        from gpudoctor.agent import nvml_writer  # imported late: the agent proper needs none of it

        nvml_writer.run(write_nvml, period, stop, _say)
        return
    if not node:
        raise click.UsageError("say which node this is: --node, or NODE_NAME by the downward API")
    _check_codes(observe, checks)
    from gpudoctor.agent.loop import Agent, Settings  # imported late: requests is slow

    settings = Settings(
        node=node,
        namespace=os.environ.get("POD_NAMESPACE") or names.NAMESPACE,
        pod=os.environ.get("POD_NAME") or f"agent-of-{node}",
        period_s=period,
        listen=listen,
        host_root=host_root,
        observe=observe,
        checks=checks,
        nfd=nfd,
    )
    Agent(settings, access.connect, _say).run(stop)


def _check_codes(observe: tuple[str, ...], checks: tuple[str, ...]) -> None:
    """InputError for a prefix of no code; those of other distributions only the child knows."""
    if not observe or checks:
        return
    from gpudoctor.registry import load  # imported late: few are observed

    codes = [entry.code for entry in load(()).catalogue]
    for prefix in observe:
        if not any(code.startswith(prefix) for code in codes):
            raise InputError(f"--observe {prefix}: no finding's code begins so; see `runbook`")
