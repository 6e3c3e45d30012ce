"""The command line: one module a command, imported when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from gpudoctor import __version__
from gpudoctor.errors import InputError

_COMMANDS = {
    "compat": "say whether a driver runs an image's CUDA on a GPU",
    "check": "say what is wrong with a pod, a node or this host",
    "explain": "explain what a pasted log, table or dump says",
    "nccl": "read NCCL logs of many ranks: which network, GDR, what failed and where",
    "topo": "draw which NIC, NUMA node and CPUs serve which GPU",
    "preflight": "say whether this container has what its job needs, before the job starts",
    "bundle": "record this host and the cluster for a later diagnosis, redacted",
    "runbook": "list the findings, or read one's runbook",
}
"""Command -> its line in the help; the module of the same name here holds `command`."""

USAGE_ERROR = 2


class _LazyGroup(click.Group):
    """A group that imports a command's module only when that command is used."""

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
    try:
        sys.exit(root.main(prog_name="gpudoctor", standalone_mode=False) or 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except InputError as error:
        click.echo(f"gpudoctor: {error}", err=True)
        sys.exit(USAGE_ERROR)
    except BrokenPipeError:
        # The reader of our output went away (a pager, head): not an error of ours.
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:  # noqa: BLE001 - the last line of defence against tracebacks
        what = f"{type(error).__name__}: {error}".replace("\n", " ")
        click.echo(f"gpudoctor: internal error, please report it: {what}", err=True)
        sys.exit(USAGE_ERROR)
