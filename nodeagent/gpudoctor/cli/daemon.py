"""What the commands that run for ever in a pod share: where they answer, and how they speak."""

from __future__ import annotations

from collections.abc import Callable

import click

from gpudoctor.render.clean import one_line

listen = click.option(
    "--listen",
    metavar="[HOST]:PORT",
    default=":9400",
    show_default=True,
    help="Where /metrics, /healthz and /readyz are answered.",
)


def speaker(command: str) -> Callable[[str], None]:
    """Return what writes one line to standard error, which is the container's log."""

    def say(message: str) -> None:
        click.echo(f"gpudoctor {command}: {one_line(message)}", err=True)

    return say
