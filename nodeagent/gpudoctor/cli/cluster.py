"""Which cluster a command speaks to: the options that say so, and the client they ask for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

if TYPE_CHECKING:
    from gpudoctor.sources.kubernetes.client import Client

C = TypeVar("C", bound=Callable[..., Any])


class Access(NamedTuple):
    """What the options say; without any of them, the current context of the usual kubeconfig."""

    kubeconfig: str | None
    context: str | None
    server: str | None

    def connect(self) -> Client:
        """Return a client, which sends nothing yet; InputError where there is no such cluster."""
        from gpudoctor.sources.kubernetes.client import connect  # imported late: requests is slow

        return connect(*self)


def options(command: C) -> C:
    """Add `--kubeconfig`, `--context` and `--server` to a command; it gets them as `access`."""
    return _as_access(
        command,
        click.option("--context", help="The kubeconfig context of the live cluster."),
        click.option("--kubeconfig", metavar="FILE", help="The kubeconfig file."),
        click.option(
            "--server", metavar="URL", help="An API server without credentials (kubectl proxy)."
        ),
    )


def options_of_daemon(command: C) -> C:
    """Add `--kubeconfig` and `--context` to what runs in a pod, where it needs neither."""
    return _as_access(
        command,
        click.option("--kubeconfig", metavar="FILE", help="The kubeconfig file, outside of a pod."),
        click.option("--context", help="The kubeconfig context."),
    )


def _as_access(command: C, *chosen: Callable[[Any], Any]) -> C:
    @functools.wraps(command)
    def with_access(
        *args: Any,
        kubeconfig: str | None,
        context: str | None,
        server: str | None = None,
        **rest: Any,
    ) -> Any:
        return command(*args, access=Access(kubeconfig, context, server), **rest)

    decorated: Any = with_access
    for option in reversed(chosen):
        decorated = option(decorated)
    return cast(C, decorated)
