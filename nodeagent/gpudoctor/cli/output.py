"""What all reporting commands share: the output options, printing, and the exit status."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpudoctor import report as contract
from gpudoctor.cli.pipe import printing
from gpudoctor.errors import InputError
from gpudoctor.report import Report, Severity, Verdict

C = TypeVar("C", bound=Callable[..., Any])

FOUND, CANNOT_TELL = 1, 3

host_root = click.option(
    "--host-root",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Where the host's /sys and /proc are mounted.",
)
"""Where a host is read from, as an option of every command that reads one."""


def options(command: C) -> C:
    """Add `-o/--output`, `--no-color` and `--fail-on` to a command."""
    for option in (
        click.option(
            "--fail-on",
            type=click.Choice([severity.value for severity in reversed(Severity)] + ["never"]),
            default=Severity.ERROR.value,
            show_default=True,
            help="Exit with 1 from this severity on.",
        ),
        click.option("--no-color", is_flag=True, help="No colour, even on a terminal."),
        click.option(
            "-o",
            "--output",
            type=click.Choice(["text", "json", "junit", "html"]),
            default="text",
            show_default=True,
            help="How to print the answer.",
        ),
    ):
        command = option(command)
    return command


def emit(report: Report, *, output: str, no_color: bool, fail_on: str) -> int:
    """Print the report and return the exit status."""
    with printing():
        _print(report, output, no_color=no_color)
    return exit_status(report, fail_on)


def _print(report: Report, output: str, *, no_color: bool) -> None:
    if output == "json":
        sys.stdout.buffer.write(contract.encode(report))
    elif output == "junit":
        from gpudoctor.render import junit

        junit.render(report, sys.stdout.buffer)
    elif output == "html":
        _emit_html(report)
    else:
        from gpudoctor.render import text

        text.render(report, sys.stdout, color=False if no_color else None)


def _emit_html(report: Report) -> None:
    from gpudoctor.render import html

    page = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
    try:
        html.render(report, page)
        page.flush()
    except html.MissingLibraryError as error:
        raise InputError(str(error)) from None
    finally:
        page.detach()


def exit_status(report: Report, fail_on: str) -> int:
    """0 nothing at or above `fail_on`, 1 found, 3 when a needed fact is unknown and nothing was."""
    worst = report.worst()
    if fail_on != "never" and worst is not None and worst.rank >= Severity(fail_on).rank:
        return FOUND
    return CANNOT_TELL if report.verdict is Verdict.UNKNOWN else 0
