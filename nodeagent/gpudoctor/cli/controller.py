"""`gpudoctor controller`: the small Deployment beside the agents, and the clean-up at the end."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading

import click

from gpudoctor.cli import cluster, daemon
from gpudoctor.cli.cluster import Access
from gpudoctor.publish import names
from gpudoctor.render.clean import one_line

_say = daemon.speaker("controller")

_EPILOG = f"""\b
How long it takes, in the defaults:
  a dead agent's labels    gone within 210 s: --agent-timeout and two looks, each a twelfth of it
  the leader dies          another leads within 35 s, and gives every agent its whole time anew
  the API server was away  the same: what was not watched counts for nobody
  the brake                lets go by itself after 10 periods

\b
To take the brake off by hand, for 10 periods:
  kubectl -n NAMESPACE annotate lease {names.LEADER_LEASE} {names.BRAKE}-
"""


@click.command("controller", epilog=_EPILOG)
@click.option(
    "--agent-timeout",
    type=click.FloatRange(min=1),
    default=180,
    show_default=True,
    help="Seconds without a renewed Lease after which an agent is silent.",
)
@click.option(
    "--period",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="The agents' --period, in seconds: the time in which the brake counts.",
)
@click.option(
    "--brake-share",
    type=click.FloatRange(0, 100),
    default=30,
    show_default=True,
    help="The brake goes on when over so many percent of the nodes, and at least three, turn "
    "failing within one period.",
)
@click.option("--taint", is_flag=True, help=f"Taint failing nodes: {names.TAINT}:NoSchedule.")
@click.option(
    "--clean-up",
    is_flag=True,
    help="Instead of all that, take everything of ours out of the cluster, say what, and end.",
)
@daemon.listen
@cluster.options_of_daemon
def command(
    agent_timeout: float,
    period: float,
    brake_share: float,
    taint: bool,
    clean_up: bool,
    listen: str,
    access: Access,
) -> None:
    """Take back what silent agents published, and hold the brake.

    One of several leads. It strips labels and condition of a node whose agent is silent, marks its
    Diagnosis objects stale, keeps the ConfigMap gpudoctor-pools, and runs until SIGTERM.
    $POD_NAMESPACE says where agents and controller run.
    """
    namespace = os.environ.get("POD_NAMESPACE") or names.NAMESPACE
    if clean_up:
        _clean_up(namespace, access)
        return
    from gpudoctor.controller.loop import Controller
    from gpudoctor.controller.term import Settings

    stop = threading.Event()
    settings = Settings(
        namespace=namespace,
        timeout=agent_timeout,
        period=period,
        share=brake_share / 100,
        taint=taint,
    )
    # A container that starts anew in its pod is another candidate.
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{secrets.token_hex(4)}"
    controller = Controller(settings, identity, access.connect, _say)

    def end(*_: object) -> None:
        stop.set()
        controller.wake()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    controller.run(listen, stop)


def _clean_up(namespace: str, access: Access) -> None:
    from gpudoctor.controller.cleanup import CleanUp

    with access.connect() as client:
        removed = CleanUp(client, namespace, _say_done).run()
    _say_done(removed)


def _say_done(message: str) -> None:
    """Write one line of what was removed: that is what the command is for."""
    click.echo(one_line(message))
