"""`gpudoctor nccl`: the logs of one job, many ranks, in one file or many, or as they grow."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import click

from gpudoctor import readings, registry
from gpudoctor.cli import output, pipe
from gpudoctor.errors import InputError
from gpudoctor.readings import Reading
from gpudoctor.render.clean import one_line
from gpudoctor.report import Report
from gpudoctor.sources.text import STDIN, TextInput, open_input

_PAUSE_SECONDS = 0.3


@click.command("nccl")
@click.argument("files", nargs=-1, metavar="[FILE…|-]")
@click.option("--follow", is_flag=True, help="Keep reading as the file grows; Ctrl-C ends it.")
@output.options
@click.pass_context
def command(ctx: click.Context, /, files: tuple[str, ...], follow: bool, **emitting: Any) -> None:
    """Say what the NCCL logs of one job show: network, GDR, what failed first and where.

    FILEs are read together, plain, gzip or zstd: one a rank, one a pod, or one for all. Reads
    standard input without FILE. With --follow each change is told on standard error, and the
    report comes at the end.
    """
    checks = registry.load()
    reading = _follow(files, checks) if follow else _read(files)
    ctx.exit(_emit(readings.judge(reading, checks), **emitting))


def _read(files: tuple[str, ...]) -> Reading:
    from gpudoctor.readings import nccl_log

    return nccl_log.read_all(_opened(sorted(files) or [STDIN]))


def _opened(names: Iterable[str]) -> Iterator[TextInput]:
    """One after the other: a job of a thousand ranks has more files than a process may open."""
    for name in names:
        with open_input(name) as text:
            yield text


def _follow(files: tuple[str, ...], checks: registry.Registry) -> Reading:
    from gpudoctor.readings import nccl_log
    from gpudoctor.render import nccl as picture

    if len(files) > 1:
        raise InputError("--follow reads one FILE, or standard input")
    (name,) = files or (STDIN,)
    last: Reading | None = None
    told: set[str] = set()
    headline = ""
    with open_input(name) as text:
        try:
            for last in nccl_log.follow(text, lambda: _pause(endless=name != STDIN)):
                report = readings.judge(last, checks)
                now = picture.headline(report.facts["nccl"])
                if now != headline:
                    _say(now)
                headline = now
                _tell(report, told)
        except KeyboardInterrupt:
            pass
    if last is None:
        raise InputError(f"{name}: nothing to read")
    return last


def _tell(report: Report, told: set[str]) -> None:
    """Say each finding once, when it first shows."""
    for finding in report.findings:
        if finding.id not in told:
            told.add(finding.id)
            _say(f"{finding.severity}: {finding.title} [{finding.runbook}]")


def _say(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {one_line(line)}", err=True)


def _pause(*, endless: bool) -> bool:
    """Wait for more; False at the end of an input that does not grow."""
    if endless:
        time.sleep(_PAUSE_SECONDS)
    return endless


def _emit(report: Report, **emitting: Any) -> int:
    if emitting["output"] != "text":
        return output.emit(report, **emitting)
    from gpudoctor.render import nccl as picture

    with pipe.printing():
        picture.render(report, sys.stdout, color=False if emitting["no_color"] else None)
    return output.exit_status(report, emitting["fail_on"])
