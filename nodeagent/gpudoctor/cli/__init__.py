"""The command line: one module a command, imported when it is called."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from gpudoctor import __version__
from gpudoctor.cli import pipe
from gpudoctor.errors import InputError

_COMMANDS = {
    "compat": "say whether a driver runs an image's CUDA on a GPU",
    "check": "say what is wrong with a pod, a node or this host",
    "explain": "explain what a pasted log, table or dump says",
    "nccl": "read NCCL logs of many ranks: which network, GDR, what failed and where",
    "topo": "draw which NIC, NUMA node and CPUs serve which GPU",
    "preflight": "say whether this container has what its job needs, before the job starts",
    "fleet": "show all nodes side by side, as their agents see them, and the odd ones out",
    "labels": "show which labels a node has or would get, and the fact behind each",
    "agent": "look at a node each period and publish what stays true (the DaemonSet)",
    "controller": "take back what silent agents published, and hold the brake (one a cluster)",
    "bundle": "record this host and the cluster for a later diagnosis, redacted",
    "runbook": "list the findings, or read one's runbook",
}
"""Command -> its line in the help; the module of the same name here holds `command`."""

USAGE_ERROR = 2
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a write to standard output fails with where nothing more goes into it."""


class _LazyGroup(click.Group):
    """A group that imports a command's module only when that command is used."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            # --help and --version print while the arguments are read.
            pipe.discard_the_rest()
            raise click.exceptions.Exit(0) from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Before click sees it, which exits with 1: "found". Reports keep their own status.
            pipe.discard_the_rest()
            return 0

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"{__name__}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpudoctor")
def root() -> None:
    """Names the one root cause when a GPU pod is Pending, crash-loops, hangs or is slow."""


def main() -> None:
    """Run the command line; never a traceback, whatever goes wrong."""
    if sys.stdout is None:
        # Closed by the caller, who wants the exit status only.
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    try:
        sys.exit(root.main(prog_name="gpudoctor", standalone_mode=False) or 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except InputError as error:
        _say(str(error))
        sys.exit(USAGE_ERROR)
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            _internal(error)
        else:
            _say(f"standard output cannot be written: {error.strerror}")
        sys.exit(USAGE_ERROR)
    except Exception as error:  # noqa: BLE001 - the last line of defence against tracebacks
        _internal(error)
        sys.exit(USAGE_ERROR)


def _internal(error: Exception) -> None:
    _say(f"internal error, please report it: {type(error).__name__}: {error}")


def _say(message: str) -> None:
    """Write one line to standard error, without what names from outside could do to a terminal."""
    from gpudoctor.render.clean import one_line  # imported late: most runs end well

    click.echo(f"gpudoctor: {one_line(message)}", err=True)
